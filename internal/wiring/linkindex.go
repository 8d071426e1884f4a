package wiring

import (
	"strings"

	"github.com/guestwire/guestwire/internal/netstate"
)

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
