// Package refusal checks records for the packages that describe a guest's network device to a VMM.
package refusal

import (
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
)

// Describe returns what describe makes of a valid record. The error names the record's interface.
func Describe[Description any](rec *cache.Record, describe func(*cache.Record) (Description, error)) (Description, error) {
	var none Description
	if err := rec.Validate(); err != nil {
		return none, fmt.Errorf("record of interface %q: %w", rec.Name, err)
	}
	d, err := describe(rec)
	if err != nil {
		return none, fmt.Errorf("interface %s: %w", rec.Name, err)
	}
	return d, nil
}

// First keeps the first reason to refuse a record, or the options beside it. The zero value has none.
type First struct{ err error }

// If adds a reason if the field is wrong.
func (f *First) If(wrong bool, field, format string, args ...any) {
	if wrong && f.err == nil {
		f.err = &cache.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
}

// Virtio refuses what the VMMs do not have that know virtio 1.0 alone.
func (f *First) Virtio(rec *cache.Record, vmm string) {
	d := rec.Device
	f.If(rec.Slirp != nil, "binding", "slirp, which is a part of QEMU: use the masquerade binding, or QEMU")
	f.If(!slices.Contains([]string{"", "virtio", "virtio-non-transitional"}, d.Model), "device.model", "%q, and %s has virtio 1.0 alone: leave this field empty", d.Model, vmm)
	f.If(d.BootOrder != 0, "device.bootOrder", "%d, and %s does not boot from a network: leave this field out", d.BootOrder, vmm)
	f.If(d.ROM != "" && d.ROM != "off", "device.rom", "%q, and %s's devices have no option ROM: leave this field empty", d.ROM, vmm)
	f.If(d.ACPIIndex != 0, "device.acpiIndex", "%d, and %s's devices have none: leave this field out, and let the guest find its device by the MAC", d.ACPIIndex, vmm)
	f.If(d.LinkState == "down", "device.linkState", "down, and %s cannot take a link down: plug the device later, or leave this field empty", vmm)
}

// Place returns the segment and the device of the record's PCI address, if it has one. Each segment has one bus, and
// each device one function: other addresses are refused.
func (f *First) Place(rec *cache.Record, vmm string) (segment, device int) {
	address := rec.Device.PCIAddress
	if address == "" {
		return 0, 0
	}
	var bus, function int
	_, _ = fmt.Sscanf(address, "%x:%x:%x.%x", &segment, &bus, &device, &function) // Validate has checked the form
	f.If(bus != 0 || function != 0 || device == 0, "device.pciAddress",
		"%q, and %s has bus 00, devices 01 to 1f, and function 0: name such an address, or leave this field empty", address, vmm)
	return segment, device
}

// Err returns a *cache.FieldError, or nil if there is no reason.
func (f *First) Err() error { return f.err }
