package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// checkEgress refuses a policy that no rule can keep. Another binding of infra.Auto may be able to.
func (p *Plan) checkEgress(nic netstate.Link) error {
	if len(p.spec.Egress) == 0 {
		return nil
	}
	if p.found.NoNFTables {
		return &cache.FieldError{Field: "egress", Reason: "this kernel has no nf_tables, which would look up where the guest's connections go: load them (modprobe nf_tables), or leave this field out"}
	}
	if !p.binding.traits().routes {
		return &infra.RefusedError{NIC: nic.Name, Binding: p.spec.Binding.Kind(), Reason: "nobody tracks the guest's connections there, of which egress says where they may go", Instead: cache.BindingMasquerade}
	}
	return nil
}

// egress are the destinations to which the guest may open connections, a set for each family of the guest; none:
// everything.
func (p *Plan) egress(nic netstate.Link, ends []end) (sets []firewall.Destinations) {
	if len(p.spec.Egress) == 0 {
		return nil
	}
	for _, e := range ends {
		v := version(e.guest)
		sets = append(sets, firewall.Destinations{Name: egressSet(v), Version: v, Boxes: p.allowed(nic, v)})
	}
	return sets
}

// maxBoxes limits the elements of a set, for whose change the kernel takes a time that grows faster than their number.
const maxBoxes = 16384

// checkEgress refuses a policy of too many boxes.
func (t forwarding) checkEgress() error {
	for _, s := range t.egress {
		if len(s.Boxes) > maxBoxes {
			return &cache.FieldError{Field: "egress", Reason: fmt.Sprintf("it makes more than %d ranges of addresses and ports of IPv%d, as entries with ports overlap other networks: name fewer", maxBoxes, s.Version)}
		}
	}
	return nil
}

func egressSet(v int) string { return fmt.Sprintf("egress-%d", v) }

// destinations is the chain of what the guest opens: it returns if the guest may.
func (t forwarding) destinations() firewall.Chain {
	c := firewall.Chain{Name: "egress"}
	for _, s := range t.egress {
		c.Rules = append(c.Rules, rule(firewall.Return{}, firewall.IP{Version: s.Version}, firewall.InDestinations{Version: s.Version, Set: s.Name}))
	}
	c.Rules = append(c.Rules, rule(firewall.Refuse{Reason: firewall.NoEgress}))
	return c
}

// addEgress adds sets and chain to a table of which a chain has the rules of checked.
func (t forwarding) addEgress(table *firewall.Table) {
	if len(t.egress) == 0 {
		return
	}
	table.Destinations = t.egress
	table.Chains = append(table.Chains, t.destinations())
	if t.has(6) { // the namespace would take such a packet, and send it on where the guest wants as if it had been looked up
		table.Chains = append(table.Chains, firewall.Chain{Name: "ways", Type: "filter", Hook: firewall.Prerouting, Priority: firewall.Raw, Rules: []firewall.Rule{
			rule(drop(firewall.ExtensionHeader), t.fromGuest(), firewall.IP{Version: 6}, firewall.RoutingHeader{}),
		}})
	}
}

// checked looks up the first packet of each connection of the guest, also of one that connection tracking expects, as
// of FTP. What goes back to the guest by its tap leaves nothing.
func (t forwarding) checked(more ...firewall.Match) []firewall.Rule {
	if len(t.egress) == 0 {
		return nil
	}
	return []firewall.Rule{rule(firewall.Jump{Chain: "egress"}, append(more, firewall.OutInterface{Name: t.names.Tap, Inverted: true}, firewall.Unconfirmed{})...)}
}

// addressRange are the addresses that an entry of Spec.Egress is about.
type addressRange struct {
	first, last netip.Addr
	entry       int
}

// nat64 is the network in which a translator gives IPv4 addresses to hosts of IPv6 (RFC 6052 section 2.1).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// translated is the IPv4 address as hosts of IPv6 see it.
func translated(a netip.Addr) netip.Addr {
	octets, four := nat64.Addr().As16(), a.As4()
	copy(octets[12:], four[:])
	return netip.AddrFrom16(octets)
}

// ranges are those of all entries, in one version of IP.
func (p *Plan) ranges(nic netstate.Link, v int) (ranges []addressRange) {
	for i, e := range p.spec.Egress {
		add := func(first, last netip.Addr) {
			if first.Is4() && v == 6 {
				first, last = translated(first), translated(last)
			}
			if version(first) == v {
				ranges = append(ranges, addressRange{first, last, i})
			}
		}
		switch e.To {
		case syntax.NICNetworks:
			p.addNetworks(nic, add)
		case syntax.Resolvers:
			for _, a := range p.spec.DNS.Servers {
				a = a.Unmap().WithZone("")
				add(a, a)
			}
		default:
			for _, n := range syntax.Destinations(e.To) {
				add(n.Addr(), firewall.LastOf(n))
			}
		}
	}
	return ranges
}

