package cache

import (
	"fmt"
	"net/netip"
	"slices"
)

// Static is what the namespace had on the NIC. It is for a guest without DHCP, and has what DHCP and router
// advertisements cannot give: further addresses, other route tables, policy rules, permanent neighbours.
type Static struct {
	// Addresses are all addresses of the NIC, at least one, with its link-local ones.
	Addresses []StaticAddress `json:"addresses"`

	// Routes are all routes through the NIC, and the namespace's blackhole, unreachable,
	// prohibit and throw routes. They are of every table except local. Routes that the kernel
	// makes of an address are left out. Routes on the link come first.
	Routes []StaticRoute `json:"routes,omitempty"`

	// Rules are the policy rules for the NIC's addresses, and those for the tables of Routes.
	Rules []StaticRule `json:"rules,omitempty"`

	// Neighbours are the NIC's permanent neighbours. Often no station answers for them.
	Neighbours []Neighbour `json:"neighbours,omitempty"`

	// Warnings name what of the namespace is missing here, a sentence each.
	Warnings []string `json:"warnings,omitempty"`
}

// StaticAddress is one address of the NIC.
type StaticAddress struct {
	// Address is the address with its prefix length.
	Address netip.Prefix `json:"address"`

	// Peer is the other end of a point-to-point address (ip-address(8), peer). Address is then
	// a /32 or a /128. Zero: none.
	Peer netip.Prefix `json:"peer,omitzero"`

	// Broadcast is the broadcast address, of IPv4 alone. Zero: none.
	Broadcast netip.Addr `json:"broadcast,omitzero"`

	// Scope is the scope of rtnetlink(7): 0 is global, 253 is link.
	Scope uint8 `json:"scope,omitempty"`

	// NoPrefixRoute says that the address makes no route to its network, or to Peer.
	NoPrefixRoute bool `json:"noPrefixRoute,omitempty"`

	// Deprecated says that the address becomes a source only if no other address fits.
	Deprecated bool `json:"deprecated,omitempty"`
}

// routeTypes are those of routes that deliver packets and of routes that refuse them (ip-route(8)).
var routeTypes = []string{"", "blackhole", "unreachable", "prohibit", "throw"}

// StaticRoute is one route of the NIC, or one that refuses packets.
type StaticRoute struct {
	Destination netip.Prefix `json:"destination"`

	// Type is "blackhole", "unreachable", "prohibit" or "throw". Empty: the route delivers
	// packets.
	Type string `json:"type,omitempty"`

	// Table is the number of the route's table: 254 is main. It is never 0 or 255 (local).
	Table uint32 `json:"table"`

	// Gateway is the next hop. Zero: the destination is on the link, or Hops has the next hops.
	// It can be IPv6 if Destination is IPv4 (RFC 5549).
	Gateway netip.Addr `json:"gateway,omitzero"`

	// OnLink says that Gateway is on the link although no route leads to it.
	OnLink bool `json:"onLink,omitempty"`

	// Hops are the next hops of a multipath route. Empty: it is none.
	Hops []StaticHop `json:"hops,omitempty"`

	// From is the source that packets must have, of IPv6 alone. Zero: any.
	From netip.Prefix `json:"from,omitzero"`

	// Source is the preferred source address. Zero: the kernel chooses.
	Source netip.Addr `json:"source,omitzero"`

	// Metric is the route's metric.
	Metric uint32 `json:"metric,omitempty"`

	// MTU is the route's own MTU. 0: the link's.
	MTU int `json:"mtu,omitempty"`

	// Scope is the scope of rtnetlink(7), of IPv4 alone.
	Scope uint8 `json:"scope,omitempty"`
}

// StaticHop is one next hop of a multipath route.
type StaticHop struct {
	Gateway netip.Addr `json:"gateway,omitzero"` // zero: the destination is on the link
	OnLink  bool       `json:"onLink,omitempty"` // as that of StaticRoute
	Weight  int        `json:"weight"`           // 1 to 256
}

// StaticRule is a policy rule (ip-rule(8)): packets from Source are looked up in Table.
type StaticRule struct {
	Priority uint32       `json:"priority"`
	Table    uint32       `json:"table"`
	Source   netip.Prefix `json:"source,omitzero"` // zero: any
	IPv6     bool         `json:"ipv6,omitempty"`  // the rule is of IPv6; false: of IPv4
}

// maxRouteMTU is far above each link's (RTAX_MTU has 32 bits).
const maxRouteMTU = 1 << 20

func (s *Static) validate() error {
	if s == nil {
		return nil
	}
	if len(s.Addresses) == 0 {
		return fieldErrorf("static.addresses", "none, want at least one")
	}
	for i, a := range s.Addresses {
		if err := a.validate(fmt.Sprintf("static.addresses[%d]", i)); err != nil {
			return err
		}
	}
	for i, r := range s.Routes {
		if err := r.validate(fmt.Sprintf("static.routes[%d]", i)); err != nil {
			return err
		}
	}
	for i, r := range s.Rules {
		if err := r.validate(fmt.Sprintf("static.rules[%d]", i)); err != nil {
			return err
		}
	}
	return checkNeighbours("static.neighbours", s.Neighbours)
}

