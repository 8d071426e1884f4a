package infra

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
)

// Guard is what the guest may send. The zero value allows the guest its own MAC and addresses, and nothing else: no
// DHCP server, no router, and behind a masquerade no service of the namespace. It also keeps the network's DHCP servers
// and routers from a guest that guestwire's responder serves. Macvtap, SRIOV and Passt have no filter: their records
// warn of that, unless Off is set.
type Guard struct {
	// Off lets everything pass; then the other fields have to be empty. The guest still needs the record's MAC: behind
	// Masquerade and Routed the namespace sends to that MAC alone, and the responder answers no other one. Serve reports
	// the other MAC as the event other-mac-seen.
	Off bool `json:"off,omitempty"`
	// MACs are the guest's besides the one in the record. Each of them may use each of the addresses.
	MACs []cache.MAC `json:"macs,omitempty"`
	// Prefixes are sources besides the guest's addresses, such as those of containers in the guest. The filter learns four
	// link-local addresses that the guest makes up (RFC 7217); fe80::/64 is for a guest with more. Under Masquerade and
	// Routed, Setup adds a route to each prefix by way of the guest; ErrCollision if the prefix overlaps a network that
	// the namespace can reach already. The record warns of a prefix without a route.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
	// EtherTypes are those of frames that pass besides IPv4, IPv6 and ARP, from the guest and to it, such as 0x8863 and
	// 0x8864 (PPPoE). The filter checks the guest's MAC in them, and does not look into them. Frames to addresses that
	// bridges do not forward (01:80:c2:00:xx:xx) do not pass. Only Bridge, Redirect and Auto take EtherTypes and VLANs.
	EtherTypes []EtherType `json:"etherTypes,omitempty"`
	// VLANs are those whose tags (802.1Q) may pass from the guest and to it, 1 to 4094. Where VLANs is empty, a guest
	// without a responder of guestwire receives the network's frames with any tag, and answers none. The filter checks the
	// guest's MAC in such a frame, and that no second tag follows; addresses, DHCP and routers of another VLAN are not the
	// filter's. 0 is for priority tags, whose frames have to pass the filter as those without a tag have.
	VLANs []uint16 `json:"vlans,omitempty"`
	// Open are the ports of the namespace itself that a guest of Masquerade or Routed reaches, at all addresses but the
	// loopback's, unless they are forwarded back to the guest. Only these two take them, and not Auto.
	Open []Ports `json:"open,omitempty"`
}

func (g Guard) validate() error {
	for i, m := range g.MACs {
		if !m.Unicast() {
			return &cache.FieldError{Field: fmt.Sprintf("guard.macs[%d]", i), Reason: fmt.Sprintf("%v is no station's address", m)}
		}
	}
	for i, p := range g.Prefixes {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() || p.Addr().IsMulticast() || p.Addr().IsLoopback() {
			return &cache.FieldError{Field: fmt.Sprintf("guard.prefixes[%d]", i), Reason: fmt.Sprintf("%v is no network, want one like 10.1.0.0/24 or fd00::/64", p)}
		}
	}
	if err := checkEtherTypes(g.EtherTypes); err != nil {
		return err
	}
	if err := checkVLANs(g.VLANs); err != nil {
		return err
	}
	if err := checkPorts("guard.open", g.Open); err != nil {
		return err
	}
	for i, p := range g.Open {
		if p.Guest != 0 {
			return &cache.FieldError{Field: fmt.Sprintf("guard.open[%d]", i), Reason: fmt.Sprintf("%v: a port of the namespace cannot become another one: leave :%d out", p, p.Guest)}
		}
	}
	if g.Off && len(g.MACs)+len(g.Prefixes)+len(g.EtherTypes)+len(g.VLANs)+len(g.Open) > 0 {
		return &cache.FieldError{Field: "guard.off", Reason: "a guard that is off has nothing to loosen: leave macs, prefixes, etherTypes, vlans and open out"}
	}
	return nil
}

// opensNothing is validateGuard of a binding that closes no ports of the namespace.
func (g Guard) opensNothing() error {
	if len(g.Open) > 0 {
		return &cache.FieldError{Field: "guard.open", Reason: "only masquerade and routed close the namespace's ports to the guest, so only they can open some: leave it out, or want the binding masquerade or routed"}
	}
	return nil
}

// carriesIP is validateGuard of a binding of this kind that carries IPv4 and IPv6 alone.
func (g Guard) carriesIP(kind cache.Kind) error {
	for _, f := range []struct {
		name  string
		given int
	}{{"guard.etherTypes", len(g.EtherTypes)}, {"guard.vlans", len(g.VLANs)}} {
		if f.given > 0 {
			return &cache.FieldError{Field: f.name, Reason: string(kind) + " carries IPv4 and IPv6, and no other frame leaves: leave it out, or want the binding bridge or redirect"}
		}
	}
	return nil
}

// loosensNothing is validateGuard of a binding without a filter.
func (g Guard) loosensNothing(b Binding) error {
	if len(g.MACs)+len(g.Prefixes)+len(g.EtherTypes)+len(g.VLANs) > 0 {
		return &cache.FieldError{Field: "guard", Reason: fmt.Sprintf("nothing filters a guest of the %s binding, so there is nothing to loosen: leave macs, prefixes, etherTypes and vlans out", b.Kind())}
	}
	return g.opensNothing()
}
