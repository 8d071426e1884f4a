package guestfilter

import (
	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"net/netip"
	"slices"
)

// Guest is what the rules around a guest depend on.
//
// With Bridged the guest's tap and the NIC are ports of a bridge, and with Routed the namespace is the guest's next
// hop. If neither is set, rules forward each frame from the NIC to the tap, and back.
type Guest struct {
	Names   netstate.Names
	NIC     int // the NIC's index
	Bridged bool
	Routed  bool

	MAC       cache.MAC
	Addresses []netip.Addr // the guest's; none: they are not known
	Served    bool         // by guestwire's responder, so the guest asks no other server
	// Asked are the filters of tc that take from the guest's tap what the responder answers.
	Asked []netstate.Filter
	Guard infra.Guard
	Limit cache.Limit // of what it sends
	// MTU is that of the guest's link, to which longer packets are not sent; 0: the NIC's.
	MTU int
	// Longest is the number of octets after the Ethernet header that a frame of the guest may have; 0: the next link
	// checks.
	Longest int

	// Gateways are the next hops of the NIC's IPv6 routes.
	Gateways []netip.Addr
	// Announced are addresses for which the guest answers ARP at the NIC, and Hop is the namespace's own address there.
	// Other ARP is for the namespace.
	Announced []netip.Addr
	Hop       netip.Addr
	// Renewed: a DHCPv6 client of the namespace renews the NIC's address. Launcher is the user that must not.
	Renewed  bool
	Launcher uint32
}

// guest is a Guest, and what follows from it.
type guest struct {
	Guest
	macs       []cache.MAC
	prefixes   []netip.Prefix
	primary    []netip.Addr     // the first address of each family, which most packets have as their source
	anyAddress bool             // the guest's addresses are not known
	pass       firewall.Verdict // of a frame that the filter lets pass
	local      linkLocal
}

func newGuest(d Guest) guest {
	g := guest{Guest: d, macs: append([]cache.MAC{d.MAC}, d.Guard.MACs...), anyAddress: len(d.Addresses) == 0, pass: firewall.Accept{}}
	forwards := !d.Bridged && !d.Routed
	if forwards {
		g.pass = firewall.Fwd{Device: d.Names.NIC}
	}
	for _, v := range ip.Both {
		at := slices.IndexFunc(d.Addresses, func(a netip.Addr) bool { return ip.Of(a) == v && !a.IsLinkLocalUnicast() })
		if at >= 0 {
			g.primary = append(g.primary, d.Addresses[at])
		}
	}
	for _, a := range d.Addresses {
		g.prefixes = append(g.prefixes, firewall.HostPrefix(a))
	}
	for _, m := range g.macs {
		g.prefixes = append(g.prefixes, firewall.HostPrefix(eui64.LinkLocal(m)))
	}
	g.prefixes = append(g.prefixes, d.Guard.Prefixes...)
	slices.SortFunc(g.prefixes, ip.Compare)
	g.prefixes = slices.Compact(g.prefixes)
	g.local = g.linkLocal()
	g.local.seesNetwork = forwards && g.local.learns
	return g
}

func (g guest) prefixesOf(v ip.Version) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range g.prefixes {
		if ip.Of(p.Addr()) == v {
			list = append(list, p)
		}
	}
	return list
}

// has reports whether the guest may have an address of the version, other than a link-local one of its MAC.
func (g guest) has(v ip.Version) bool {
	of := func(a netip.Addr) bool { return ip.Of(a) == v }
	return g.anyAddress || slices.ContainsFunc(g.primary, of) || slices.ContainsFunc(g.Guard.Prefixes, func(p netip.Prefix) bool { return of(p.Addr()) })
}

// tables are the tables of a guest.
type tables struct {
	name string
	list []firewall.Table
}

func (t *tables) add(table firewall.Table) { t.list = append(t.list, table) }

// table returns that of the family, which is added if it is not there.
func (t *tables) table(family firewall.Family) *firewall.Table {
	at := slices.IndexFunc(t.list, func(o firewall.Table) bool { return o.Family == family })
	if at < 0 {
		at = len(t.list)
		t.add(firewall.Table{Family: family, Name: t.name})
	}
	return &t.list[at]
}
