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

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/pins"
)

// User is the user of the proxies if no other is named: nobody, in all of Linux's distributions. It must not be a
// launcher's.
const User = 65534

// Node returns the proxies of the NICs whose journals are in dir. Launcher is the path of guestwire-launcher, and uid the
// proxies' user. What they log goes to standard error.
func Node(dir, launcher string, uid uint32, log *slog.Logger) pins.Node {
	command := func(w phase1.Wiring) (*exec.Cmd, error) {
		if w.State == "" {
			return nil, errors.New("no record was written, which the DNS proxy reads: setup needs -state")
		}
		if _, err := os.Lstat(filepath.Join(w.State, w.NIC+".json")); err != nil {
			return nil, fmt.Errorf("%w: setup writes it last", err)
		}
		cmd := exec.Command(launcher, "names", "-state", w.State, "-nic", w.NIC)
		cmd.Stderr = os.Stderr
		return cmd, nil
	}
	return pins.Node{Dir: dir, Command: command, Owner: infra.Owner{UID: uid, Root: uid == 0}, Log: log}
}
