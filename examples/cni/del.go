package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// del gives back what add has wired for the attachment. To the engine it succeeds whatever happens: an error would keep
// the engine from calling the plugins before this one, the pod from ending, and the pod's addresses from being used
// again. What could not be given back is reported on standard error, and stays for the next DEL or GC.
func del(ctx context.Context, args *skel.CmdArgs) error {
	p, err := readPaths(args)
	if err != nil {
		say("DEL does nothing: %v", err)
		return err
	}
	if err = p.end(ctx, args); err != nil && err != errNothing {
		say("DEL of %s in sandbox %s, which goes on without: %v", args.IfName, args.ContainerID, err)
	}
	return err
}

// end takes the attachment's NICs down. If the namespace has no path any more, the whole sandbox ends. Without such a
// NIC it returns errNothing.
func (p paths) end(ctx context.Context, args *skel.CmdArgs) error {
	dir, err := p.State.Dir(args.ContainerID)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) && !p.leadsTo(arg(args, "K8S_POD_UID"), args.ContainerID) {
		return errNothing
	}
	nics, err := p.State.NICs(args.ContainerID)
	if err != nil {
		return err
	}
	ns, err := phase1.OpenNetNS(args.Netns)
	if err == nil {
		defer ns.Close()
	}
	var noPath *fs.PathError
	whole := errors.As(err, &noPath)
	calls := sandboxCalls{p, args.ContainerID, dir, ns}
	var errs []error
	for _, nic := range nics {
		if whole || nic.BelongsTo(args.IfName) {
			errs = append(errs, calls.end(ctx, nic.Name))
		}
	}
	err = errors.Join(append(errs, p.State.Release(ctx, p.lock, args.ContainerID))...)
	if err == nil && len(errs) == 0 {
		return errNothing
	}
	return err
}

// leadsTo reports whether the pod's newest sandbox is the one with the name.
func (p paths) leadsTo(uid, id string) bool {
	link, err := p.State.PodDir(uid)
	if err != nil {
		return false
	}
	text, err := os.Readlink(link)
	return err == nil && text == filepath.Join("..", id)
}

// sandboxCalls are the calls on one sandbox.
type sandboxCalls struct {
	paths
	id  string
	dir string   // of the records
	ns  *os.File // nil: not known
}

// nic is the NIC in the namespace that is open.
func (s sandboxCalls) nic(name string) phase1.NIC {
	return phase1.NIC{NetNS: s.ns, Name: name, Dir: s.Dir, Progress: progress}
}

// end takes a NIC down if its namespace is there, and forgets it if not.
func (s sandboxCalls) end(ctx context.Context, nic string) error {
	var first error
	if s.ns != nil {
		// Another namespace can have the path by now. Teardown changes nothing there, and the record stays.
		if first = s.teardown(ctx, nic); first == nil && !s.hasRecord(nic) {
			return nil
		}
	}
	err := s.forget(ctx, nic, true)
	if errors.Is(err, phase1.ErrAlive) {
		err = s.teardownFound(ctx, nic)
	}
	if err != nil {
		return errors.Join(first, err)
	}
	return nil
}

// forget removes what is left of a NIC whose namespace is gone. The error is phase1.ErrAlive if the namespace is there.
// Ended says that the engine has ended the sandbox. Then a namespace that is not found is gone also where the plugin
// does not see all processes of the machine: on a node that is itself a container, such as those of kind.
func (s sandboxCalls) forget(ctx context.Context, nic string, ended bool) error {
	if err := phase1.Forget(ctx, phase1.Gone{NIC: nic, State: s.dir, Dir: s.Dir, Own: ended, Progress: progress}); err != nil && !errors.Is(err, fs.ErrNotExist) { // after a boot the directory is gone
		return err
	}
	return s.ended(nic)
}

// teardown takes a NIC down in the namespace that is open.
func (s sandboxCalls) teardown(ctx context.Context, nic string) error {
	err := s.nic(nic).Teardown(ctx, phase1.TeardownOptions{CutOff: true, State: s.dir})
	if err != nil && !errors.Is(err, infra.ErrNoNIC) || s.hasRecord(nic) {
		return err
	}
	return s.ended(nic)
}

// teardownFound takes a NIC down in a namespace that the engine does not name any more, and that a process holds.
func (s sandboxCalls) teardownFound(ctx context.Context, nic string) error {
	wirings, err := phase1.List(ctx, s.Dir)
	if err != nil {
		return err
	}
	for _, w := range wirings {
		if w.State != s.dir || w.NIC != nic {
			continue
		}
		err = fmt.Errorf("NIC %s: %w: it is at %s", nic, phase1.ErrAlive, strings.Join(w.FoundAt, ", "))
		ns, openErr := w.Open(ctx)
		if errors.Is(openErr, fs.ErrNotExist) { // gone meanwhile
			return s.forget(ctx, nic, true)
		}
		if openErr != nil {
			return errors.Join(err, openErr)
		}
		defer ns.Close()
		s.ns = ns
		if tried := s.teardown(ctx, nic); tried != nil || s.hasRecord(nic) {
			return errors.Join(err, tried)
		}
		return nil
	}
	if !s.hasRecord(nic) { // another call has taken it down meanwhile
		return s.ended(nic)
	}
	return fmt.Errorf("NIC %s: %w, and its journal is lost", nic, phase1.ErrAlive)
}

// hasRecord reports whether the NIC has a record, or may have one.
func (s sandboxCalls) hasRecord(nic string) bool {
	_, err := os.Lstat(filepath.Join(s.dir, nic+".json"))
	return !errors.Is(err, fs.ErrNotExist)
}

// ended removes what is left of a NIC that is not wired any more: the note, and what a killed call left of a record.
func (s sandboxCalls) ended(nic string) error {
	root, err := os.OpenRoot(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return errors.Join(cache.Remove(root, nic), s.State.End(s.id, nic))
}
