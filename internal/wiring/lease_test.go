package wiring_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
	"github.com/guestwire/guestwire/internal/test/golden"
)

// leased is what a record says to the guest, a line for each thing.
func leased(r cache.Record) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if v4 := r.IPv4; v4 != nil {
		add("IPv4 %v from %v", v4.Address, v4.Server)
		for _, route := range v4.Routes {
			text := fmt.Sprintf("  %v", route.Destination)
			if route.Gateway.IsValid() {
				text += fmt.Sprintf(" via %v", route.Gateway)
			}
			lines = append(lines, text)
		}
		if v4.Gateway().IsValid() {
			add("  gateway %v", v4.Gateway())
		}
		if v4.StandIn.IsValid() {
			add("  or a /31 and %v", v4.StandIn)
		}
	}
	if v6 := r.IPv6; v6 != nil {
		add("IPv6 %v", strings.Trim(fmt.Sprint(v6.Addresses()), "[]"))
		for _, a := range v6.Deprecated {
			add("  deprecated %v", a)
		}
		for _, p := range v6.OnLink {
			add("  %v", p)
		}
		if v6.Router != nil {
			for _, p := range v6.Router.Routes {
				add("  %v via %v", p, v6.Router.Address)
			}
			if v6.Router.Default {
				add("  default via %v", v6.Router.Address)
			}
		}
	}
	for _, n := range r.Neighbours {
		add("neighbour %v at %v", n.Address, n.MAC)
	}
	for _, l := range r.Losses {
		l.Way = ""
		add("loss: %v", l)
	}
	for _, w := range r.Warnings {
		add("warning: %s", w)
	}
	return strings.Join(lines, "\n") + "\n"
}

// calico4 is a NIC whose IPv4 gateway is outside of its network.
func calico4(gateway string, neighbours ...netstate.Neighbour) netstate.Snapshot {
	return lan4With(func(s *netstate.Snapshot) {
		s.Addresses[0] = address("10.244.1.7/32")
		s.Routes = []netstate.Route{via("0.0.0.0/0", gateway), onLink(gateway + "/32"), connected6("fe80::/64")}
		s.Neighbours = neighbours
	})
}

// halves has the two halves of each default route in its place.
func halves(s netstate.Snapshot) netstate.Snapshot {
	var routes []netstate.Route
	for _, r := range s.Routes {
		if d := r.Destination; d.Bits() == 0 {
			for _, half := range map[bool][]string{true: {"0.0.0.0/1", "128.0.0.0/1"}, false: {"::/1", "8000::/1"}}[d.Addr().Is4()] {
				r.Destination = pfx(half)
				routes = append(routes, r)
			}
			continue
		}
		routes = append(routes, r)
	}
	s.Routes = routes
	return s
}

// lan6With is lan6 with other routes and neighbours.
func lan6With(edit func(*netstate.Snapshot)) netstate.Snapshot {
	s := lan6("fe80::1")
	edit(&s)
	return s
}

// elsewhere is a second NIC with a neighbour that has the address of eth0's gateway.
func elsewhere(s *netstate.Snapshot, gateway string, m cache.MAC) {
	s.Links = append(s.Links, net1())
	n := permanent(gateway, m)
	n.Link = 3
	s.Neighbours = append(s.Neighbours, n)
}

