package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/phase1"
)

// gc takes down what belongs to an attachment of this network that the engine does not count as valid, and forgets what
// is left of namespaces that are gone, of other networks too. It goes on after an error.
func gc(ctx context.Context, args *skel.CmdArgs) error {
	p, err := readPaths(args)
	if err != nil {
		return err
	}
	stale, err := staleOf(args, p.Name)
	if err != nil {
		return err
	}
	ids, err := p.State.IDs()
	if err != nil {
		return err
	}
	wirings, err := phase1.List(ctx, p.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // without the directory nothing is wired
		return err
	}
	for _, w := range wirings {
		// A wiring can have lost its directory.
		if id := filepath.Base(w.State); sameDir(filepath.Dir(w.State), string(p.State)) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	var errs []error
	for _, id := range ids {
		dir, err := p.State.Dir(id)
		if err != nil {
			continue // not one of ours
		}
		nics, err := p.State.NICs(id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lives := map[string]bool{}
		for _, w := range wirings {
			if filepath.Base(w.State) != id || !sameDir(filepath.Dir(w.State), string(p.State)) {
				continue
			}
			lives[w.NIC] = len(w.FoundAt) > 0
			i := slices.IndexFunc(nics, func(n podsandbox.NIC) bool { return n.Name == w.NIC })
			if i < 0 {
				i, nics = len(nics), append(nics, podsandbox.NIC{Name: w.NIC})
			}
			nics[i].Record = true
		}
		calls := sandboxCalls{p, id, dir, nil}
		for _, nic := range nics {
			switch {
			case stale(id, nic):
				errs = append(errs, calls.end(ctx, nic.Name))
			case nic.Record && !lives[nic.Name]: // a note alone may be that of an ADD which is at work
				if err := calls.forget(ctx, nic.Name, false); !errors.Is(err, phase1.ErrAlive) { // wired since the list was made
					errs = append(errs, err)
				}
			}
		}
		errs = append(errs, p.State.Release(ctx, p.lock, id))
	}
	errs = append(errs, p.State.Sweep(ctx, p.lock), p.sweepLocks(ctx))
	return errors.Join(errs...)
}

// sweepLocks removes the locks of killed calls. Forget does so whatever it forgets: here nothing, as the directory
// of the links is no sandbox.
func (p paths) sweepLocks(ctx context.Context) error {
	err := phase1.Forget(ctx, phase1.Gone{State: p.State.Links(), Dir: p.Dir})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no directory has no locks
	}
	return err
}

// staleOf returns the function that reports whether a NIC belongs to an attachment of the network that is not valid any
// more.
func staleOf(args *skel.CmdArgs, network string) (func(id string, nic podsandbox.NIC) bool, error) {
	var said struct {
		Valid json.RawMessage `json:"cni.dev/valid-attachments"` // nil: the engine says nothing; null: none is valid
	}
	var valid []types.GCAttachment
	err := json.Unmarshal(args.StdinData, &said)
	if err == nil && said.Valid != nil {
		err = json.Unmarshal(said.Valid, &valid)
	}
	if i := slices.IndexFunc(valid, func(a types.GCAttachment) bool { return a.ContainerID == "" || a.IfName == "" }); err == nil && i >= 0 {
		err = fmt.Errorf("[%d]: containerID or ifname is missing", i) // what it stands for would be taken down
	}
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "guestwire: cni.dev/valid-attachments: "+err.Error(), "")
	}
	return func(id string, nic podsandbox.NIC) bool {
		return said.Valid != nil && nic.Of.Network == network &&
			!slices.Contains(valid, types.GCAttachment{ContainerID: id, IfName: nic.Of.IfName})
	}, nil
}
