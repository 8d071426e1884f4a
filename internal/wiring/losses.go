package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/served"
	"github.com/guestwire/guestwire/internal/servers"
	"github.com/guestwire/guestwire/internal/syntax"
)

// A plan knows what the namespace reaches and the guest will not. Each such thing is a loss in the record. A binding
// with a grave loss is refused, and Auto takes the binding with the fewest losses. Which binding keeps a thing is known
// by a plan of that binding, and by nothing else.

// addLosses adds losses to the record.
func (p *Plan) addLosses(list ...cache.Finding) { p.Record.Losses = append(p.Record.Losses, list...) }

// losses are those of the record.
func (p *Plan) losses() losses { return p.Record.Losses }

// weigh is the losses' weight, and more for a masquerade: that it hides the NIC's address counts more than what else
// can be lost, except a family, and as much as a link that is said to route.
func (p *Plan) weigh() int {
	const hidden = 1 << 19
	weight := p.losses().weight() + hidden*p.routers
	if t := p.traits(); t.Routes && !t.OffStack {
		weight += hidden
	}
	return weight
}

// unsentLosses are what the responder cannot send. What does not fit beside a resolv.conf is known to the responder
// alone, which warns of it.
func unsentLosses(r *cache.Record) losses {
	if r.ResponderTap == "" {
		return nil
	}
	var dns cache.DNS
	if r.DNS != nil {
		dns.Servers, _ = servers.Leased(r).Resolvers(r.DNS.Servers) // serverLosses says what is left out
		dns.Search, _ = servers.Search(&r.Options, r.DNS.Search)    // Validate has refused a bad name
	}
	return slices.Concat(served.OtherFamily(r), served.TooLong4(r, dns.Servers, dns.Search), served.TooMany6(r))
}

// serverLosses are the Spec's resolvers and time servers that the responder does not offer. Those of a resolv.conf are
// known to Phase2 alone.
func serverLosses(r *cache.Record) (list losses) {
	if r.ResponderTap == "" {
		return nil
	}
	nic := servers.Leased(r)
	_, left := nic.Reachable(r.Options.NTP)
	if r.DNS != nil {
		_, list = nic.Resolvers(r.DNS.Servers)
	}
	return append(list, left...)
}

// namespaceLosses are what of the namespace no guest of the NIC can learn, whatever the binding's lease has.
func (p *Plan) namespaceLosses() (list losses) {
	routes := p.traits().Routes // the namespace's rules and tables decide
	if !routes {
		list = p.policyLosses()
	}
	elsewhere, routers := p.ways().losses()
	p.routers = routers
	list = slices.Concat(list, p.familyLosses(), elsewhere, p.sharedLosses())
	if !routes {
		list = append(list, p.addressLosses(slices.Concat(p.losses(), list))...)
		for _, r := range p.on.Routes(ip.V4) {
			if r.MTU >= syntax.MinMTU && r.MTU < p.Record.MTU { // with routes the namespace says what fits
				list.lose("mtu", fmt.Sprintf("%d to %v", r.MTU, r.Destination), "the guest gets %d, as IPv6 needs that", p.Record.MTU)
			}
		}
	}
	if p.nic.MTU > syntax.MaxMTU {
		list.lose("mtu", fmt.Sprint(p.nic.MTU), "the guest gets %d, as a tap has no more", syntax.MaxMTU)
	}
	return list
}

// policyLosses are the policy rules for some of the guest's packets, and the tables to which they lead.
func (s *seen) policyLosses() (list losses) {
	type table struct {
		v      ip.Version
		number uint32
	}
	rules, some := 0, map[table]bool{}
	for _, v := range ip.Both {
		looked := s.on.Table(v).Looked
		for _, r := range s.on.Table(v).Rest {
			if len(s.on.AddressesOf(v)) > 0 && (!r.BySource() || !looked[r.Table]) {
				rules++
			}
			some[table{v, r.Table}] = !looked[r.Table]
		}
	}
	if rules > 0 {
		list.lose("policy-rule", fmt.Sprintf("rules of the namespace (%d)", rules), "a guest cannot learn policy rules by DHCP")
	}
	named := map[uint32]bool{}
	for _, r := range s.found.Routes {
		if r.Uses(s.nic.Index) && some[table{ip.Of(r.Destination.Addr()), r.Table}] && !named[r.Table] {
			named[r.Table] = true
			list.lose("policy-rule", fmt.Sprintf("table %d", r.Table), "its routes through %s are not the guest's, as no policy rule sends all of the guest's packets there", s.nic.Name)
		}
	}
	return list
}

