package wiring

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Under masquerade and routed, the namespace's routes can lead the guest's packets out by a link that is not the NIC.
// The kernel drops the answers there, unless that link forwards. So the guest opens connections by the NIC and by links
// that forward, and gets a refusal elsewhere.
//
// Who sets up forwarding of a link before Setup says that the link routes. The links of other guests' wirings count
// too. These come and go after Setup, so the rules recognize them by their groups.

// Forwarders are the names of the other links that forward, by the version of IP. The lists are sorted.
type Forwarders struct {
	IPv4 []string `json:"ipv4,omitempty"`
	IPv6 []string `json:"ipv6,omitempty"`
}

func (f *Forwarders) of(v int) *[]string {
	if v == 4 {
		return &f.IPv4
	}
	return &f.IPv6
}

func (f Forwarders) equal(o Forwarders) bool {
	return slices.Equal(f.IPv4, o.IPv4) && slices.Equal(f.IPv6, o.IPv6)
}

// isRouter reports whether rules recognize the link by its group: it is part of a guest's wiring.
func isRouter(l netstate.Link) bool { return l.Group&netstate.RouterMask == netstate.GroupOfNICs }

// forwards reports whether the link forwards packets of the version of IP.
func forwards(l netstate.Link, v int) bool { return v == 4 && l.Forwarding4 || v == 6 && l.Forwarding6 }

// forwardersOf are the links that forward and by which a route leads: in a namespace that forwards, links without
// routes come and go. Before has those of an earlier Setup: a link of that list stays there until it forwards no
// more, also while it is gone, down, or wired.
func forwardersOf(s netstate.Snapshot, nic int, before Forwarders) (f Forwarders) {
	for _, v := range []int{4, 6} {
		list := f.of(v)
		for _, name := range *before.of(v) {
			if l, there := s.Named(name); !there || isRouter(l) {
				*list = append(*list, name)
			}
		}
		for _, l := range s.Links {
			leads := func(r netstate.Route) bool { return r.Uses(l.Index) && isWay(r, v) }
			known := slices.Contains(*before.of(v), l.Name)
			if l.Index != nic && !l.Loopback && !isRouter(l) && forwards(l, v) && (known || slices.ContainsFunc(s.Routes, leads)) {
				*list = append(*list, l.Name)
			}
		}
		slices.Sort(*list)
	}
	return f
}

// isWay reports whether packets of the version of IP can be forwarded by the route.
func isWay(r netstate.Route, v int) bool {
	to := r.Destination.Addr()
	return version(to) == v && r.Type == netstate.RouteUnicast && !to.IsMulticast() && !(v == 6 && to.IsLinkLocalUnicast())
}

// since says what has changed.
func (f Forwarders) since(was Forwarders) (changes []string) {
	for _, v := range []int{4, 6} {
		for _, name := range *f.of(v) {
			if !slices.Contains(*was.of(v), name) {
				changes = append(changes, fmt.Sprintf("%s forwards IPv%d", name, v))
			}
		}
		for _, name := range *was.of(v) {
			if !slices.Contains(*f.of(v), name) {
				changes = append(changes, fmt.Sprintf("%s does not forward IPv%d any more", name, v))
			}
		}
	}
	return changes
}

// forwardsAll6 reports whether the whole namespace forwarded IPv6 before Setup.
func forwardsAll6(found netstate.Snapshot) bool { return found.Sysctls[netstate.Forwarding6] == "1" }

// forwarders are the other links by which the plan's guest may leave.
func (p *Plan) forwarders() Forwarders {
	if p.networks != nil {
		return p.networks.Forwarders
	}
	return forwardersOf(p.found, p.nic().Index, Forwarders{})
}

// comesBack reports whether answers to the guest come back by the other link.
func (p *Plan) comesBack(l netstate.Link, v int) bool {
	f := p.forwarders()
	return p.binding.traits().routes && (slices.Contains(*f.of(v), l.Name) || v == 6 && forwardsAll6(p.found))
}

