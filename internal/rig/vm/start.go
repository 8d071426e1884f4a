package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// enclosure is the script of the namespaces' first process. It mounts /proc and /sys of the namespaces and reaps
// orphans. Like a container engine it creates a /dev, with a /dev/net/tun that all users can open, and with the
// machine's KVM, vhost-net, VFIO and userfaultfd; like a device plugin it gives KVM and the latter, and the character
// devices of macvtaps, to the user.
const enclosure = `set -e
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /mnt
for device in /dev/kvm /dev/vhost-net /dev/vfio /dev/userfaultfd; do
	test ! -e $device || cp -a $device /mnt
done
for device in kvm userfaultfd; do
	test ! -e /mnt/$device || chown "$DEVICE_OWNER" /mnt/$device
done
mount --move /mnt /dev
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
test -z "$HIDDEN" || mount -t tmpfs tmpfs "$HIDDEN"
for tap in /sys/class/net/*/tap*; do
	if test -e "$tap/dev"; then
		IFS=: read -r major minor <"$tap/dev"
		mknod -m 600 "/dev/${tap##*/}" c "$major" "$minor"
		chown "$DEVICE_OWNER" "/dev/${tap##*/}"
	fi
done
if test -t 1; then
	"$@" <&1 & # a command in the background reads /dev/null otherwise
else
	"$@" &
fi
wait $!`

// start starts the guest's VMM as the user of cfg without capabilities, in cfg's network namespace and in new mount
// and PID namespaces.
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
	p.cmd.Env = append([]string{"PATH=" + g.programs() + ":" + os.Getenv("PATH"), fmt.Sprintf("DEVICE_OWNER=%d:%d", cfg.UID, cfg.GID), "HIDDEN=" + cfg.hidden()}, env...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = log, log, cfg.Files
	if g.terminal != nil {
		p.cmd.Stdin, p.cmd.Stdout = g.terminal, g.terminal
		defer g.terminal.Close()
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   unix.CLONE_NEWPID,
		Unshareflags: unix.CLONE_NEWNS,
		Pdeathsig:    unix.SIGKILL,
	}
	started := make(chan error, 1)
	go p.run(cfg.NetNS, started)
	if err := <-started; err != nil {
		return fmt.Errorf("start of %s: %w", program[0], err)
	}
	g.vmm = p
	return nil
}

// hidden is a directory that QEMU must not find; empty: none. That of the backports would end when libvirt asks for its
// devices, as it would load the modules of Debian 12's.
func (c Config) hidden() string {
	if c.VhostUser && c.unpacked() {
		return "/usr/lib/x86_64-linux-gnu/qemu"
	}
	return ""
}
