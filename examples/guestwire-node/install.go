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
	"time"

	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
)

// binaries are the files of -from, which get the same names on the node.
var binaries = []struct {
	name     string
	optional bool
}{
	{"guestwire", false},
	{"guestwire-agent", true},
}

// besides are the directories in which a program's binaries lie: its own, and that of the CNI plugins where a package
// has installed the program.
func besides(program string) []string {
	dir := filepath.Dir(program)
	return []string{dir, filepath.Join(filepath.Dir(dir), "lib/cni")}
}

// readFirst reads the file of the first directory that has it. The error is fs.ErrNotExist if none has.
func readFirst(dirs []string, name string) (text []byte, err error) {
	for _, dir := range dirs {
		if text, err = readRegular(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return text, err
		}
	}
	return nil, err
}

func (o *options) lists() cniLists {
	return cniLists{conf: o.cniConf, to: o.listTo, name: o.listName, entry: o.entry, everyNIC: o.everyNIC}
}

// installBinaries copies what is missing or another build.
func (o *options) installBinaries(ctx context.Context) error {
	if o.cniBin == "" {
		return nil
	}
	from := []string{o.from}
	if o.from == "" {
		own, err := os.Executable()
		if err != nil {
			return err
		}
		from = besides(own)
	}
	for _, b := range binaries {
		path := filepath.Join(o.cniBin, b.name)
		text, err := readFirst(from, b.name)
		if errors.Is(err, fs.ErrNotExist) {
			if b.optional {
				continue
			}
			return fmt.Errorf("binary %s: not in %s: %w: name its directory with -from, or build the CNI plugin as %s", b.name, strings.Join(from, ", nor in "), fs.ErrNotExist, filepath.Join(from[0], b.name))
		}
		if err != nil {
			return fmt.Errorf("binary %s: %w", b.name, err)
		}
		changed, err := replaceFile(ctx, path, text, 0o755)
		if err != nil {
			return fmt.Errorf("binary %s: %w", b.name, err)
		}
		if changed {
			o.log.Info("installed", "binary", path)
		}
	}
	return nil
}

// hasBinaries reports whether nobody has removed guestwire since installBinaries.
func (o *options) hasBinaries() bool {
	_, err := os.Lstat(filepath.Join(o.cniBin, binaries[0].name))
	return o.cniBin == "" || err == nil
}

// updateList brings the derived list up to date, and returns whether it had to be changed.
func (o *options) updateList(ctx context.Context) (changed bool, err error) {
	if o.cniConf == "" {
		return false, nil
	}
	l := o.lists()
	wired, err := o.wired()
	if err != nil {
		return false, err
	}
	if len(wired) > 0 {
		l.former = o.drainEntry
	}
	did, err := l.update(ctx)
	if did != "" {
		o.log.Info("CNI list", "did", did)
	}
	return did != "", err
}

// install installs once. The binaries come first, as a list that names a missing one breaks every pod.
func install(ctx context.Context, o *options) error {
	if err := o.mounts().check(); err != nil {
		return err
	}
	if err := o.installBinaries(ctx); err != nil {
		return err
	}
	_, err := o.updateList(ctx)
	return err
}

// drainList makes the derived lists wire no more pods: without annotations and a spec, ADD has nothing to do.
func (o *options) drainList(ctx context.Context) error {
	if o.cniConf == "" {
		return nil
	}
	did, err := o.lists().drain(ctx, o.drainEntry)
	if did != "" {
		o.log.Info("CNI list", "did", did+", for DEL alone")
	}
	return err
}