// TestLease: the guest gets the routes that it can use, by the next hop that has them, and the record warns
// of those that no protocol can carry.
func TestLease(t *testing.T) {
	table := func(r netstate.Route, number uint32) netstate.Route {
		r.Table = number
		return r
	}
	noARP := func(s *netstate.Snapshot) { s.Links[1].NoARP = true }
	for _, c := range []struct {
		name  string
		found netstate.Snapshot
		want  string
	}{
		{"two IPv6 routers", lan6With(func(s *netstate.Snapshot) {
			s.Routes = append(s.Routes, via("2001:db8:2::/48", "fe80::1"), via("2001:db8:3::/48", "fe80::2"), onLink("2001:db8:4::/64"))
		}), `IPv6 2001:db8:1::7
  2001:db8:1::/64
  2001:db8:4::/64
  2001:db8:2::/48 via fe80::1
  default via fe80::1
loss: route 2001:db8:3::/48: its next hop is fe80::2, and the guest has one router, fe80::1
`},
		{"halves of default routes", halves(flannel()), `IPv4 10.244.1.7/24 from 10.244.1.1
  10.244.0.0/16 via 10.244.1.1
  0.0.0.0/1 via 10.244.1.1
  128.0.0.0/1 via 10.244.1.1
  gateway 10.244.1.1
IPv6 fd00:244:1::7
  fd00:244:1::/64
  ::/1 via fe80::ff:fe00:1
  8000::/1 via fe80::ff:fe00:1
  default via fe80::ff:fe00:1
neighbour fe80::ff:fe00:1 at 02:00:00:00:00:01
`},
		{"halves by way of another router", lan4With(func(s *netstate.Snapshot) {
			s.Routes = append(s.Routes, via("0.0.0.0/1", "10.244.1.9"), via("128.0.0.0/1", "10.244.1.9"))
		}), `IPv4 10.244.1.7/24 from 10.244.1.9
  0.0.0.0/1 via 10.244.1.9
  128.0.0.0/1 via 10.244.1.9
  0.0.0.0/0 via 10.244.1.1
  gateway 10.244.1.9
`},
		{"one half", lan6With(func(s *netstate.Snapshot) { s.Routes = append(s.Routes, via("8000::/1", "fe80::2")) }), `IPv6 2001:db8:1::7
  2001:db8:1::/64
  default via fe80::1
loss: route 8000::/1: its next hop is fe80::2, and the guest has one router, fe80::1
`},
		{"halves by way of two routers", lan6With(func(s *netstate.Snapshot) {
			s.Routes[2] = via("::/1", "fe80::1")
			s.Routes = append(s.Routes, via("8000::/1", "fe80::2"))
		}), `IPv6 2001:db8:1::7
  2001:db8:1::/64
  ::/1 via fe80::1
loss: default-route 8000::/1: its next hop is fe80::2, and the guest has one router, fe80::1
`},
		{"halves on the link", halves(lan6With(func(s *netstate.Snapshot) { s.Routes[2] = onLink("::/0") })), `IPv6 2001:db8:1::7
  2001:db8:1::/64
  ::/1
  8000::/1
`},
		{"IPv6 router of a part", lan6With(func(s *netstate.Snapshot) { s.Routes[2] = via("2001:db8:2::/48", "fe80::2") }), `IPv6 2001:db8:1::7
  2001:db8:1::/64
  2001:db8:2::/48 via fe80::2
`},
		{"two IPv6 routers of parts", lan6With(func(s *netstate.Snapshot) {
			s.Routes[2] = via("2001:db8:2::/48", "fe80::2")
			s.Routes = append(s.Routes, via("2001:db8:3::/48", "fe80::3"))
		}), `IPv6 2001:db8:1::7
  2001:db8:1::/64
  2001:db8:2::/48 via fe80::2
loss: route 2001:db8:3::/48: its next hop is fe80::3, and the guest has one router, fe80::2
`},
		{"no IPv6 router", lan6With(func(s *netstate.Snapshot) { s.Routes = s.Routes[:2] }), `IPv6 2001:db8:1::7
  2001:db8:1::/64
`},
		{"IPv6 default route without a next hop", lan6With(func(s *netstate.Snapshot) { s.Routes[2] = onLink("::/0") }), `IPv6 2001:db8:1::7
  2001:db8:1::/64
  ::/0
`},
		{"own IPv6 address as a route", lan6With(func(s *netstate.Snapshot) {
			s.Addresses[0].Prefix, s.Routes[0] = pfx("2001:db8:1::7/128"), connected6("2001:db8:1::7/128")
		}), `IPv6 2001:db8:1::7
  default via fe80::1
`},
		{"IPv6 router with a global address", lan6With(func(s *netstate.Snapshot) {
			elsewhere(s, "2001:db8:1::1", mac(9))
			s.Routes[2] = via("::/0", "2001:db8:1::1")
			s.Neighbours = append(s.Neighbours, learned("2001:db8:1::2", mac(8)), learned("2001:db8:1::1", mac(1)), learned("2001:db8:1::3", mac(7)))
		}), `IPv6 2001:db8:1::7
  2001:db8:1::/64
  default via fe80::ff:fe00:1
neighbour fe80::ff:fe00:1 at 02:00:00:00:00:01
`},
		{"IPv6 router that only another NIC knows", lan6With(func(s *netstate.Snapshot) {
			elsewhere(s, "2001:db8:1::1", mac(9))
			s.Routes[2] = via("::/0", "2001:db8:1::1")
		}), `IPv6 2001:db8:1::7
  2001:db8:1::/64
loss: gateway 2001:db8:1::1: it does not answer, or was not asked, as on standby, so its MAC is not known: the guest gets no IPv6 next hop until a later Setup
`},
		{"IPv4 by way of an IPv6 router", lan4With(func(s *netstate.Snapshot) {
			s.Routes[0].Gateway, s.Neighbours = ip("fe80::1"), []netstate.Neighbour{learned("fe80::1", mac(9))}
		}), `IPv4 10.244.1.7/32 from 169.254.75.2
  10.244.1.0/24
  169.254.75.2/32
  0.0.0.0/0 via 169.254.75.2
  gateway 169.254.75.2
neighbour 169.254.75.2 at 02:00:00:00:00:09
`},
		{"IPv4 by way of an IPv6 router that does not answer", lan4With(func(s *netstate.Snapshot) { s.Routes[0].Gateway = ip("fe80::1") }), `IPv4 10.244.1.7/24 from 169.254.75.2
  169.254.75.2/32
neighbour 169.254.75.2 at f2:4f:b4:8e:e1:b5
loss: gateway fe80::1: it does not answer, or was not asked, as on standby, so its MAC is not known: the guest gets no IPv4 next hop until a later Setup
`},
		{"a /32 by way of an IPv6 router", lan4With(func(s *netstate.Snapshot) {
			s.Addresses[0], s.Neighbours = address("10.244.1.7/32"), []netstate.Neighbour{learned("fe80::1", mac(9))}
			s.Routes = []netstate.Route{via("0.0.0.0/0", "fe80::1")}
		}), `IPv4 10.244.1.7/32 from 169.254.75.2
  169.254.75.2/32
  0.0.0.0/0 via 169.254.75.2
  gateway 169.254.75.2
  or a /31 and 10.244.1.6
neighbour 169.254.75.2 at 02:00:00:00:00:09
neighbour 10.244.1.6 at 02:00:00:00:00:09
`},
		{"parts of IPv4 by way of IPv6 routers", lan4With(func(s *netstate.Snapshot) {
			s.Neighbours = []netstate.Neighbour{learned("fe80::1", mac(9)), learned("fe80::2", mac(8))}
			s.Routes = append(s.Routes, via("10.96.0.0/12", "fe80::1"), via("10.97.0.0/16", "fe80::1"), via("10.98.0.0/16", "fe80::2"))
		}), `IPv4 10.244.1.7/24 from 10.244.1.1
  169.254.75.2/32
  10.97.0.0/16 via 169.254.75.2
  10.96.0.0/12 via 169.254.75.2
  0.0.0.0/0 via 10.244.1.1
  gateway 10.244.1.1
neighbour 169.254.75.2 at 02:00:00:00:00:09
loss: route 10.98.0.0/16: its next hop is fe80::2, and the guest has one of IPv6, fe80::1
`},
		{"a part of IPv4 by way of an IPv6 router, and no default route", lan4With(func(s *netstate.Snapshot) {
			s.Neighbours = []netstate.Neighbour{learned("fe80::1", mac(9))}
			s.Routes[0] = via("10.96.0.0/12", "fe80::1")
		}), `IPv4 10.244.1.7/24 from 169.254.75.2
  169.254.75.2/32
  10.96.0.0/12 via 169.254.75.2
neighbour 169.254.75.2 at 02:00:00:00:00:09
`},
		{"the responder's usual address", lan4With(func(s *netstate.Snapshot) {
			s.Addresses[0], s.Routes = address("169.254.75.1/16"), []netstate.Route{connected("169.254.75.1/16")}
		}), `IPv4 169.254.75.1/16 from 169.254.75.2
neighbour 169.254.75.2 at f2:4f:b4:8e:e1:b5
`},
		{"several addresses of each family", flannelWith(func(s *netstate.Snapshot) {
			s.Addresses = append(s.Addresses, address("10.244.1.8/24"), address("fd00:244:1::8/64"), address("fd00:244:2::9/128"))
			s.Routes = append(s.Routes, connected6("fd00:244:2::9/128"))
		}), `IPv4 10.244.1.7/24 from 10.244.1.1
  10.244.0.0/16 via 10.244.1.1
  0.0.0.0/0 via 10.244.1.1
  gateway 10.244.1.1
IPv6 fd00:244:1::7 fd00:244:1::8 fd00:244:2::9
  fd00:244:1::/64
  default via fe80::ff:fe00:1
neighbour fe80::ff:fe00:1 at 02:00:00:00:00:01
loss: address 10.244.1.8: DHCPv4 leases one address, 10.244.1.7: configure it in the guest
`},
		{"floating addresses, as the kernel lists them", flannelWith(func(s *netstate.Snapshot) {
			floating := withAddress(address("fd00:244:1::aaaa/128"), func(a *netstate.Address) { a.PreferredSeconds = 0 })
			atRandom := withAddress(address("fd00:244:1::bbbb/64"), func(a *netstate.Address) { a.Temporary = true })
			ofLink := withAddress(address("169.254.7.7/32"), func(a *netstate.Address) { a.Scope = netstate.ScopeLink })
			s.Addresses = append([]netstate.Address{ofLink, floating, atRandom}, s.Addresses...)
			s.Rules = []netstate.Rule{{Priority: 1, Table: 100, Source: pfx("fd00:244:1::7/128"), IPv6: true}, {Priority: 2, Table: 101, Source: pfx("fd00:244:1::aaaa/128"), IPv6: true}}
			s.Routes = append(s.Routes, table(via("fd01::/48", "fd00:244:1::1"), 100), table(via("fd02::/48", "fd00:244:1::1"), 101))
		}), `IPv4 10.244.1.7/24 from 10.244.1.1
  10.244.0.0/16 via 10.244.1.1
  0.0.0.0/0 via 10.244.1.1
  gateway 10.244.1.1
IPv6 fd00:244:1::7 fd00:244:1::bbbb fd00:244:1::aaaa
  deprecated fd00:244:1::aaaa
  fd00:244:1::/64
  fd01::/48 via fe80::ff:fe00:1
  default via fe80::ff:fe00:1
neighbour fe80::ff:fe00:1 at 02:00:00:00:00:01
loss: address 169.254.7.7: DHCPv4 leases one address, 10.244.1.7: configure it in the guest
loss: policy-rule rules of the namespace (1): a guest cannot learn policy rules by DHCP
loss: policy-rule table 101: its routes through eth0 are not the guest's, as no policy rule sends all of the guest's packets there
`},
		{"deprecated addresses alone", lan6With(func(s *netstate.Snapshot) {
			s.Addresses[0].PreferredSeconds = 0
			s.Addresses = append([]netstate.Address{withAddress(address("fe80::5/64"), func(a *netstate.Address) { a.PreferredSeconds = 0 })}, s.Addresses...)
		}), `IPv6 2001:db8:1::7
  deprecated 2001:db8:1::7
  2001:db8:1::/64
  default via fe80::1
`},
		{"next hops that no route reaches", lan4With(func(s *netstate.Snapshot) {
			s.Routes = append(s.Routes, via("10.96.0.0/12", "192.0.2.1"), via("10.112.0.0/12", "192.0.2.1"), via("10.128.0.0/12", "10.244.1.2"))
		}), `IPv4 10.244.1.7/24 from 10.244.1.1
  192.0.2.1/32
  10.96.0.0/12 via 192.0.2.1
  10.112.0.0/12 via 192.0.2.1
  10.128.0.0/12 via 10.244.1.2
  0.0.0.0/0 via 10.244.1.1
  gateway 10.244.1.1
`},
		{"routes that lead nowhere", lan4With(func(s *netstate.Snapshot) {
			for i, kind := range []uint8{6, 7, 8} {
				s.Routes = append(s.Routes, netstate.Route{Table: netstate.TableMain, Type: kind, Destination: pfx(fmt.Sprintf("10.6%d.0.0/16", kind))},
					netstate.Route{Table: 77, Type: kind, Destination: pfx(fmt.Sprintf("10.7%d.0.0/16", i))})
			}
		}), `IPv4 10.244.1.7/24 from 10.244.1.1
  0.0.0.0/0 via 10.244.1.1
  gateway 10.244.1.1
loss: route blackhole 10.66.0.0/16: a lease has no such routes, so the guest sends what the namespace would not
loss: route unreachable 10.67.0.0/16: a lease has no such routes, so the guest sends what the namespace would not
loss: route prohibit 10.68.0.0/16: a lease has no such routes, so the guest sends what the namespace would not
`},
		{"neighbours", lan4With(func(s *netstate.Snapshot) {
			elsewhere(s, "10.244.1.5", mac(9))
			s.Neighbours = append(s.Neighbours, permanent("10.244.1.1", mac(1)), learned("10.244.1.2", mac(2)))
		}), `IPv4 10.244.1.7/24 from 10.244.1.1
  0.0.0.0/0 via 10.244.1.1
  gateway 10.244.1.1
neighbour 10.244.1.1 at 02:00:00:00:00:01
`},
		{"routes of a rule", lan4With(func(s *netstate.Snapshot) {
			s.Rules = []netstate.Rule{{Priority: 1, Table: 100, Source: pfx("10.244.1.0/24")}, {Priority: 2, Table: 101, Other: true}, {Priority: 3, Table: 102, Source: pfx("10.9.0.0/16")}}
			s.Routes = append(s.Routes, table(via("0.0.0.0/0", "10.244.1.9"), 100), table(via("10.1.0.0/16", "10.244.1.8"), 101), table(via("10.2.0.0/16", "10.244.1.7"), 102))
		}), `IPv4 10.244.1.7/32 from 10.244.1.9
  10.244.1.9/32
  0.0.0.0/0 via 10.244.1.9
  gateway 10.244.1.9
loss: policy-rule rules of the namespace (1): a guest cannot learn policy rules by DHCP
loss: policy-rule table 101: its routes through eth0 are not the guest's, as no policy rule sends all of the guest's packets there
`},
		{"a rule of the other family", lan4With(func(s *netstate.Snapshot) {
			s.Rules = []netstate.Rule{{Priority: 1, Table: 100, IPv6: true}}
			s.Routes = append(s.Routes, table(via("0.0.0.0/0", "10.244.1.9"), 100))
		}), `IPv4 10.244.1.7/24 from 10.244.1.1
  0.0.0.0/0 via 10.244.1.1
  gateway 10.244.1.1
`},
		{"the source of the default route", lan4With(func(s *netstate.Snapshot) {
			s.Addresses = append(s.Addresses, address("10.244.1.8/24"))
			s.Routes[0].PrefSrc = ip("10.244.1.8")
		}), `IPv4 10.244.1.8/24 from 10.244.1.1
  0.0.0.0/0 via 10.244.1.1
  gateway 10.244.1.1
loss: address 10.244.1.7: DHCPv4 leases one address, 10.244.1.8: configure it in the guest
`},
		{"the address in the gateway's network", lan4With(func(s *netstate.Snapshot) {
			s.Addresses = append(s.Addresses, address("10.9.0.8/24"))
			s.Routes[0].Gateway = ip("10.9.0.1")
			s.Routes = append(s.Routes, connected("10.9.0.8/24"))
		}), `IPv4 10.9.0.8/24 from 10.9.0.1
  10.244.1.0/24
  0.0.0.0/0 via 10.9.0.1
  gateway 10.9.0.1
loss: address 10.244.1.7: DHCPv4 leases one address, 10.9.0.8: configure it in the guest
`},
		{"a throw route", lan4With(func(s *netstate.Snapshot) {
			throw := onLink("192.0.2.0/24")
			throw.Type, throw.Table, throw.Link = netstate.RouteThrow, 100, 0
			all := via("0.0.0.0/0", "10.244.1.2")
			all.Table = 100
			s.Routes = append(s.Routes, all, throw)
			s.Rules = append(s.Rules, netstate.Rule{Priority: 100, Table: 100})
		}), `IPv4 10.244.1.7/32 from 10.244.1.2
  10.244.1.2/32
  10.244.1.1/32
  192.0.2.0/24 via 10.244.1.1
  0.0.0.0/0 via 10.244.1.2
  gateway 10.244.1.2
`},
		{"a rule to a network", lan4With(func(s *netstate.Snapshot) {
			all := via("0.0.0.0/0", "10.244.1.2")
			all.Table = 100
			s.Routes = append(s.Routes, all)
			s.Rules = append(s.Rules, netstate.Rule{Priority: 100, Table: 100, Destination: pfx("192.0.2.0/24")})
		}), `IPv4 10.244.1.7/24 from 10.244.1.1
  192.0.2.0/24 via 10.244.1.2
  0.0.0.0/0 via 10.244.1.1
  gateway 10.244.1.1
`},
		{"no ARP", flannelWith(func(s *netstate.Snapshot) {
			noARP(s)
			elsewhere(s, "10.244.1.1", mac(9))
			s.Addresses = append(s.Addresses, address("10.244.1.8/24"), address("fd00:244:1::8/64"))
			s.Routes = append(s.Routes, via("10.244.1.7/32", "10.244.1.1"), multipath("10.96.0.0/12", "10.244.1.2", "10.244.1.3"), via("fd01::/48", "fd00:244:1::2"),
				connected6("fd00:244:1::7/128"), connected6("fd00:244:1::8/128"), withRoute(multipath("fd02::/48", "fd00:244:1::3"), func(r *netstate.Route) {}))
		}), `IPv4 10.244.1.7/32 from 169.254.75.2
  169.254.75.2/32
  10.244.1.0/24 via 169.254.75.2
  10.244.0.0/16 via 169.254.75.2
  10.96.0.0/12 via 169.254.75.2
  0.0.0.0/0 via 169.254.75.2
  gateway 169.254.75.2
  or a /31 and 10.244.1.6
IPv6 fd00:244:1::7 fd00:244:1::8
  fd00:244:1::/64 via fe80::d476:65ff:fe19:84d7
  fd01::/48 via fe80::d476:65ff:fe19:84d7
  fd02::/48 via fe80::d476:65ff:fe19:84d7
  default via fe80::d476:65ff:fe19:84d7
neighbour 169.254.75.2 at 0a:58:0a:f4:01:07
neighbour fe80::d476:65ff:fe19:84d7 at 0a:58:0a:f4:01:07
neighbour 10.244.1.6 at 0a:58:0a:f4:01:07
loss: address 10.244.1.8: DHCPv4 leases one address, 10.244.1.7: configure it in the guest
loss: next-hop 10.96.0.0/12: the guest gets one of 2, 10.244.1.2
loss: next-hop fd02::/48: the guest gets one of 1, fd00:244:1::3
`},
		{"no ARP and no IPv6", lan4With(noARP), `IPv4 10.244.1.7/32 from 169.254.75.2
  169.254.75.2/32
  10.244.1.0/24 via 169.254.75.2
  0.0.0.0/0 via 169.254.75.2
  gateway 169.254.75.2
  or a /31 and 10.244.1.6
neighbour 169.254.75.2 at 0a:58:0a:f4:01:07
neighbour 10.244.1.6 at 0a:58:0a:f4:01:07
`},
		{"no ARP and no default route", lan4With(func(s *netstate.Snapshot) {
			noARP(s)
			s.Routes = s.Routes[1:]
		}), `IPv4 10.244.1.7/32 from 169.254.75.2
  169.254.75.2/32
  10.244.1.0/24 via 169.254.75.2
neighbour 169.254.75.2 at 0a:58:0a:f4:01:07
`},
		{"no ARP and no IPv4", lan6With(noARP), `IPv6 2001:db8:1::7
  2001:db8:1::/64 via fe80::d476:65ff:fe19:84d7
  default via fe80::d476:65ff:fe19:84d7
neighbour fe80::d476:65ff:fe19:84d7 at 0a:58:0a:f4:01:07
`},
	} {
		plan := newPlan(t, c.found, withSpec(redirect(), func(s *asked) { s.AcceptLosses = true }))
		if have := leased(plan.Record); have != c.want {
			t.Errorf("%s:\n%s", c.name, golden.Diff(c.want, have))
		}
	}
}

