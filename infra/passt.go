package infra

import (
	"fmt"

	"github.com/guestwire/guestwire/cache"
)

// Passt has libvirt (9.0 or later, built with passt) or the launcher start passt(1) as the launcher's user in the
// namespace, whose sockets the guest then uses. passt gives the guest the NIC's addresses.
type Passt struct {
	// MAC is the guest's, which no other station sees. Zero: as that of [Masquerade].
	MAC cache.MAC `json:"mac,omitzero"`
	// Ports are what passt forwards to the guest, from all addresses of the namespace, the loopback's too; none: nothing.
	// passt needs an open file for each port. It does not forward SCTP.
	Ports []Ports `json:"ports,omitempty"`
}

func (Passt) Kind() cache.Kind              { return cache.BindingPasst }
func (b Passt) validateGuard(g Guard) error { return g.loosensNothing(b) }

func (b Passt) validate() error {
	const field = "binding.passt."
	if err := checkStation(field+"mac", b.MAC); err != nil {
		return err
	}
	return checkSocketPorts(field+"ports", b.Kind(), b.Ports)
}

// checkSocketPorts checks ports that a program forwards to the guest by its sockets.
func checkSocketPorts(field string, kind cache.Kind, list []Ports) error {
	for i, p := range list {
		if p.Protocol == "sctp" {
			return &cache.FieldError{Field: fmt.Sprintf("%s[%d]", field, i), Reason: fmt.Sprintf("%v: %s forwards tcp and udp only; masquerade forwards sctp too", p, kind)}
		}
	}
	return checkPorts(field, list)
}
