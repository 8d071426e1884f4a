package wiring

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// AskSalvage returns what a Snapshot for Salvage has to hold besides links, addresses and routes: sysctls, and the
// rules from which Salvage learns how the NIC was before Setup.
func AskSalvage(nic string) (sysctls []string, tables []firewall.Table) {
	return bindingOf(infra.Masquerade{}).asks(nic).Sysctls, []firewall.Table{countedTable(nic)}
}

// IPTablesOf returns the tables in which a masquerade by iptables may have put the rules for the NIC, one for each
// program.
func IPTablesOf(nic string) []firewall.Table {
	var tables []firewall.Table
	for _, f := range []firewall.Family{firewall.IPTablesNFT, firewall.IP6TablesNFT, firewall.IPTablesLegacy, firewall.IP6TablesLegacy} {
		tables = append(tables, unforwardedTable(nic).IPTables(f, netstate.NamesFor(nic).Chains()))
	}
	return tables
}

// MayUseIPTables says whether the NIC may be wired by a masquerade whose rules are those of iptables, so that Salvage
// needs IPTablesOf as well.
func MayUseIPTables(now netstate.Snapshot, nic, kind string, record *cache.Record) bool {
	s := salvage{now: now, names: netstate.NamesFor(nic), record: record}
	_, masquerades := s.binding(kind).(infra.Masquerade)
	_, translates := s.forwarded()
	return masquerades && !translates && (s.record == nil || s.record.Firewall != cache.FirewallNFTables)
}

// unforwardedTable has the rules of a masquerade that say that the NIC did not forward before Setup.
func unforwardedTable(nic string) firewall.Table {
	t := translation{forwarding: forwarding{names: netstate.NamesFor(nic), unforwarded: []int{4, 6}}}
	rules := t.through()
	return firewall.Table{Family: firewall.Inet, Name: t.names.Table, Chains: []firewall.Chain{
		{Name: "through", Type: "filter", Hook: firewall.Forward, Priority: firewall.Filter, Rules: rules[len(rules)-2:]},
	}}
}

// countedTable is unforwardedTable as nftables have it.
func countedTable(nic string) firewall.Table { return unforwardedTable(nic).Counted(nic, true) }

// Salvage makes a journal for a wired NIC whose journal is lost, of what the namespace still shows. Kind is the
// binding's, if record or journal tell it; record is the NIC's; nil: it is lost, too. The journal's Lost says what is
// not known.
//
// Under bridge, the holder has the NIC's name, MAC and addresses. Under redirect and masquerade the NIC has kept
// them, and the rules of a masquerade say whether the NIC forwarded before. macvtap, sriov and passt leave no trace
// in the namespace, so the journal changes nothing then.
func Salvage(now netstate.Snapshot, nic, kind string, record *cache.Record) Journal {
	s := salvage{now: now, names: netstate.NamesFor(nic), record: record, j: Journal{Salvaged: true, Spec: infra.Spec{NIC: nic}}}
	s.j.Spec.Binding = s.binding(kind)
	switch s.j.Spec.Binding.(type) {
	case infra.Bridge:
		s.bridge()
	case infra.Redirect:
		s.redirect()
	case infra.Masquerade:
		s.masquerade()
	case infra.Routed:
		s.routed()
	case infra.Macvtap:
		s.direct("whether %s was up, and received all multicast; both stay as they are", nic)
	case infra.Passt:
		s.direct("net.ipv4.ip_unprivileged_port_start and net.ipv4.ping_group_range, which stay as they are")
	}
	return s.j
}

type salvage struct {
	now    netstate.Snapshot
	names  netstate.Names
	record *cache.Record
	j      Journal
}

func (s *salvage) lose(format string, args ...any) {
	s.j.Lost = append(s.j.Lost, fmt.Sprintf(format, args...))
}

// binding is what the links and tables look like, or the one that is said. A record of another binding is an old one.
func (s *salvage) binding(kind string) infra.Binding {
	_, held := s.marked(s.names.NIC)
	_, there := s.now.Named(s.names.NIC)
	moved, isMoved := s.now.Named(s.names.Moved)
	bridge, bridged := s.marked(s.names.Bridge)
	_, translates := s.forwarded()
	var b infra.Binding = infra.Redirect{}
	switch {
	case held || isMoved && (!there || bridged && moved.Master == bridge.Index):
		b = infra.Bridge{}
	case s.handedOver():
		b = infra.Routed{}
	case bridged || translates:
		b = infra.Masquerade{}
	default:
		if said, err := infra.NewBinding(kind); err == nil && MakesTaps(said) == s.now.Bears(s.names.NIC) {
			b = said
		}
	}
	if s.record != nil && s.record.Binding != b.Kind() {
		s.record = nil
	}
	return b
}

