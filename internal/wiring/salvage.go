package wiring

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
)

// AskSalvage returns what a Snapshot for Salvage has to hold in addition to links, addresses and routes: sysctls, and
// the chains of iptables, a table for each program.
func AskSalvage(nic string) (sysctls []string, tables []firewall.Table) {
	for _, f := range []firewall.Family{firewall.IPTablesNFT, firewall.IP6TablesNFT, firewall.IPTablesLegacy, firewall.IP6TablesLegacy} {
		tables = append(tables, firewall.Table{Family: f, Name: netstate.NamesFor(nic, "").Chains()})
	}
	return netstate.SysctlOrder(nic), tables
}

// Salvage makes a journal for a wired NIC whose journal is lost, of what the namespace still shows: the NIC's name, MAC
// and addresses. What is not known stays as it is, and the journal's Lost names it, a phrase each. Kind is the
// binding's, if record or journal have it; record is the NIC's; nil: it is lost, too.
func Salvage(now netstate.Snapshot, nic string, kind cache.Kind, record *cache.Record) Journal {
	tap := shownTap(now, nic)
	s := salvage{names: netstate.NamesFor(nic, tap), now: now, j: Journal{NIC: nic, Salvaged: true, Found: now}}
	s.j.Spec = infra.Spec{Binding: s.shownBinding(kind), Tap: tap}
	s.traits = bindingOf(s.j.Spec.Binding).traits()
	if record != nil && record.Binding == s.j.Spec.Binding.Kind() { // else it is an old one
		s.record = record
	}
	found := &s.j.Found
	found.OffStack, found.Filters, found.Ingress, found.Tables = nil, nil, nil, nil
	found.Sysctls, found.ReadOnly = nil, nil
	for _, t := range now.Tables {
		if t.Family.IPTables() != 0 { // which are read only for a plan that has some
			found.Tables = append(found.Tables, firewall.Image{Family: t.Family, Name: t.Name})
		}
	}
	was, there := s.shownNIC()
	found.Links = slices.DeleteFunc(slices.Clone(now.Links), func(l netstate.Link) bool { return l.Name == nic || l.Index == was.Index })
	found.Links = append(found.Links, was)
	s.loseSysctls(was)
	if there {
		s.loseOfNIC(was)
	}
	return s.j
}

// shownTap is the name of the guest's tap, as far as the namespace shows it.
func shownTap(now netstate.Snapshot, nic string) string {
	n := netstate.NamesFor(nic, "")
	for _, l := range now.Links {
		if l.Tap != nil && l.Alias == netstate.Mark(nic) && l.Name != n.Responder && l.Name != n.Tap {
			return l.Name
		}
	}
	return ""
}

type salvage struct {
	names  netstate.Names
	now    netstate.Snapshot
	traits traits
	record *cache.Record
	j      Journal
}

func (s *salvage) lose(format string, args ...any) {
	s.j.Lost = append(s.j.Lost, fmt.Sprintf(format, args...))
}

// marked returns the wiring's link with the name.
func (s *salvage) marked(name string) (netstate.Link, bool) {
	l, ok := s.now.Named(name)
	return l, ok && l.Alias == netstate.Mark(s.names.NIC)
}

// shownBinding is the binding that links, addresses and tables show, or the kind that record or journal have.
func (s *salvage) shownBinding(kind cache.Kind) infra.Binding {
	_, held := s.marked(s.names.NIC)
	nic, there := s.now.Named(s.names.NIC)
	moved, isMoved := s.now.Named(s.names.Moved)
	bridge, bridged := s.marked(s.names.Bridge)
	tap, tapped := s.marked(s.names.Tap)
	switch {
	case held || isMoved && (!there || bridged && moved.Master == bridge.Index):
		return infra.Bridge{}
	case slices.ContainsFunc(s.now.Addresses, func(a netstate.Address) bool { return a.Link == nic.Index && isHop(a) }):
		return infra.Routed{}
	case slices.ContainsFunc(s.now.Tables, translates), slices.ContainsFunc(s.now.Addresses, func(a netstate.Address) bool { return tapped && a.Link == tap.Index }):
		return infra.Masquerade{}
	}
	if said, err := infra.NewBinding(kind); err == nil && MakesTaps(said) == s.now.Bears(s.names.NIC) {
		return said
	}
	s.lose("whether %s was wired by redirect or masquerade; a masquerade's sysctls stay as they are (net.ipv4.conf.%[1]s.forwarding)", s.names.NIC)
	return infra.Redirect{}
}

