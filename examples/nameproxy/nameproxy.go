// Package nameproxy starts guestwire-launcher names, the half of the DNS proxy without privileges: for
// examples/guestwire-agent and examples/guestwire-node.
package nameproxy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/pins"
)

// User is the user of the proxies if no other is named: nobody, in all of Linux's distributions. It must not be a
// launcher's.
const User = 65534

// Run is for whom guestwire-agent run wires a NIC, whose proxy it starts itself.
const Run = "guestwire-agent"

// Node returns the proxies of the NICs whose journals are in dir, but not of those that guestwire-agent run has wired.
// Launcher is the path of guestwire-launcher, and uid the proxies' user, neither root nor a launcher's. What they write
// goes to the log.
func Node(dir, launcher string, uid uint32, log *slog.Logger) pins.Node {
	command := func(w phase1.Wiring) (*exec.Cmd, error) {
		if w.State == "" {
			return nil, errors.New("no record was written, which the DNS proxy reads: setup needs -state")
		}
		if _, err := os.Lstat(filepath.Join(w.State, w.NIC+".json")); err != nil {
			return nil, fmt.Errorf("%w: setup writes it last", err)
		}
		launchers := w.Owner.UID
		if w.Owner.Inside {
			launchers = w.OnNode.UID
		}
		if uid == 0 || uid == launchers {
			return nil, fmt.Errorf("user %d cannot be the DNS proxy's, as it is root's or the launcher's: name another one (guestwire-agent -names-uid)", uid)
		}
		cmd := exec.Command(launcher, "names", "-state", w.State, "-nic", w.NIC)
		cmd.Env = []string{} // root's may have secrets
		cmd.SysProcAttr = apart()
		return cmd, nil
	}
	only := func(w phase1.Wiring) bool { return w.For != Run }
	return pins.Node{Dir: dir, Only: only, Command: command, Owner: infra.Owner{UID: uid}, Log: log}
}

// apart has a proxy in a PID namespace of its own, if the agent may make one. All proxies of a node have one user: one
// that was taken over can send no signal to the others, and nothing that it starts outlives it.
func apart() *syscall.SysProcAttr {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil || sets[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return nil
	}
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
}