// needed says what keeps the plugin on the node, and what to do; empty: nothing. It removes the derived lists when no
// pod is wired any more, as an engine calls DEL by the list that it finds then, and the binaries cannot go before all
// lists.
func (o *options) needed(ctx context.Context) (string, error) {
	wired, err := o.wired()
	if err != nil {
		return "", err
	}
	if len(wired) > 0 {
		return fmt.Sprintf("%d sandboxes are wired (%s/%s ...): no new ones will be, and list and binaries stay for their DEL: call uninstall again after the last one, or with -wait; -force removes them now", len(wired), o.state, wired[0]), nil
	}
	if err := o.removeLists(ctx); err != nil || o.cniConf == "" || o.keepPlugin {
		return "", err
	}
	named, err := o.lists().named()
	if len(named) == 0 {
		return "", err
	}
	return fmt.Sprintf("%s names guestwire, and its pods could neither start nor end without the plugin: take the entry out of the list (of a list that Multus wrote: start Multus again), and call uninstall again; -force removes the plugin now", strings.Join(named, ", ")), nil
}

// wired returns the sandboxes that have a NIC with a record, or one that an ADD may be working on.
func (o *options) wired() ([]string, error) {
	state := podsandbox.State(o.state)
	ids, err := state.IDs()
	var wired []string
	for _, id := range ids {
		nics, nicsErr := state.NICs(id)
		err = errors.Join(err, nicsErr)
		if slices.ContainsFunc(nics, func(n podsandbox.NIC) bool { return n.Record || !o.isLeft(id, n) }) {
			wired = append(wired, id)
		}
	}
	return wired, err
}

// adding is longer than any ADD takes, as the kubelet gives an engine four minutes for a sandbox.
const adding = 10 * time.Minute

// note is one of a NIC without a record, and since when this process has seen it unchanged.
type note struct {
	fs.FileInfo
	since time.Time
}

// isLeft reports whether all that is there of the NIC is a note that this process has seen for longer than any ADD
// takes. The time of the file does not count: the note of an ADD at work looks old after a step of the node's clock.
func (o *options) isLeft(id string, nic podsandbox.NIC) bool {
	path := filepath.Join(o.state, id, "."+nic.Name)
	info, err := os.Lstat(path)
	if nic.Record || err != nil {
		return false
	}
	if seen, ok := o.notes[path]; ok && os.SameFile(seen.FileInfo, info) && seen.ModTime().Equal(info.ModTime()) { // Begin sets the time
		return time.Since(seen.since) > adding
	}
	if o.notes == nil {
		o.notes = map[string]note{}
	}
	o.notes[path] = note{info, time.Now()}
	return false
}

// removeLists removes all derived lists.
func (o *options) removeLists(ctx context.Context) error {
	if o.cniConf == "" {
		return nil
	}
	did, err := o.lists().remove(ctx)
	if did != "" {
		o.log.Info("CNI list", "did", did)
	}
	return err
}

// uninstall removes what install has installed, when nothing needs it any more. Until then the list wires nothing new.
func uninstall(ctx context.Context, o *options) error {
	said := ""
	mounts := o.mounts()
	for {
		if err := mounts.check(); err != nil { // where records seem to be gone that are there
			return err
		}
		if o.force {
			break
		}
		drained := o.drainList(ctx) // first, so that no ADD comes between the look and the removal
		what, err := o.needed(ctx)
		if err != nil {
			return err
		}
		if what == "" {
			break
		}
		err = errors.Join(drained, errors.New(what)) // another program may be writing its list
		if !o.wait && !o.stay {
			return err
		}
		if text := err.Error(); text != said {
			o.log.Info("uninstall waits", "reason", text)
			said = text
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	if err := o.removeLists(ctx); err != nil {
		return err
	}
	// An empty -list-to stays: containerd ends when a directory of CNI lists is removed.
	if o.cniBin != "" {
		for _, b := range binaries {
			path := filepath.Join(o.cniBin, b.name)
			if o.keepPlugin && !b.optional {
				continue
			}
			removed, err := removeFile(ctx, path)
			if err != nil {
				return err
			}
			if removed {
				o.log.Info("removed", "binary", path)
			}
		}
	}
	if !o.stay {
		return nil
	}
	r := readiness{file: o.ready, log: o.log}
	defer r.clear()
	r.part()(true)
	<-ctx.Done()
	return nil
}
