// Package domain describes the guest's network device to a VMM, from the record that Phase1 left.
package domain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/guestwire/guestwire/cache"
)

// DefaultModel is the device of a record that names none: virtio 1.0 without the legacy half,
// for which the guest needs Linux 4.10 or a driver as young.
const DefaultModel = "virtio-non-transitional"

// aliasPrefix is what libvirt asks of a name that it did not give itself
// (https://libvirt.org/formatdomain.html#devices).
const aliasPrefix = "ua-"

var (
	// virtioModels can have several queues, and a backend in the host's kernel.
	virtioModels = []string{"virtio", "virtio-transitional", "virtio-non-transitional"}
	// romlessModels are not on a PCI bus: libvirt refuses an option ROM for them, even none.
	romlessModels = []string{"usb-net", "spapr-vlan", "lan9118", "smc91c111"}
)

// Interface is the <interface> element of the record's guest.
//
// Its type is ethernet and its target the record's tap with managed='no', so that a libvirt
// without capabilities attaches to the tap and changes nothing about it. A virtual function is a
// hostdev: libvirt sets MAC and VLAN at the card, for which it needs CAP_NET_ADMIN in the machine's
// namespace. For passt the type is user, and libvirt starts passt as the guest's user.
//
// Marshal makes the XML; fields may be changed before. On a machine without a PCI bus (s390x) set
// ROM to nil. A usb-net device gets its port from the caller (Address.USB), as libvirt chooses none
// for it.
//
// It reads neither files nor the kernel. The error is a *cache.FieldError: a damaged record, or
// one that the device's model cannot have.
//
// https://libvirt.org/formatdomain.html#generic-ethernet-connection
// https://libvirt.org/formatdomain.html#pci-passthrough
// https://libvirt.org/formatdomain.html#userspace-connection-using-passt
func Interface(rec *cache.Record) (*libvirtxml.DomainInterface, error) {
	if err := rec.Validate(); err != nil {
		return nil, fmt.Errorf("record of interface %q: %w", rec.Name, err)
	}
	model := rec.Device.Model
	if model == "" && rec.SRIOV == nil {
		model = DefaultModel
	}
	if err := checkModel(rec, model); err != nil {
		return nil, fmt.Errorf("interface %s: %w", rec.Name, err)
	}
	address, err := pciAddress("device.pciAddress", rec.Device.PCIAddress)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", rec.Name, err)
	}

	device := rec.Device
	iface := &libvirtxml.DomainInterface{
		MAC:     &libvirtxml.DomainInterfaceMAC{Address: rec.MAC.String()},
		ROM:     optionROM(device, model),
		Address: address,
	}
	switch {
	case rec.SRIOV != nil:
		if err := function(iface, rec.SRIOV); err != nil {
			return nil, fmt.Errorf("interface %s: %w", rec.Name, err)
		}
	case rec.Passt != nil:
		passt(iface, rec)
	default:
		iface.Source = &libvirtxml.DomainInterfaceSource{Ethernet: &libvirtxml.DomainInterfaceSourceEthernet{}}
		iface.Target = &libvirtxml.DomainInterfaceTarget{Dev: rec.Tap, Managed: "no"}
	}
	if rec.SRIOV == nil {
		iface.Model = &libvirtxml.DomainInterfaceModel{Type: model}
	}
	if rec.Tap != "" { // libvirt 11.3 does not start passt's with one: it looks for a tap to set it
		iface.MTU = &libvirtxml.DomainInterfaceMTU{Size: uint(rec.MTU)}
	}
	if slices.Contains(virtioModels, model) && (device.Driver != "" || rec.Queues > 1) {
		iface.Driver = &libvirtxml.DomainInterfaceDriver{Name: device.Driver}
		if rec.Queues > 1 {
			iface.Driver.Queues = uint(rec.Queues)
		}
	}
	if device.BootOrder != 0 {
		iface.Boot = &libvirtxml.DomainDeviceBoot{Order: device.BootOrder}
	}
	if device.ACPIIndex != 0 {
		iface.ACPI = &libvirtxml.DomainDeviceACPI{Index: device.ACPIIndex}
	}
	if device.Alias != "" {
		iface.Alias = &libvirtxml.DomainAlias{Name: aliasPrefix + strings.TrimPrefix(device.Alias, aliasPrefix)}
	}
	if device.LinkState != "" {
		iface.Link = &libvirtxml.DomainInterfaceLink{State: device.LinkState}
	}
	return iface, nil
}

