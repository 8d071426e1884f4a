package infra

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
)

// Plan is the wiring of one NIC: how the namespace was found, how it shall look, and what the
// guest is told.
type Plan struct {
	// Record is for Phase2.
	Record cache.Record
	// Refused are why the bindings that Auto would rather have had cannot work.
	Refused []*RefusedError

	names Names
	spec  Spec
	found Snapshot
	wired wiring
}

// Journal is what a plan was made of. NewPlan makes the same plan of it.
type Journal struct {
	Found Snapshot `json:"found"`
	Spec  Spec     `json:"spec"`
}

// Journal is to be kept while the plan is in force.
func (p *Plan) Journal() Journal { return Journal{Found: p.found, Spec: p.spec} }

// Binding is what was asked for, or what Auto has become.
func (p *Plan) Binding() Binding { return p.spec.Binding }

// Tables are the nftables tables that are wanted.
func (p *Plan) Tables() []firewall.Table { return p.wired.tables }

// wiring is how a namespace shall look: the links of one NIC and what hangs on them, and nothing
// else. Links that are to be created have negative indices, those below.
type wiring struct {
	links      []Link
	addresses  []Address
	routes     []Route
	neighbours []Neighbour
	filters    []Filter
	tables     []firewall.Table
	sysctls    map[string]string
}

// Indices of links until they have one.
const (
	newHolder = -1 - iota
	newBridge
	newTap
	newPort
)

// NewPlan computes the wiring of the NIC in the namespace that was found.
//
// The errors: *cache.FieldError for a bad specification, ErrNoNIC, ErrWired, ErrCollision,
// *RefusedError.
func NewPlan(found Snapshot, spec Spec) (*Plan, error) {
	if err := spec.validate(); err != nil {
		return nil, err
	}
	names := NamesFor(spec.NIC)
	nic, ok := found.Named(spec.NIC)
	if b, is := spec.Binding.(SRIOV); !ok && is && b.PCI != "" {
		nic, ok = Link{Name: spec.NIC}, true // bound to vfio-pci already
	}
	if _, is := spec.Binding.(SRIOV); !ok && is {
		return nil, fmt.Errorf("NIC %s: %w; the namespace has %s: name one of them, or in binding.sriov the function's pci and mac", spec.NIC, ErrNoNIC, linkNames(found))
	}
	if !ok {
		return nil, fmt.Errorf("NIC %s: %w; the namespace has %s", spec.NIC, ErrNoNIC, linkNames(found))
	}
	if nic.Loopback {
		return nil, &cache.FieldError{Field: "nic", Reason: fmt.Sprintf("%s is the loopback: name the link that leads out of the namespace, of %s", nic.Name, linkNames(found))}
	}
	if err := free(found, nic, names); err != nil {
		return nil, err
	}
	if _, auto := spec.Binding.(Auto); auto {
		return choose(found, spec)
	}
	p := &Plan{names: names, spec: spec, found: found}
	p.wired.sysctls = map[string]string{}
	var err error
	switch b := spec.Binding.(type) {
	case Bridge:
		err = p.bridge(nic, spec)
	case Redirect:
		err = p.redirect(nic, spec)
	case Masquerade:
		err = p.masquerade(nic, spec, b)
	case Macvtap:
		err = p.macvtap(nic, spec)
	case SRIOV:
		err = p.sriov(nic, spec, b)
	case Passt:
		err = p.passt(nic, spec, b)
	default:
		err = &cache.FieldError{Field: "binding", Reason: fmt.Sprintf("%T, want one of this package's bindings by value", b)}
	}
	if err != nil {
		return nil, err
	}
	if !Direct(spec.Binding) {
		p.Record.Warnings = append(p.Record.Warnings, p.warnings(nic)...)
	}
	if err := p.Record.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}

func (s Spec) validate() error {
	if err := cache.CheckName("nic", s.NIC); err != nil {
		return err
	}
	if s.Binding == nil {
		return &cache.FieldError{Field: "binding", Reason: "missing, want " + kinds}
	}
	if s.Queues < 0 || s.Queues > cache.MaxQueues {
		return &cache.FieldError{Field: "queues", Reason: fmt.Sprintf("%d, want 1 to %d", s.Queues, cache.MaxQueues)}
	}
	if s.DNS != nil {
		for i, server := range s.DNS.Servers {
			if !server.IsValid() {
				return &cache.FieldError{Field: fmt.Sprintf("dns.servers[%d]", i), Reason: "no address"}
			}
		}
	}
	if err := s.Options.Validate("options"); err != nil {
		return err
	}
	if err := s.Guard.validate(s.Binding); err != nil {
		return err
	}
	return s.Device.Validate("device")
}

