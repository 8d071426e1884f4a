// Package domain describes the guest's network device to libvirt, from the record that Phase1 wrote.
package domain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/internal/refusal"
)

// defaultModel is the device's model if the record names none: virtio 1.0 without the legacy interface.
const defaultModel = "virtio-non-transitional"

// aliasPrefix is the prefix that libvirt wants of an alias that the user chooses
// (https://libvirt.org/formatdomain.html#devices).
const aliasPrefix = "ua-"

var (
	// virtioModels can have several queues, and vhost as their backend.
	virtioModels = []string{"virtio", "virtio-transitional", "virtio-non-transitional"}
	// romlessModels are not on a PCI bus: libvirt refuses a <rom> element for them, even with
	// enabled='no'.
	romlessModels = []string{"usb-net", "spapr-vlan", "lan9118", "smc91c111"}
)

// Interface returns the <interface> element for the record. The caller can change its fields. Its Marshal returns the
// XML. Interface reads no files and asks no kernel.
//
//	record              element
//	a tap               type ethernet. libvirt attaches to the tap, without a capability
//	a virtual function  type hostdev. libvirt sets MAC and VLAN at the card
//	passt               type user. libvirt starts passt as the guest's user
//	passt, VhostUser    type vhostuser. The same, and the domain needs shared memory
//	slirp               type user. libvirt knows no forwards and no search domains for it
//
// For a virtual function libvirt needs CAP_NET_ADMIN in the machine's own network namespace.
//
// VhostUser needs libvirt 11.1, and in the domain <memoryBacking><source type='memfd'/><access mode='shared'/>
// </memoryBacking>: without it libvirt refuses the domain. An older libvirt refuses the element.
//
// The default model needs virtio 1.0 in the guest (Linux 4.10). If the machine has no PCI bus (s390x), set ROM to nil.
// A usb-net device needs a port (Address.USB). To attach the element to a running machine of type q35, libvirt needs a
// free pcie-root-port (attach-device). detach-device takes the same element, before Teardown.
//
// A *cache.FieldError: the record is not valid, or its device's model cannot have what the record wants. Source:
// libvirt formatdomain#network-interfaces.
func Interface(rec *cache.Record) (*libvirtxml.DomainInterface, error) {
	return refusal.Describe(rec, newInterface)
}

