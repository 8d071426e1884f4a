package compare

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// NIC is the NIC of a wiring, and what of it the wiring may change.
type NIC struct {
	Traits
	Names netstate.Names `json:"names"`
	Index int            `json:"index"` // as found
	// MAC is the NIC's MAC while it is wired. Zero: the NIC has none, or the wiring leaves the NIC as it is.
	MAC cache.MAC `json:"mac,omitzero"`
	// NamedTap is the guest's tap, where the caller has named it; nil: its name is made of the NIC's. Another program
	// may make a tap with a name such as tap0.
	NamedTap *netstate.Tap `json:"namedTap,omitempty"`
	// AllMulticast: the wiring made the NIC receive all multicast groups.
	AllMulticast bool `json:"allMulticast,omitempty"`
	// Raised: the wiring brought the NIC up.
	Raised bool `json:"raised,omitempty"`
}

// Traits are what the plan, the comparison and the way back have to know of a kind of binding.
type Traits struct {
	// ManageAddresses: the NIC is the guest's. Its addresses, routes and neighbours are the wiring's to add and to
	// remove.
	ManageAddresses bool `json:"manageAddresses,omitempty"`
	// RestoreAddresses: Teardown also adds the addresses, routes and permanent neighbours that the NIC lost while it was
	// wired. Wired by redirect, the namespace receives from no router that would renew them. A macvtap loses its
	// addresses when Teardown takes it down. Under bridge, ManageAddresses says the same. Under masquerade, passt and
	// slirp the NIC works as before: its addresses and routes are left to the program that manages them.
	RestoreAddresses bool `json:"restoreAddresses,omitempty"`
	// MayLeave: the guest can have the NIC, which is then not in the namespace.
	MayLeave bool `json:"mayLeave,omitempty"`
	// Direct: the wiring creates no link and no table, so the guest has no tap, no filter and no responder of guestwire.
	Direct bool `json:"direct,omitempty"`
	// Routes: the namespace is the guest's next hop.
	Routes bool `json:"routes,omitempty"`
	// OffStack: the NIC's addresses are the guest's, and the namespace does not take them as its own.
	OffStack bool `json:"offStack,omitempty"`
	// Bridged: the wiring has a bridge, with which the sysctls of netstate.BridgeCalls come.
	Bridged bool `json:"bridged,omitempty"`
}

// traits are those of each kind.
var traits = map[cache.Kind]Traits{
	cache.BindingBridge:     {ManageAddresses: true, Bridged: true},
	cache.BindingRedirect:   {RestoreAddresses: true},
	cache.BindingMasquerade: {Routes: true},
	cache.BindingRouted:     {RestoreAddresses: true, Routes: true, OffStack: true},
	cache.BindingMacvtap:    {RestoreAddresses: true, Direct: true},
	cache.BindingSRIOV:      {MayLeave: true, Direct: true},
	cache.BindingPasst:      {Direct: true},
	cache.BindingSlirp:      {Direct: true},
}

// TraitsOf returns the traits of the kind. There are none of cache.BindingAuto, and of a kind that is unknown.
func TraitsOf(kind cache.Kind) Traits { return traits[kind] }

// Made is what the way back has to know of a wiring, besides the namespace as it was found. The journal has it before
// the first change.
type Made struct {
	NIC NIC `json:"nic"`
	// ChangesNIC: the wiring changes properties of the NIC. If it does not, the way back leaves the NIC as it is.
	ChangesNIC bool `json:"changesNIC,omitempty"`
	// Sysctls are the paths of those that the wiring sets, except those of its own links.
	Sysctls []string `json:"sysctls,omitempty"`
	// Added are addresses and routes that the wiring adds to the NIC.
	Added Gone `json:"added,omitzero"`
	// Guests are the networks of the guest, whose connections the kernel must forget with the wiring. Those that are
	// addresses of the NIC are left out.
	Guests []netip.Prefix `json:"guests,omitempty"`
	// Translated are the namespace's own connections that the wiring translates. The kernel must forget them, too.
	Translated []netstate.ConnectionsDel `json:"translated,omitempty"`
	// IPTables are the programs of iptables by which the wiring has chains.
	IPTables []firewall.Family `json:"iptables,omitempty"`
}

// nic is the NIC as it was found. The zero value: it was not there.
func (n NIC) nic(found netstate.Snapshot) netstate.Link {
	nic, _ := found.Named(n.Names.NIC)
	return nic
}

// IsReplacement reports whether the link is another one that has come under the index of a NIC that has gone.
func (n NIC) IsReplacement(found netstate.Snapshot, l netstate.Link) bool {
	if l.Index != n.Index {
		return false
	}
	nic := n.nic(found)
	named := l.Name == nic.Name || l.Name == n.Names.Moved
	wired := l.MAC == n.MAC && !n.MAC.IsZero()
	return !named && !wired && l.MAC != nic.MAC && l.MAC != netstate.DeriveMAC(nic, "moved")
}

// StepsSince are the Steps of a namespace that had links, which may have gone, when it was found.
func StepsSince(found, now netstate.Snapshot, want State, n NIC) ([]netstate.Op, error) {
	now.Links = slices.DeleteFunc(slices.Clone(now.Links), func(l netstate.Link) bool { return n.IsReplacement(found, l) })
	want.Routes, want.UptimeMS = withoutGone(found, now, n.nic(found), want.Routes), found.UptimeMS
	return Steps(now, want, n)
}

// withoutGone removes the routes through another link that has gone since the namespace was found. Like the kernel, it
// removes an IPv4 route with several next hops as a whole, and of an IPv6 route the next hop.
func withoutGone(found, now netstate.Snapshot, nic netstate.Link, routes []netstate.Route) []netstate.Route {
	missing := map[int]bool{}
	for _, l := range found.Links {
		missing[l.Index] = l.Index != nic.Index
	}
	for _, l := range now.Links {
		missing[l.Index] = false
	}
	gone := func(index int) bool { return missing[index] }
	var left []netstate.Route
	for _, r := range routes {
		if slices.ContainsFunc(r.Hops, func(h netstate.Hop) bool { return gone(h.Link) }) {
			r.Hops = slices.DeleteFunc(slices.Clone(r.Hops), func(h netstate.Hop) bool { return gone(h.Link) })
			if len(r.Hops) == 0 || r.Destination.Addr().Is4() {
				continue
			}
			if len(r.Hops) == 1 {
				r.Link, r.Gateway, r.OnLink, r.Hops = r.Hops[0].Link, r.Hops[0].Gateway, r.Hops[0].OnLink, nil
			}
		}
		if !gone(r.Link) {
			left = append(left, r)
		}
	}
	return left
}
