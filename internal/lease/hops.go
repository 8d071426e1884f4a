package lease

import (
	"iter"
	"net/netip"
	"slices"
	"sync"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// The namespace's own addresses behind infra.Routed. The guest's gateway and its DHCP server have the address
// RoutedIPv4, or the next one if the guest has RoutedIPv4 itself.
var (
	RoutedIPv4 = netip.AddrFrom4([4]byte{169, 254, 75, 1})
	RoutedIPv6 = netip.MustParseAddr("fd00:a9fe:4b01::1")
)

// Hop is the gateway and DHCP server of a guest behind the namespace: a link-local address for which the namespace
// answers ARP.
func Hop(guest netip.Addr) netip.Addr {
	if guest == RoutedIPv4 {
		return guest.Next()
	}
	return RoutedIPv4
}

// server is the DHCP server identifier of a guest without a gateway: a link-local address for which the responder
// answers ARP. A guest may send renewals by its routing table, so each NIC of the namespace has another address, by its
// index: 169.254.75.2 for the index 2, and 169.254.75.254 is followed by 169.254.75.2 again. A NIC whose address an
// earlier link or the namespace has gets the next one.
func (n NIC) server() netip.Addr {
	const first, count = 2, 253
	network := RoutedIPv4.As4()
	of := func(number int) netip.Addr {
		return netip.AddrFrom4([4]byte{network[0], network[1], network[2], byte(first + number%count)})
	}
	taken := map[netip.Addr]bool{}
	for _, a := range n.found.Addresses {
		taken[a.Prefix.Addr()] = true
	}
	indices := []int{n.Index}
	for _, l := range n.found.Links {
		if l.Index < n.Index && !l.Loopback {
			indices = append(indices, l.Index)
		}
	}
	slices.Sort(indices)
	var server netip.Addr
	for _, index := range indices {
		number := index + count - first
		for tries := 0; taken[of(number)] && tries < count; tries++ {
			number++
		}
		server = of(number)
		taken[server] = true
	}
	return server
}

// Neighbour returns the NIC's neighbour with the address.
func (n NIC) Neighbour(a netip.Addr) (netstate.Neighbour, bool) {
	for o := range n.neighbours() {
		if o.Address == a {
			return o, true
		}
	}
	return netstate.Neighbour{}, false
}

// followed is the gateway, if its MAC is learned, so that it can change; zero: an administrator has set it, or each of
// the NIC's IPv6 addresses is another station's, so that there is none to ask from.
func (n NIC) followed(gateway netip.Addr) netip.Addr {
	known, _ := n.Neighbour(gateway)
	own := n.AddressesOn(ip.V6)
	if known.Permanent || gateway.Is6() && len(own) > 0 && !slices.ContainsFunc(own, func(a netstate.Address) bool { return !a.Duplicate }) {
		return netip.Addr{}
	}
	return gateway
}

// neighbours are the NIC's neighbours whose MACs are those of stations. The kernel accepts each MAC, also from an
// answer of the network, but a guest cannot have a group as its router.
func (n NIC) neighbours() iter.Seq[netstate.Neighbour] {
	return func(yield func(netstate.Neighbour) bool) {
		for _, o := range n.found.Neighbours {
			if o.Link == n.Index && o.MAC.Unicast() && !yield(o) {
				return
			}
		}
	}
}

// hop is the route's next hop on the NIC's link, the first one of several.
func (n NIC) hop(route netstate.Route) netip.Addr {
	if i := slices.IndexFunc(route.Hops, func(h netstate.Hop) bool { return h.Link == n.Index }); i >= 0 {
		return route.Hops[i].Gateway
	}
	return route.Gateway
}

// hop6 is the IPv6 next hop of IPv4 routes (RFC 8950), that of the default route if there is one; zero: there is none.
func (n NIC) hop6(routes []netstate.Route) netip.Addr {
	first := netip.Addr{}
	for _, route := range routes { // the default route comes last
		if hop := n.hop(route); route.Destination.Addr().Is4() && hop.Is6() && (route.Default() || !first.IsValid()) {
			first = hop
		}
	}
	return first
}

// hopMAC is the MAC to which a NIC without ARP sends packets for its gateway.
func (n NIC) hopMAC(r *cache.Record, v ip.Version) cache.MAC {
	permanent := map[netip.Addr]cache.MAC{}
	for o := range n.neighbours() {
		if _, there := permanent[o.Address]; o.Permanent && !there {
			permanent[o.Address] = o.MAC
		}
	}
	for _, route := range n.Routes(v) {
		if mac, is := permanent[route.Gateway]; is && route.Default() {
			return mac
		}
	}
	return r.MAC
}

// learned are the NIC's routes as DHCP can carry them, a destination and one next hop each. The record gets what is
// lost.
func (n NIC) learned(r *cache.Record, v ip.Version) []cache.Route {
	return n.asGuest(r, n.Routes(v))
}

func (n NIC) asGuest(r *cache.Record, routes []netstate.Route) []cache.Route {
	var guest []cache.Route
	known, stands := map[netip.Prefix]bool{}, false
	behind := sync.OnceValue(func() (b struct {
		hop     netip.Addr // the IPv6 next hop of IPv4 routes
		standIn cache.Neighbour
		answers bool
	}) {
		b.hop = n.hop6(routes)
		known, answers := n.Neighbour(b.hop)
		b.answers, b.standIn = answers, cache.Neighbour{Address: n.server(), MAC: known.MAC, Station: n.followed(b.hop)}
		return b
	})
	for _, route := range routes {
		if known[route.Destination] {
			continue // the route has a higher metric
		}
		g := cache.Route{Destination: route.Destination, Gateway: n.hop(route)}
		if len(route.Hops) > 0 {
			lose(r, "next-hop", route.Destination.String(), "the guest gets one of %d, %v", len(route.Hops), g.Gateway)
		}
		if g.Gateway.Is6() && g.Destination.Addr().Is4() && !n.NoARP {
			// The guest's next hop is an address for which the responder answers with the MAC of the IPv6 next hop.
			switch b := behind(); {
			case g.Gateway != b.hop:
				lose(r, "route", route.Destination.String(), "its next hop is %v, and the guest has one of IPv6, %v", g.Gateway, b.hop)
				continue
			case !b.answers:
				loseGateway(r, b.hop, 4)
				continue
			case !stands && !slices.Contains(r.Neighbours, b.standIn):
				r.Neighbours = append(r.Neighbours, b.standIn)
				fallthrough
			default:
				g.Gateway, stands = b.standIn.Address, true
			}
		}
		guest = append(guest, g)
		known[g.Destination] = true
	}
	return guest
}

// NextHops are the routes through the NIC for packets from the address, as a guest would get them.
func (n NIC) NextHops(from netip.Addr) []cache.Route {
	return n.asGuest(&cache.Record{}, n.RoutesFrom(from))
}

// routesTo are routes to the destinations, without next hops.
func routesTo(destinations []netip.Prefix) (list []cache.Route) {
	for _, d := range destinations {
		list = append(list, cache.Route{Destination: d})
	}
	return list
}

// by are the routes by way of the gateway.
func by(routes []cache.Route, gateway netip.Addr) []cache.Route {
	return slices.DeleteFunc(slices.Clone(routes), func(r cache.Route) bool { return r.Gateway != gateway })
}

// defaultIndex is the index of the default route among routes of a family, and negative if there is none.
func defaultIndex(routes []cache.Route) int {
	return syntax.DefaultIndex(routes, func(r cache.Route) netip.Prefix { return r.Destination })
}