// addNetworks adds the networks of the NIC's link without the next hops in them. A network that is part of a default
// route is none.
func (p *Plan) addNetworks(nic netstate.Link, add func(first, last netip.Addr)) {
	var networks []netip.Prefix
	var hops []netip.Addr
	for _, a := range p.found.Addresses {
		if a.Link == nic.Index {
			networks = append(networks, a.Prefix.Masked())
		}
	}
	for _, r := range p.found.Routes {
		switch {
		case !r.Uses(nic.Index) || r.Type != netstate.RouteUnicast:
		case r.Gateway.IsValid():
			hops = append(hops, r.Gateway)
		case len(r.Hops) > 0:
			for _, h := range r.Hops {
				hops = append(hops, h.Gateway)
			}
		case r.Destination.Bits() >= syntax.MinNetwork:
			networks = append(networks, r.Destination)
		}
	}
	slices.SortFunc(hops, netip.Addr.Compare)
	for _, n := range networks {
		first, last := n.Addr(), firewall.LastOf(n)
		for _, h := range slices.Compact(slices.Clone(hops)) {
			if !first.IsValid() || !n.Contains(h) {
				continue
			}
			if first.Less(h) {
				add(first, h.Prev())
			}
			if first = h.Next(); last.Less(first) {
				first = netip.Addr{}
			}
		}
		if first.IsValid() {
			add(first, last)
		}
	}
}

// allowed are the boxes that the entries allow in one version of IP, as few as their order makes: the first entry with
// an address, protocol and port decides. It goes through the addresses at which an entry begins or ends. In between all
// addresses are alike.
func (p *Plan) allowed(nic netstate.Link, v int) (boxes []firewall.Box) {
	type event struct {
		at     netip.Addr
		entry  int
		begins bool
	}
	var events []event
	for _, s := range p.ranges(nic, v) {
		events = append(events, event{s.first, s.entry, true})
		if after := s.last.Next(); after.IsValid() {
			events = append(events, event{after, s.entry, false})
		}
	}
	slices.SortFunc(events, func(a, b event) int { return a.at.Compare(b.at) })
	var active []int // entries, in order
	var open []firewall.Box
	flush := func(next netip.Addr) {
		for _, b := range open {
			if b.Last = next.Prev(); !next.IsValid() {
				b.Last = firewall.LastOf(netip.PrefixFrom(b.First, 0))
			}
			boxes = append(boxes, b)
		}
	}
	for i, e := range events {
		at, is := slices.BinarySearch(active, e.entry)
		if e.begins {
			active = slices.Insert(active, at, e.entry)
		} else if is {
			active = slices.Delete(active, at, at+1)
		}
		if i+1 < len(events) && events[i+1].at == e.at {
			continue
		}
		now := p.allowedBy(active, e.at)
		if len(boxes) > maxBoxes {
			return boxes // checkEgress refuses them
		}
		same := slices.EqualFunc(open, now, func(a, b firewall.Box) bool { a.First = b.First; return a == b })
		if !same {
			flush(e.at)
			open = now
		}
	}
	flush(netip.Addr{})
	return boxes
}

// allowedBy are the protocols and ports that the entries allow, in boxes that begin with the address.
func (p *Plan) allowedBy(active []int, from netip.Addr) (boxes []firewall.Box) {
	var entries []infra.Egress
	begins := []int{0} // protocols
	for _, i := range active {
		e := p.spec.Egress[i]
		entries = append(entries, e)
		n := protocolOf(e, from)
		if n == everyProtocol {
			break // the others never decide
		}
		begins = append(begins, n, n+1)
	}
	slices.Sort(begins)
	begins = slices.DeleteFunc(slices.Compact(begins), func(n int) bool { return n == everyProtocol })
	var before [][2]uint16
	for i, n := range begins {
		ports := allowedPorts(slices.DeleteFunc(slices.Clone(entries), func(e infra.Egress) bool {
			of := protocolOf(e, from)
			return of != n && of != everyProtocol
		}))
		last := uint8(255)
		if i+1 < len(begins) {
			last = uint8(begins[i+1] - 1)
		}
		if slices.Equal(before, ports) {
			for j := len(boxes) - len(ports); j < len(boxes); j++ {
				boxes[j].LastProtocol = last
			}
			continue
		}
		before = ports
		for _, p := range ports {
			boxes = append(boxes, firewall.Box{First: from, FirstProtocol: uint8(n), LastProtocol: last, FirstPort: p[0], LastPort: p[1]})
		}
	}
	return boxes
}

const everyProtocol = 256

// protocolOf is the number of the entry's protocol, for packets to the address.
func protocolOf(e infra.Egress, to netip.Addr) int {
	switch {
	case e.Ports == infra.Ports{}:
		return everyProtocol
	case e.Ports.Protocol != "icmp":
		return int(firewall.Transports[e.Ports.Transport()])
	case to.Is4():
		return firewall.ProtocolICMP
	}
	return firewall.ProtocolICMPv6
}

// allowedPorts are the ranges of ports that the entries allow.
func allowedPorts(entries []infra.Egress) (allowed [][2]uint16) {
	begins := []int{0}
	for _, e := range entries {
		if e.Ports.First != 0 {
			begins = append(begins, int(e.Ports.First), int(e.Ports.End())+1)
		}
	}
	slices.Sort(begins)
	begins = slices.Compact(begins)
	for i, port := range begins {
		at := slices.IndexFunc(entries, func(e infra.Egress) bool {
			return e.Ports.First == 0 || int(e.Ports.First) <= port && port <= int(e.Ports.End())
		})
		if port > 65535 || at < 0 || entries[at].Refuse {
			continue
		}
		last := 65535
		if i+1 < len(begins) {
			last = begins[i+1] - 1
		}
		if n := len(allowed); n > 0 && int(allowed[n-1][1]) == port-1 {
			allowed[n-1][1] = uint16(last)
		} else {
			allowed = append(allowed, [2]uint16{uint16(port), uint16(last)})
		}
	}
	return allowed
}
