package wiring

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
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
	leads := map[way]bool{}
	for _, r := range s.Routes {
		for _, link := range r.Links() {
			leads[way{link, waysOf(r)}] = true
		}
	}
	names := map[string]netstate.Link{}
	for _, l := range s.Links {
		names[l.Name] = l
	}
	for _, v := range []int{4, 6} {
		list := f.of(v)
		known := map[string]bool{}
		for _, name := range *before.of(v) {
			known[name] = true
			if l, there := names[name]; !there || isRouter(l) {
				*list = append(*list, name)
			}
		}
		for _, l := range s.Links {
			if l.Index != nic && !l.Loopback && !isRouter(l) && forwards(l, v) && (known[l.Name] || leads[way{l.Index, v}]) {
				*list = append(*list, l.Name)
			}
		}
		slices.Sort(*list)
	}
	return f
}

// way is a link, and the version of IP of packets that leave by it.
type way struct{ link, version int }

// waysOf is the version of IP whose packets can be forwarded by the route; 0: none.
func waysOf(r netstate.Route) int {
	to := r.Destination.Addr()
	if r.Type != netstate.RouteUnicast || to.IsMulticast() || to.Is6() && to.IsLinkLocalUnicast() {
		return 0
	}
	return firewall.Version(to)
}

// since says what has changed.
func (f Forwarders) since(was Forwarders) (changes []string) {
	for _, v := range []int{4, 6} {
		for _, name := range missingIn(*f.of(v), *was.of(v)) {
			changes = append(changes, fmt.Sprintf("%s forwards IPv%d", name, v))
		}
		for _, name := range missingIn(*was.of(v), *f.of(v)) {
			changes = append(changes, fmt.Sprintf("%s does not forward IPv%d any more", name, v))
		}
	}
	return changes
}

// missingIn are the values of the list that the other one does not have.
func missingIn[T comparable](list, other []T) (missing []T) {
	has := make(map[T]bool, len(other))
	for _, value := range other {
		has[value] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(value T) bool { return has[value] })
}

// forwardsAll6 reports whether the whole namespace forwarded IPv6 before Setup.
func forwardsAll6(found netstate.Snapshot) bool { return found.Sysctls[netstate.Forwarding6] == "1" }

// ways are those out of a namespace, seen from a guest of the NIC.
type ways struct {
	found  netstate.Snapshot
	nic    netstate.Link
	traits compare.Traits
	links  linkIndex
	// forwarders are the names of the other links by which the guest may leave, by the version of IP.
	forwarders map[int]map[string]bool
	// given are the networks to which the guest has a route; nil: a guest behind a masquerade has a default route.
	given *fib.Prefixes[bool]
}

func (p *Plan) ways(nic netstate.Link) ways {
	w := ways{found: p.found, nic: nic, traits: p.traits(), links: indexLinks(p.found), forwarders: map[int]map[string]bool{4: {}, 6: {}}}
	forwarders := p.nicNetworks(nic).Forwarders
	for v, names := range w.forwarders {
		for _, name := range *forwarders.of(v) {
			names[name] = true
		}
	}
	if w.traits.Routes && !w.traits.OffStack {
		return w
	}
	on := lease.Of(p.found, nic)
	w.given = &fib.Prefixes[bool]{}
	for _, v := range ip.Both {
		to := on.Behind
		if !w.traits.Routes {
			to = on.Destinations
		}
		for _, network := range to(v) {
			w.given.Set(network, true)
		}
	}
	return w
}

// comeBack reports whether answers to the guest come back by the other link.
func (w ways) comeBack(l netstate.Link, v int) bool {
	return w.traits.Routes && w.links.vrfOf(l).VRF == w.links.vrfOf(w.nic).VRF && (w.forwarders[v][l.Name] || v == 6 && forwardsAll6(w.found))
}

// sendTo reports whether the guest has a route to all of the networks.
func (w ways) sendTo(networks []netip.Prefix) bool {
	return w.given == nil || !slices.ContainsFunc(networks, func(n netip.Prefix) bool {
		_, is := w.given.Longest(n)
		return !is
	})
}

