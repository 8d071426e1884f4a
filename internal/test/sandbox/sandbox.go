// Package sandbox keeps the machine as it is while namespaces are created for tests and demonstrations:
// a program that enters it has mounts of its own, with a /run/netns, locks and a /etc/resolv.conf of its own
// and a /dev/net/tun that everybody can open, as container engines provide it. All of that ends with
// the program, however it ends.
//
// An ordinary user gets a user namespace as well, in which that user is root, and no network but the
// loopback. There /dev/net/tun is the machine's, and no other user exists.
//
// If the process that waits for the program gets SIGKILL, both end, and an empty directory stays in the machine's
// directory for temporary files.
package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// entered is set in the environment inside: to the directory that ends with the sandbox.
const entered = "GUESTWIRE_SANDBOX"

// ErrNotEntered means that the program has not called Enter.
var ErrNotEntered = errors.New("the program is not in a sandbox")

// unable is the error of Enter.
var unable = ErrNotEntered

// Entered returns nil inside, and else the error of Enter, or ErrNotEntered.
func Entered() error {
	if os.Getenv(entered) != "" {
		return nil
	}
	return unable
}

// Dir is a directory of the sandbox, which ends with it. Every user can enter the directory.
func Dir() string { return os.Getenv(entered) }

// Enter starts the program again in a sandbox, and ends with its status; inside it returns. The error is
// fs.ErrPermission for an ordinary user who cannot make a user namespace, and for root who cannot mount. Call Enter
// first.
func Enter() error {
	if os.Getenv(entered) != "" {
		return nil
	}
	unable = enter()
	return unable
}

func enter() error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	dir, err := os.MkdirTemp("", "guestwire-sandbox-")
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	defer os.Remove(dir) // it is empty here
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	// The first process there creates the mounts, and then becomes the program.
	cmd := exec.Command("/bin/sh", append([]string{"-c", createMounts, program}, os.Args[1:]...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), entered+"="+dir)
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	probe := exec.Command("/bin/sh", "-c", "mount --make-rprivate /")
	probe.SysProcAttr = attributes()
	if out, err := probe.CombinedOutput(); err != nil {
		why := "neither root nor a user namespace; root can, and users who can make user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
		if os.Geteuid() == 0 {
			why = "root without CAP_SYS_ADMIN, or without the right to mount; in a container, --privileged"
		}
		return fmt.Errorf("%s (%w %s): %w", why, err, bytes.TrimSpace(out), os.ErrPermission)
	}

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			// The terminal signals the whole process group; a kill(1) signals this process alone.
			if s != syscall.SIGINT {
				if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
					return fmt.Errorf("sandbox: %w", err)
				}
			}
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return fmt.Errorf("sandbox: %w", err)
			}
			os.Remove(dir)
			os.Exit(exitStatus(cmd.ProcessState))
		}
	}
}

// OneUser reports whether root is alone: in a user namespace of an ordinary user's.
func OneUser() bool {
	var inside, outside, size int
	text, err := os.ReadFile("/proc/self/uid_map")
	if err == nil {
		_, err = fmt.Sscan(string(text), &inside, &outside, &size)
	}
	return err == nil && size == 1
}

// attributes are those of a process with mounts of its own. An ordinary user's is root in a user
// namespace too. Its network namespace has to belong to that: ip(8) enters it again.
func attributes() *syscall.SysProcAttr {
	switch {
	case OneUser():
		return &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	case os.Geteuid() == 0:
		return &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
}

// createMounts creates the mounts. In a user namespace no device can be made, so the machine's stays. An ordinary
// user gets a root directory with the machine's directories in it: Setup takes a state directory only
// below directories of root's, and the machine's root directory is of a user that does not exist there.
const createMounts = `set -e
PATH=$PATH:/usr/sbin:/sbin
directory=$PWD
ip link set lo up 2>/dev/null || true
mount --make-rprivate /
resolv=$(cat /etc/resolv.conf 2>/dev/null || true)
if ! [ -w /run ]; then # the machine's root is not this one
	mount -t tmpfs -o mode=755 guestwire /run
	(
		cd /run
		for entry in /*; do
			if [ -L "$entry" ]; then
				cp -P "$entry" .
			elif [ -d "$entry" ] && [ "$entry" != /run ]; then
				mkdir ".$entry"
				mount --rbind "$entry" ".$entry"
			fi
		done
		mkdir run run/old
		pivot_root . run/old
	)
	# The old root stays: "ip netns exec" takes /sys away, and may mount another one only where one is.
	mkdir -m 1777 /run/tmp
	export TMPDIR=/run/tmp GUESTWIRE_SANDBOX=/run/tmp
	cd "$directory"
else
	mount -t tmpfs -o mode=755 guestwire "$GUESTWIRE_SANDBOX"
fi
mkdir -p /run/netns
mkdir -p -m 700 /run/guestwire.lock # others may start at this moment; it stays on the machine, where Setup wants it so
mount -t tmpfs -o mode=755 guestwire /run/netns
mount --make-shared /run/netns # as ip-netns(8) does: programs in a mount namespace of their own see the names that come later
mount -t tmpfs -o mode=700 guestwire /run/guestwire.lock
if mkdir -p /dev/net 2>/dev/null; then
	mount -t tmpfs -o mode=755 guestwire /dev/net
	mknod -m 666 /dev/net/tun c 10 200 2>/dev/null || umount /dev/net
fi
if [ -f /etc/resolv.conf ]; then
	echo "$resolv" >"$GUESTWIRE_SANDBOX/resolv.conf" # it stays: on a file without a name no inner sandbox could mount
	mount --bind "$GUESTWIRE_SANDBOX/resolv.conf" /etc/resolv.conf
fi
exec "$0" "$@"`

func exitStatus(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}
