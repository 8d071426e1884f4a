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

func uninstall(ctx context.Context, o *options) error {
	if o.cniConf != "" {
		did, err := o.lists().remove()
		if did != "" {
			o.log.Info("CNI list", "did", did)
		}
		if err != nil {
			return err
		}
	}
	for said := 0; !o.force; {
		wired, err := sandbox.State(o.state).IDs()
		if err != nil {
			return err
		}
		if len(wired) == 0 {
			break
		}
		if !o.wait && !o.stay {
			return fmt.Errorf("%d sandboxes are wired (%s/%s ...): the binaries stay, as an engine may need them to remove these pods: call uninstall again after the last one, or with -wait; -force removes them now", len(wired), o.state, wired[0])
		}
		if len(wired) != said {
			o.log.Info("waits until the wired sandboxes are gone", "sandboxes", len(wired))
			said = len(wired)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
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
