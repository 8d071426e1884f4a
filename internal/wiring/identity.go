package wiring

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// guestMAC makes up the MAC of a guest that no other station than its gateway sees.
func (s *seen) guestMAC() cache.MAC {
	station := cmp.Or(s.spec.Guest, s.nic.MAC.String())
	return netstate.DeriveMACOf(station, s.nic.Name, "guest")
}

// responderMAC is computed from the MAC that a guest keeps when it moves: its gateway's behind a masquerade, else its
// own.
func (s *seen) responderMAC(r cache.Record) cache.MAC {
	nic := s.nic
	nic.MAC = r.MAC
	if r.Binding == cache.BindingMasquerade {
		nic.MAC = r.GatewayMAC
	}
	return netstate.DeriveMAC(nic, "responder")
}

// checkGuestMAC refuses a MAC for the guest that another link of the wiring has. The kernel would keep the guest's
// frames.
func (p *Plan) checkGuestMAC() error {
	field := fmt.Sprintf("binding.%s.mac", p.spec.Binding.Kind())
	if p.Record.MAC == p.Record.GatewayMAC {
		return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v is the gateway's: want another one here or in gatewayMAC", p.Record.MAC)}
	}
	for _, l := range p.wanted.Links {
		if l.Up && l.Index != p.nic.Index && l.MAC == p.Record.MAC || l.Name == p.names.Moved && l.MAC == p.Record.MAC {
			return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v is that of %s, a link of the wiring: want another one", p.Record.MAC, l.Name)}
		}
	}
	return nil
}

// warnOtherMAC warns of networks that seem to know the NIC's MAC, and drop the frames of a guest with another one.
func (s *seen) warnOtherMAC(mac cache.MAC) (list texts) {
	nic := s.nic
	switch {
	case mac == nic.MAC:
	case slices.ContainsFunc(s.v4, func(a netip.Prefix) bool { return derivedFrom(nic.MAC, a.Addr()) }):
		list.add("%s's MAC, %v, is made of its address, as OVN-Kubernetes and OpenShift make it: if that network checks MACs (port security), it drops what the guest sends with %v", nic.Name, nic.MAC, mac)
	case nic.MAC[0] == 0 && nic.MAC[1] == 0 && nic.MAC[2] == 0:
		list.add("%s's MAC, %v, looks like one of Kube-OVN: if its subnet checks MACs (port security), it drops what the guest sends with %v", nic.Name, nic.MAC, mac)
	case s.routedByEBPF():
		list.add("%s looks like a NIC of Cilium, which knows the MAC %v: nothing reaches a guest with %v", nic.Name, nic.MAC, mac)
	case nic.Kind == "":
		list.add("%s is no virtual link: a cloud, or a switch with port security, may know the MAC %v alone, and drop what the guest sends with %v", nic.Name, nic.MAC, mac)
	}
	return list
}

// wiredWith is wiredAs of a binding whose only field is the guest's MAC.
func wiredWith(m cache.MAC) string {
	if m.IsZero() {
		return ""
	}
	return "(mac " + m.String() + ")"
}

// takeMAC sets a MAC that is zero.
func takeMAC(field string, m *cache.MAC, have cache.MAC) error {
	if !m.IsZero() && *m != have {
		return contradicts(field, m.String(), have.String())
	}
	*m = have
	return nil
}

func contradicts(field, want, have string) error {
	return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%s, but the guest that moves here has %s: leave this field out", want, have)}
}

// routedByEBPF reports whether the NIC looks like one of Cilium's: a single address, a gateway outside of its
// network that has a route of its own, and a default route with an MTU.
func (s *seen) routedByEBPF() bool {
	if len(s.v4) != 1 || !s.v4[0].IsSingleIP() {
		return false
	}
	routes := s.on.Routes(ip.V4)
	onLink := func(a netip.Addr) bool {
		return slices.ContainsFunc(routes, func(r netstate.Route) bool { return r.Destination == firewall.HostPrefix(a) && !r.Gateway.IsValid() })
	}
	return slices.ContainsFunc(routes, func(r netstate.Route) bool {
		return r.Default() && r.MTU != 0 && r.Gateway.IsValid() && !r.Gateway.IsLinkLocalUnicast() && onLink(r.Gateway)
	})
}

// derivedFrom reports whether the MAC is 0a:58 and the address, as the CNI plugins of OVN-Kubernetes and OpenShift SDN
// make it.
func derivedFrom(m cache.MAC, a netip.Addr) bool {
	v4 := a.As4()
	return m == cache.MAC{0x0a, 0x58, v4[0], v4[1], v4[2], v4[3]}
}