// translates reports whether the table is a masquerade's.
func translates(t firewall.Image) bool {
	return t.Family.IPTables() != 0 || slices.ContainsFunc(t.Chains, func(c firewall.ChainImage) bool { return c.Name == "from-network" })
}

// shownNIC is the NIC as it was before Setup. If it has gone, only links and tables are left.
func (s *salvage) shownNIC() (was netstate.Link, there bool) {
	was, there = s.now.Named(s.names.NIC)
	holder, held := s.marked(s.names.NIC)
	if moved, isMoved := s.now.Named(s.names.Moved); s.traits.managesAddresses && isMoved {
		was = s.fromHolder(moved, holder, held)
	} else if !there || held {
		return netstate.Link{Name: s.names.NIC}, false
	}
	if s.traits.offStack {
		takeBack(&s.j.Found, was)
	}
	if was.Group == netstate.GroupOfNICs {
		was.Group = 0
	}
	// A NIC without IPv6 that the guest's MAC was given to looks the same.
	silent := was.AddrGen == netstate.AddrGenNone || was.AddrGen == netstate.AddrGenNoIPv6 && !s.traits.managesAddresses
	if silent && !s.traits.routes && !s.traits.direct && !s.takeMAC(&was) {
		s.lose("whether %s made IPv6 addresses of its MAC, or of another one: ip link set %[2]s down; ip link set %[2]s address MAC addrgenmode eui64; ip link set %[2]s up", was.Name, infra.ShellWord(was.Name))
	}
	return was, true
}

// fromHolder is the NIC with the name, MAC and addresses that the holder has.
func (s *salvage) fromHolder(was, holder netstate.Link, held bool) netstate.Link {
	was.Name, was.Master, was.BridgePort = s.names.NIC, 0, nil
	switch {
	case held:
		was.MAC = holder.MAC
	case s.record != nil && netstate.DeriveMAC(netstate.Link{Name: was.Name, MAC: s.record.MAC}, "moved") == was.MAC:
		was.MAC = s.record.MAC
	default:
		s.lose("the MAC of %s: ip link set %s address MAC", was.Name, infra.ShellWord(was.Name))
	}
	found := &s.j.Found
	found.Addresses, found.Routes = nil, nil
	earlier := netstate.Earlier{}
	for _, a := range s.now.Addresses {
		if held && a.Link == holder.Index {
			a.Link = was.Index
			found.Routes = append(found.Routes, earlier.Connected(a, was)...) // the kernel adds them
			earlier.Add(a)
			found.Addresses = append(found.Addresses, a)
		}
	}
	return was
}

// takeMAC gives the NIC the MAC from which the kernel made its link-local address, and reports whether there is one.
func (s *salvage) takeMAC(was *netstate.Link) bool {
	for _, a := range s.j.Found.Addresses {
		b := a.Prefix.Addr().As16()
		mac := cache.MAC{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}
		held := s.traits.managesAddresses && mac != was.MAC // by the holder
		if a.Link == was.Index && a.Prefix.Addr() == eui64.LinkLocal(mac) && mac.Unicast() && !held {
			was.MAC, was.AddrGen = mac, 0
			return true
		}
	}
	return false
}

// loseSysctls names the sysctls that Setup may have changed: those of the binding that have the value that Setup
// writes.
func (s *salvage) loseSysctls(was netstate.Link) {
	if !s.traits.bridged && !s.traits.routes && !s.traits.direct {
		return // redirect reads some, and writes none
	}
	written := map[string]string{
		netstate.NoIPv6: "0", netstate.Forwarding6: "1", netstate.ForceForwarding(s.names.NIC): "1", netstate.AcceptRA(s.names.NIC): "2",
	}
	for _, path := range netstate.BridgeCalls() {
		written[path] = "0"
	}
	var stay []string
	asked := bindingOf(s.j.Spec.Binding).asks(s.names).Sysctls
	for _, path := range netstate.SysctlOrder(s.names.NIC) {
		value := s.now.Sysctls[path] // none: the kernel does not have it, or it is an empty list
		if one, is := written[path]; value == "" || is && one != value || !slices.Contains(asked, path) || slices.Contains(s.now.ReadOnly, path) {
			continue
		}
		stay = append(stay, strings.ReplaceAll(path, "/", ".")+" = "+value)
	}
	if s.traits.routes && was.Forwarding4 {
		stay = append(stay, "net.ipv4.conf."+s.names.NIC+".forwarding = 1")
	}
	if len(stay) > 0 {
		s.lose("sysctls that Setup may have changed, and that stay as they are: %s", strings.Join(stay, ", "))
	}
}

