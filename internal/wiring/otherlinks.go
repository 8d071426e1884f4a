package wiring

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// ways are those out of a namespace, seen from a guest of the NIC.
type ways struct {
	*seen
	// given are the networks to which the guest has a route; nil: a guest behind a masquerade has a default route.
	given *ip.Prefixes[bool]
}

func (s *seen) ways() ways {
	w, t := ways{seen: s}, s.traits()
	if t.Routes && !t.OffStack {
		return w
	}
	to := s.on.Behind
	if !t.Routes {
		to = s.on.Destinations
	}
	given := ip.PrefixesOf(slices.Concat(to(ip.V4), to(ip.V6)))
	w.given = &given
	return w
}

// comeBack reports whether answers to the guest come back by the other link.
func (s *seen) comeBack(l netstate.Link, v ip.Version) bool {
	_, forwards := slices.BinarySearch(*s.networks.Forwarders.of(v), l.Name)
	return s.traits().Routes && s.links.vrfOf(l).VRF == s.links.vrfOf(s.nic).VRF && (forwards || v == 6 && forwardsAll6(s.found))
}

// otherSources are those of the other link's routes by which the namespace sends from another address than the guest: a
// masquerade gives the guest's packets the namespace's, and a routed guest keeps its own. Zero: there are answers, as
// the source is the guest's, or the guest's lies in a network of the link, in which no station asks for a MAC.
func (w ways) otherSources(senders lease.Senders, l netstate.Link, routes []netstate.Route) []netip.Addr {
	none := make([]netip.Addr, len(routes))
	if !w.traits().OffStack || len(routes) == 0 {
		return none
	}
	v := ip.Of(routes[0].Destination.Addr())
	own := fib.Sorted(w.on.Own(v))
	among := func(a netstate.Address) bool { return own.MeetIn(a.Prefix) }
	if len(own) == 0 || (l.NoARP || !l.Ethernet) && slices.ContainsFunc(senders.On(l.Index, v), among) {
		return none
	}
	sources := senders.By(l.Index, routes)
	for i, source := range sources {
		if own.Has(source) {
			sources[i] = netip.Addr{}
		}
	}
	return sources
}

// sendTo reports whether the guest has a route to all of the networks.
func (w ways) sendTo(networks ...netip.Prefix) bool {
	return w.given == nil || !slices.ContainsFunc(networks, func(n netip.Prefix) bool {
		_, is := w.given.Longest(n)
		return !is
	})
}

// losses are what the namespace reaches by other links and the guest does not: one for each link and version of IP. The
// networks are those of the tables that a policy rule names, whichever packets the rule matches. Routers is the number
// of losses by links that are said to route: they forward, and the NIC does not.
func (w ways) losses() (list losses, routers int) {
	routes, tables := waysOut(w.found), map[ip.Version]map[uint32]bool{4: fib.Tables(w.found, ip.V4), 6: fib.Tables(w.found, ip.V6)}
	senders := lease.SendersOf(w.found)
	for _, l := range w.found.Links {
		if l.Index == w.nic.Index || l.Loopback || w.links.isWired(l) {
			continue
		}
		for _, v := range ip.Both {
			back, of := w.comeBack(l, v), routes[way{l.Index, v}]
			lost, listed := beside{Link: l}, map[netip.Prefix]bool{}
			for i, source := range w.otherSources(senders, l, of) {
				r, d := of[i], of[i].Destination
				switch {
				case !tables[v][r.Table], back && !source.IsValid() && (r.Uses(w.nic.Index) || w.sendTo(d)):
					continue
				case r.Uses(w.nic.Index): // a lease has one next hop, by the NIC, and says so
					if w.traits().Routes {
						why := "no answers come back, so the guest gets a refusal for that part"
						if back {
							why = fmt.Sprintf("the namespace sends from %v, and no answers come to the guest's address", source)
						}
						list.lose("next-hop", d.String(), "the namespace sends a part by %s, where %s", l.Name, why)
					}
					continue
				}
				if r.Table != netstate.TableMain && d.Bits() < syntax.MinNetwork {
					lost.aside = r.Table
				}
				lost.source = cmp.Or(lost.source, source)
				if !listed[d] {
					lost.networks, listed[d] = append(lost.networks, d), true
				}
			}
			if len(lost.networks) > 0 {
				list.lose("other-link", l.Name+": "+listNetworks(lost.networks), "%s", w.why(lost))
				if forwards(l, v) && !forwards(w.nic, v) {
					routers++
				}
			}
		}
	}
	return list, routers
}

// beside are networks that the namespace reaches by a link, and the guest does not.
type beside struct {
	netstate.Link
	networks []netip.Prefix
	aside    uint32     // a table that has a default route by the link, and that a policy rule names
	source   netip.Addr // of otherSources, the first one
}

// why is why the guest does not reach the networks.
func (w ways) why(l beside) string {
	v := ip.Of(l.networks[0].Addr())
	in := strings.ReplaceAll(l.Name, ".", "/") // as sysctl(8) takes it
	sysctl := fmt.Sprintf("net.ipv4.conf.%s.forwarding", in)
	if v == 6 {
		sysctl = "net.ipv6.conf.all.forwarding"
		if _, has := w.found.Sysctls[netstate.ForceForwarding(w.nic.Name)]; has {
			sysctl = fmt.Sprintf("net.ipv6.conf.%s.force_forwarding", in)
		}
	}
	vrf := w.links.vrfOf(l.Link)
	switch {
	case vrf.VRF != 0 && vrf.Index != w.nic.Master:
		return fmt.Sprintf("%s is in the VRF %s, and the guest's packets are not", l.Name, vrf.Name)
	case w.comeBack(l.Link, v) && !w.sendTo(l.networks...):
		return "the guest gets no route there, as it gets those of " + w.nic.Name + " alone"
	case w.comeBack(l.Link, v):
		return fmt.Sprintf("the namespace sends there from %v, and the guest from %v, to which no answers come unless what lies behind %s has a route", l.source, w.on.Own(v)[0], l.Name)
	case w.traits().Routes:
		why := "no answers come back by it, so the guest gets a refusal"
		if w.found.NoNFTables {
			why = "no answers come back by it, and without nf_tables the guest gets no refusal"
		}
		why += fmt.Sprintf(": set %s before Setup if %s routes", infra.ShellWord(sysctl+"=1"), l.Name)
		if l.source.IsValid() {
			why += fmt.Sprintf(", and choose masquerade, as the namespace sends there from %v", l.source)
		}
		return why
	case l.aside != 0 && !w.sendTo(l.networks...):
		return fmt.Sprintf("a policy rule leads to table %d and out by %s before %s: the guest gets no default route", l.aside, l.Name, w.nic.Name)
	case l.aside != 0:
		return fmt.Sprintf("a policy rule leads to table %d and out by %s, and the guest's packets pass it by: they leave by %s", l.aside, l.Name, w.nic.Name)
	}
	if l.Kind == kindVRF {
		return fmt.Sprintf("the guest sends by %s alone, and no VRF can be wired", w.nic.Name)
	}
	return fmt.Sprintf("the guest sends by %s alone, unless %s is wired too", w.nic.Name, l.Name)
}

// listNetworks names the shortest prefixes first.
func listNetworks(networks []netip.Prefix) string {
	slices.SortStableFunc(networks, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	var words []string
	for _, n := range networks {
		words = append(words, n.String())
	}
	if more := len(words) - mostNamed; more > 0 {
		words = append(words[:mostNamed], fmt.Sprintf("%d more", more))
	}
	return strings.Join(words, ", ")
}