// marked returns the wiring's link with the name.
func (s *salvage) marked(name string) (netstate.Link, bool) {
	l, ok := s.now.Named(name)
	return l, ok && l.Alias == netstate.Mark(s.names.NIC)
}

// bridge takes the NIC's name, MAC and addresses from the holder. The NIC itself has its other properties.
func (s *salvage) bridge() {
	nic := s.names.NIC
	s.defaultSysctls()
	holder, held := s.marked(nic)
	was, moved := s.now.Named(s.names.Moved)
	if !moved {
		if was, moved = s.now.Named(nic); moved && !held { // Setup was killed before it moved the NIC
			s.keep(was)
			return
		}
		s.gone()
		return
	}
	was.Name, was.Master, was.BridgePort = nic, 0, nil
	var linkLocal bool // the kernel makes one for a NIC that is up, and removes it when the NIC goes down
	switch r := s.record; {
	case held:
		was.MAC = holder.MAC
		for _, a := range s.now.Addresses {
			if a.Link != holder.Index {
				continue
			}
			a.Link = was.Index
			linkLocal = linkLocal || a.Prefix.Addr() == was.MAC.LinkLocal()
			s.j.Found.Routes = append(s.j.Found.Routes, netstate.Connected(a, was, s.j.Found.Addresses)...) // the kernel adds them
			s.j.Found.Addresses = append(s.j.Found.Addresses, a)
		}
	case r != nil && netstate.DeriveMAC(netstate.Link{Name: nic, MAC: r.MAC}, "moved") == was.MAC:
		was.MAC = r.MAC
		s.lose("addresses of %s, as another program has deleted the link that kept them%s", nic, s.advise(s.addressCommands()))
	default:
		s.lose("MAC and addresses of %s, as another program has deleted the link that kept them%s", nic, s.advise(s.addressCommands()))
	}
	switch {
	case was.AddrGen != netstate.AddrGenNone:
	case linkLocal:
		was.AddrGen = 0
	default:
		s.lose("how %s made its IPv6 addresses, if it did: ip link set %[1]s addrgenmode eui64", nic)
	}
	if !linkLocal {
		s.lose("whether %s was down; it is up", nic)
	}
	s.j.Found.Links = []netstate.Link{was}
	s.lose("routes and permanent neighbours of %s%s", nic, s.advise(s.routeCommands()))
}

// redirect has changed nothing of the NIC but all multicast, and its MAC if the guest has another one: then the kernel makes
// no link-local address of it. The namespace could not renew what the NIC had.
func (s *salvage) redirect() {
	was, there := s.now.Named(s.names.NIC)
	if !there {
		s.gone()
		return
	}
	if was.AddrGen == netstate.AddrGenNone || was.AddrGen == netstate.AddrGenNoIPv6 {
		s.restoreMAC(&was)
	}
	s.keep(was)
	if was.AllMulticast && was.Kind != "veth" {
		s.lose("whether %s received all multicast, as it does now: ip link set %[1]s allmulticast off", s.names.NIC)
	}
	if missing := append(s.addressCommands(), s.routeCommands()...); len(missing) > 0 || s.record == nil {
		s.lose("addresses and routes that %s has lost since Setup%s", s.names.NIC, s.advise(missing))
	}
}

// restoreMAC takes the MAC that the NIC had before Setup from the link-local address that the kernel made of it.
func (s *salvage) restoreMAC(nic *netstate.Link) {
	guests := s.record == nil || s.record.Standby || s.record.MAC == nic.MAC
	for _, a := range s.now.Addresses {
		b := a.Prefix.Addr().As16()
		before := cache.MAC{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}
		if guests && a.Link == nic.Index && a.Prefix.Addr() == before.LinkLocal() && before.Unicast() {
			nic.MAC, nic.AddrGen = before, 0
			return
		}
	}
	s.lose("whether %s had another MAC and made its IPv6 addresses of it: ip link set %[1]s address MAC addrgenmode eui64", nic.Name)
}

// masquerade has let the NIC forward. If it did not before Setup, a rule of the masquerade says so.
func (s *salvage) masquerade() {
	was, there := s.now.Named(s.names.NIC)
	s.j.Spec.Binding, s.j.Spec.Guard.Prefixes = s.behind(), s.prefixes()
	for _, t := range s.now.Tables {
		if t.Family.IPTables() != 0 {
			s.j.Found.Tables = append(s.j.Found.Tables, firewall.Image{Family: t.Family, Name: t.Name})
		}
	}
	s.defaultSysctls()
	if !there {
		s.gone()
		return
	}
	s.forwarding(&was)
	s.keep(was)
}

