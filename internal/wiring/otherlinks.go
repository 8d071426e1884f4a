package wiring

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/ip"
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
	routes, tables := waysOut(w.found), map[ip.Version]map[uint32]bool{4: fib.Tables(w.found, ip.V4), 6: fib.Tables(w.found, ip.V6)}
	for _, l := range w.found.Links {
		if l.Index == w.nic.Index || l.Loopback || w.links.isWired(l) {
			continue
		}
		for _, v := range ip.Both {
			var networks []netip.Prefix
			listed := map[netip.Prefix]bool{}
			aside := uint32(0) // a table that has a default route by the link, and that a policy rule names
			for _, r := range routes[way{l.Index, v}] {
				d := r.Destination
				if !tables[v][r.Table] {
					continue
				}
				if r.Uses(w.nic.Index) { // a lease has one next hop, by the NIC, and says so
					if w.traits().Routes && !w.comeBack(l, v) {
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
	v := ip.Of(networks[0].Addr())
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
	case w.traits().Routes && w.found.NoNFTables:
		return fmt.Sprintf("no answers come back by it, and without nf_tables the guest gets no refusal: set %s before Setup if %s routes", infra.ShellWord(sysctl+"=1"), l.Name)
	case w.traits().Routes:
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
