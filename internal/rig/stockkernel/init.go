package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// task is what the guest must do. It lies in the initramfs as taskFile.
type task struct {
	Args      []string
	Env       []string
	Dir       string
	Modules   []string // in the initramfs, in the order of loading
	ModuleDir string   // this machine's .../lib/modules/RELEASE
}

const (
	taskFile = "/task.json"
	mountTag = "host"
)

// guestMain is process 1 of the guest. What goes wrong before there is a channel shows on the
// console, and the kernel's panic over the end of process 1 ends QEMU.
func guestMain() {
	t, f, err := open()
	if err != nil {
		fmt.Println("stockkernel init:", err)
		os.Exit(1)
	}
	status, err := t.run(f)
	if err != nil {
		err = f.send(frameFault, []byte(err.Error()))
	} else {
		err = f.send(frameStatus, strconv.AppendInt(nil, int64(status), 10))
	}
	if err != nil {
		fmt.Println("stockkernel init: channel:", err)
		os.Exit(1)
	}
	for {
		unix.Pause() // the other end ends QEMU
	}
}

// open reads the task, loads the boot modules and opens the channel.
func open() (task, *frames, error) {
	var t task
	b, err := os.ReadFile(taskFile)
	if err != nil {
		return t, nil, err
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return t, nil, fmt.Errorf("%s: %w", taskFile, err)
	}
	if err := unix.Mount("dev", "/dev", "devtmpfs", 0, ""); err != nil {
		return t, nil, fmt.Errorf("mount devtmpfs: %w", err)
	}
	for _, name := range t.Modules {
		if err := load(name); err != nil {
			return t, nil, fmt.Errorf("load %s: %w", name, err)
		}
	}
	// The port shows up some time after its driver: the host is asked first.
	for {
		ports, err := filepath.Glob("/dev/vport*p1")
		if err != nil {
			return t, nil, err
		}
		if len(ports) > 0 {
			w, err := os.OpenFile(ports[0], os.O_WRONLY, 0)
			return t, &frames{w: w}, err
		}
		time.Sleep(time.Millisecond)
	}
}

func load(module string) error {
	f, err := os.Open(module)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// run moves into the machine's files and runs the command.
func (t task) run(f *frames) (status int, err error) {
	if err := enter(t.ModuleDir); err != nil {
		return 0, err
	}
	if err := loopbackUp(); err != nil {
		return 0, fmt.Errorf("ip link set lo up: %w", err)
	}
	if err := os.Chdir(t.Dir); err != nil {
		return 0, err
	}
	for _, kv := range t.Env {
		key, value, _ := strings.Cut(kv, "=")
		if err := os.Setenv(key, value); err != nil {
			return 0, fmt.Errorf("environment %s: %w", kv, err)
		}
	}
	path, err := exec.LookPath(t.Args[0])
	if err != nil {
		return 0, err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return 0, fmt.Errorf("uname: %w", err)
	}
	if err := f.send(frameReady, []byte(unix.ByteSliceToString(u.Release[:]))); err != nil {
		return 0, err
	}

	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	stdout, stdoutEnd, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	stderr, stderrEnd, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	p, err := os.StartProcess(path, t.Args, &os.ProcAttr{Files: []*os.File{null, stdoutEnd, stderrEnd}})
	if err != nil {
		return 0, err
	}
	stdoutEnd.Close()
	stderrEnd.Close()
	copied := make(chan error, 2)
	go func() { copied <- f.copy(frameStdout, stdout) }()
	go func() { copied <- f.copy(frameStderr, stderr) }()

	ws, err := reap(p.Pid)
	if err != nil {
		return 0, fmt.Errorf("wait for %s: %w", path, err)
	}
	// Whatever the command left behind holds the pipes open.
	if err := unix.Kill(-1, unix.SIGKILL); err != nil && err != unix.ESRCH {
		return 0, fmt.Errorf("kill what is left: %w", err)
	}
	if err := errors.Join(<-copied, <-copied); err != nil {
		return 0, err
	}
	if ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return ws.ExitStatus(), nil
}

// reap waits for every process, as process 1 has to, until the one with this pid has ended.
func reap(pid int) (unix.WaitStatus, error) {
	for {
		var ws unix.WaitStatus
		switch ended, err := unix.Wait4(-1, &ws, 0, nil); {
		case err == unix.EINTR:
		case err != nil:
			return ws, err
		case ended == pid:
			return ws, nil
		}
	}
}

// enter makes the machine's files the root.
func enter(moduleDir string) error {
	mounts := []struct {
		target, fstype, source string
		flags                  uintptr
		data                   string
	}{
		{"/host", "9p", mountTag, unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=512000,cache=loose"},
		{"/rw", "tmpfs", "tmpfs", 0, ""},
		{"/rw/upper", "", "", 0, ""},
		{"/rw/work", "", "", 0, ""},
		{"/root", "overlay", "overlay", 0, "lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work"},
		{"/root/proc", "proc", "proc", 0, ""},
		{"/root/sys", "sysfs", "sysfs", 0, ""},
		{"/root/sys/fs/cgroup", "cgroup2", "cgroup2", 0, ""},
		{"/root/dev", "devtmpfs", "devtmpfs", 0, ""},
		{"/root/dev/pts", "devpts", "devpts", 0, "mode=620,ptmxmode=666"},
		{"/root/dev/shm", "tmpfs", "tmpfs", 0, ""},
		{"/root/dev/net", "", "", 0, ""},
		{"/root/run", "tmpfs", "tmpfs", 0, "mode=755"},
		{filepath.Join("/root/lib/modules", filepath.Base(moduleDir)), "", "/root" + moduleDir, unix.MS_BIND, ""},
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if m.source == "" {
			continue
		}
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
		}
	}
	// As switch_root(8) does it: not a mere chroot, in which user namespaces are refused. The
	// kernel shares the root of process 1 and so finds modprobe.
	if err := os.Chdir("/root"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// The rest of what udev does elsewhere. To open such a node loads its module.
	for name, minor := range map[string]int{"/dev/net/tun": 200, "/dev/vhost-net": 238} {
		if err := unix.Mknod(name, unix.S_IFCHR, int(unix.Mkdev(10, uint32(minor)))); err != nil && err != unix.EEXIST {
			return fmt.Errorf("mknod %s: %w", name, err)
		}
		if err := os.Chmod(name, 0o666); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink("/proc/self/"+target, "/dev/"+name); err != nil {
			return err
		}
	}
	return nil
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr)
}
