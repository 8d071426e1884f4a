package wiring

import (
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
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

func (f *Forwarders) of(v ip.Version) *[]string { return ip.Pick(v, &f.IPv4, &f.IPv6) }

func (f Forwarders) equal(o Forwarders) bool {
	return slices.Equal(f.IPv4, o.IPv4) && slices.Equal(f.IPv6, o.IPv6)
}

// since says what has changed.
func (f Forwarders) since(was Forwarders) (changes []string) {
	for _, v := range ip.Both {
		changes = append(changes, changesOf(*f.of(v), *was.of(v), "%s forwards "+v.String(), "%s does not forward "+v.String()+" any more")...)
	}
	return changes
}

// isRouter reports whether rules recognize the link by its group: it is part of a guest's wiring.
func isRouter(l netstate.Link) bool { return l.Group&netstate.RouterMask == netstate.GroupOfNICs }

// forwards reports whether the link forwards packets of the version of IP.
func forwards(l netstate.Link, v ip.Version) bool { return ip.Pick(v, l.Forwarding4, l.Forwarding6) }

// forwardersOf are the links that forward and by which a route leads: in a namespace that forwards, links without
// routes come and go. Before has those of an earlier Setup: a link of that list stays there until it forwards no
// more, also while it is gone, down, or wired.
func forwardersOf(s netstate.Snapshot, nic int, before Forwarders) (f Forwarders) {
	leads := waysOut(s)
	names := map[string]netstate.Link{}
	for _, l := range s.Links {
		names[l.Name] = l
	}
	for _, v := range ip.Both {
		list := f.of(v)
		known := map[string]bool{}
		for _, name := range *before.of(v) {
			known[name] = true
			if l, there := names[name]; !there || isRouter(l) {
				*list = append(*list, name)
			}
		}
		for _, l := range s.Links {
			if l.Index != nic && !l.Loopback && !isRouter(l) && forwards(l, v) && (known[l.Name] || len(leads[way{l.Index, v}]) > 0) {
				*list = append(*list, l.Name)
			}
		}
		slices.Sort(*list)
	}
	return f
}

// way is a link, and the version of IP of packets that leave by it.
type way struct {
	link    int
	version ip.Version
}

// waysOut are the routes of all tables by which packets can be forwarded.
func waysOut(s netstate.Snapshot) map[way][]netstate.Route {
	routes := map[way][]netstate.Route{}
	for _, r := range s.Routes {
		to := r.Destination.Addr()
		if r.Type != netstate.RouteUnicast || to.IsMulticast() || to.Is6() && to.IsLinkLocalUnicast() {
			continue
		}
		for _, link := range r.Links() {
			at := way{link, ip.Of(to)}
			routes[at] = append(routes[at], r)
		}
	}
	return routes
}

// changesOf says what the list has got and has lost.
func changesOf[T comparable](is, was []T, got, lost string) (changes []string) {
	for _, value := range firewall.Without(is, was) {
		changes = append(changes, fmt.Sprintf(got, value))
	}
	for _, value := range firewall.Without(was, is) {
		changes = append(changes, fmt.Sprintf(lost, value))
	}
	return changes
}

// forwardsAll6 reports whether the whole namespace forwarded IPv6 before Setup.
func forwardsAll6(found netstate.Snapshot) bool { return found.Sysctls[netstate.Forwarding6] == "1" }
