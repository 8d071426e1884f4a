package launchers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// WithTap gives the namespaces of another Driver a tap for a microVM. Behind it each guest has the same addresses and
// MAC, those of the snapshot from which it starts, and is reached at the slot's address.
type WithTap struct {
	Driver
	Owner infra.Owner // the VMM's user
	Dir   string      // for the fastlet alone, outlives it, such as /run/fast-sandbox/guestwire
}

func (d WithTap) Prepare(ctx context.Context, slot *Slot) error {
	if err := d.Driver.Prepare(ctx, slot); err != nil {
		return err
	}
	spec := infra.Spec{Binding: infra.Masquerade{MAC: cache.MAC{0x02, 0x66, 0x73, 0x62, 0, 1}}, Owner: d.Owner, Tap: "vmtap0"}
	spec.Options.NoResponder = true // the snapshot's guest has its addresses
	err := d.inSlot(slot, func(nic phase1.NIC) error {
		_, err := nic.Setup(ctx, spec)
		return err
	})
	if err == nil { // the driver's rules in OUTPUT, which keep sandboxes apart, do not see what the guest sends
		var out []byte
		out, err = exec.CommandContext(ctx, "ip", "link", "set", "dev", slot.HostVeth, "type", "bridge_slave", "isolated", "on").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("isolate %s: %w: %s", slot.HostVeth, err, out)
		}
	}
	if err != nil {
		return errors.Join(err, d.Destroy(context.WithoutCancel(ctx), slot))
	}
	return nil
}

func (d WithTap) Validate(ctx context.Context, slot *Slot) error {
	if err := d.Driver.Validate(ctx, slot); err != nil {
		return err
	}
	return d.inSlot(slot, func(nic phase1.NIC) error { return nic.Check(ctx) })
}

func (d WithTap) Destroy(ctx context.Context, slot *Slot) error {
	err := d.inSlot(slot, func(nic phase1.NIC) error {
		return nic.Teardown(ctx, phase1.TeardownOptions{CutOff: true, Discard: true}) // the namespace is deleted next
	})
	if errors.Is(err, fs.ErrNotExist) { // the namespace is gone
		if err = phase1.Forget(ctx, phase1.Gone{Dir: d.Dir, Own: true}); errors.Is(err, fs.ErrNotExist) {
			err = nil // no slot was ever wired
		}
	}
	return errors.Join(err, d.Driver.Destroy(ctx, slot))
}

func (d WithTap) inSlot(slot *Slot, f func(phase1.NIC) error) error {
	ns, err := phase1.OpenNetNS(slot.NetNSPath)
	if err != nil {
		return err
	}
	defer ns.Close()
	return f(phase1.NIC{NetNS: ns, Name: "eth0", Dir: d.Dir})
}
