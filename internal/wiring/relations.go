package wiring

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Kinds of links, as rtnetlink names them.
const (
	kindIPVLAN  = "ipvlan"
	kindVLAN    = "vlan"
	kindHSR     = "hsr" // a ring, IEC 62439-3
	kindMacvlan = "macvlan"
	kindMacvtap = "macvtap" // is a tap already
	kindVRF     = "vrf"     // stands for a routing table, in which the links with it as their master are looked up
)

// receivers are the kinds of links that take what arrives at the link below them, as a bridge does.
var receivers = []string{kindMacvlan, kindMacvtap, kindIPVLAN, "ipvtap", "macsec", "rmnet"}

// linkIndex finds links among many, for a question about each of many things.
type linkIndex struct {
	byIndex map[int]netstate.Link
	marked  map[string]bool // the names of NICs for which guestwire has created links
}

func indexLinks(s netstate.Snapshot) linkIndex {
	x := linkIndex{byIndex: make(map[int]netstate.Link, len(s.Links)), marked: map[string]bool{}}
	for _, l := range s.Links {
		if _, there := x.byIndex[l.Index]; !there {
			x.byIndex[l.Index] = l
		}
		if nic, marked := netstate.Marked(l.Alias); marked {
			x.marked[nic] = true
		}
	}
	return x
}

// at is the link with the index; zero: there is none.
func (x linkIndex) at(index int) netstate.Link { return x.byIndex[index] }

// isWired reports whether the link is part of another NIC's wiring, or is a wired NIC: a guest has its routes.
func (x linkIndex) isWired(link netstate.Link) bool {
	return x.marked[link.Name] || strings.HasPrefix(x.at(link.Index).Alias, netstate.Mark(""))
}

// isBehind reports whether the link leads nowhere, so that its addresses are reached by the NIC: in a VRF by those of
// the VRF, whose device is a loopback, too.
func (x linkIndex) isBehind(nic, link netstate.Link) bool {
	if link.Kind == kindVRF {
		return link.Index == nic.Master
	}
	return (link.Loopback || link.Kind == "dummy") && x.vrfOf(link).VRF == x.vrfOf(nic).VRF
}

// vrfOf is the VRF that the link is in; zero: none.
func (x linkIndex) vrfOf(l netstate.Link) netstate.Link {
	if master := x.at(l.Master); master.VRF != 0 {
		return master
	}
	return netstate.Link{}
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

// portsOf are the links that have the link as their master.
func portsOf(found netstate.Snapshot, master netstate.Link) []netstate.Link {
	return slices.DeleteFunc(slices.Clone(found.Links), func(l netstate.Link) bool { return l.Master != master.Index })
}

func linkNames(s netstate.Snapshot) string {
	var names []string
	for _, l := range s.Links {
		names = append(names, l.Name)
	}
	if len(names) == 0 {
		return "no links"
	}
	return strings.Join(names, ", ")
}

// noNIC is the error for a NIC that is not in the namespace.
func (s *seen) noNIC(hint string) error {
	if i := slices.IndexFunc(s.found.Links, func(l netstate.Link) bool { return l.Has(s.nic.Name) }); i >= 0 {
		return fmt.Errorf("%w; %s is an altname of %s: name %[3]s", infra.ErrNoNIC, s.nic.Name, s.found.Links[i].Name)
	}
	return fmt.Errorf("%w; the namespace has %s%s", infra.ErrNoNIC, linkNames(s.found), hint)
}