// TestRoutedDestinations: a guest behind the namespace gets the destinations that some of its packets reach, as the
// namespace chooses the route for each.
func TestRoutedDestinations(t *testing.T) {
	plan := newPlan(t, flannelWith(func(s *netstate.Snapshot) {
		s.Routes = slices.DeleteFunc(s.Routes, netstate.Route.Default)
		s.Rules = []netstate.Rule{{Priority: 1, Table: 100, Other: true}, {Priority: 2, Table: 101, Other: true, Source: pfx("10.9.0.0/16")}, {Priority: 3, Table: 102, Other: true, IPv6: true}}
		add := func(edit func(*netstate.Route), r netstate.Route) { s.Routes = append(s.Routes, withRoute(r, edit)) }
		in := func(table uint32) func(*netstate.Route) { return func(r *netstate.Route) { r.Table = table } }
		add(in(100), via("0.0.0.0/0", "10.244.1.9"))
		add(in(101), via("10.1.0.0/16", "10.244.1.9"))
		add(in(103), via("10.3.0.0/16", "10.244.1.9"))
		add(func(r *netstate.Route) { r.TOS = 0x10 }, via("192.0.2.0/24", "10.244.1.9"))
		add(in(102), via("::/0", "fe80::9"))
		add(func(r *netstate.Route) { r.Source = pfx("fd00:244:1::/64") }, via("fd01::/48", "fe80::9"))
		add(func(r *netstate.Route) { r.Source = pfx("fd00:9::/64") }, via("fd02::/48", "fe80::9"))
	}), routed())
	const want = `IPv4 10.244.1.7/32 from 169.254.75.1
  169.254.75.1/32
  10.244.1.0/24 via 169.254.75.1
  192.0.2.0/24 via 169.254.75.1
  10.244.0.0/16 via 169.254.75.1
  0.0.0.0/0 via 169.254.75.1
  gateway 169.254.75.1
  or a /31 and 10.244.1.6
IPv6 fd00:244:1::7
  fd00:244:1::/64 via fe80::ff:fe00:0
  fd01::/48 via fe80::ff:fe00:0
  default via fe80::ff:fe00:0
neighbour 10.244.1.6 at 02:00:00:00:00:00
`
	if have := leased(plan.Record); have != want {
		t.Error(golden.Diff(want, have))
	}
}