// losses are what the namespace reaches by other links and the guest does not: one for each link and version of IP. The
// networks are those of the tables that a policy rule names, whichever packets the rule matches.
func (w ways) losses() (list losses) {
	tables := map[uint32]bool{netstate.TableMain: true}
	for _, r := range w.found.Rules {
		tables[r.Table] = true
	}
	for _, l := range w.found.Links {
		tables[l.VRF] = true
	}
	routes := map[way][]netstate.Route{}
	for _, r := range w.found.Routes {
		if v := waysOf(r); v != 0 && tables[r.Table] {
			for _, link := range r.Links() {
				routes[way{link, v}] = append(routes[way{link, v}], r)
			}
		}
	}
	for _, l := range w.found.Links {
		if l.Index == w.nic.Index || l.Loopback || w.links.isWired(l) {
			continue
		}
		for _, v := range []int{4, 6} {
			var networks []netip.Prefix
			listed := map[netip.Prefix]bool{}
			aside := uint32(0) // a table that has a default route by the link, and that a policy rule names
			for _, r := range routes[way{l.Index, v}] {
				d := r.Destination
				if r.Uses(w.nic.Index) { // a lease has one next hop, by the NIC, and says so
					if w.traits.Routes && !w.comeBack(l, v) {
						list.lose("next-hop", d.String(), "the namespace sends a part by %s, where no answers come back, so the guest gets a refusal for that part", l.Name)
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
			if len(networks) > 0 && !(w.comeBack(l, v) && w.sendTo(networks)) {
				list.lose("other-link", l.Name+": "+listNetworks(networks), "%s", w.why(l, networks, aside))
			}
		}
	}
	return list
}

// why is why the guest does not reach the networks of the other link.
func (w ways) why(l netstate.Link, networks []netip.Prefix, aside uint32) string {
	v := firewall.Version(networks[0].Addr())
	in := strings.ReplaceAll(l.Name, ".", "/") // as sysctl(8) takes it
	sysctl := fmt.Sprintf("net.ipv4.conf.%s.forwarding", in)
	if v == 6 {
		sysctl = "net.ipv6.conf.all.forwarding"
		if _, has := w.found.Sysctls[netstate.ForceForwarding(w.nic.Name)]; has {
			sysctl = fmt.Sprintf("net.ipv6.conf.%s.force_forwarding", in)
		}
	}
	vrf := w.links.vrfOf(l)
	switch {
	case vrf.VRF != 0 && vrf.Index != w.nic.Master:
		return fmt.Sprintf("%s is in the VRF %s, and the guest's packets are not", l.Name, vrf.Name)
	case w.comeBack(l, v):
		return "the guest gets no route there, as it gets those of " + w.nic.Name + " alone"
	case w.traits.Routes && w.found.NoNFTables:
		return fmt.Sprintf("no answers come back by it, and without nf_tables the guest gets no refusal: set %s before Setup if %s routes", infra.ShellWord(sysctl+"=1"), l.Name)
	case w.traits.Routes:
		return fmt.Sprintf("no answers come back by it, so the guest gets a refusal: set %s before Setup if %s routes", infra.ShellWord(sysctl+"=1"), l.Name)
	case aside != 0 && !w.sendTo(networks):
		return fmt.Sprintf("a policy rule leads to table %d and out by %s before %s: the guest gets no default route", aside, l.Name, w.nic.Name)
	case aside != 0:
		return fmt.Sprintf("a policy rule leads to table %d and out by %s, and the guest's packets pass it by: they leave by %s", aside, l.Name, w.nic.Name)
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

// child is the name of a link of one of the kinds that lies on the NIC; empty: there is none.
func child(found netstate.Snapshot, nic netstate.Link, kinds ...string) string {
	for _, l := range found.Links {
		if l.Parent == nic.Index && nic.Index != 0 && slices.Contains(kinds, l.Kind) {
			return l.Name
		}
	}
	return ""
}
