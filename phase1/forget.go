package phase1

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/flock"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/statefile"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Gone selects the wirings that match Namespace, NIC, State and For. An empty field matches every wiring.
type Gone struct {
	Namespace string // as List has it
	NIC       string // together with Namespace, State or For
	State     string // the directory with the record, an absolute path
	For       string // as List has it

	// Own means that only this PID namespace uses Dir, as in a container. A namespace to which
	// nothing in it leads is then gone.
	Own bool

	Dir string // as NIC.Dir

	// Progress, unless nil, is called for each thing that is removed or could not be looked
	// at, and if there is nothing to remove.
	Progress func(text string)
}

// Forget removes what is left of wirings whose namespace is gone: journals, records, and the locks of killed calls.
//
// If the call may be late, select by the record's Namespace: the next sandbox of a pod can have the same State and NIC.
// A namespace is not gone while a mount, a process or an open file of the node leads to it, so close NIC.NetNS first.
// The text of ErrAlive says where a namespace is. Forget needs root. If Own is not set, it must also run in the node's
// PID namespace.
//
//	ErrAlive           Namespace, State or For selects a wiring whose namespace exists
//	fs.ErrNotExist     Dir (not DefaultDir) and the record of State and NIC do not exist
//	*cache.FieldError  a field is not valid, or NIC is set alone
func Forget(ctx context.Context, g Gone) error {
	if err := g.forget(ctx); err != nil {
		return fmt.Errorf("forget: %w", err)
	}
	return nil
}

func (g Gone) forget(ctx context.Context) error {
	if err := g.check(); err != nil {
		return err
	}
	if err := checkRoot(); err != nil {
		return err
	}
	if g.State != "" {
		real, err := realState(g.State)
		if err != nil {
			return err
		}
		g.State = real
	}
	n, err := findNode(g.Dir)
	if errors.Is(err, fs.ErrNotExist) { // a State on disk outlasts the boot that the journals were of
		_, ok, failed := g.orphan(ctx, nil)
		switch {
		case failed != nil:
			return failed
		case !ok && !mayLack(g.Dir):
			return err
		case !ok:
			progress(g.Progress).say("%s", nothingForgotten)
			return nil
		}
		n, err = openNode(g.Dir)
	}
	if err != nil {
		return err
	}
	defer n.Close()
	list, seen, err := n.list(ctx)
	if err != nil {
		return err
	}
	w, ok, err := g.orphan(ctx, list)
	if err != nil {
		return err
	}
	if ok {
		list = append(list, w)
	}
	if !slices.ContainsFunc(list, g.selects) {
		progress(g.Progress).say("%s", nothingForgotten)
	}
	var errs []error
	for _, w := range list {
		switch {
		case w.unread != nil && len(w.FoundAt) == 0 && g.maySelect(w):
			errs = append(errs, w.unread)
		case !g.selects(w):
		case len(w.FoundAt) == 0:
			for _, what := range seen.unseen {
				progress(g.Progress).say("could not look at %s", what)
			}
			seen.unseen = nil
			errs = append(errs, n.forget(ctx, w, g))
		case g.Namespace != "" || g.State != "" || g.For != "":
			errs = append(errs, fmt.Errorf("NIC %s: %w: %s is at %s; Teardown takes it down", w.NIC, ErrAlive, w.Namespace, strings.Join(w.FoundAt, ", ")))
		}
	}
	return errors.Join(append(errs, n.sweep(g, seen))...)
}

const nothingForgotten = "nothing is left to forget: no wiring of the node is selected"

func (g Gone) check() error {
	if g.Namespace != "" {
		if _, err := netns.Named(g.Namespace); err != nil {
			return &cache.FieldError{Field: "namespace", Reason: err.Error() + ": want one as List has it, such as 9c1e22f0-4026532281-17"}
		}
	}
	if g.NIC != "" && g.Namespace == "" && g.State == "" && g.For == "" {
		return &cache.FieldError{Field: "nic", Reason: "not alone: name also the namespace, the state directory or for whom it is, as List has them"}
	}
	if g.NIC != "" {
		if err := syntax.CheckLinkName(g.NIC); err != nil {
			return &cache.FieldError{Field: "nic", Reason: err.Error()}
		}
	}
	return checkStatePath(g.State)
}

func (g Gone) selects(w Wiring) bool {
	return (g.Namespace == "" || g.Namespace == w.Namespace) && (g.NIC == "" || g.NIC == w.NIC) && (g.State == "" || g.State == w.State) &&
		(g.For == "" || g.For == w.For)
}

// maySelect is selects for a journal whose State and For could not be read.
func (g Gone) maySelect(w Wiring) bool {
	w.State, w.For = g.State, g.For
	return g.selects(w)
}

// orphan is the wiring whose record Gone names and whose journal is lost; false: there is none. A record does not say
// for whom it is. Its namespace was looked for.
func (g Gone) orphan(ctx context.Context, list []Wiring) (w Wiring, ok bool, err error) {
	if g.State == "" || g.NIC == "" || g.For != "" || slices.ContainsFunc(list, g.selects) {
		return Wiring{}, false, nil
	}
	dir, err := statefile.OpenDir(g.State)
	if errors.Is(err, fs.ErrNotExist) {
		return Wiring{}, false, nil
	}
	if err != nil {
		return Wiring{}, false, fmt.Errorf("state directory: %w", err)
	}
	defer dir.Close()
	r, err := recordHead(dir, g.NIC)
	if err != nil || r.Namespace == "" {
		return Wiring{}, false, err
	}
	w = Wiring{NIC: g.NIC, Namespace: r.Namespace, State: g.State, orphan: true}
	found, err := find(ctx, r.Namespace)
	w.setFound(found)
	return w, err == nil, err
}

