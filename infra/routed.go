package infra

import (
	"fmt"

	"github.com/guestwire/guestwire/cache"
)

// Routed gives the guest the NIC's addresses, and the namespace routes between NIC and guest. So the namespace's
// firewall, and the proxies of a service mesh, see each packet. The NIC keeps its name, MAC and addresses, so CNI's
// CHECK passes. The NIC need not carry Ethernet: tun, WireGuard and ipvlan L3 work.
//
// The namespace counts as a hop (TTL). Broadcast, multicast and protocols other than IPv4 and IPv6 do not pass. The
// namespace's own connections leave from 169.254.75.1 and fd00:a9fe:4b01::1, which become the NIC's address on the way
// out. A process of the namespace cannot bind the NIC's IPv4 address, and gets no answers at an IPv6 address of the
// NIC: docs/bindings/routed.md has all limits.
//
// A [*RefusedError]: there is no nf_tables, the NIC has no address, or another link has one of those two addresses.
// Setup of phase1.NIC with Moving.Standby refuses Routed.
type Routed struct {
	// Sidecar is for proxies of a service mesh that connect to the guest from loopback
	// addresses. Nil: there are none.
	Sidecar *Sidecar `json:"sidecar,omitempty"`

	// Excluded are ports of the NIC's addresses that stay the namespace's own, such as those of
	// Istio's proxies: 15008, 15020, 15021 and 15090. The record warns of other services of the
	// namespace.
	Excluded []Ports `json:"excluded,omitempty"`

	// MaxConnections is as that of Masquerade. 0: DefaultMaxConnections.
	MaxConnections int `json:"maxConnections,omitempty"`
}

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
