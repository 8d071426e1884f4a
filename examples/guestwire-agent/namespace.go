package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// byState are the verbs that take -state instead of -netns.
var byState = []string{"status", "drops", "flows", "repair", "list", "names"}

// openNetNS opens the namespace that is named; -own needs none. If none is named, the error also has the verb's other
// flags. An error that is not one of the flag is no *commandline.Error.
func (o *options) openNetNS(others string) error {
	if o.Own && o.netns != "" {
		return commandline.Errorf("-netns and -own: name one of them")
	}
	if o.Own {
		return nil
	}
	if o.netns == "" {
		return commandline.Errorf("-netns is missing: name the network namespace, such as /run/netns/pod, or -own for the agent's own%s", others)
	}
	var err error
	o.NetNS, err = phase1.OpenNetNS(o.netns)
	var at *fs.PathError
	if errors.As(err, &at) && at.Path != o.netns {
		return fmt.Errorf("network namespace: %w", err)
	}
	if err != nil {
		return commandline.Errorf("network namespace: %w (ip netns list shows those in /run/netns, guestwire-agent list where the wired ones are; guestwire-agent forget removes what is left of one that is gone)", err)
	}
	return nil
}

// openWired opens the namespace of the NIC that is wired with the State.
func (o *options) openWired(ctx context.Context) error {
	wirings, err := o.wirings(ctx)
	switch {
	case err != nil:
		return err
	case len(wirings) == 0:
		return o.notWired()
	case len(wirings) > 1:
		return commandline.Errorf("-nic is missing: name one of the NICs that are wired with -state %s, such as %s", infra.ShellWord(o.State), wirings[0].NIC)
	}
	o.Name = wirings[0].NIC
	if o.NetNS, err = wirings[0].Open(ctx); err != nil {
		return fmt.Errorf("%w: %s removes what is left of it", err, o.forgetCall(wirings[0]))
	}
	return nil
}

// notWired is the error of a State that no NIC has.
func (o *options) notWired() error {
	return fmt.Errorf("-state %s: %w: no NIC %swith this directory (guestwire-agent list -dir %s shows the directory of each NIC)", infra.ShellWord(o.State), phase1.ErrNotWired, strings.TrimLeft(o.Name+" ", " "), infra.ShellWord(o.Dir))
}

// wirings are the node's wired NICs that have the State, the Name and the For, as far as these are set.
func (o *options) wirings(ctx context.Context) ([]phase1.Wiring, error) {
	named := o.byState || o.State != ""
	if named && !filepath.IsAbs(o.State) {
		return nil, commandline.Errorf("-state %s: want an absolute path, such as /run/guestwire/vm1", infra.ShellWord(o.State))
	}
	if real, err := filepath.EvalSymlinks(o.State); named && err == nil { // journals have the real path
		o.State = real
	}
	wirings, err := phase1.List(ctx, o.Dir)
	return slices.DeleteFunc(wirings, func(w phase1.Wiring) bool {
		return named && w.State != o.State || o.Name != "" && w.NIC != o.Name || o.For != "" && w.For != o.For
	}), err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