// TestGuestMTU: the guest has one MTU for all, so it is the smallest of its routes, but none that no link may have, or
// that takes IPv6 from the guest.
func TestGuestMTU(t *testing.T) {
	for _, c := range []struct {
		link, route, route6, want int
	}{
		{1500, 0, 0, 1500}, {1500, 1400, 0, 1400}, {1500, 0, 1300, 1300}, {1500, 1400, 1300, 1300}, {1500, 9000, 0, 1500},
		{1500, syntax.MinMTU, 0, 1280}, {1500, syntax.MinMTU - 1, 0, 1500}, {syntax.MaxMTU, 0, 0, syntax.MaxMTU}, {syntax.MaxMTU + 1, 0, 0, syntax.MaxMTU},
	} {
		plan := newPlan(t, flannelWith(func(s *netstate.Snapshot) {
			s.Links[1].MTU, s.Routes[0].MTU, s.Routes[5].MTU = c.link, c.route, c.route6
		}), redirect())
		if plan.Record.MTU != c.want {
			t.Errorf("%+v: have %d", c, plan.Record.MTU)
		}
		warned := strings.Contains(leased(plan.Record), "a tap has no more")
		if warned != (c.link > syntax.MaxMTU) {
			t.Errorf("%+v: warned %t", c, warned)
		}
	}
}

// TestServers: NICs without a gateway have different DHCP servers, the same with each other link that comes later.
func TestServers(t *testing.T) {
	want := map[int]string{2: "2", 3: "3", 4: "4", 11: "12", 254: "254", 255: "5", 256: "6", 508: "7", 40123: "149"}
	found := netstate.Snapshot{Links: []netstate.Link{lo()}}
	for _, index := range slices.Backward(slices.Sorted(maps.Keys(want))) {
		link, own := veth(), address(fmt.Sprintf("10.%d.%d.7/24", index/256, index%256))
		link.Index, link.Name, link.MAC, own.Link = index, fmt.Sprintf("net%d", index), mac(byte(index)), index
		found.Links, found.Addresses = append(found.Links, link), append(found.Addresses, own)
	}
	taken := address("169.254.75.11/32")
	taken.Link = 1
	found.Addresses = append(found.Addresses, taken)
	for index, host := range want {
		spec := redirect()
		spec.NIC = fmt.Sprintf("net%d", index)
		if have := newPlan(t, found, spec).Record.IPv4.Server.String(); have != "169.254.75."+host {
			t.Errorf("the server of the link %d is %s, want host %s", index, have, host)
		}
	}
}
