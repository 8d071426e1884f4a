package infra

import (
	"fmt"

	"github.com/guestwire/guestwire/cache"
)

// Passt connects the guest by passt(1), which opens the namespace's sockets for the guest. libvirt (9.0 or later, built
// with passt) or the launcher starts passt in the namespace, as the launcher's user. passt gives the guest the NIC's
// addresses.
type Passt struct {
	// MAC is the guest's. No other station sees it. Zero: computed as that of Masquerade.
	MAC cache.MAC `json:"mac,omitzero"`

	// Ports are forwarded to the guest, from all addresses of the namespace, the loopback's
	// too. Empty: nothing. passt needs an open file for each port. It does not forward SCTP.
	Ports []Ports `json:"ports,omitempty"`

	// VhostUser has passt read and write the guest's memory, so that frames need no socket
	// (vhost-user). False: a socket. It needs a virtio device, a passt that knows --vhost-user,
	// such as Debian 13's, and a libvirt since 11.1, or QEMU: 10.0 was tried, and 7.2 crashes.
	// The guest's memory must be shared: libvirt's memoryBacking with the source memfd and the
	// access shared, or QEMU's -object memory-backend-memfd,id=ram,share=on,size=SIZE -machine
	// memory-backend=ram.
	VhostUser bool `json:"vhostUser,omitempty"`
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
