package vm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is a program with all that it starts: they have a PID namespace of their own, and end
// with its first process, which ends with this one.
type process struct {
	cmd  *exec.Cmd
	file string        // of what it printed
	done chan struct{} // closed at its end
}

// enclosure is run by the first process of the namespaces. It lays a /proc and a /sys as they
// belong to them, a tun device for everybody, as container engines do, and reaps orphans.
const enclosure = `set -e
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /dev/net
mknod -m 666 /dev/net/tun c 10 200
"$@" &
wait $!`

// start starts the guest's VMM as the user of cfg without capabilities, in the network namespace of
// cfg, with private mount and PID namespaces.
func (g *Guest) start(cfg Config, env []string, program ...string) error {
	log, err := os.Create(filepath.Join(g.dir, "vmm.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{
		"-c", enclosure, "sh", "setpriv", "--reuid", strconv.Itoa(cfg.UID), "--regid", strconv.Itoa(cfg.GID),
		"--clear-groups", "--inh-caps", "-all", "--ambient-caps", "-all", "--bounding-set", "-all", "--no-new-privs", "--",
	}
	p := &process{cmd: exec.Command("/bin/sh", append(args, program...)...), file: log.Name(), done: make(chan struct{})}
	p.cmd.Dir = g.dir
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   unix.CLONE_NEWPID,
		Unshareflags: unix.CLONE_NEWNS,
		Pdeathsig:    unix.SIGKILL,
	}
	started := make(chan error, 1)
	go p.own(cfg.NetNS, started)
	if err := <-started; err != nil {
		return fmt.Errorf("start of %s: %w", program[0], err)
	}
	g.vmm = p
	return nil
}

// own starts the process from a thread in the network namespace and waits for its end: the signal
// of Pdeathsig comes when the thread ends, which it does with this goroutine.
func (p *process) own(netns *os.File, started chan<- error) {
	defer close(p.done)
	runtime.LockOSThread()
	if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
		started <- fmt.Errorf("network namespace: %w", err)
		return
	}
	err := p.cmd.Start()
	started <- err
	if err == nil {
		// How a killed process has ended is no news.
		_ = p.cmd.Wait()
	}
}

// kill ends the process and everything that it has started, and waits for that.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-p.done
	return err
}

// log is what the process has printed.
func (p *process) log() string {
	text, err := os.ReadFile(p.file)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