// sendsTo reports whether the guest has a route to all of the networks.
func (p *Plan) sendsTo(nic netstate.Link, networks []netip.Prefix) bool {
	if p.binding.traits().routes && !p.binding.traits().offStack {
		return true // a guest behind a masquerade has a default route
	}
	on := lease.Of(p.found, nic)
	routes := on.Routes
	if p.binding.traits().routes {
		routes = on.Behind
	}
	given := map[netip.Prefix]bool{}
	for _, r := range routes(networks[0].Addr().Is4()) { // all are of one version of IP
		given[r.Destination.Masked()] = true
	}
	return !slices.ContainsFunc(networks, func(n netip.Prefix) bool {
		for bits := n.Bits(); bits >= 0; bits-- {
			if given[netip.PrefixFrom(n.Addr(), bits).Masked()] {
				return false
			}
		}
		return true
	})
}

// loseOtherLinks adds what the namespace reaches by other links and the guest does not: a loss for each link and
// version of IP. The networks are those of the tables that a policy rule names, whichever packets the rule matches.
func (p *Plan) loseOtherLinks(nic netstate.Link) {
	tables := map[uint32]bool{netstate.TableMain: true}
	for _, r := range p.found.Rules {
		tables[r.Table] = true
	}
	for _, l := range p.found.Links {
		if l.Index == nic.Index || l.Loopback || isWired(p.found, l) {
			continue
		}
		for _, v := range []int{4, 6} {
			var networks []netip.Prefix
			listed := map[netip.Prefix]bool{}
			aside := uint32(0) // a table that has a default route by the link, and that a policy rule names
			for _, r := range p.found.Routes {
				d := r.Destination
				if !isWay(r, v) || !r.Uses(l.Index) || !tables[r.Table] {
					continue
				}
				if r.Uses(nic.Index) { // a lease has one next hop, by the NIC, and says so
					if p.binding.traits().routes && !p.comesBack(l, v) {
						p.lose("next-hop", d.String(), "the namespace sends a part by %s, where no answers come back, so the guest gets a refusal for that part", l.Name)
					}
					continue
				}
				if r.Table != netstate.TableMain && d.Bits() < syntax.MinNetwork {
					aside = r.Table
				}
				if !listed[d] {
					networks, listed[d] = append(networks, d), true
				}
			}
			if len(networks) > 0 && !(p.comesBack(l, v) && p.sendsTo(nic, networks)) {
				p.lose("other-link", l.Name+": "+listNetworks(networks), "%s", p.whyOtherLink(nic, l, networks, aside))
			}
		}
	}
}

// whyOtherLink is why the guest does not reach the networks of the other link.
func (p *Plan) whyOtherLink(nic, l netstate.Link, networks []netip.Prefix, aside uint32) string {
	v := version(networks[0].Addr())
	in := strings.ReplaceAll(l.Name, ".", "/") // as sysctl(8) takes it
	sysctl := fmt.Sprintf("net.ipv4.conf.%s.forwarding", in)
	if v == 6 {
		sysctl = "net.ipv6.conf.all.forwarding"
		if _, has := p.found.Sysctls[netstate.ForceForwarding(nic.Name)]; has {
			sysctl = fmt.Sprintf("net.ipv6.conf.%s.force_forwarding", in)
		}
	}
	switch {
	case p.comesBack(l, v):
		return "the guest gets no route there, as it gets those of " + nic.Name + " alone"
	case p.binding.traits().routes && p.found.NoNFTables:
		return fmt.Sprintf("no answers come back by it, and without nf_tables the guest gets no refusal: set %s=1 before Setup if %s routes", sysctl, l.Name)
	case p.binding.traits().routes:
		return fmt.Sprintf("no answers come back by it, so the guest gets a refusal: set %s=1 before Setup if %s routes", sysctl, l.Name)
	case aside != 0 && !p.sendsTo(nic, networks):
		return fmt.Sprintf("a policy rule leads to table %d and out by %s before %s: the guest gets no default route", aside, l.Name, nic.Name)
	case aside != 0:
		return fmt.Sprintf("a policy rule leads to table %d and out by %s, and the guest's packets pass it by: they leave by %s", aside, l.Name, nic.Name)
	}
	return fmt.Sprintf("the guest sends by %s alone, unless %s is wired too", nic.Name, l.Name)
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
