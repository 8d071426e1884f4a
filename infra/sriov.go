package infra

import (
	"fmt"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/syntax"
)

// SRIOV gives the guest a virtual function of a network card. The NIC is the function's network device. The NIC goes
// away when the function is bound to vfio-pci, and the wiring stands without the NIC. libvirt sets MAC and VLAN at the
// card. For that, libvirt needs CAP_NET_ADMIN in the machine's own network namespace.
type SRIOV struct {
	// PCI is the function's address, such as 0000:03:10.1. Empty: the NIC's.
	PCI string `json:"pci,omitempty"`

	// MAC is the guest's. Zero: the NIC's.
	MAC cache.MAC `json:"mac,omitzero"`

	// VLAN is the VLAN into which the card puts the guest, at most 4094. 0: none.
	VLAN uint16 `json:"vlan,omitempty"`

	// Managed has libvirt bind the function to vfio-pci, as root, and give it back. If it is
	// false, bind the function before the guest starts.
	Managed bool `json:"managed,omitempty"`
}

func (SRIOV) Kind() cache.Kind              { return cache.BindingSRIOV }
func (b SRIOV) validateGuard(g Guard) error { return g.loosensNothing(b) }

func (b SRIOV) validate() error {
	const field = "binding.sriov."
	if b.PCI != "" {
		if err := syntax.CheckPCIAddress(b.PCI); err != nil {
			return &cache.FieldError{Field: field + "pci", Reason: err.Error()}
		}
	}
	if err := checkStation(field+"mac", b.MAC); err != nil {
		return err
	}
	if b.VLAN > maxVLAN {
		return &cache.FieldError{Field: field + "vlan", Reason: fmt.Sprintf("%d, want 1 to %d, or 0 for none", b.VLAN, maxVLAN)}
	}
	return nil
}

// checkStation refuses a guest's MAC that no single station can have; zero means a default.
func checkStation(field string, m cache.MAC) error {
	if !m.IsZero() && !m.Unicast() {
		return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v is no station's address", m)}
	}
	return nil
}