// free says whether the NIC is nobody's and the names that we need are free.
func free(found Snapshot, nic Link, names Names) error {
	if strings.HasPrefix(nic.Alias, Mark("")) {
		return fmt.Errorf("NIC %s: %w, its alias is %q: Teardown with the state directory of that Setup, or name another NIC", nic.Name, ErrWired, nic.Alias)
	}
	if master, ok := found.link(nic.Master); ok && nic.Master != 0 {
		return fmt.Errorf("NIC %s: %w, it is a port of %s: take it off first (ip link set %s nomaster)", nic.Name, ErrWired, master.Name, nic.Name)
	}
	for _, name := range names.created() {
		if _, taken := found.Named(name); taken {
			return fmt.Errorf("NIC %s: %w, a link called %s is there: Teardown with the state directory of that Setup, or rename it", nic.Name, ErrWired, name)
		}
	}
	if len(found.Tables) > 0 {
		return fmt.Errorf("NIC %s: %w, there is an nftables table %s %s: Teardown with the state directory of that Setup, or delete it", nic.Name, ErrWired, found.Tables[0].Family, found.Tables[0].Name)
	}
	return nil
}

// record is the part that does not depend on the binding.
func (p *Plan) record(nic Link, spec Spec, mac cache.MAC) cache.Record {
	r := cache.Record{
		Version: cache.Version,
		Name:    nic.Name,
		Binding: spec.Binding.Kind(),
		Tap:     p.names.Tap,
		Queues:  max(1, spec.Queues),
		MAC:     mac,
		MTU:     p.mtu(nic),
		DNS:     spec.DNS,
		Options: spec.Options,
		Device:  spec.Device,
	}
	return r
}

// mtu is the guest's: a route's own MTU beats the link's. The guest has one for all its routes, so it is
// the smallest.
func (p *Plan) mtu(nic Link) int {
	mtu := min(nic.MTU, cache.MaxMTU)
	for _, v4 := range []bool{true, false} {
		for _, route := range routesOf(p.found, nic, v4) {
			if route.MTU >= cache.MinMTU {
				mtu = min(mtu, route.MTU)
			}
		}
	}
	return mtu
}

// serve gives the record a responder.
func (p *Plan) serve(r *cache.Record, nic Link) {
	r.Port = p.names.Port
	r.PortMAC = deriveMAC(nic, "responder")
}

// taps are the guest's, on the bridge if there is one, and the responder's if the record has one, with
// what leads from one to the other.
func (p *Plan) taps(nic Link, spec Spec, r cache.Record) {
	mtu := min(nic.MTU, cache.MaxMTU)
	tap := p.created(nic, newTap, r.Tap, "tun", mtu)
	tap.MAC = deriveMAC(nic, "tap") // a station's, and frames for that one would end here
	tap.Tap = &Tap{Owner: spec.Owner, MultiQueue: r.Queues > 1}
	if r.Port != "" {
		port := p.created(nic, newPort, r.Port, "tun", mtu)
		port.Tap = &Tap{Owner: Owner{UID: spec.Owner.UID}}
		p.wired.links = append(p.wired.links, port)
		p.wired.filters = portFilters(r)
	}
	bridged := r.Binding != cache.BindingRedirect
	if bridged {
		tap.Master, tap.Port = newBridge, portSettings
	}
	p.wired.links = append(p.wired.links, tap) // last: it comes up when everything else is there
	if !bridged {
		return
	}
	for _, mac := range append([]cache.MAC{r.MAC}, spec.Guard.MACs...) {
		p.wired.neighbours = append(p.wired.neighbours, Neighbour{Link: newTap, MAC: mac, Permanent: true})
	}
}

