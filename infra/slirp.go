package infra

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/privatenet"
)

// Slirp connects the guest by QEMU's own user network, which opens the namespace's sockets for the guest (-netdev user,
// libvirt's interface of type user). The guest has networks of its own, in the families in which the NIC has an
// address. libvirt always gives both families. In each network, host 2 is the gateway, and leads to the namespace's
// loopback. Host 3 is the resolver, and asks the resolvers of QEMU's resolv.conf. Of DNS, only Spec.DNS.Search may be
// set.
type Slirp struct {
	// IPv4 is the guest's network, /8 to /27. Zero: 10.0.2.0/24. ErrCollision: the namespace
	// reaches this network, or that of IPv6.
	IPv4 netip.Prefix `json:"ipv4,omitzero"`

	// IPv6 is the guest's network, a /64. Zero: fd10:0:2::/64.
	IPv6 netip.Prefix `json:"ipv6,omitzero"`

	// MAC is the guest's. Zero: computed as that of Masquerade.
	MAC cache.MAC `json:"mac,omitzero"`

	// Ports are what QEMU forwards to the guest, of TCP and UDP, from all IPv4 addresses of the
	// namespace, the loopback's too. Empty: nothing. At most 512 ports, each an open file of
	// QEMU. libvirt forwards none.
	Ports []Ports `json:"ports,omitempty"`
}

// maxSlirpPorts leaves half of the 1024 files that a process may usually open to the rest of QEMU.
const maxSlirpPorts = 512

func (Slirp) Kind() cache.Kind              { return cache.BindingSlirp }
func (b Slirp) validateGuard(g Guard) error { return g.loosensNothing(b) }

func (b Slirp) validate() error {
	const field = "binding.slirp."
	if err := checkNetwork(field+"ipv4", b.IPv4, privatenet.DefaultIPv4, 27, "gateway, resolver and guest, which is host 15,"); err != nil {
		return err
	}
	if err := checkNetwork(field+"ipv6", b.IPv6, slirpIPv6, 64, "guests that make their addresses themselves"); err != nil {
		return err
	}
	if b.IPv6.IsValid() && b.IPv6.Bits() != 64 {
		return &cache.FieldError{Field: field + "ipv6", Reason: fmt.Sprintf("%v, want a /64, in which the guest makes its address itself", b.IPv6)}
	}
	if err := checkStation(field+"mac", b.MAC); err != nil {
		return err
	}
	files := 0
	for i, p := range b.Ports {
		if files += int(p.full().Last-p.First) + 1; files > maxSlirpPorts {
			return &cache.FieldError{Field: fmt.Sprintf("%sports[%d]", field, i), Reason: fmt.Sprintf("%v: QEMU opens a file for each port, with this entry %d, want at most %d: the bindings passt and masquerade take more", p, files, maxSlirpPorts)}
		}
	}
	return checkSocketPorts(field+"ports", b.Kind(), b.Ports)
}

// slirpIPv6 is an example of the guest's network.
var slirpIPv6 = netip.MustParsePrefix("fd10:0:2::/64")
