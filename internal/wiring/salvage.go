package wiring

import (
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Salvage makes a journal for a wired NIC whose journal is lost, of what the namespace still shows. Lost says what
// the namespace does not show, a phrase each. The error is infra.ErrNoNIC if the NIC has gone.
//
// Under bridge, the holder has the NIC's name, MAC and addresses. Under redirect and masquerade the NIC has kept
// them. macvtap, sriov and passt leave no trace in the namespace.
func Salvage(now netstate.Snapshot, nic string) (j Journal, lost []string) {
	names := netstate.NamesFor(nic)
	marked := func(name string) (netstate.Link, bool) {
		l, ok := now.Named(name)
		return l, ok && l.Alias == netstate.Mark(nic)
	}
	holder, held := marked(nic)
	bridge, bridged := marked(names.Bridge)
	was, there := now.Named(nic)
	moved, isMoved := now.Named(names.Moved)
	isMoved = isMoved && (held || bridged && moved.Master == bridge.Index)
	keeper := was.Index // whose addresses are the NIC's

	j = Journal{Salvaged: true, Spec: infra.Spec{NIC: nic, Binding: infra.Redirect{}}}
	switch {
	case isMoved:
		j.Spec.Binding = infra.Bridge{}
		was, keeper = moved, holder.Index
		was.Name, was.Master, was.BridgePort = nic, 0, nil
		if was.AddrGen == netstate.AddrGenNone {
			was.AddrGen = 0
		}
		lost = append(lost, "routes and permanent neighbours of "+nic, "how "+nic+" made its IPv6 addresses, and whether it was down")
		if held {
			was.MAC = holder.MAC
		} else {
			keeper = -1
			lost = append(lost, "MAC and addresses of "+nic+", as another program has deleted the link that kept them")
		}
	case held || !there:
		was = netstate.Link{Name: nic}
	case bridged:
		lost = append(lost, "whether "+nic+" forwarded IPv4, and took router advertisements")
		if !slices.ContainsFunc(now.Tables, func(t firewall.Image) bool { return t.Family == firewall.Inet }) {
			lost = append(lost, "rules of iptables, if Setup used it: iptables-save | grep "+names.Chains())
		}
	default:
		lost = append(lost, "whether "+nic+" received all multicast, and addresses and routes that it has lost since")
	}
	lost = append(lost, "sysctls that the namespace shares, such as net.ipv6.conf.all.forwarding, which stay as they are")

	j.Found.Links = []netstate.Link{was}
	for _, a := range now.Addresses {
		if a.Link != keeper {
			continue
		}
		a.Link = was.Index
		if isMoved { // the kernel adds these routes with the address
			j.Found.Routes = append(j.Found.Routes, netstate.Connected(a, was, j.Found.Addresses)...)
		}
		j.Found.Addresses = append(j.Found.Addresses, a)
	}
	for _, r := range now.Routes {
		if !isMoved && r.Uses(was.Index) {
			j.Found.Routes = append(j.Found.Routes, r)
		}
	}
	return j, lost
}

// Plan is the plan that the journal was made of. That of a salvaged journal can be undone and nothing else.
func (j Journal) Plan() (*Plan, error) {
	if !j.Salvaged {
		return NewPlan(j.Found, j.Spec)
	}
	p := emptyPlan(j.Found, j.Spec)
	p.wanted.Links = []netstate.Link{p.nic()}
	return p, nil
}