// created is a link of ours.
func (p *Plan) created(nic Link, index int, name, kind string, mtu int) Link {
	l := Link{
		Index: index, Name: name, Kind: kind, MTU: mtu, Up: true,
		Alias: Mark(nic.Name), Group: Group(nic.Index), AddrGen: AddrGenNone,
	}
	if nic.AddrGen == AddrGenNoIPv6 || mtu < minMTUIPv6 {
		l.AddrGen = AddrGenNoIPv6
	}
	if kind == "bridge" {
		l.Bridge = bridgeSettings
	}
	return l
}

// Our bridges have no use for snooping, and our ports do not learn, so that frames flood to the other one.
var (
	bridgeSettings = newBridgeSettings.but(Settings{"mcast_snooping": 0})
	portSettings   = newPortSettings.but(Settings{"learning": 0})
)

// minMTUIPv6 is RFC 8200 section 5: below, a link has no IPv6.
const minMTUIPv6 = 1280

// warnings are what cannot be handed to a guest.
func (p *Plan) warnings(nic Link) []string {
	var w []string
	learned := p.learned(nic)
	rules := 0
	for _, r := range p.found.Rules {
		if r.Other || !learned[r.Table] {
			rules++
		}
	}
	if rules > 0 {
		w = append(w, fmt.Sprintf("the namespace's own policy rules (%d) stay there: a guest cannot learn them by DHCP", rules))
	}
	for _, r := range p.found.Routes {
		if r.Uses(nic.Index) && !learned[r.Table] {
			learned[r.Table] = true
			w = append(w, fmt.Sprintf("the routes of table %d through %s are not the guest's: no rule gives all that it sends to them", r.Table, nic.Name))
		}
	}
	for _, r := range p.found.Routes {
		if r.Uses(nic.Index) && slices.ContainsFunc(r.Hops, func(h Hop) bool { return h.Link != nic.Index }) {
			w = append(w, fmt.Sprintf("the route to %v leads through other links too: the namespace is without it until Teardown", r.Destination))
		}
		if other, ok := p.found.link(r.Link); ok && other.Index != nic.Index && r.Default() && r.Table == TableMain && !strings.HasPrefix(other.Alias, Mark("")) {
			text := fmt.Sprintf("%s has a default route too, which is not this interface's", other.Name)
			if !slices.Contains(w, text) { // one of the other family
				w = append(w, text)
			}
		}
	}
	if nic.MTU > cache.MaxMTU {
		w = append(w, fmt.Sprintf("the MTU is %d and not %s's %d: a tap has no more", cache.MaxMTU, nic.Name, nic.MTU))
	}
	return w
}

// learned are the tables whose routes a guest learns that has the NIC's addresses.
func (p *Plan) learned(nic Link) map[uint32]bool {
	learned := map[uint32]bool{TableMain: true}
	v4, v6 := addressesOf(p.found, nic)
	for _, a := range slices.Concat(v4[:min(1, len(v4))], v6[:min(1, len(v6))]) {
		for _, table := range p.found.lookups(a.Addr()) {
			learned[table] = true
		}
	}
	return learned
}

// SysctlPaths are the values a Snapshot needs for the binding, with slashes, below /proc/sys.
func SysctlPaths(nic string, b Binding) []string {
	switch b.(type) {
	case Macvtap, SRIOV:
		return nil
	case Passt:
		return []string{portStart, pingGroups}
	}
	paths := append([]string{noIPv6}, bridgeCalls...)
	switch b.(type) {
	case Masquerade, Auto:
		paths = append(paths, forwarding6, acceptRA(nic), forceForwarding(nic))
		paths = append(paths, ofBridge(NamesFor(nic).Bridge)...)
	}
	return paths
}

const (
	forwarding6 = "net/ipv6/conf/all/forwarding"
	noIPv6      = "net/ipv6/conf/default/disable_ipv6"
)

// bridgeCalls pass what a bridge forwards through the namespace's iptables, which have nothing to
// say to the guest's packets.
var bridgeCalls = []string{
	"net/bridge/bridge-nf-call-arptables", "net/bridge/bridge-nf-call-ip6tables", "net/bridge/bridge-nf-call-iptables",
}

// newBridgeCall is what they are in a kernel that comes to know them.
const newBridgeCall = "1"

// enableIPv6 lets new links have IPv6 if the NIC has it: some container engines switch it on for
// the NIC alone.
func (p *Plan) enableIPv6() {
	if p.found.Sysctls[noIPv6] == "1" {
		p.wired.sysctls[noIPv6] = "0"
	}
}