// function makes the guest's device a virtual function of the host.
func function(iface *libvirtxml.DomainInterface, v *cache.SRIOV) error {
	host, err := pciAddress("sriov.pciAddress", v.PCIAddress)
	if err != nil {
		return err
	}
	if v.Managed { // no is libvirt's default
		iface.Managed = "yes"
	}
	iface.Driver = &libvirtxml.DomainInterfaceDriver{Name: "vfio"}
	iface.Source = &libvirtxml.DomainInterfaceSource{Hostdev: &libvirtxml.DomainInterfaceSourceHostdev{
		PCI: &libvirtxml.DomainHostdevSubsysPCISource{Address: host.PCI},
	}}
	if v.VLAN != 0 {
		iface.VLan = &libvirtxml.DomainInterfaceVLan{Tags: []libvirtxml.DomainInterfaceVLanTag{{ID: uint(v.VLAN)}}}
	}
	return nil
}

// passt connects the guest's device to passt(1).
func passt(iface *libvirtxml.DomainInterface, rec *cache.Record) {
	iface.Source = &libvirtxml.DomainInterfaceSource{User: &libvirtxml.DomainInterfaceSourceUser{Dev: rec.Name}}
	iface.Backend = &libvirtxml.DomainInterfaceBackend{Type: "passt"}
	for _, protocol := range []string{"tcp", "udp"} {
		var ranges []libvirtxml.DomainInterfaceSourcePortForwardRange
		for _, f := range rec.Passt.Forwards {
			if f.Protocol != protocol {
				continue
			}
			r := libvirtxml.DomainInterfaceSourcePortForwardRange{Start: uint(f.First)}
			if f.Last != f.First {
				r.End = uint(f.Last)
			}
			if f.Guest != f.First {
				r.To = uint(f.Guest)
			}
			ranges = append(ranges, r)
		}
		if len(ranges) > 0 { // without any, libvirt would have all ports forwarded
			iface.PortForward = append(iface.PortForward, libvirtxml.DomainInterfaceSourcePortForward{Proto: protocol, Ranges: ranges})
		}
	}
}

// checkModel refuses what libvirt would pass over in silence for this model.
func checkModel(rec *cache.Record, model string) error {
	if slices.Contains(romlessModels, model) && rec.Device.ROM != "" {
		return &cache.FieldError{
			Field:  "device.rom",
			Reason: fmt.Sprintf("%q, but model %s is not on a PCI bus and has no option ROM: leave it empty", rec.Device.ROM, model),
		}
	}
	if slices.Contains(virtioModels, model) {
		return nil
	}
	if rec.Queues > 1 {
		return &cache.FieldError{
			Field: "queues",
			Reason: fmt.Sprintf("%d, but model %s has a single queue: run Setup again with one queue, or set device.model to %s",
				rec.Queues, model, DefaultModel),
		}
	}
	if rec.Device.Driver == "vhost" {
		return &cache.FieldError{
			Field:  "device.driver",
			Reason: fmt.Sprintf("vhost, but model %s has no backend in the kernel: leave it empty, or set device.model to %s", model, DefaultModel),
		}
	}
	return nil
}

// optionROM is explicit where the device can have a ROM, as QEMU's default is to load one: firmware
// that nobody asked for, and a file that the launcher's image may not have.
func optionROM(device cache.Device, model string) *libvirtxml.DomainROM {
	if slices.Contains(romlessModels, model) {
		return nil
	}
	switch device.ROM {
	case "on":
		return &libvirtxml.DomainROM{Enabled: "yes"}
	case "off":
		return &libvirtxml.DomainROM{Enabled: "no"}
	case "":
		if device.BootOrder != 0 {
			return &libvirtxml.DomainROM{Enabled: "yes"}
		}
		return &libvirtxml.DomainROM{Enabled: "no"}
	default:
		return &libvirtxml.DomainROM{Enabled: "yes", File: &device.ROM}
	}
}

// pciAddress reads domain:bus:slot.function, in hexadecimal digits; nil if text is empty.
func pciAddress(field, text string) (*libvirtxml.DomainAddress, error) {
	if text == "" {
		return nil, nil
	}
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == ':' || r == '.' })
	var numbers [4]uint
	if len(parts) != len(numbers) {
		return nil, &cache.FieldError{Field: field, Reason: fmt.Sprintf("%q, want the form 0000:01:00.0", text)}
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 16, 16)
		if err != nil {
			return nil, &cache.FieldError{Field: field, Reason: fmt.Sprintf("%q, want the form 0000:01:00.0", text)}
		}
		numbers[i] = uint(n)
	}
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{
		Domain: &numbers[0], Bus: &numbers[1], Slot: &numbers[2], Function: &numbers[3],
	}}, nil
}
