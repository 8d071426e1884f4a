package infra

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
)

// Guard is what the guest may send. The zero value allows its own MAC and addresses alone: no DHCP server, no router,
// and behind a masquerade no service of the namespace. It also keeps the network's DHCP servers and routers from a
// guest that guestwire serves. Macvtap, SRIOV, Passt and Slirp have no filter: their records warn, unless Off is set.
type Guard struct {
	// Off lets everything pass; the other fields are empty then. The guest still needs the record's MAC: the responder,
	// and the namespace behind Masquerade and Routed, answer no other one. Serve reports it: other-mac-seen.
	Off  bool        `json:"off,omitempty"`
	MACs []cache.MAC `json:"macs,omitempty"` // the guest's in addition to the record's; each may use each address
	// Prefixes are sources in addition to the guest's addresses, such as those of containers in the guest. The filter
	// learns four link-local addresses (RFC 7217); fe80::/64 is for a guest with more. Under Masquerade and Routed, Setup
	// adds a route to each prefix through the guest (ErrCollision: there is one); elsewhere the record warns without one.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
	// EtherTypes also pass, in both directions, such as 0x8863 (PPPoE), except to 01:80:c2:00:xx:xx. The filter checks
	// the guest's MAC alone. Only Bridge, Redirect and Auto take EtherTypes and VLANs.
	EtherTypes []EtherType `json:"etherTypes,omitempty"`
	// VLANs are the tags (802.1Q) that pass in both directions, 1 to 4094, or 0: priority tags, filtered as untagged. The
	// filter checks the guest's MAC, and that no second tag follows, but no addresses, DHCP or routers. Empty: none from
	// the guest, and any to a guest without guestwire's responder.
	VLANs []uint16 `json:"vlans,omitempty"`
	// Open are the namespace's ports that a guest of Masquerade or Routed reaches, except at loopback addresses and unless
	// they are forwarded to the guest. Other bindings, and Auto, refuse them.
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
