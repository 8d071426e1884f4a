package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/phase1"
)

const (
	// retry is how long an engine, a kubelet or a directory that is not there is let alone.
	retry = time.Second
	// settle is how long other programs may take for the files of one change.
	settle = 100 * time.Millisecond
	// disputed is how many changes of the derived list within a recheck are those of a dispute with another program.
	disputed = 10
	// recheck is how often the node is looked at without a report of the kernel.
	recheck = 30 * time.Second
)

// runNode does all that the flags name until ctx is done. Nothing that is missing on the node ends it, except a mounted
// directory that was removed or renamed.
func runNode(ctx context.Context, o *options) error {
	r := &readiness{file: o.ready, log: o.log}
	if err := r.clear(); err != nil {
		return err
	}
	defer r.clear()
	var working sync.WaitGroup
	defer working.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	listed := r.part()
	if o.nri != "" {
		// A pod that starts before the engine has the plugin fails once.
		p := &nriPlugin{socket: o.nri, state: podsandbox.State(o.state), devices: o.devices, log: o.log, ready: r.part(), retry: retry / 4}
		working.Go(func() { p.run(ctx) })
	}
	if o.devicePlugins != "" {
		p := &devicePlugins{dir: o.devicePlugins, devices: o.devices, log: o.log, ready: r.part(), look: retry}
		working.Go(func() { p.run(ctx) })
	}
	if o.metrics != "" {
		working.Go(func() { o.serveMetrics(ctx) })
	}
	if o.names != "" {
		working.Go(func() { o.keep(ctx, "names", recheck, o.runNames) })
	}
	if o.sweep > 0 {
		working.Go(func() { o.keep(ctx, "sweep", o.sweep, o.sweepOnce) })
	}
	if o.repair > 0 {
		working.Go(func() { o.keep(ctx, "repair", o.repair, o.repairOnce) })
	}
	return o.keepInstalled(ctx, listed)
}

// keepInstalled installs, and does so again whenever another program changes the node's CNI lists.
func (o *options) keepInstalled(ctx context.Context, ready func(bool)) error {
	watch := &dirWatch{what: "CNI lists", log: o.log}
	defer watch.close()
	said := ""
	mounts := o.mounts()
	var d dispute
	for installed := false; ; {
		if err := mounts.check(); err != nil {
			return err
		}
		dirs, _ := o.lists().dropInDirs() // updateList reports what cannot be read
		dirs = append(dirs, o.cniConf, o.listTo, o.cniBin)
		watch.add(slices.DeleteFunc(dirs, func(dir string) bool { return dir == "" })...)
		var err error
		if !installed || !o.hasBinaries() {
			err = o.installBinaries(ctx)
			installed = err == nil
		}
		disputed := false
		if err == nil {
			var changed bool
			changed, err = o.updateList(ctx)
			if disputed = d.lasts(changed, o.lists().wanted()); disputed {
				err = errors.Join(err, errDispute)
			}
		}
		events, wait, text := watch.events(), recheck, ""
		if err != nil {
			text = err.Error()
		}
		switch {
		case disputed:
			events = nil
		case err != nil:
			wait = retry
		}
		if text != said && text != "" {
			o.log.Warn("install", "error", text)
		}
		said = text
		ready(err == nil)
		select {
		case <-ctx.Done():
			return nil
		case <-events:
			drain(ctx, events)
		case <-watch.errors():
		case <-time.After(wait):
		}
	}
}

// errDispute is reported while nothing is written.
var errDispute = fmt.Errorf("another program removes or changes the derived list whenever it is written; the next try is in %v. "+
	"Cilium: set cni.exclusive=false. Istio: set cni.cniConfFileName to the name of the node's own list", recheck)

// dispute is whether another program undoes what is written. Each write of a list makes the engine load all lists anew.
type dispute struct {
	wanted  []byte
	changes []time.Time
	on      bool
}

// lasts receives whether the derived list had to be changed, and its wanted text. It returns whether this is a dispute:
// a list that changes with its source is none.
func (d *dispute) lasts(changed bool, wanted []byte) bool {
	if !bytes.Equal(wanted, d.wanted) {
		d.wanted, d.changes = wanted, nil
	}
	d.changes = slices.DeleteFunc(d.changes, func(at time.Time) bool { return time.Since(at) > recheck })
	if changed {
		d.changes = append(d.changes, time.Now())
	}
	d.on = changed && (d.on || len(d.changes) >= disputed)
	return d.on
}

// drain waits until no file has changed for a moment, but not long.
func drain(ctx context.Context, events <-chan fsnotify.Event) {
	limit := time.After(10 * settle)
	for {
		select {
		case <-events:
		case <-limit:
			return
		case <-time.After(settle):
			return
		case <-ctx.Done():
			return
		}
	}
}

// keep does it at once, and then again after each interval.
func (o *options) keep(ctx context.Context, name string, interval time.Duration, do func(context.Context) error) {
	for {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			o.log.Warn(name, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(interval):
		}
	}
}

// sweepOnce removes what is left of namespaces that are gone: journals, records, and the directories of their
// sandboxes.
func (o *options) sweepOnce(ctx context.Context) error {
	err := phase1.Forget(ctx, phase1.Gone{Dir: o.dir, Progress: func(text string) { o.log.Info("sweep", "progress", text) }})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // without the directory nothing was ever wired
	}
	errs := []error{err}
	maps.DeleteFunc(o.notes, func(path string, _ note) bool {
		_, err := os.Lstat(path)
		return errors.Is(err, fs.ErrNotExist)
	})
	state := podsandbox.State(o.state)
	ids, err := state.IDs()
	errs = append(errs, err)
	for _, id := range ids {
		nics, err := state.NICs(id)
		errs = append(errs, err)
		for _, nic := range nics {
			// Without a record it is a NIC that an ADD works on, or one that Forget has forgotten.
			if o.isLeft(id, nic) {
				errs = append(errs, state.End(id, nic.Name))
			}
		}
		errs = append(errs, state.Release(ctx, o.lock, id)) // if no NIC is left
	}
	return errors.Join(append(errs, state.Sweep(ctx, o.lock))...)
}

// lock holds a name on the node.
func (o *options) lock(ctx context.Context, name string) (unlock func(), err error) {
	return directory.LockName(ctx, cmp.Or(o.dir, phase1.DefaultDir), name)
}