// behind is the masquerade with the guest's networks, by the record, or by the addresses of the bridge.
func (s *salvage) behind() (b infra.Masquerade) {
	if s.record != nil {
		if s.record.IPv4 != nil {
			b.IPv4 = s.record.IPv4.Address.Masked()
		}
		if s.record.IPv6 != nil && len(s.record.IPv6.OnLink) > 0 {
			b.IPv6 = s.record.IPv6.OnLink[0]
		}
		return b
	}
	bridge, bridged := s.marked(s.names.Bridge)
	for _, a := range s.now.Addresses {
		switch {
		case !bridged || a.Link != bridge.Index || a.Scope != netstate.ScopeUniverse || a.Prefix.IsSingleIP():
		case a.Prefix.Addr().Is4():
			b.IPv4 = a.Prefix.Masked()
		default:
			b.IPv6 = a.Prefix.Masked()
		}
	}
	if !b.IPv4.IsValid() && !b.IPv6.IsValid() {
		s.lose("the guest's networks, as the addresses of %s are gone: connections that the kernel tracks keep the guest's addresses for as long as they go on", s.names.Bridge)
	}
	return b
}

// prefixes are the guest's other addresses, to which routes lead.
func (s *salvage) prefixes() (list []netip.Prefix) {
	bridge, bridged := s.marked(s.names.Bridge)
	for _, r := range s.now.Routes {
		if bridged && r.Link == bridge.Index && r.Gateway.IsValid() {
			list = append(list, r.Destination)
		}
	}
	return list
}

// handedOver says whether the NIC has the namespace's address of a routed binding.
func (s *salvage) handedOver() bool {
	nic, there := s.now.Named(s.names.NIC)
	return there && slices.ContainsFunc(s.now.Addresses, func(a netstate.Address) bool { return a.Link == nic.Index && isHop(a) })
}

// isHop says whether a routed binding has put the address at the NIC.
func isHop(a netstate.Address) bool {
	switch a.Prefix.Addr() {
	case infra.RoutedIPv4, infra.RoutedIPv4.Next():
		return a.Scope == netstate.ScopeHost && a.Prefix.IsSingleIP()
	case infra.RoutedIPv6:
		return a.Prefix.IsSingleIP() && a.Flags&netstate.AddrNoPrefixRoute != 0
	}
	return false
}

// routed has put an address of each family at the NIC, which is the source of its IPv4 routes. The NIC's own IPv6 addresses
// are deprecated.
func (s *salvage) routed() {
	was, there := s.now.Named(s.names.NIC)
	s.defaultSysctls()
	if !there {
		s.gone()
		return
	}
	s.forwarding(&was)
	s.keep(was)
	var hops []netip.Addr
	found := &s.j.Found
	found.Addresses = slices.DeleteFunc(found.Addresses, func(a netstate.Address) bool {
		if isHop(a) {
			hops = append(hops, a.Prefix.Addr())
		}
		return isHop(a)
	})
	for i := range found.Addresses {
		if a := &found.Addresses[i]; a.PreferredSeconds == 0 {
			a.PreferredSeconds = a.ValidSeconds
			if a.ValidSeconds != netstate.Forever {
				s.lose("for how long the address %v of %s is preferred", a.Prefix, was.Name)
			}
		}
	}
	sourced := false
	for i := range found.Routes {
		r := &found.Routes[i]
		if !slices.Contains(hops, r.PrefSrc) {
			continue
		}
		r.PrefSrc = netip.Addr{}
		ofKernel := slices.IndexFunc(found.Addresses, func(a netstate.Address) bool {
			return r.Protocol == netstate.ProtocolKernel && a.Prefix.Addr().Is4() && slices.ContainsFunc(netstate.Connected(a, was, nil), func(c netstate.Route) bool { return c.Destination == r.Destination })
		})
		if ofKernel >= 0 {
			r.PrefSrc = found.Addresses[ofKernel].Prefix.Addr()
		} else {
			sourced = true
		}
	}
	if sourced {
		s.lose("the preferred source (src) of routes of %s, if they had one", was.Name)
	}
}

