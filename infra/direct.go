package infra

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/cache"
)

// Macvtap gives the guest the NIC, which is a macvtap already: with its MAC, on the network of the link
// below it. Whoever made it gives the launcher's user its character device, to read and write: the node
// /dev/tapINDEX, with the NIC's index, in the launcher's own /dev, made of the numbers that
// /sys/class/net/NIC/macvtap/tapINDEX/dev has in the namespace. The machine's /dev/tapINDEX may be that
// of a macvtap in another namespace with the same index.
type Macvtap struct{}

// SRIOV gives the guest a virtual function of a network card. The NIC is the function's network device,
// if there is one still: it goes when the function is bound to vfio-pci, and the wiring stands without
// it. libvirt sets MAC and VLAN at the card, which takes CAP_NET_ADMIN in the machine's own namespace.
type SRIOV struct {
	// PCI is the function's address, of the form 0000:03:10.1; empty: the NIC's (from Linux 5.14 on).
	PCI string `json:"pci,omitempty"`
	// MAC is the guest's; zero: the NIC's.
	MAC cache.MAC `json:"mac,omitzero"`
	// VLAN is the one in which the card puts the guest, at most 4094; 0: none.
	VLAN uint16 `json:"vlan,omitempty"`
	// Managed has libvirt bind the function to vfio-pci, as root, and give it back to its driver.
	// Otherwise it has to be bound before the guest starts.
	Managed bool `json:"managed,omitempty"`
}

// Passt has libvirt start passt(1) for the guest, as the launcher's user and in the namespace, with whose
// sockets the guest speaks. passt gives the guest the NIC's address and answers its DHCP and router
// solicitations. It takes a libvirt that was built with it, of version 9.0 or later.
type Passt struct {
	// MAC is the guest's, which nobody else sees; zero: one that is computed from the NIC's.
	MAC cache.MAC `json:"mac,omitzero"`
	// Ports are what passt forwards to the guest, from all addresses of the namespace, the loopback's
	// too; none: nothing. passt needs a socket for each, so all of them are more than most limits of
	// open files. SCTP is not forwarded.
	Ports []Ports `json:"ports,omitempty"`
}

// Kind is cache.BindingMacvtap.
func (Macvtap) Kind() string { return cache.BindingMacvtap }

// Kind is cache.BindingSRIOV.
func (SRIOV) Kind() string { return cache.BindingSRIOV }

// Kind is cache.BindingPasst.
func (Passt) Kind() string { return cache.BindingPasst }

func (Macvtap) binding() {}
func (SRIOV) binding()   {}
func (Passt) binding()   {}

// Direct says whether nothing of ours lies between the guest and its network: no tap, no responder, no
// filter.
func Direct(b Binding) bool {
	switch b.(type) {
	case Macvtap, SRIOV, Passt:
		return true
	}
	return false
}

// macvtap leaves the NIC as it is, up and with ears for all groups.
func (p *Plan) macvtap(nic Link, spec Spec) error {
	if nic.Kind != macvtap {
		kind := cmp.Or(nic.Kind, "card of the machine")
		return &RefusedError{NIC: nic.Name, Binding: Macvtap{}.Kind(), Instead: p.insteadOfDirect(nic),
			Reason: fmt.Sprintf("it is a %s, and whoever laid it would have to lay a macvtap", kind)}
	}
	p.Record = p.record(nic, spec, nic.MAC)
	p.Record.Tap = nic.Name
	p.unfiltered("the guest can send with every MAC and address")
	p.untold(nic)
	nic.Up = true
	nic.AllMulticast = true // it listens to the groups of the namespace's own addresses, and not to the guest's
	p.wired.links = []Link{nic}
	return nil
}

// macvtap is the kind of links that are taps already.
const macvtap = "macvtap"

// insteadOfDirect is what works with a NIC of another kind.
func (p *Plan) insteadOfDirect(nic Link) string {
	if p.bridgeable(nic) == nil {
		return Bridge{}.Kind()
	}
	return p.insteadOfBridge(nic)
}

// sriov changes nothing: what there is to do, libvirt does at the card. The NIC can be gone.
func (p *Plan) sriov(nic Link, spec Spec, b SRIOV) error {
	const field = "binding.sriov."
	switch {
	case b.PCI == "" && nic.PCI == "":
		return &RefusedError{NIC: nic.Name, Binding: b.Kind(), Reason: "it is no PCI device, or the kernel is older than 5.14 and does not tell: " + field + "pci can name one"}
	case b.PCI == "":
		b.PCI = nic.PCI
	case cache.CheckPCIAddress(field+"pci", b.PCI) != nil:
		return cache.CheckPCIAddress(field+"pci", b.PCI)
	case nic.PCI != "" && !strings.EqualFold(nic.PCI, b.PCI):
		return &cache.FieldError{Field: field + "pci", Reason: fmt.Sprintf("%s, but %s is %s: leave it out, or name the NIC of that function", b.PCI, nic.Name, nic.PCI)}
	}
	if b.MAC.IsZero() {
		b.MAC = nic.MAC
	}
	if b.MAC.IsZero() {
		return &cache.FieldError{Field: field + "mac", Reason: fmt.Sprintf("missing, and %s is not there to take it from: want the guest's", spec.NIC)}
	}
	if !b.MAC.Unicast() {
		return &cache.FieldError{Field: field + "mac", Reason: fmt.Sprintf("%v is no station's address", b.MAC)}
	}
	if b.VLAN > cache.MaxVLAN {
		return &cache.FieldError{Field: field + "vlan", Reason: fmt.Sprintf("%d, want 1 to %d, or 0 for none", b.VLAN, cache.MaxVLAN)}
	}
	p.Record = p.record(nic, spec, b.MAC)
	p.Record.Name = spec.NIC
	p.Record.Tap = ""
	p.Record.SRIOV = &cache.SRIOV{PCIAddress: b.PCI, VLAN: b.VLAN, Managed: b.Managed}
	p.unfiltered("the guest can send with every address, and with every MAC that the card lets pass")
	p.untold(nic)
	if nic.Kind != "" {
		p.warn("%s is a %s and no network card's: the guest gets %s with its MAC and MTU", nic.Name, nic.Kind, b.PCI)
	}
	if nic.PCI != "" && !b.Managed {
		p.warn("%s is there, so %s is bound to its network driver: bind it to vfio-pci before the guest starts, or set %smanaged", nic.Name, b.PCI, field)
	}
	return nil
}

