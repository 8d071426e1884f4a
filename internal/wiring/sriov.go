package wiring

import (
	"fmt"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// sriov changes nothing: libvirt configures the card. The NIC goes away when the function is bound to
// vfio-pci.
type sriov struct{ infra.SRIOV }

func (sriov) asks(netstate.Names) Questions { return Questions{} }

func (b sriov) sameGuest(other infra.Binding) bool { return b.SRIOV == other }
func (b sriov) wiredAs() string                    { return fmt.Sprintf("%+v", b.SRIOV) }
func (sriov) makesMAC() bool                       { return false }

func (b sriov) wire(p *Plan) error {
	const field = "binding.sriov."
	nic := p.nic
	switch {
	case b.PCI == "" && nic.Index == 0:
		return p.noNIC(": name one of them, or in binding.sriov the function's pci and mac")
	case b.PCI == "" && nic.PCI == "":
		return p.refuse("it is no PCI device: " + field + "pci can name one")
	case b.PCI == "":
		b.PCI = nic.PCI
	case nic.PCI != "" && !strings.EqualFold(nic.PCI, b.PCI):
		return &cache.FieldError{Field: field + "pci", Reason: fmt.Sprintf("%s, but %s is %s: leave it out, or name the NIC of that function", b.PCI, nic.Name, nic.PCI)}
	}
	if b.MAC.IsZero() {
		b.MAC = nic.MAC
	}
	if b.MAC.IsZero() {
		why := "is not there to take it from"
		if nic.Index != 0 {
			why = "has none of six octets"
		}
		return &cache.FieldError{Field: field + "mac", Reason: fmt.Sprintf("missing, and %s %s: want the guest's", nic.Name, why)}
	}
	if !b.MAC.Unicast() { // the NIC's
		return &cache.FieldError{Field: field + "mac", Reason: fmt.Sprintf("%v is no station's address", b.MAC)}
	}
	p.Record = p.recordOf(b.MAC)
	p.Record.Tap = ""
	p.Record.SRIOV = &cache.SRIOV{PCIAddress: b.PCI, VLAN: b.VLAN, Managed: b.Managed}
	p.addWarnings(p.warnUnfiltered("the guest can send with every address, and with every MAC that the card lets pass")...)
	p.addWarnings(p.warnNotServed()...)
	p.Record.Static = p.on.Static(p.Record.MAC)
	if nic.Kind != "" {
		p.warn("%s is a %s and no network card's: the guest gets %s with its MAC and MTU", nic.Name, nic.Kind, b.PCI)
	}
	if nic.PCI != "" && !b.Managed {
		p.warn("%s is there, so %s is bound to its network driver: bind it to vfio-pci before the guest starts, or set %smanaged", nic.Name, b.PCI, field)
	}
	return nil
}
