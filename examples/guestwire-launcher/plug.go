package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/phase2"
)

// askAgain is the time that a guest has to give a device up before QEMU is asked again: a guest that boots ignores
// that.
const askAgain = 5 * time.Second

// plugger gives a running QEMU a device for each record that comes, and takes the device of a record that goes.
type plugger struct {
	vm      *phase2.VM
	log     *slog.Logger
	buses   []string      // at which a device can be plugged; one device at a time
	command []string      // that runs QEMU
	changed chan struct{} // has an element when a record has come or gone

	monitor  *monitor // of the QEMU that runs
	backends *backends
	devices  map[string]plugged // by the record's name

	mu      sync.Mutex
	removed map[string]bool // names of records that have gone since the last look; another record may have the name by now
}

// plugged is a device that QEMU has.
type plugged struct {
	nic  *qemu.NIC
	bus  string // of buses; empty: a device of QEMU's command line
	kept bool   // QEMU was asked to take the device away, and the guest has not given it up so far
}

// errKept says that the guest has not given a device up in the time that it has.
var errKept = errors.New("the guest has not answered so far")

func newPlugger(vm *phase2.VM, buses, command []string) *plugger {
	return &plugger{
		vm: vm, log: vm.Log, buses: buses, command: command, changed: make(chan struct{}, 1), devices: map[string]plugged{}, removed: map[string]bool{},
	}
}

// notify takes notice of an event. It does not wait for QEMU, as Serve waits for Notify.
func (p *plugger) notify(e phase2.Event) {
	if e.Kind != "record-added" && e.Kind != "record-removed" {
		return
	}
	if e.Kind == "record-removed" {
		p.mu.Lock()
		p.removed[e.NIC] = true
		p.mu.Unlock()
	}
	select {
	case p.changed <- struct{}{}:
	default: // run has not looked at the earlier ones yet
	}
}

// run plugs and unplugs until ctx is done.
func (p *plugger) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
			p.apply(ctx)
		}
	}
}

// apply unplugs first, as a new record may need the bus. A device that its guest keeps does not hold the others up: the
// next round asks for it again.
func (p *plugger) apply(ctx context.Context) {
	p.mu.Lock()
	removed := p.removed
	p.removed = map[string]bool{}
	p.mu.Unlock()
	records := p.vm.Records()
	for name, d := range p.devices {
		there := slices.ContainsFunc(records, func(r cache.Record) bool { return r.Name == name })
		if there && !removed[name] {
			continue
		}
		switch err := p.unplug(ctx, d); {
		case p.ended(ctx):
			return
		case errors.Is(err, errKept):
			if !d.kept {
				p.log.Warn("the guest keeps the device of the removed record so far: QEMU asks the guest again", "nic", name)
			}
			d.kept = true
			p.devices[name] = d
			p.notify(phase2.Event{Kind: "record-removed", NIC: name})
			continue
		case err != nil:
			p.log.Warn("QEMU keeps the device of the removed record", "nic", name, "error", err)
			continue
		}
		delete(p.devices, name)
		p.backends.stop(name)
		p.log.Info("unplugged: the NIC can be taken down", "nic", name)
	}
	for _, r := range records {
		if _, has := p.devices[r.Name]; has {
			continue
		}
		d, err := p.plug(ctx, r)
		if err != nil {
			p.log.Warn("QEMU gets no device for the new record", "nic", r.Name, "error", err)
			continue
		}
		p.devices[r.Name] = d
		p.log.Info("plugged", "nic", r.Name, "bus", d.bus)
	}
}

// ended says that QEMU has ended, or is about to: there is nothing to plug then.
func (p *plugger) ended(ctx context.Context) bool {
	select {
	case <-p.monitor.ended:
		return true
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

func (p *plugger) execute(ctx context.Context) func(string, qemu.Object) error {
	return func(command string, arguments qemu.Object) error { return p.monitor.execute(ctx, command, arguments) }
}

func (p *plugger) plug(ctx context.Context, r cache.Record) (d plugged, err error) {
	if d.bus, err = p.freeBus(); err != nil {
		return d, err
	}
	o := qemu.Options{Bus: d.bus}
	if o.Vhost, err = vhost(&r); err != nil {
		return d, err
	}
	if r.Tap != "" {
		queues, err := phase2.OpenTap(r)
		if err != nil {
			return d, err
		}
		defer closeAll(queues) // QEMU has its own
		if o.FDs, err = p.give(ctx, r.Name, queues); err != nil {
			return d, err
		}
	}
	if err = checkShared(ctx, &r, p.command); err != nil {
		return d, err
	}
	if d.nic, err = p.backends.newNIC(ctx, &r, o); err == nil {
		err = d.nic.Plug(p.execute(ctx))
	}
	if err != nil {
		p.backends.stop(r.Name)
		for _, name := range o.FDs { // what netdev_add has not taken would keep the tap open
			_ = p.monitor.execute(ctx, "closefd", qemu.Object{"fdname": name})
		}
	}
	return d, err
}

// give gives QEMU the queues, and returns their names there.
func (p *plugger) give(ctx context.Context, nic string, queues []*os.File) ([]string, error) {
	var names []string
	for i, f := range queues {
		name := fmt.Sprintf("nic-%s-%d", nic, i) // QEMU takes no name that starts with a digit
		if err := p.monitor.execute(ctx, "getfd", qemu.Object{"fdname": name}, f); err != nil {
			return nil, fmt.Errorf("getfd: %w", err)
		}
		names = append(names, name)
	}
	return names, nil
}

func (p *plugger) freeBus() (string, error) {
	free := slices.Clone(p.buses)
	for _, d := range p.devices {
		if i := slices.Index(free, d.bus); i >= 0 {
			free = slices.Delete(free, i, i+1)
		}
	}
	if len(free) == 0 {
		return "", errors.New("no bus of -plug is free")
	}
	return free[0], nil
}

func (p *plugger) unplug(ctx context.Context, d plugged) error {
	gone := p.monitor.whenDeleted(fmt.Sprint(d.nic.Device["id"]))
	asked := d.kept
	return d.nic.Unplug(p.execute(ctx), func() (bool, error) {
		select {
		case <-gone:
			return true, nil
		case <-time.After(askAgain):
			if asked {
				return false, errKept
			}
			asked = true
			return false, nil
		case <-p.monitor.ended:
			return false, errQEMUEnded
		case <-ctx.Done():
			return false, ctx.Err()
		}
	})
}
