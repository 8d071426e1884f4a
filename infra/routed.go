package infra

import (
	"fmt"

	"github.com/guestwire/guestwire/cache"
)

// Routed gives the guest the NIC's addresses, and the namespace routes between NIC and guest. So the namespace's own
// firewall, and the proxies of a service mesh, see each packet of the guest. The guest's packets keep their addresses.
// The NIC can be one without Ethernet, such as a tun, a WireGuard link or an ipvlan of mode L3.
//
// The NIC keeps its name, MAC and addresses, so CNI's CHECK passes. The namespace does not take the addresses as its
// own while the NIC is wired: they lead to the guest. Its own connections have 169.254.75.1 and fd00:a9fe:4b01::1 as
// their source, which become on the way out the NIC's address that the kernel would choose for the destination. A hop
// is counted (TTL, hop limit). Broadcast, multicast and protocols other than IPv4 and IPv6 do not pass.
//
// A process of the namespace cannot bind the NIC's IPv4 address any more. One that binds an IPv6 address of the NIC
// gets no answers: the guest does. An IPv6 address that the network renews, by router advertisements or DHCPv6, is the
// source of the namespace's own connections again after each renewal, until the next Setup; Check reports it. A
// duplicate of the guest's address on the network stays unknown to the guest, which receives no ARP replies. If the NIC
// goes down and up, the namespace takes the addresses back, until the next Setup.
//
// Routed needs nf_tables. Without these, for a NIC without an address, and where another link has one of these two
// already, the error is a [*RefusedError]. A Spec with Routed takes neither phase1.Config.Standby nor From.
type Routed struct {
	// Sidecar is for the proxies of a service mesh that connect to the guest from loopback addresses; nil: there are none.
	// Proxies that connect from other addresses need nothing here.
	Sidecar *Sidecar `json:"sidecar,omitempty"`
	// Excluded are ports of the NIC's addresses that stay the namespace's own, such as those at which the proxies of a
	// service mesh listen for the network: Istio's 15008, 15020, 15021 and 15090. All others are the guest's: the record
	// warns of services of the namespace there.
	Excluded []Ports `json:"excluded,omitempty"`
	// MaxConnections is as that of [Masquerade].
	MaxConnections int `json:"maxConnections,omitempty"`
}

// Kind is cache.BindingRouted.
func (Routed) Kind() cache.Kind { return cache.BindingRouted }

func (Routed) validateGuard(g Guard) error { return g.carriesIP(cache.BindingRouted) }

func (b Routed) validate() error {
	const field = "binding.routed."
	if err := checkMaxConnections(field, b.MaxConnections); err != nil {
		return err
	}
	if err := checkExcluded(field, b.Excluded); err != nil {
		return err
	}
	return b.Sidecar.validate(field)
}

func checkMaxConnections(field string, most int) error {
	if most < 0 || most > maxConnections {
		return &cache.FieldError{Field: field + "maxConnections", Reason: fmt.Sprintf("%d, want 0 to %d", most, maxConnections)}
	}
	return nil
}