func checkNeighbours(field string, neighbours []Neighbour) error {
	for i, n := range neighbours {
		if !isUnicast(n.Address) {
			return fieldErrorf(fmt.Sprintf("%s[%d].address", field, i), "%v, want a unicast address", n.Address)
		}
		if !n.MAC.Unicast() {
			return fieldErrorf(fmt.Sprintf("%s[%d].mac", field, i), "%v, want a unicast address", n.MAC)
		}
		if (n.Station != netip.Addr{}) && !isUnicast(n.Station) {
			return fieldErrorf(fmt.Sprintf("%s[%d].station", field, i), "%v, want a unicast address", n.Station)
		}
	}
	return nil
}

func (a StaticAddress) validate(field string) error {
	own := a.Address.Addr()
	switch {
	case !a.Address.IsValid() || !isUnicast(own):
		return fieldErrorf(field+".address", "%v, want a unicast address with a prefix length", a.Address)
	case a.Peer != netip.Prefix{} && (!a.Peer.IsValid() || !isUnicast(a.Peer.Addr()) || a.Peer.Addr().Is4() != own.Is4()):
		return fieldErrorf(field+".peer", "%v, want a unicast address of the same family with a prefix length", a.Peer)
	case a.Peer.IsValid() && !a.Address.IsSingleIP():
		return fieldErrorf(field+".address", "%v, though it has a peer: want /%d", a.Address, own.BitLen())
	case a.Broadcast.IsValid() && (!a.Broadcast.Is4() || !own.Is4()):
		return fieldErrorf(field+".broadcast", "%v, want an IPv4 address, of an IPv4 address alone", a.Broadcast)
	}
	return nil
}

// checkNetwork checks a network without host bits.
func checkNetwork(field string, p netip.Prefix) error {
	if !p.IsValid() || p.Addr().Is4In6() || p != p.Masked() {
		return fieldErrorf(field, "%v, want a network without host bits", p)
	}
	return nil
}

func checkTable(field string, table uint32) error {
	if table == 0 || table == 255 {
		return fieldErrorf(field, "%d, want another table than none (0) and local (255)", table)
	}
	return nil
}

func (r StaticRoute) validate(field string) error {
	if err := checkNetwork(field+".destination", r.Destination); err != nil {
		return err
	}
	if err := checkTable(field+".table", r.Table); err != nil {
		return err
	}
	if !slices.Contains(routeTypes, r.Type) {
		return fieldErrorf(field+".type", "%q, want one of %q", r.Type, routeTypes)
	}
	v4 := r.Destination.Addr().Is4()
	switch {
	case r.Gateway.IsValid() && (r.Type != "" || len(r.Hops) > 0):
		return fieldErrorf(field+".gateway", "%v, but the route has hops, or refuses packets: leave it out", r.Gateway)
	case r.OnLink && !r.Gateway.IsValid():
		return fieldErrorf(field+".onLink", "set, but there is no gateway")
	case len(r.Hops) > 0 && r.Type != "":
		return fieldErrorf(field+".hops", "%d, but the route refuses packets: leave them out", len(r.Hops))
	case r.Source.IsValid() && (!isUnicast(r.Source) || r.Source.Is4() != v4):
		return fieldErrorf(field+".source", "%v, want a unicast address of the destination's family", r.Source)
	case r.MTU < 0 || r.MTU > maxRouteMTU:
		return fieldErrorf(field+".mtu", "%d, want 0 to %d", r.MTU, maxRouteMTU)
	}
	if r.From != (netip.Prefix{}) {
		if v4 || r.From.Addr().Is4() {
			return fieldErrorf(field+".from", "%v, want an IPv6 network, of an IPv6 route alone", r.From)
		}
		if err := checkNetwork(field+".from", r.From); err != nil {
			return err
		}
	}
	if err := r.checkGateway(field+".gateway", r.Gateway); err != nil {
		return err
	}
	for i, h := range r.Hops {
		field := fmt.Sprintf("%s.hops[%d]", field, i)
		if err := r.checkGateway(field+".gateway", h.Gateway); err != nil {
			return err
		}
		if h.Weight < 1 || h.Weight > 256 {
			return fieldErrorf(field+".weight", "%d, want 1 to 256", h.Weight)
		}
	}
	return nil
}

// checkGateway refuses what is no next hop of the route. An IPv6 route has no IPv4 next hop.
func (r StaticRoute) checkGateway(field string, gateway netip.Addr) error {
	if gateway.IsValid() && (!isUnicast(gateway) || gateway.Is4() && r.Destination.Addr().Is6()) {
		return fieldErrorf(field, "%v, want a unicast address to which the route can lead", gateway)
	}
	return nil
}

func (r StaticRule) validate(field string) error {
	if err := checkTable(field+".table", r.Table); err != nil {
		return err
	}
	if r.Source == (netip.Prefix{}) {
		return nil
	}
	if r.Source.Addr().Is6() != r.IPv6 {
		return fieldErrorf(field+".source", "%v, want a network of the rule's family", r.Source)
	}
	return checkNetwork(field+".source", r.Source)
}
