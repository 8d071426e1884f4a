package undo

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
)

// AskSalvage returns what a Snapshot for Salvage has to hold in addition to links, addresses and routes: sysctls, and
// the chains of iptables, by each program.
func AskSalvage(nic string) (sysctls []string, programs []firewall.Family) {
	return netstate.SysctlOrder(nic), []firewall.Family{firewall.IPTablesNFT, firewall.IP6TablesNFT, firewall.IPTablesLegacy, firewall.IP6TablesLegacy}
}

// Salvaged is what a namespace shows of a wiring whose journal is lost.
type Salvaged struct {
	Kind cache.Kind
	Tap  string // empty: a name that is made of the NIC's
	// Found is the namespace before Setup, as far as it shows. What is not known stays as it is.
	Found netstate.Snapshot
	Made  compare.Made
	// Lost says what is not known, a phrase each.
	Lost []string
}

// Salvage finds out, of what the namespace still shows, what the lost journal of a wired NIC would say: the NIC's name,
// MAC and addresses. Kind is the binding's, if record or journal have it; record is the NIC's; nil: it is lost, too.
func Salvage(now netstate.Snapshot, nic string, kind cache.Kind, record *cache.Record) Salvaged {
	tap := shownTap(now, nic)
	s := salvage{names: netstate.NamesFor(nic, tap), now: now, Salvaged: Salvaged{Tap: tap, Found: now}}
	s.Kind = s.shownBinding(kind)
	s.traits = compare.TraitsOf(s.Kind)
	if record != nil && record.Binding == s.Kind { // else it is an old one
		s.record = record
	}
	s.Found.OffStack, s.Found.Filters, s.Found.Ingress, s.Found.Clsact, s.Found.Tables = nil, nil, nil, nil, nil
	s.Found.Sysctls, s.Found.ReadOnly = nil, nil
	was, there := s.shownNIC()
	s.Found.Links = slices.DeleteFunc(slices.Clone(now.Links), func(l netstate.Link) bool { return l.Name == nic || l.Index == was.Index })
	s.Found.Links = append(s.Found.Links, was)
	s.loseSysctls(was)
	if there {
		s.loseOfNIC(was)
	}
	s.Made = s.made(was)
	return s.Salvaged
}

// made is what the way back has to know. Sysctls stay, as their values before are not known.
func (s *salvage) made(nic netstate.Link) compare.Made {
	made := compare.Made{NIC: compare.NIC{Traits: s.traits, Names: s.names, Index: nic.Index}, ChangesNIC: true}
	for _, t := range s.now.Tables {
		if t.Family.IPTables() != 0 {
			made.IPTables = append(made.IPTables, t.Family)
		}
	}
	if tap, tapped := s.Found.Named(s.names.Tap); tapped && s.traits.Routes {
		guests := router.GuestNetworks(tap, s.Found.Addresses, s.Found.Routes, s.traits.OffStack)
		made.Guests = router.WithoutOwn(guests, nic.Index, s.Found.Addresses)
	}
	if s.traits.OffStack {
		made.Added = addedByRouted(s.Found, nic)
		made.Translated = translated(s.Found, nic, made.Added)
	}
	return made
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
	traits compare.Traits
	record *cache.Record
	Salvaged
}

func (s *salvage) lose(format string, args ...any) {
	s.Lost = append(s.Lost, fmt.Sprintf(format, args...))
}

// marked returns the wiring's link with the name.
func (s *salvage) marked(name string) (netstate.Link, bool) {
	l, ok := s.now.Named(name)
	return l, ok && l.Alias == netstate.Mark(s.names.NIC)
}

// shownBinding is the binding that links, addresses and tables show, or the kind that record or journal have.
func (s *salvage) shownBinding(kind cache.Kind) cache.Kind {
	_, held := s.marked(s.names.NIC)
	nic, there := s.now.Named(s.names.NIC)
	moved, isMoved := s.now.Named(s.names.Moved)
	bridge, bridged := s.marked(s.names.Bridge)
	tap, tapped := s.marked(s.names.Tap)
	switch {
	case held || isMoved && (!there || bridged && moved.Master == bridge.Index):
		return cache.BindingBridge
	case slices.ContainsFunc(s.now.Addresses, func(a netstate.Address) bool { return a.Link == nic.Index && isHop(a) }):
		return cache.BindingRouted
	case slices.ContainsFunc(s.now.Tables, translates), slices.ContainsFunc(s.now.Addresses, func(a netstate.Address) bool { return tapped && a.Link == tap.Index }):
		return cache.BindingMasquerade
	}
	if _, err := infra.NewBinding(kind); err == nil && compare.TraitsOf(kind).Direct != s.now.Bears(s.names.NIC) {
		return kind
	}
	s.lose("whether %s was wired by redirect or masquerade; a masquerade's sysctls stay as they are (net.ipv4.conf.%[1]s.forwarding)", s.names.NIC)
	return cache.BindingRedirect
}

// translates reports whether the table is a masquerade's.
func translates(t firewall.Image) bool {
	return t.Family.IPTables() != 0 || slices.ContainsFunc(t.Chains, func(c firewall.ChainImage) bool { return c.Name == "from-network" })
}