func newInterface(rec *cache.Record) (*libvirtxml.DomainInterface, error) {
	model := rec.Device.Model
	if model == "" && rec.SRIOV == nil {
		model = defaultModel
	}
	if err := checkModel(rec, model); err != nil {
		return nil, err
	}

	device := rec.Device
	iface := &libvirtxml.DomainInterface{
		MAC:     &libvirtxml.DomainInterfaceMAC{Address: rec.MAC.String()},
		ROM:     optionROM(device, model),
		Address: pciAddress(rec.Device.PCIAddress),
	}
	switch {
	case rec.SRIOV != nil:
		setFunction(iface, rec.SRIOV)
	case rec.Passt != nil:
		setPasst(iface, rec)
	case rec.Slirp != nil:
		if err := setSlirp(iface, rec); err != nil {
			return nil, err
		}
	default:
		iface.Source = &libvirtxml.DomainInterfaceSource{Ethernet: &libvirtxml.DomainInterfaceSourceEthernet{}}
		iface.Target = &libvirtxml.DomainInterfaceTarget{Dev: rec.Tap, Managed: "no"}
	}
	if rec.SRIOV == nil {
		iface.Model = &libvirtxml.DomainInterfaceModel{Type: model}
	}
	if rec.Tap != "" { // with passt, libvirt 11.3 would look for a tap on which to set the MTU, and fail
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

// setFunction makes the guest's device a virtual function of a network card.
func setFunction(iface *libvirtxml.DomainInterface, v *cache.SRIOV) {
	if v.Managed { // libvirt's default is no
		iface.Managed = "yes"
	}
	iface.Driver = &libvirtxml.DomainInterfaceDriver{Name: "vfio"}
	iface.Source = &libvirtxml.DomainInterfaceSource{Hostdev: &libvirtxml.DomainInterfaceSourceHostdev{
		PCI: &libvirtxml.DomainHostdevSubsysPCISource{Address: pciAddress(v.PCIAddress).PCI},
	}}
	if v.VLAN != 0 {
		iface.VLan = &libvirtxml.DomainInterfaceVLan{Tags: []libvirtxml.DomainInterfaceVLanTag{{ID: uint(v.VLAN)}}}
	}
}

// setPasst connects the guest's device to passt(1).
func setPasst(iface *libvirtxml.DomainInterface, rec *cache.Record) {
	iface.Source = &libvirtxml.DomainInterfaceSource{User: &libvirtxml.DomainInterfaceSourceUser{Dev: rec.Name}}
	if rec.Passt.VhostUser {
		iface.Source = &libvirtxml.DomainInterfaceSource{VHostUser: &libvirtxml.DomainInterfaceSourceVHostUser{Dev: rec.Name}}
	}
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
		if len(ranges) > 0 { // libvirt would forward all ports for an element without ranges
			iface.PortForward = append(iface.PortForward, libvirtxml.DomainInterfaceSourcePortForward{Proto: protocol, Ranges: ranges})
		}
	}
}

// setSlirp connects the guest's device to QEMU's user network. libvirt has words for its networks alone.
func setSlirp(iface *libvirtxml.DomainInterface, rec *cache.Record) error {
	const instead = " out, or start QEMU without libvirt (package domain/qemu)"
	var r refusal.First
	r.If(len(rec.Slirp.Forwards) > 0, "slirp.forwards", "libvirt forwards no port to a guest of slirp: leave binding.slirp.ports"+instead+", or want the binding passt")
	r.If(rec.DNS != nil && len(rec.DNS.Search) > 0, "dns.search", "libvirt names no search domains to slirp: leave it"+instead)
	if err := r.Err(); err != nil {
		return err
	}
	iface.Source = &libvirtxml.DomainInterfaceSource{User: &libvirtxml.DomainInterfaceSourceUser{}}
	for _, network := range []netip.Prefix{rec.Slirp.IPv4, rec.Slirp.IPv6} {
		if !network.IsValid() {
			continue
		}
		family := "ipv4"
		if network.Addr().Is6() {
			family = "ipv6"
		}
		iface.IP = append(iface.IP, libvirtxml.DomainInterfaceIP{Family: family, Address: network.Addr().String(), Prefix: uint(network.Bits())})
	}
	return nil
}

// checkModel refuses what the model cannot have. libvirt ignores some of it without an error.
func checkModel(rec *cache.Record, model string) error {
	virtio := slices.Contains(virtioModels, model)
	var r refusal.First
	r.If(slices.Contains(romlessModels, model) && rec.Device.ROM != "", "device.rom", "%q, but model %s is not on a PCI bus and has no option ROM: leave this field empty", rec.Device.ROM, model)
	r.If(slices.Contains(romlessModels, model) && rec.Device.PCIAddress != "", "device.pciAddress", "%q, but model %s is not on a PCI bus: leave this field empty", rec.Device.PCIAddress, model)
	r.If(slices.Contains(romlessModels, model) && rec.Device.ACPIIndex != 0, "device.acpiIndex", "%d, but model %s is not on a PCI bus: leave this field out", rec.Device.ACPIIndex, model)
	r.If(rec.Device.PCIAddress != "" && !strings.HasPrefix(rec.Device.PCIAddress, "0000:"), "device.pciAddress", "%q, and libvirt's machines have the domain 0000 alone: name an address of it, or leave this field empty", rec.Device.PCIAddress)
	r.If(!virtio && rec.Queues > 1, "queues", "%d, but model %s has a single queue: run Teardown, and Setup with one queue, or set device.model to %s", rec.Queues, model, defaultModel)
	r.If(!virtio && rec.Passt != nil && rec.Passt.VhostUser, "passt.vhostUser", "true, but model %s cannot share the guest's memory with passt: set device.model to %s, or leave binding.passt.vhostUser out", model, defaultModel)
	r.If(!virtio && rec.Device.Driver == "vhost", "device.driver", "vhost, but model %s cannot have it as its backend: leave this field empty, or set device.model to %s", model, defaultModel)
	return r.Err()
}

// optionROM returns the <rom> element, for each device that can have a ROM. Without the element, QEMU loads its
// default ROM: firmware that the launcher did not ask for, from a file that its image may not have.
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

// pciAddress returns the address of the form domain:bus:slot.function, in hexadecimal digits, which Validate has
// checked; nil if text is empty.
func pciAddress(text string) *libvirtxml.DomainAddress {
	if text == "" {
		return nil
	}
	var a [4]uint
	_, _ = fmt.Sscanf(text, "%x:%x:%x.%x", &a[0], &a[1], &a[2], &a[3])
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Domain: &a[0], Bus: &a[1], Slot: &a[2], Function: &a[3]}}
}
