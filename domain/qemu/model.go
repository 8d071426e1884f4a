package qemu

import (
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/internal/refusal"
)

// defaultModel is the device's model if the record names none: virtio 1.0 without the legacy interface.
const defaultModel = "virtio-non-transitional"

// model is a kind of device.
type model struct {
	name   string // in the record
	driver string // in QEMU
	virtio bool   // can have several queues, an MTU, and vhost as its backend
	pci    bool   // is on a PCI bus
}

// virtioDrivers are the names in QEMU of libvirt's models, by the latter.
var virtioDrivers = map[string]string{
	"virtio":                  "virtio-net-pci",
	"virtio-transitional":     "virtio-net-pci-transitional",
	"virtio-non-transitional": "virtio-net-pci-non-transitional",
}

var (
	// pciless are not on a PCI bus. They have no option ROM and no ACPI index.
	pciless = []string{"usb-net", "spapr-vlan", "virtio-net-device", "virtio-net-ccw"}
	// fixed are parts of a board. QEMU makes them with the machine, not by -device.
	fixed = []string{"lan9118", "smc91c111"}
)

func modelOf(rec *cache.Record) model {
	if rec.SRIOV != nil {
		return model{name: "vfio-pci", driver: "vfio-pci", pci: true}
	}
	name := rec.Device.Model
	if name == "" {
		name = defaultModel
	}
	driver, ok := virtioDrivers[name]
	if !ok {
		driver = name
	}
	return model{name: name, driver: driver, virtio: strings.HasPrefix(driver, "virtio-net"), pci: !slices.Contains(pciless, driver)}
}

// check refuses what the model cannot have, and what QEMU leaves to others.
func (m model) check(rec *cache.Record) error {
	d := rec.Device
	var r refusal.First
	r.If(slices.Contains(fixed, m.name), "device.model", "%s, which QEMU makes with the machine alone: set this field to %s", m.name, defaultModel)
	r.If(!m.virtio && rec.Queues > 1, "queues", "%d, but model %s has a single queue: run Teardown, and Setup with one queue, or set device.model to %s", rec.Queues, m.name, defaultModel)
	r.If(!m.virtio && rec.Passt != nil && rec.Passt.VhostUser, "passt.vhostUser", "true, but model %s cannot share the guest's memory with passt: set device.model to %s, or leave binding.passt.vhostUser out", m.name, defaultModel)
	r.If(!m.virtio && d.Driver == "vhost", "device.driver", "vhost, but model %s cannot have it as its backend: leave this field empty, or set device.model to %s", m.name, defaultModel)
	r.If(!m.pci && d.ROM != "", "device.rom", "%q, but model %s is not on a PCI bus and has no option ROM: leave this field empty", d.ROM, m.name)
	r.If(!m.pci && d.PCIAddress != "", "device.pciAddress", "%q, but model %s is not on a PCI bus: leave this field empty", d.PCIAddress, m.name)
	r.If(!m.pci && d.ACPIIndex != 0, "device.acpiIndex", "%d, but model %s is not on a PCI bus: leave this field empty", d.ACPIIndex, m.name)
	r.If(rec.SRIOV != nil && rec.SRIOV.VLAN != 0, "sriov.vlan", "QEMU does not set the VLAN: set it at the card (ip link set PF vf N vlan ID), then leave this field out of the record that QEMU gets")
	r.If(rec.SRIOV != nil && rec.SRIOV.Managed, "sriov.managed", "QEMU does not bind the function to vfio-pci: bind it, then leave this field out of the record that QEMU gets")
	return r.Err()
}