// loseOfNIC names what else Setup may have changed, and what of it the record has.
func (s *salvage) loseOfNIC(was netstate.Link) {
	if s.traits.unseen != "" {
		s.lose("%s of %s", s.traits.unseen, was.Name)
	}
	if s.traits.restoresAddresses && was.AllMulticast {
		s.lose("whether %s received all multicast: ip link set %s allmulticast off", was.Name, infra.ShellWord(was.Name))
	}
	missing := s.missing(was)
	if s.traits.restoresAddresses && (s.record == nil || len(missing) > 0) {
		s.lose("addresses and routes that %s has lost since Setup", was.Name)
	}
	if len(missing) > 0 {
		s.lose("what the record has of %s: %s", was.Name, strings.Join(missing, "; "))
	}
	if _, tapped := s.marked(s.names.Tap); s.traits.routes && !s.traits.offStack && !tapped {
		s.lose("the guest's address, as another program has deleted %s; if the namespace tracks connections: conntrack -D --orig-src ADDRESS, conntrack -D --reply-src ADDRESS", s.names.Tap)
	}
}

// missing are the commands that add the addresses and routes of the record that the NIC will not have.
func (s *salvage) missing(was netstate.Link) (commands []string) {
	if s.record == nil || s.record.Static == nil {
		return nil
	}
	for _, a := range s.record.Static.Addresses {
		has := func(o netstate.Address) bool { return o.Link == was.Index && o.Prefix.Addr() == a.Address.Addr() }
		if !slices.ContainsFunc(s.j.Found.Addresses, has) && a.Address.Addr() != eui64.LinkLocal(was.MAC) { // which the kernel makes
			add := netstate.Address{Prefix: a.Address, Peer: a.Peer, Broadcast: a.Broadcast, Scope: a.Scope, ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever}
			commands = append(commands, netstate.AddressAdd{Link: was.Name, Address: add}.String())
		}
	}
	for _, r := range s.record.Static.Routes {
		has := func(o netstate.Route) bool {
			return o.Uses(was.Index) && o.Destination == r.Destination && o.Table == r.Table
		}
		if r.Type == "" && len(r.Hops) == 0 && !slices.ContainsFunc(s.j.Found.Routes, has) {
			add := netstate.Route{
				Destination: r.Destination, Table: r.Table, Gateway: r.Gateway, OnLink: r.OnLink, Source: r.From, PrefSrc: r.Source,
				Metric: r.Metric, MTU: r.MTU, Scope: r.Scope, Type: netstate.RouteUnicast, Protocol: netstate.ProtocolBoot,
			}
			commands = append(commands, netstate.RouteAdd{Link: was.Name, Route: add}.String())
		}
	}
	return commands
}

// salvagedPlan can be undone and nothing else.
func (j Journal) salvagedPlan() *Plan {
	p := emptyPlan(j.Found, j.NIC, j.Spec)
	p.wanted.Links = []netstate.Link{p.nic()}
	for _, t := range j.Found.Tables {
		p.wanted.Tables = append(p.wanted.Tables, firewall.Table{Family: t.Family, Name: t.Name})
	}
	t := p.binding.traits()
	if tap, tapped := p.found.Named(p.names.Tap); tapped && t.routes {
		p.guests = p.guestsAt(tap, j.Found.Addresses, j.Found.Routes)
	}
	if t.offStack {
		p.added = addedByRouted(j.Found, p.nic())
		p.translated = addedConnections(p.found, p.nic(), p.added)
		v4, v6 := lease.Of(p.found, p.nic()).Addresses()
		for _, own := range addressesIn(slices.Concat(v4, v6)) { // the tap may have gone
			p.guests = append(p.guests, firewall.HostPrefix(own))
		}
	}
	return p
}
