package infra

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
)

// Guard is what the guest may send. The zero value allows the guest's own MAC and addresses alone. The guest can then
// be no DHCP server and no router, and behind a masquerade it reaches no service of the namespace. The filter also
// keeps the network's DHCP servers and routers from a guest that guestwire's responder serves.
//
// Macvtap, SRIOV, Passt and Slirp have no filter. Their records warn of that, unless Off is set.
type Guard struct {
	// Off lets everything pass. The other fields except MACs and MaxNeighbours must be empty then. The guest
	// still needs the record's MAC, or one of MACs: the responder answers no other MAC. Under
	// Masquerade and Routed, the namespace answers the record's MAC alone. Serve reports
	// another MAC as the event other-mac-seen.
	Off bool `json:"off,omitempty"`

	// MACs are further MACs of the guest, in addition to the record's, such as that of a bridge
	// in the guest. Each of them may use each of the guest's addresses, and the responder
	// serves it. All of them get the same addresses. Under Masquerade and Routed, the network's
	// packets to the guest's addresses still go to the record's MAC.
	MACs []cache.MAC `json:"macs,omitempty"`

	// Prefixes are sources in addition to the guest's addresses, such as those of containers in
	// the guest. The filter learns link-local addresses by itself (RFC 7217): four for a week,
	// and others for an hour, after the last use. Add fe80::/64 for a guest that uses more than
	// 256 others in an hour, or 16 under Masquerade and Routed.
	//
	// Under Masquerade and Routed, Setup adds a route through the guest to each prefix that is
	// not link-local. ErrCollision: the namespace has a route that overlaps the prefix. A
	// prefix gets no route if the guest has no address of its family, or if the prefix is
	// shorter than /8. The record warns of that. Under Bridge and Redirect, the network must
	// know the way to the prefix.
	//
	// A guest that asks for prefixes by DHCPv6 (IA_PD) gets the IPv6 prefixes of this list, the
	// widest first, for the time of its lease. Left out are single addresses, link-local
	// prefixes, those shorter than /8, and those inside another one. Left out are also those
	// that overlap a network on the NIC's link, or contain one to which the namespace has a
	// route.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`

	// EtherTypes pass in addition to IPv4, IPv6 and ARP, in both directions, such as 0x8863
	// (PPPoE). Frames to 01:80:c2:00:xx:xx never pass. The filter checks the guest's MAC and
	// does not look into these frames. Only Bridge, Redirect and Auto take EtherTypes.
	EtherTypes []EtherType `json:"etherTypes,omitempty"`

	// VLANs are the tags (802.1Q) that pass in both directions, 1 to 4094. 0 allows priority
	// tags: such a frame is filtered, and answered by the responder, as one without a tag.
	//
	// In a tagged frame the filter checks the guest's MAC, and that no second tag follows. It
	// checks no addresses, DHCP or routers there. Only Bridge, Redirect and Auto take VLANs.
	//
	// Empty: the guest can send no tag. A guest that guestwire's responder does not serve still
	// receives any tag.
	VLANs []uint16 `json:"vlans,omitempty"`

	// Open are the namespace's own ports that a guest of Masquerade or Routed reaches. The
	// guest does not reach them at loopback addresses, nor if they are forwarded to the guest.
	// Other bindings, and Auto, refuse this field.
	Open []Ports `json:"open,omitempty"`

	// MaxNeighbours is the number of hosts and gateways on the NIC's link, of each family, that
	// a guest of Masquerade or Routed opens connections to in a minute. 0: 64. At most
	// 65536. All namespaces of the machine share the kernel's two neighbour tables: with many
	// such guests, raise net.ipv4.neigh.default.gc_thresh3 of the machine, and that of IPv6.
	// Without nf_tables there is no limit. Other bindings but Auto refuse this field.
	MaxNeighbours int `json:"maxNeighbours,omitempty"`
}

const maxNeighbours = 1 << 16

func (g Guard) validate() error {
	for i, m := range g.MACs {
		if !m.Unicast() {
			return &cache.FieldError{Field: fmt.Sprintf("guard.macs[%d]", i), Reason: fmt.Sprintf("%v is no station's address", m)}
		}
		if j := slices.Index(g.MACs, m); j < i {
			return &cache.FieldError{Field: fmt.Sprintf("guard.macs[%d]", i), Reason: fmt.Sprintf("%v is entry %d already", m, j)}
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
	if g.MaxNeighbours < 0 || g.MaxNeighbours > maxNeighbours {
		return &cache.FieldError{Field: "guard.maxNeighbours", Reason: fmt.Sprintf("%d, want 0 to %d", g.MaxNeighbours, maxNeighbours)}
	}
	if g.Off && len(g.Prefixes)+len(g.EtherTypes)+len(g.VLANs)+len(g.Open) > 0 {
		return &cache.FieldError{Field: "guard.off", Reason: "a guard that is off has nothing to loosen: leave prefixes, etherTypes, vlans and open out"}
	}
	return nil
}

// routesNothing is validateGuard of a binding under which the namespace does not route.
func (g Guard) routesNothing() error {
	if g.MaxNeighbours != 0 {
		return &cache.FieldError{Field: "guard.maxNeighbours", Reason: "only masquerade and routed limit the guest's neighbours: leave it out, or want the binding masquerade, routed or auto"}
	}
	return g.opensNothing()
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
	return g.routesNothing()
}