// downLosses is all that goes by a NIC that is down, where Setup does not bring it up.
func (s *seen) downLosses() (list losses) {
	if !s.nic.Up {
		list.lose("frames", "all", "%s is down, and Setup leaves it down: the guest has no network until it is up (ip link set %s up)", s.nic.Name, infra.ShellWord(s.nic.Name))
	}
	return append(list, s.downRoutes()...)
}

// downRoutes are the routes of a NIC that is down: the kernel has none by a link that is down.
func (s *seen) downRoutes() (list losses) {
	if !s.nic.Up && len(s.own) > 0 {
		list.lose("route", "all", "%s is down, and the kernel has no route by a link that is down: set it up before Setup (ip link set %s up), or call Teardown, set it up, and call Setup again", s.nic.Name, infra.ShellWord(s.nic.Name))
	}
	return list
}

// addressLosses are the addresses that the namespace has on a link without a way out, and at which it answers by the
// NIC (anycast, direct server return, BGP to the host). A namespace that the network does not reach any more answers
// nothing.
func (s *seen) addressLosses(before losses) (list losses) {
	onNIC, lost := fib.Sorted(s.own), before.keys()
	for _, a := range s.found.Addresses {
		own := a.Prefix.Addr()
		if lost[lossKey{"family", ip.Of(own).String()}] || onNIC.Has(own) {
			continue // that loss says it; the guest has the address
		}
		if link := s.links.at(a.Link); s.links.isBehind(s.nic, link) && !s.links.isWired(link) && own.IsGlobalUnicast() {
			list.lose("address", own.String(), "it is on %s, and the namespace answers nothing by %s any more: add it in the guest, and %v to guard.prefixes", link.Name, s.nic.Name, firewall.HostPrefix(own))
		}
	}
	return list
}

// sharedLosses are the NIC's addresses that another link has too, at which the namespace answers there.
func (s *seen) sharedLosses() (list losses) {
	own, both := fib.Sorted(s.own), map[int][]netip.Addr{}
	for _, a := range s.found.Addresses {
		if a.Link != s.nic.Index && own.Has(a.Prefix.Addr()) {
			both[a.Link] = append(both[a.Link], a.Prefix.Addr())
		}
	}
	for _, other := range s.found.Links {
		if addresses := both[other.Index]; len(addresses) > 0 && !other.Loopback && !s.links.isWired(other) {
			list.lose("other-link", fmt.Sprintf("%s: %v", other.Name, fib.Sorted(addresses)), "it has these addresses too, and packets that arrive there reach the namespace: wire it too")
		}
	}
	return list
}

// familyLosses are a family of which the NIC has no address, though the namespace sends by it: the addresses are
// another link's, such as the loopback's (unnumbered, BGP to the host).
func (s *seen) familyLosses() (list losses) {
	for _, v := range ip.Both {
		if len(s.on.AddressesOf(v)) > 0 {
			continue
		}
		at := slices.IndexFunc(s.found.Addresses, func(a netstate.Address) bool {
			return s.links.isBehind(s.nic, s.links.at(a.Link)) && ip.Of(a.Prefix.Addr()) == v && a.Prefix.Addr().IsGlobalUnicast()
		})
		if at < 0 {
			continue
		}
		if a := s.found.Addresses[at]; len(s.on.RoutesFrom(a.Prefix.Addr())) > 0 {
			list.lose("family", v.String(), "%s has no %v address, and the namespace sends by it from %v of %s", s.nic.Name, v, a.Prefix.Addr(), s.links.at(a.Link).Name)
		}
	}
	return list
}
