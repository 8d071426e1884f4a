package infra

import (
	"fmt"

	"github.com/guestwire/guestwire/cache"
)

// Passt has libvirt start passt(1) for the guest, as the launcher's user and in the namespace, whose sockets the guest
// then uses. passt gives the guest the NIC's address and answers its DHCP and router solicitations. It takes a libvirt
// of version 9.0 or later that was built with passt.
type Passt struct {
	// MAC is the guest's, which no other station sees. Zero: one that is computed from Spec.Guest and the NIC's name;
	// without Spec.Guest from the NIC's MAC and name.
	MAC cache.MAC `json:"mac,omitzero"`
	// Ports are what passt forwards to the guest, from all addresses of the namespace, the loopback's too; none: nothing.
	// passt needs a socket for each port, so all ports are more than most limits of open files allow. SCTP is refused, as
	// passt does not forward it.
	Ports []Ports `json:"ports,omitempty"`
}

// Kind is cache.BindingPasst.
func (Passt) Kind() cache.Kind              { return cache.BindingPasst }
func (b Passt) validateGuard(g Guard) error { return g.loosensNothing(b) }

func (b Passt) validate() error {
	const field = "binding.passt."
	if err := checkStation(field+"mac", b.MAC); err != nil {
		return err
	}
	for i, p := range b.Ports {
		if p.Protocol == "sctp" {
			return &cache.FieldError{Field: fmt.Sprintf("%sports[%d]", field, i), Reason: fmt.Sprintf("%v: passt forwards tcp and udp only; masquerade forwards sctp too", p)}
		}
	}
	return checkPorts(field+"ports", b.Ports)
}