// forwarding restores whether the NIC forwarded, which a rule says.
func (s *salvage) forwarding(was *netstate.Link) {
	before, known := s.forwarded()
	paths := []string{netstate.Forwarding6, netstate.ForceForwarding(s.names.NIC)}
	on := slices.ContainsFunc(paths, func(path string) bool { return s.now.Sysctls[path] == "1" })
	if known && !before[4] {
		was.Forwarding4 = false
	}
	for _, path := range paths {
		if known && !before[6] && s.now.Sysctls[path] == "1" && s.canWrite(path) {
			s.setSysctl(path, "0")
		}
	}
	if !known && (was.Forwarding4 || on) {
		s.lose("whether %s forwarded before Setup, as the rules that said so are gone; net.ipv4.conf.%[1]s.forwarding and the sysctls of IPv6 stay as they are", s.names.NIC)
	}
	if s.now.Sysctls[netstate.AcceptRA(s.names.NIC)] == "2" {
		s.lose("net.ipv6.conf.%s.accept_ra, if it was not 2", s.names.NIC)
	}
}

// direct leaves the NIC as it is.
func (s *salvage) direct(lost string, args ...any) {
	s.lose(lost, args...)
	if was, there := s.now.Named(s.names.NIC); there {
		s.keep(was)
	} else {
		s.gone()
	}
}

// forwarded says for which IP versions the NIC forwarded before Setup. Known is false if there is no masquerade's
// chain to tell.
func (s *salvage) forwarded() (before map[int]bool, known bool) {
	before = map[int]bool{4: true, 6: true}
	for _, want := range append(IPTablesOf(s.names.NIC), countedTable(s.names.NIC)) {
		through := want.Chains[0].Name
		image := want.Image().Chains
		rules := image[slices.IndexFunc(image, func(c firewall.ChainImage) bool { return c.Name == through })].Rules
		for _, t := range s.now.Tables {
			for _, c := range t.Whole().Chains {
				if t.Family != want.Family || c.Name != through {
					continue
				}
				known = true
				for i, rule := range rules {
					version := want.Family.IPTables()
					if version == 0 {
						version = []int{4, 6}[i]
					}
					if slices.Contains(c.Rules, rule) {
						before[version] = false
					}
				}
			}
		}
	}
	return before, known
}

// keep wants the NIC to stay as it is, with addresses and routes.
func (s *salvage) keep(was netstate.Link) {
	s.j.Found.Links = []netstate.Link{was}
	for _, a := range s.now.Addresses {
		if a.Link == was.Index {
			s.j.Found.Addresses = append(s.j.Found.Addresses, a)
		}
	}
	for _, r := range s.now.Routes {
		if r.Uses(was.Index) {
			s.j.Found.Routes = append(s.j.Found.Routes, r)
		}
	}
	for _, n := range s.now.Neighbours {
		if n.Link == was.Index && n.Permanent {
			s.j.Found.Neighbours = append(s.j.Found.Neighbours, n)
		}
	}
}

// gone is for a NIC that has gone: only the wiring's own links and tables are left.
func (s *salvage) gone() { s.j.Found.Links = []netstate.Link{{Name: s.names.NIC}} }

// defaultSysctls sets the sysctls that the wiring may have changed to the kernel's defaults.
func (s *salvage) defaultSysctls() {
	var changed []string
	for _, path := range netstate.BridgeCalls() {
		if s.now.Sysctls[path] == "0" && s.canWrite(path) {
			s.setSysctl(path, netstate.DefaultBridgeCall)
			changed = append(changed, strings.ReplaceAll(path, "/", ".")+" = 1")
		}
	}
	own := func(a netstate.Address) bool {
		l, _ := s.now.Link(a.Link)
		return l.Name == s.names.NIC && a.Prefix.Addr().Is6()
	}
	if s.now.Sysctls[netstate.NoIPv6] == "0" && s.canWrite(netstate.NoIPv6) && slices.ContainsFunc(s.now.Addresses, own) {
		changed = append(changed, strings.ReplaceAll(netstate.NoIPv6, "/", ".")+" = 0")
	}
	if len(changed) > 0 {
		s.lose("sysctls, if they were not the kernel's defaults, which they have now: %s", strings.Join(changed, ", "))
	}
}

// canWrite is false for a sysctl that Setup has not changed, as it cannot.
func (s *salvage) canWrite(path string) bool { return !slices.Contains(s.now.ReadOnly, path) }

func (s *salvage) setSysctl(path, value string) {
	if s.j.Found.Sysctls == nil {
		s.j.Found.Sysctls = map[string]string{}
	}
	s.j.Found.Sysctls[path] = value
}