// forceForwarding is what a kernel from 6.17 on has, so that a link forwards IPv6 and the others of the
// namespace do not.
func forceForwarding(link string) string { return "net/ipv6/conf/" + link + "/force_forwarding" }

// ofBridge are those of our bridge, which go with it. A link that forwards says that it is a router when
// it answers a solicitation, and a guest believes no other one.
func ofBridge(bridge string) []string {
	return []string{forceForwarding(bridge), "net/ipv6/conf/" + bridge + "/forwarding"}
}

func acceptRA(nic string) string { return "net/ipv6/conf/" + nic + "/accept_ra" }

func linkNames(s Snapshot) string {
	var names []string
	for _, l := range s.Links {
		names = append(names, l.Name)
	}
	if len(names) == 0 {
		return "no links"
	}
	return strings.Join(names, ", ")
}

// addressesOf returns the NIC's that another host could use: no link-local ones.
func addressesOf(s Snapshot, nic Link) (v4, v6 []netip.Prefix) {
	for _, a := range s.Addresses {
		switch addr := a.Prefix.Addr(); {
		case a.Link != nic.Index:
		case addr.Is4():
			v4 = append(v4, a.Prefix)
		case !addr.IsLinkLocalUnicast():
			v6 = append(v6, a.Prefix)
		}
	}
	return v4, v6
}

// routesOf are the routes through the NIC of what comes from its address, which is what a guest sends
// that has it: those of the tables that the rules say, the more specific ones first.
func routesOf(s Snapshot, nic Link, v4 bool) []Route {
	from, v6 := addressesOf(s, nic)
	if !v4 {
		from = v6
	}
	if len(from) == 0 {
		return routesBy(s, nic, v4, TableMain)
	}
	return routesBy(s, nic, v4, s.lookups(from[0].Addr())...)
}

// lookups are the tables in which the namespace looks for a route for what comes from an address.
func (s *Snapshot) lookups(from netip.Addr) []uint32 {
	rules := slices.Clone(s.Rules)
	if !slices.Contains(s.NoMain, version(from)) {
		rules = append([]Rule{{Priority: priorityMain, Table: TableMain, IPv6: from.Is6()}}, rules...)
	}
	slices.SortStableFunc(rules, func(a, b Rule) int { return cmp.Compare(a.Priority, b.Priority) })
	var tables []uint32
	for _, r := range rules {
		if r.isAbout(from) && !slices.Contains(tables, r.Table) {
			tables = append(tables, r.Table)
		}
	}
	return tables
}

// isAbout says that the rule holds for whatever comes from an address.
func (r Rule) isAbout(from netip.Addr) bool {
	return !r.Other && r.IPv6 == from.Is6() && (!r.Source.IsValid() || r.Source.Contains(from))
}

// decided says whether one of the tables has a route for all of a destination: the most specific one of a
// table counts, and throw goes on with the next table.
func (s *Snapshot) decided(destination netip.Prefix, tables []uint32) bool {
	return slices.ContainsFunc(tables, func(table uint32) bool {
		best := Route{Type: routeThrow, Destination: netip.PrefixFrom(destination.Addr(), 0)}
		for _, r := range s.Routes {
			covers := r.Destination.Addr().Is4() == destination.Addr().Is4() && r.Destination.Bits() <= destination.Bits() && r.Destination.Contains(destination.Addr())
			if r.Table == table && covers && r.Destination.Bits() >= best.Destination.Bits() {
				best = r
			}
		}
		return best.Type != routeThrow
	})
}

// routesBy are those through the NIC of some tables, unless an earlier table decides for all of the
// destination.
func routesBy(s Snapshot, nic Link, v4 bool, tables ...uint32) []Route {
	var routes []Route
	for i, table := range tables {
		for _, r := range s.Routes {
			if r.Table == table && r.Destination.Addr().Is4() == v4 && r.Uses(nic.Index) && r.Type == RouteUnicast && !s.decided(r.Destination, tables[:i]) {
				routes = append(routes, r)
			}
		}
	}
	slices.SortStableFunc(routes, func(a, b Route) int {
		if d := b.Destination.Bits() - a.Destination.Bits(); d != 0 {
			return d
		}
		return int(a.Metric) - int(b.Metric)
	})
	return routes
}