// passt opens to the launcher's user what passt needs, and leaves the NIC as it is.
func (p *Plan) passt(nic Link, spec Spec, b Passt) error {
	if err := b.validate(); err != nil {
		return err
	}
	v4, v6 := addressesOf(p.found, nic)
	if len(v4)+len(v6) == 0 {
		return &RefusedError{NIC: nic.Name, Binding: b.Kind(), Reason: "it has no address that passt could give to the guest", Instead: p.insteadOfDirect(nic)}
	}
	if b.MAC.IsZero() {
		b.MAC = deriveMAC(nic, "guest")
	}
	p.Record = p.record(nic, spec, b.MAC)
	p.Record.Tap = ""
	p.Record.Passt = &cache.Passt{}
	for _, f := range b.Ports {
		p.Record.Passt.Forwards = append(p.Record.Passt.Forwards, cache.Forward{
			Protocol: f.protocol(), First: f.First, Last: f.last(), Guest: cmp.Or(f.Guest, f.First),
		})
		// Another NIC's passt may have opened them already, and may be the first to go.
		if start, err := strconv.Atoi(p.found.Sysctls[portStart]); err == nil && int(f.First) < max(start, privilegedPorts) && (start == 0 || int(f.First) < start) {
			p.wired.sysctls[portStart] = "0" // without that, passt leaves such ports out and says nothing
		}
	}
	if groups := p.found.Sysctls[pingGroups]; groups == noGroup || groups == everyGroup {
		p.wired.sysctls[pingGroups] = everyGroup
	}
	p.down(nic)
	p.unfiltered("it reaches what the namespace reaches, and by its gateway's address the namespace's own loopback")
	for _, addresses := range [][]netip.Prefix{v4, v6} {
		if len(addresses) > 1 {
			p.warn("%s has the addresses %v: passt gives the guest one of a family", nic.Name, addresses)
		}
	}
	for _, l := range p.found.Listeners {
		if contains(b.Ports, l.Protocol, l.Port) {
			p.warn("the namespace serves %s port %d at %v, which passt can then not take for the guest", l.Protocol, l.Port, l.Address)
		}
	}
	return nil
}

func (b Passt) validate() error {
	const field = "binding.passt."
	if !b.MAC.IsZero() && !b.MAC.Unicast() {
		return &cache.FieldError{Field: field + "mac", Reason: fmt.Sprintf("%v is no station's address", b.MAC)}
	}
	for i, f := range b.Ports {
		if f.Protocol == "sctp" {
			return &cache.FieldError{Field: fmt.Sprintf("%sports[%d]", field, i), Reason: fmt.Sprintf("%v: passt forwards tcp and udp only; masquerade forwards sctp too", f)}
		}
	}
	return checkPorts(field+"ports", b.Ports)
}

// What passt(1) needs of the namespace for a user without capabilities (ip-sysctl: ip_unprivileged_port_start,
// ping_group_range).
const (
	portStart  = "net/ipv4/ip_unprivileged_port_start"
	pingGroups = "net/ipv4/ping_group_range"

	privilegedPorts = 1024 // PROT_SOCK, net/sock.h

	noGroup    = "1 0" // the kernel's
	everyGroup = "0 2147483647"
)

// warn adds a sentence to the record.
func (p *Plan) warn(format string, args ...any) {
	p.Record.Warnings = append(p.Record.Warnings, fmt.Sprintf(format, args...))
}

// unfiltered warns of what the guest can do, unless the guard is off: then that is known.
func (p *Plan) unfiltered(what string) {
	if !p.spec.Guard.Off {
		p.warn("nothing filters the guest, as nothing of ours lies between it and its network: %s; guard.off says that this is known", what)
	}
}

// down warns of a NIC that does not work as it is.
func (p *Plan) down(nic Link) {
	if !nic.Up {
		p.warn("%s is down, and stays so: the guest reaches nobody until somebody brings it up", nic.Name)
	}
}

// untold warns of addresses that the guest is not told of.
func (p *Plan) untold(nic Link) {
	if v4, v6 := addressesOf(p.found, nic); len(v4)+len(v6) > 0 {
		p.warn("nobody here tells the guest of %s's addresses %v: it asks whoever answers on that network, or has them configured", nic.Name, slices.Concat(v4, v6))
	}
}