// addressCommands are the commands that add the addresses of the record that the NIC will not have.
func (s *salvage) addressCommands() []string {
	if s.record == nil {
		return nil
	}
	var wanted []netip.Prefix
	if v4 := s.record.IPv4; v4 != nil {
		wanted = append(wanted, v4.Address)
	}
	if v6 := s.record.IPv6; v6 != nil {
		for _, a := range v6.Addresses() {
			bits := 128
			if at := slices.IndexFunc(v6.OnLink, func(p netip.Prefix) bool { return p.Contains(a) }); at >= 0 {
				bits = v6.OnLink[at].Bits()
			}
			wanted = append(wanted, netip.PrefixFrom(a, bits))
		}
	}
	var commands []string
	for _, p := range wanted {
		if !slices.ContainsFunc(s.j.Found.Addresses, func(a netstate.Address) bool { return a.Prefix.Addr() == p.Addr() }) {
			commands = append(commands, fmt.Sprintf("ip addr add %v dev %s", p, s.names.NIC))
		}
	}
	return commands
}

// routeCommands are the commands that add the routes of the record that the NIC will not have. The record has only
// routes that DHCP can tell.
func (s *salvage) routeCommands() []string {
	if s.record == nil {
		return nil
	}
	var wanted []cache.Route
	station := "" // the IPv6 gateway, which may have no link-local address that is made of its MAC
	if v4 := s.record.IPv4; v4 != nil {
		wanted = slices.DeleteFunc(slices.Clone(v4.Routes), func(r cache.Route) bool {
			return r.Destination == single(serverFor(v4.Address.Addr())) // the guest's way to the responder
		})
	}
	if v6 := s.record.IPv6; v6 != nil {
		for _, p := range v6.OnLink {
			wanted = append(wanted, cache.Route{Destination: p})
		}
		if r := v6.Router; r != nil {
			if !r.MAC.IsZero() {
				station = fmt.Sprintf(" (or another address of %v)", r.MAC)
			}
			for _, p := range r.Routes {
				wanted = append(wanted, cache.Route{Destination: p, Gateway: r.Address})
			}
			if r.Default {
				wanted = append(wanted, cache.Route{Destination: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Gateway: r.Address})
			}
		}
	}
	var commands []string
	for _, w := range wanted {
		there := func(r netstate.Route) bool { return r.Destination == w.Destination }
		scaffold := !w.Gateway.IsValid() && w.Destination.IsSingleIP() // the namespace may have had the next hop as onlink
		if slices.ContainsFunc(s.j.Found.Routes, there) || scaffold && s.record.Binding == cache.BindingRedirect {
			continue
		}
		by := ""
		if w.Gateway.IsValid() {
			by = fmt.Sprintf(" via %v", w.Gateway)
		}
		command := fmt.Sprintf("ip route add %v%s dev %s", w.Destination, by, s.names.NIC)
		if w.Gateway.Is6() {
			command += station
		}
		commands = append(commands, command)
	}
	return commands
}

// advise is what the record says, for the end of a phrase.
func (s *salvage) advise(commands []string) string {
	if len(commands) == 0 {
		return ""
	}
	return "; by the record: " + strings.Join(commands, ", ")
}

// Plan is the plan that the journal was made of. That of a salvaged journal can be undone and nothing else.
func (j Journal) Plan() (*Plan, error) {
	if !j.Salvaged {
		if auto, is := j.Spec.Binding.(infra.Auto); is && j.Standby {
			left := slices.DeleteFunc(kindsOf(auto), func(kind string) bool { return kind == cache.BindingRouted }) // SetTurn would refuse it
			if len(left) > 0 {
				auto.Order = left
				j.Spec.Binding = auto
			}
		}
		p, err := NewPlan(j.Found, j.Spec)
		if err == nil {
			err = p.SetTurn(j.Turn)
		}
		return p, err
	}
	p := emptyPlan(j.Found, j.Spec)
	p.wanted.Links = j.Found.Links     // the NIC
	for _, t := range j.Found.Tables { // of iptables, which are read only if the plan has some
		p.wanted.Tables = append(p.wanted.Tables, firewall.Table{Family: t.Family, Name: t.Name})
	}
	for path := range j.Found.Sysctls {
		p.wanted.Sysctls[path] = ""
	}
	if p.binding.traits().offStack {
		p.put = putOf(j.Found, p.nic())
		for _, a := range j.Found.Addresses {
			for _, hop := range p.put.Addresses {
				if inside := hop.Prefix.Addr(); a.Prefix.Addr().Is4() == inside.Is4() {
					p.own = append(p.own, ofHop(a.Prefix.Addr(), inside)...)
				}
			}
		}
	}
	if b, is := j.Spec.Binding.(infra.Masquerade); is {
		networks := slices.DeleteFunc(append([]netip.Prefix{b.IPv4, b.IPv6}, j.Spec.Guard.Prefixes...), func(n netip.Prefix) bool { return !n.IsValid() })
		p.own = ofNetworks(networks)
	}
	return p, nil
}