// shownNIC is the NIC as it was before Setup. If it has gone, only links and tables are left.
func (s *salvage) shownNIC() (was netstate.Link, there bool) {
	was, there = s.now.Named(s.names.NIC)
	holder, held := s.marked(s.names.NIC)
	if moved, isMoved := s.now.Named(s.names.Moved); s.traits.ManageAddresses && isMoved {
		was = s.fromHolder(moved, holder, held)
	} else if !there || held {
		return netstate.Link{Name: s.names.NIC}, false
	}
	if s.traits.OffStack {
		takeBack(&s.Found, was)
	}
	if was.Group == netstate.GroupOfNICs {
		was.Group = 0
	}
	// A NIC without IPv6 that the guest's MAC was given to looks the same.
	silent := was.AddrGen == netstate.AddrGenNone || was.AddrGen == netstate.AddrGenNoIPv6 && !s.traits.ManageAddresses
	if silent && !s.traits.Routes && !s.traits.Direct && !s.takeMAC(&was) {
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
	found := &s.Found
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
	for _, a := range s.Found.Addresses {
		b := a.Prefix.Addr().As16()
		mac := cache.MAC{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}
		held := s.traits.ManageAddresses && mac != was.MAC // by the holder
		if a.Link == was.Index && a.Prefix.Addr() == eui64.LinkLocal(mac) && mac.Unicast() && !held {
			was.MAC, was.AddrGen = mac, 0
			return true
		}
	}
	return false
}

// unseen is what Setup changes at the NIC and no one can see afterwards.
var unseen = map[cache.Kind]string{
	cache.BindingBridge:  "routes, permanent neighbours and the state, up or down,",
	cache.BindingRouted:  "the preferred source (src) of routes, and the preferred lifetime of IPv6 addresses",
	cache.BindingMacvtap: "the state, up or down,",
}

// mayWrite are the sysctls that Setup writes for some namespace, in their order.
func mayWrite(kind cache.Kind, nic string) []string {
	router := append(netstate.OfFlows(), netstate.NoIPv6, netstate.AcceptRA(nic), netstate.Forwarding6, netstate.ForceForwarding(nic))
	switch kind {
	case cache.BindingBridge:
		return append([]string{netstate.NoIPv6}, netstate.BridgeCalls()...)
	case cache.BindingMasquerade:
		return append([]string{netstate.ReservedPorts}, router...)
	case cache.BindingRouted:
		return router
	case cache.BindingPasst, cache.BindingSlirp:
		return []string{netstate.PortStart, netstate.PingGroups}
	}
	return nil
}

// loseSysctls names the sysctls that Setup may have changed: those of the binding that have the value that Setup
// writes.
func (s *salvage) loseSysctls(was netstate.Link) {
	written := map[string]string{
		netstate.NoIPv6: "0", netstate.Forwarding6: "1", netstate.ForceForwarding(s.names.NIC): "1", netstate.AcceptRA(s.names.NIC): "2",
	}
	for _, path := range netstate.BridgeCalls() {
		written[path] = "0"
	}
	for _, path := range netstate.OfFlows() {
		written[path] = "1"
	}
	var stay []string
	for _, path := range mayWrite(s.Kind, s.names.NIC) {
		value := s.now.Sysctls[path] // none: the kernel does not have it, or it is an empty list
		if one, is := written[path]; value == "" || is && one != value || slices.Contains(s.now.ReadOnly, path) {
			continue
		}
		stay = append(stay, strings.ReplaceAll(path, "/", ".")+" = "+value)
	}
	if s.traits.Routes && was.Forwarding4 {
		stay = append(stay, "net.ipv4.conf."+s.names.NIC+".forwarding = 1")
	}
	if len(stay) > 0 {
		s.lose("sysctls that Setup may have changed, and that stay as they are: %s", strings.Join(stay, ", "))
	}
}

// loseOfNIC names what else Setup may have changed, and what of it the record has.
func (s *salvage) loseOfNIC(was netstate.Link) {
	if what := unseen[s.Kind]; what != "" {
		s.lose("%s of %s", what, was.Name)
	}
	if s.traits.RestoreAddresses && was.AllMulticast {
		s.lose("whether %s received all multicast: ip link set %s allmulticast off", was.Name, infra.ShellWord(was.Name))
	}
	missing := s.missing(was)
	if s.traits.RestoreAddresses && (s.record == nil || len(missing) > 0) {
		s.lose("addresses and routes that %s has lost since Setup", was.Name)
	}
	if len(missing) > 0 {
		s.lose("what the record has of %s: %s", was.Name, strings.Join(missing, "; "))
	}
	if _, tapped := s.marked(s.names.Tap); s.traits.Routes && !s.traits.OffStack && !tapped {
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
		if !slices.ContainsFunc(s.Found.Addresses, has) && a.Address.Addr() != eui64.LinkLocal(was.MAC) { // which the kernel makes
			add := netstate.Address{Prefix: a.Address, Peer: a.Peer, Broadcast: a.Broadcast, Scope: a.Scope, ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever}
			commands = append(commands, netstate.AddressAdd{Link: was.Name, Address: add}.String())
		}
	}
	for _, r := range s.record.Static.Routes {
		has := func(o netstate.Route) bool {
			return o.Uses(was.Index) && o.Destination == r.Destination && o.Table == r.Table
		}
		if r.Type == "" && len(r.Hops) == 0 && !slices.ContainsFunc(s.Found.Routes, has) {
			add := netstate.Route{
				Destination: r.Destination, Table: r.Table, Gateway: r.Gateway, OnLink: r.OnLink, Source: r.From, PrefSrc: r.Source,
				Metric: r.Metric, MTU: r.MTU, Scope: r.Scope, Type: netstate.RouteUnicast, Protocol: netstate.ProtocolBoot,
			}
			commands = append(commands, netstate.RouteAdd{Link: was.Name, Route: add}.String())
		}
	}
	return commands
}