// checkGone returns an error if the namespace, which was not found, may be alive nevertheless.
func (g Gone) checkGone(namespace string) error {
	if g.Own {
		return nil
	}
	return checkGone(namespace)
}

// checkGone returns an error if the namespace, which was not found, may be alive where its processes are not visible.
func checkGone(namespace string) error {
	identity, err := netns.Named(namespace)
	if err != nil {
		return err
	}
	return netns.CheckGone(identity)
}

// forget removes record and journal of a namespace that is gone. The journal is removed last: it names the record.
func (n node) forget(ctx context.Context, w Wiring, g Gone) error {
	report := progress(g.Progress)
	if err := g.checkGone(w.Namespace); err != nil {
		return fmt.Errorf("NIC %s of the namespace %s, which is not found: %w: call Forget in the node's PID namespace, or say that the journals are this container's own (Gone.Own, guestwire-agent forget -own)", w.NIC, w.Namespace, err)
	}
	if err := n.forgetRecord(ctx, w, report); err != nil {
		return fmt.Errorf("NIC %s of the namespace %s, which is gone: %w", w.NIC, w.Namespace, err)
	}
	if w.orphan {
		report.say("NIC %s of the namespace %s has no journal in %s: if Setup used another directory, Forget with that one removes it", w.NIC, w.Namespace, n.Name())
		return nil
	}
	if _, err := n.Lstat(filepath.Join(w.Namespace, w.NIC+journalSuffix)); err == nil { // no other Forget has been here meanwhile
		report.say("removes the journal %s", n.path(w.Namespace, w.NIC))
	}
	return n.removeJournal(w.Namespace, w.NIC)
}

func (n node) forgetRecord(ctx context.Context, w Wiring, report progress) error {
	s := session{nic: w.NIC, node: n, report: report}
	defer func() { s.state.close() }()
	if err := s.findState(ctx, w.State); err != nil || s.state.Root == nil {
		return err
	}
	path := filepath.Join(w.State, w.NIC+".json")
	r, err := recordHead(s.state.Root, w.NIC)
	if err != nil {
		return err
	}
	switch r.Namespace {
	case w.Namespace:
		report.say("removes the record %s", path)
		return cache.Remove(s.state.Root, w.NIC)
	case "":
		if _, err := s.state.Root.Lstat(w.NIC + ".json"); err == nil {
			report.say("leaves the record %s, which names no namespace", path)
		}
	}
	return nil
}

// sweep removes the locks and the unfinished journals that killed calls have left.
func (n node) sweep(g Gone, seen lookup) error {
	report := progress(g.Progress)
	entries, err := fs.ReadDir(n.FS(), ".")
	if err != nil {
		return fmt.Errorf("journal directory: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() {
			if err := n.sweepNamespace(name, g, seen); err != nil {
				return err
			}
			continue
		}
		_, err := strconv.ParseUint(name, 10, 64)
		if err != nil && !slices.ContainsFunc([]string{stateLock, holdLock, proxyLock, nameLock}, func(of string) bool { return strings.HasPrefix(name, of) }) {
			continue // a file of another program
		}
		if err := n.sweepLock(name, report); err != nil && err != unix.EWOULDBLOCK { // a call is working
			return err
		}
	}
	return nil
}

// sweepLock removes a lock that no one has. Before the lock of a NIC it takes that of the namespace, as Hold does: a
// Hold at that moment would name this call as the holder.
func (n node) sweepLock(name string, report progress) error {
	if inode, of := strings.CutPrefix(name, holdLock); of {
		inode, _, _ = strings.Cut(inode, "-")
		unlock, err := flock.Try(n.Root, inode, os.O_CREATE)
		if err != nil {
			return err
		}
		defer unlock()
	}
	unlock, err := flock.Try(n.Root, name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its call has ended meanwhile
	}
	if err != nil {
		return err
	}
	report.say("removes the lock %s, which no call holds", filepath.Join(n.Name(), name))
	unlock()
	return nil
}

// sweepNamespace removes the directory in which a call was killed before it had written a journal, if the namespace
// is gone. In one that was alive, or had no directory yet, a call may be working.
func (n node) sweepNamespace(name string, g Gone, seen lookup) error {
	nics, err := n.nics(name)
	if err != nil || len(nics) > 0 {
		return err
	}
	id, looked := seen.identities[name]
	if !looked || seen.found[id] != nil {
		return nil
	}
	if err := g.checkGone(name); errors.Is(err, netns.ErrNotSeen) {
		return nil // and if it may be there
	} else if err != nil {
		return err
	}
	if _, err := n.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return nil // another Forget has removed it meanwhile
	}
	progress(g.Progress).say("removes the directory %s, which has no journal", filepath.Join(n.Name(), name))
	if err := n.RemoveAll(name); err != nil {
		return fmt.Errorf("journal directory: %w", err)
	}
	return nil
}
