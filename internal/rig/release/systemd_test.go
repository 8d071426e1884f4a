package release_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// boot is process 1 of a machine: it becomes systemd with $1 as its root, in namespaces and a cgroup of its own, called
// $2. A cgroup namespace takes its process's cgroup for the root. Of the machine's sysctls those of the network alone
// can be written, as they are the namespace's.
const boot = `set -e
if [ -z "$entered" ]; then
	mount -t cgroup2 cgroup2 /mnt
	mkdir "/mnt/$2"
	echo 0 >"/mnt/$2/cgroup.procs"
	umount /mnt
	entered=1 exec unshare --cgroup --pid --fork --kill-child bash -c "$BASH_EXECUTION_STRING" machine "$@"
fi
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t tmpfs -o mode=755 run run
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,rw proc/sys/net
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
mkdir dev/net dev/pts dev/shm
for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 net/tun:10:200; do
	mknod -m 666 "dev/${device%%:*}" c $(tr : ' ' <<<"${device#*:}")
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
pivot_root . mnt
umount -l mnt
exec env -i container=guestwire PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=sysinit.target --log-target=console`

// machine is a root in which systemd runs.
type machine struct {
	pid  string
	stop func()
}

// start starts the systemd of a root, and waits until it serves. It ends with the test.
func start(t *testing.T, root string) machine {
	t.Helper()
	cgroup := fmt.Sprintf("guestwire-release-%d", os.Getpid())
	cmd := exec.Command("unshare", "--mount", "--net", "--uts", "--ipc", "bash", "-c", boot, "machine", root, cgroup)
	var console nstest.Output
	cmd.Stdout, cmd.Stderr = &console, &console
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var m machine
	m.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // with its process 1, and so with all
		_ = cmd.Wait()
		nstest.Eventually(t, func() error {
			out, err := exec.Command("unshare", "--mount", "sh", "-c", `mount -t cgroup2 cgroup2 /mnt && find "/mnt/$0" -depth -type d -exec rmdir {} +`, cgroup).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
		if t.Failed() {
			t.Logf("systemd: %s", console.String())
		}
	})
	t.Cleanup(m.stop)
	nstest.Eventually(t, func() error {
		child, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		if m.pid = strings.TrimSpace(string(child)); err == nil && m.pid == "" {
			err = fmt.Errorf("no process 1")
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, console.String())
		}
		if out, err := m.command("systemctl is-active sysinit.target").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s\n%s", err, out, console.String())
		}
		return nil
	})
	return m
}

// command returns a command that runs a script of bash in the machine.
func (m machine) command(script string) *exec.Cmd {
	return exec.Command("nsenter", "--target="+m.pid, "--all", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=vt100", "bash", "-c", script)
}

// run returns what a script prints that has to succeed.
func (m machine) run(t *testing.T, script string) string {
	t.Helper()
	out, err := m.command(script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
