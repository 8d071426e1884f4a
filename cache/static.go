package cache

import (
	"fmt"
	"net/netip"
	"slices"
)

// Static is what the namespace had on the NIC, for a guest without DHCP; also what DHCP and router advertisements
// cannot give: further addresses, other tables, policy rules, permanent neighbours.
type Static struct {
	Addresses []StaticAddress `json:"addresses"` // all of the NIC, link-local ones too: at least one
	// Routes are all through the NIC, and those that refuse packets, of all tables but the table local, without those that
	// an address implies. Routes on the link come first.
	Routes     []StaticRoute `json:"routes,omitempty"`
	Rules      []StaticRule  `json:"rules,omitempty"`      // for the NIC's addresses and the tables of Routes
	Neighbours []Neighbour   `json:"neighbours,omitempty"` // the NIC's permanent ones; often nothing else answers for them
	Warnings   []string      `json:"warnings,omitempty"`   // sentences about what of the namespace is missing here
}

// StaticAddress is one address of the NIC.
type StaticAddress struct {
	Address       netip.Prefix `json:"address"`                 // with its prefix length
	Peer          netip.Prefix `json:"peer,omitzero"`           // ip-address(8), peer: Address has full length; zero: none
	Broadcast     netip.Addr   `json:"broadcast,omitzero"`      // of IPv4; zero: none
	Scope         uint8        `json:"scope,omitempty"`         // as in rtnetlink(7): 0 is global, 253 link
	NoPrefixRoute bool         `json:"noPrefixRoute,omitempty"` // no route to its network, or Peer, is implied
	Deprecated    bool         `json:"deprecated,omitempty"`    // a source only where no other one fits
}

// routeTypes are those of routes that deliver packets and of routes that refuse them (ip-route(8)).
var routeTypes = []string{"", "blackhole", "unreachable", "prohibit", "throw"}

// StaticRoute is one route of the NIC.
type StaticRoute struct {
	Destination netip.Prefix `json:"destination"`
	Type        string       `json:"type,omitempty"` // empty: delivers; or "blackhole", "unreachable", "prohibit", "throw"
	Table       uint32       `json:"table"`          // 254 is main; never 0 or 255
	// Gateway is zero if the destination is on the link, or Hops are set. It can be IPv6 where Destination is IPv4 (RFC
	// 5549).
	Gateway netip.Addr   `json:"gateway,omitzero"`
	OnLink  bool         `json:"onLink,omitempty"` // Gateway is on the link, though no route leads to it
	Hops    []StaticHop  `json:"hops,omitempty"`   // of a multipath route
	From    netip.Prefix `json:"from,omitzero"`    // the source that packets must have, IPv6 only; zero: any
	Source  netip.Addr   `json:"source,omitzero"`  // preferred; zero: the kernel chooses
	Metric  uint32       `json:"metric,omitempty"`
	MTU     int          `json:"mtu,omitempty"`   // 0: the link's
	Scope   uint8        `json:"scope,omitempty"` // rtnetlink's, of IPv4
}

// StaticHop is one next hop of a multipath route.
type StaticHop struct {
	Gateway netip.Addr `json:"gateway,omitzero"` // zero: on the link
	OnLink  bool       `json:"onLink,omitempty"`
	Weight  int        `json:"weight"` // 1 to 256
}

// StaticRule is a policy rule: packets from Source are looked up in Table (ip-rule(8)).
type StaticRule struct {
	Priority uint32       `json:"priority"`
	Table    uint32       `json:"table"`
	Source   netip.Prefix `json:"source,omitzero"` // zero: any
	IPv6     bool         `json:"ipv6,omitempty"`
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
