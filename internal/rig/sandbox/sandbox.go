// Package sandbox keeps the machine as it is while namespaces are laid for tests and demonstrations:
// a program that enters it has mounts of its own, with a /run/netns, locks and a /etc/resolv.conf of its own
// and a /dev/net/tun that everybody can open, as container engines provide it. All of that ends with
// the program, however it ends.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// entered is set in the environment inside.
const entered = "GUESTWIRE_SANDBOX"

// Enter starts the program again in a sandbox, and ends with its status; inside it returns. It needs
// root: the error is fs.ErrPermission for somebody else. It is to be called first.
func Enter() error {
	if os.Getenv(entered) != "" {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("namespaces need root: %w", os.ErrPermission)
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	// The first process there lays the mounts, and then becomes the program.
	cmd := exec.Command("/bin/sh", append([]string{"-c", layMounts, program}, os.Args[1:]...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), entered+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			// The terminal tells the whole process group; a kill(1) tells this process alone.
			if s == syscall.SIGTERM {
				if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
					return fmt.Errorf("sandbox: %w", err)
				}
			}
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return fmt.Errorf("sandbox: %w", err)
			}
			os.Exit(exitStatus(cmd.ProcessState))
		}
	}
}

const layMounts = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 guestwire /dev/net
mknod -m 666 /dev/net/tun c 10 200
mkdir -p /run/netns /run/guestwire.lock
mount -t tmpfs -o mode=755 guestwire /run/netns
mount -t tmpfs -o mode=700 guestwire /run/guestwire.lock
if [ -f /etc/resolv.conf ]; then
	cat /etc/resolv.conf >/dev/net/resolv.conf
	mount --bind /dev/net/resolv.conf /etc/resolv.conf
fi
exec "$0" "$@"`

func exitStatus(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}
