package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/guestwire/guestwire/examples/cni/sandbox"
)

// binaries are the files of -from, and their names on the node. agent is too common a name there.
var binaries = []struct {
	file, installed string
	optional        bool
}{
	{"guestwire", "guestwire", false},
	{"agent", "guestwire-agent", true},
}

func (o *options) lists() cniLists {
	return cniLists{conf: o.cniConf, to: o.listTo, name: o.listName, entry: o.entry, everyNIC: o.everyNIC}
}

// installBinaries copies what is missing or another build.
func (o *options) installBinaries() error {
	if o.cniBin == "" {
		return nil
	}
	from := o.from
	if from == "" {
		own, err := os.Executable()
		if err != nil {
			return err
		}
		from = filepath.Dir(own)
	}
	for _, b := range binaries {
		path := filepath.Join(o.cniBin, b.installed)
		text, err := os.ReadFile(filepath.Join(from, b.file))
		if b.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("binary %s: %w", b.file, err)
		}
		changed, err := replaceFile(path, text, 0o755)
		if err != nil {
			return fmt.Errorf("binary %s: %w", b.file, err)
		}
		if changed {
			o.log.Info("installed", "binary", path)
		}
	}
	return nil
}

// hasBinaries says whether nobody has removed guestwire since installBinaries.
func (o *options) hasBinaries() bool {
	_, err := os.Lstat(filepath.Join(o.cniBin, binaries[0].installed))
	return o.cniBin == "" || err == nil
}

// updateList brings the derived list up to date.
func (o *options) updateList() error {
	if o.cniConf == "" {
		return nil
	}
	did, err := o.lists().update()
	if did != "" {
		o.log.Info("CNI list", "did", did)
	}
	return err
}

// install installs once. The binaries come first, as a list that names a missing one breaks every pod.
func install(_ context.Context, o *options) error {
	if err := o.installBinaries(); err != nil {
		return err
	}
	return o.updateList()
}

// drainList makes the derived list, if there is one, wire no more pods: without annotations and a spec, ADD has nothing to
// do. The list is that of a RuntimeClass or that of all pods: one uninstall serves both installations.
func (o *options) drainList() error {
	l := o.lists()
	l.entry = o.drainEntry
	for _, l.to = range []string{o.listTo, o.cniConf} {
		if _, err := os.Lstat(l.own()); o.cniConf == "" || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		did, err := l.update()
		if did != "" {
			o.log.Info("CNI list", "did", did+", for DEL alone")
		}
		return err
	}
	return nil
}

// uninstall removes what install has installed. The list goes when the last wired pod is gone: an engine calls DEL by the list
// that it finds then, and without guestwire in it records and journals would stay. Until then the list wires nothing new.
func uninstall(ctx context.Context, o *options) error {
	said := ""
	for !o.force {
		wired, err := sandbox.State(o.state).IDs()
		if err != nil {
			return err
		}
		if len(wired) == 0 {
			break
		}
		err = o.drainList()
		if !o.wait && !o.stay {
			return errors.Join(err, fmt.Errorf("%d sandboxes are wired (%s/%s ...): no new ones will be, and list and binaries stay for their DEL: call uninstall again after the last one, or with -wait; -force removes them now", len(wired), o.state, wired[0]))
		}
		text := fmt.Sprintf("waits until %d wired sandboxes are gone", len(wired))
		if err != nil { // another program may be writing its list
			text = err.Error()
		}
		if text != said {
			o.log.Info("uninstall", "progress", text)
			said = text
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	if o.cniConf != "" {
		did, err := o.lists().remove()
		if did != "" {
			o.log.Info("CNI list", "did", did)
		}
		if err != nil {
			return err
		}
	}
	// An empty -list-to stays: containerd ends when a directory of CNI lists is removed.
	if o.cniBin != "" {
		for _, b := range binaries {
			path := filepath.Join(o.cniBin, b.installed)
			removed, err := removeFile(path)
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
