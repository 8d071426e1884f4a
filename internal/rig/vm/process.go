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
// belong to them and reaps orphans. As container engines do it lays a /dev of its own, with a tun device
// for everybody, and the character devices of macvtaps for the user, as device plugins do.
const enclosure = `set -e
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /dev
mkdir /dev/net /dev/pts /dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts /dev/pts
chmod 1777 /dev/shm
ln -s pts/ptmx /dev/ptmx
ln -s /proc/self/fd /dev/fd
mknod -m 666 /dev/null c 1 3
mknod -m 666 /dev/zero c 1 5
mknod -m 666 /dev/full c 1 7
mknod -m 666 /dev/random c 1 8
mknod -m 666 /dev/urandom c 1 9
mknod -m 666 /dev/tty c 5 0
mknod -m 666 /dev/net/tun c 10 200
for tap in /sys/class/net/*/tap*; do
	if test -e "$tap/dev"; then
		IFS=: read -r major minor <"$tap/dev"
		mknod -m 600 "/dev/${tap##*/}" c "$major" "$minor"
		chown "$DEVICE_OWNER" "/dev/${tap##*/}"
	fi
done
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
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), fmt.Sprintf("DEVICE_OWNER=%d:%d", cfg.UID, cfg.GID)}, env...)
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
