// Package firecracker describes the guest's network device to Firecracker, from the record of Phase1: as the object of
// PUT /network-interfaces/{iface_id}. It follows the published schema. No guest was run, as Firecracker needs KVM.
package firecracker

import (
	"fmt"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/internal/refusal"
)

// NetworkInterface is a network device. Embed it to add rate limiters. It is also an entry of network_overrides, if ID
// is that of the snapshot: Firecracker reads the two names, and ignores the other fields.
type NetworkInterface struct {
	// ID is the device's name in Firecracker.
	ID string `json:"iface_id"`

	// HostDevName is the tap's name. Firecracker opens the tap by its name alone. So run
	// Firecracker in the namespace, by launch.Start or by the jailer's --netns.
	HostDevName string `json:"host_dev_name"`

	// GuestMAC is the guest's MAC.
	GuestMAC cache.MAC `json:"guest_mac"`

	// MTU reaches the guest by virtio, 68 to 65535. 0: the guest learns its MTU by DHCP and
	// router advertisements. Firecracker before 1.16 refuses the field: set it to 0.
	MTU int `json:"mtu,omitempty"`
}

// NewNetworkInterface returns the network device for the record. It reads no files and asks no kernel. The ID is the
// record's Device.Alias. If that is empty, it is the record's Name, in which an underscore and two hexadecimal digits
// stand for an underscore and for a character that an ID cannot have.
//
// A *cache.FieldError: the record is not valid, or Firecracker cannot have what it wants. Source: firecracker.yaml
// (src/firecracker/swagger).
func NewNetworkInterface(rec *cache.Record) (*NetworkInterface, error) {
	return refusal.Describe(rec, newInterface)
}

func newInterface(rec *cache.Record) (*NetworkInterface, error) {
	if err := check(rec); err != nil {
		return nil, err
	}
	id := rec.Device.Alias
	if id == "" {
		id = idFor(rec.Name)
	}
	return &NetworkInterface{ID: id, HostDevName: rec.Tap, GuestMAC: rec.MAC, MTU: rec.MTU}, nil
}

// Path returns the path of the request.
func (n *NetworkInterface) Path() string { return "/network-interfaces/" + n.ID }

// check refuses what Firecracker cannot have.
func check(rec *cache.Record) error {
	d := rec.Device
	var r refusal.First
	r.Virtio(rec, "Firecracker")
	r.If(rec.SRIOV != nil, "binding", "sriov, and Firecracker passes no PCI device to a guest: use a binding with a tap, or another VMM")
	r.If(rec.Passt != nil, "binding", "passt, whose socket Firecracker does not speak: use the masquerade binding, or QEMU")
	r.If(rec.Binding == cache.BindingMacvtap, "binding", "macvtap, and Firecracker opens taps by their names alone: use the redirect binding, or another VMM")
	r.If(rec.Queues > 1, "queues", "%d, and Firecracker's device has one: run Teardown, and Setup with one queue", rec.Queues)
	r.If(d.Driver == "vhost", "device.driver", "vhost, which Firecracker does not use: leave this field empty")
	r.If(d.PCIAddress != "", "device.pciAddress", "%q, and Firecracker places its devices itself: leave this field empty", d.PCIAddress)
	r.If(strings.ContainsFunc(d.Alias, isForeign), "device.alias", "%q, and Firecracker takes letters, digits and underscores: name another one, or leave this field empty", d.Alias)
	return r.Err()
}

// isForeign reports whether Firecracker does not take the character in a name.
func isForeign(c rune) bool {
	return c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
}

// idFor returns an ID for the name. Different names have different IDs, as Firecracker takes a second PUT of an ID for
// a change of the first one.
func idFor(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c == '_' || isForeign(rune(c)) {
			fmt.Fprintf(&b, "_%02x", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
