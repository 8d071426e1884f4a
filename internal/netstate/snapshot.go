// Package netstate is what a network namespace holds, as plain values, and the operations that change
// it, each of which prints as the command that an administrator would type. It is pure: package
// internal/kernel reads these values from a kernel and carries the operations out.
package netstate

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
)

// Snapshot is what a namespace holds, as far as the wiring of one NIC is concerned. It holds plain
// values, so that it can be kept on disk until it is needed to restore the namespace.
type Snapshot struct {
	// Links are all of the namespace's.
	Links []Link `json:"links"`
	// Addresses are all of the namespace's.
	Addresses []Address `json:"addresses,omitempty"`
	// Routes are all of the namespace's, without cached ones and without those in the table local
	// that the kernel makes of addresses.
	Routes []Route `json:"routes,omitempty"`
	// Listeners are what a masquerade could take the ports of.
	Listeners []Listener `json:"listeners,omitempty"`
	// Rules are the policy rules besides the kernel's three.
	Rules []Rule `json:"rules,omitempty"`
	// NoMain are the versions of IP for which the kernel's rule for table main is not there.
	NoMain []int `json:"noMain,omitempty"`
	// Neighbours are the entries that have a link-layer address.
	Neighbours []Neighbour `json:"neighbours,omitempty"`
	// Filters are those at the ingress of the taps of the NIC's wiring.
	Filters []Filter `json:"filters,omitempty"`
	// Ingress are the indices of those taps that have an ingress qdisc of their own.
	Ingress []int `json:"ingress,omitempty"`
	// Tables are the nftables tables whose names are ours for this NIC, and our chains in those of
	// iptables if a plan wants such.
	Tables []firewall.Image `json:"tables,omitempty"`
	// Sysctls are values below /proc/sys, by path with slashes. Which ones are read depends on
	// the binding; see SysctlPaths.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// NoNFTables says that the kernel has no nf_tables.
	NoNFTables bool `json:"noNFTables,omitempty"`
	// Dummy says that the kernel has the link kind dummy.
	Dummy bool `json:"dummy"`
	// Needed are the sysctls that the whole namespace shares and the wirings of other NICs need, which
	// Plan.Undo leaves to them; see Plan.Shared.
	Needed []string `json:"-"`
}

// Link is a network interface.
type Link struct {
	Index  int       `json:"index"`
	Name   string    `json:"name"`
	Kind   string    `json:"kind,omitempty"` // rtnetlink's: veth, bridge, dummy, tun, macvlan, ...; empty: hardware
	MAC    cache.MAC `json:"mac,omitzero"`
	MTU    int       `json:"mtu"`
	Up     bool      `json:"up,omitempty"`
	Master int       `json:"master,omitempty"` // index; 0: none
	Parent int       `json:"parent,omitempty"` // index of the link of this namespace that it lies on; 0: none
	Alias  string    `json:"alias,omitempty"`
	Group  uint32    `json:"group,omitempty"`

	// AllMulticast says that somebody wants the link to receive all multicast frames.
	AllMulticast bool `json:"allMulticast,omitempty"`

	Loopback bool `json:"loopback,omitempty"`
	NoARP    bool `json:"noARP,omitempty"`
	Ethernet bool `json:"ethernet,omitempty"`

	// Mode is the mode of a macvlan or macvtap ("passthru", ...); empty for other kinds.
	Mode string `json:"mode,omitempty"`
	// PCI is the address of the PCI device that the link is, of the form 0000:03:10.1; empty: it is none,
	// or the kernel does not tell.
	PCI string `json:"pci,omitempty"`
	// Tap is set for a tap.
	Tap *Tap `json:"tap,omitempty"`
	// Bridge are a bridge's settings, and Port those of a bridge's port; nil for other links.
	Bridge     Settings `json:"bridge,omitempty"`
	BridgePort Settings `json:"port,omitempty"`
	// Forwarding4 is net.ipv4.conf.LINK.forwarding.
	Forwarding4 bool `json:"forwarding4,omitempty"`
	// NoIPv6 is net.ipv6.conf.LINK.disable_ipv6.
	NoIPv6 bool `json:"noIPv6,omitempty"`
	// RouteLocalnet is net.ipv4.conf.LINK.route_localnet.
	RouteLocalnet bool `json:"routeLocalnet,omitempty"`
	// AddrGen is the mode in which IPv6 addresses are generated (IN6_ADDR_GEN_MODE_*: 0 EUI-64,
	// 1 none, ...); -1: the link has no IPv6.
	AddrGen int `json:"addrGen"`
}

// Settings are those that decide which frames a bridge, or its port, lets pass. A kernel that does
// not have one does not tell it.
type Settings map[string]uint32

// DefaultBridge and DefaultPort are the kernel's, by bridge(8)'s names, with ip(8)'s where
// that knows them alone.
var (
	DefaultBridge = Settings{
		"stp_state": 0, "vlan_filtering": 0, "group_fwd_mask": 0, "mcast_snooping": 1, "mcast_querier": 0, "mcast_router": 1,
		"nf_call_iptables": 0, "nf_call_ip6tables": 0, "nf_call_arptables": 0,
	}
	DefaultBridgePort = Settings{
		StateSetting: stateForwarding, "hairpin": 0, "guard": 0, "root_block": 0, "fastleave": 0, "learning": 1, "flood": 1,
		"proxy_arp": 0, "proxy_arp_wifi": 0, "mcast_router": 1, "mcast_flood": 1, "mcast_to_unicast": 0, "vlan_tunnel": 0,
		"bcast_flood": 1, "group_fwd_mask": 0, "neigh_suppress": 0, "isolated": 0, "locked": 0, "mab": 0,
	}
)

// StateSetting is told of a port only that has a carrier, which decides it otherwise.
const StateSetting = "state"

const stateForwarding = 3 // BR_STATE_FORWARDING, linux/if_bridge.h

// With is s with other values.
func (s Settings) With(others Settings) Settings {
	s = maps.Clone(s)
	maps.Copy(s, others)
	return s
}

// Differing are those of want that are there, with another value.
func (s Settings) Differing(want Settings) Settings {
	var d Settings
	for name, value := range want {
		if have, ok := s[name]; ok && have != value {
			if d == nil {
				d = Settings{}
			}
			d[name] = value
		}
	}
	return d
}

// Names are in alphabetical order.
func (s Settings) Names() []string { return slices.Sorted(maps.Keys(s)) }

// Modes of Link.AddrGen.
const (
	AddrGenNoIPv6 = -1
	AddrGenNone   = 1
)

// Tap is what only a tap has.
type Tap struct {
	Owner      infra.Owner `json:"owner"`
	MultiQueue bool        `json:"multiQueue,omitempty"`
}

// Address is an address of a link.
type Address struct {
	Link      int          `json:"link"` // index
	Prefix    netip.Prefix `json:"prefix"`
	Peer      netip.Prefix `json:"peer,omitzero"`
	Broadcast netip.Addr   `json:"broadcast,omitzero"`
	Label     string       `json:"label,omitempty"`
	Scope     uint8        `json:"scope,omitempty"`
	Flags     uint32       `json:"flags,omitempty"`    // IFA_F_*, only those that a user can set
	Metric    uint32       `json:"metric,omitempty"`   // of the connected route; 0: the kernel's default
	Protocol  uint8        `json:"protocol,omitempty"` // IFAPROT_*
	// ValidSeconds and PreferredSeconds are what was left when the snapshot was taken;
	// Forever: no end.
	ValidSeconds     uint32 `json:"validSeconds"`
	PreferredSeconds uint32 `json:"preferredSeconds"`
}

// Forever is an address lifetime without an end.
const Forever = 1<<32 - 1

// Address flags (linux/if_addr.h).
const (
	AddrNoDAD         = 0x02
	AddrNoPrefixRoute = 0x200
	// AddrUserFlags are those that a user can set: nodad, home, mngtmpaddr, noprefixroute, autojoin.
	AddrUserFlags = AddrNoDAD | 0x10 | 0x100 | AddrNoPrefixRoute | 0x400
)

// Route is one of any table. What has no field of its own is carried in Other.
type Route struct {
	Link        int          `json:"link,omitempty"` // index; 0: none, or several next hops
	Table       uint32       `json:"table"`
	Destination netip.Prefix `json:"destination"`
	Source      netip.Prefix `json:"source,omitzero"` // the source prefix of an IPv6 route
	Gateway     netip.Addr   `json:"gateway,omitzero"`
	PrefSrc     netip.Addr   `json:"prefSrc,omitzero"`
	Type        uint8        `json:"type"` // RTN_*
	Scope       uint8        `json:"scope"`
	Protocol    uint8        `json:"protocol"`
	TOS         uint8        `json:"tos,omitempty"`
	Metric      uint32       `json:"metric,omitempty"`
	OnLink      bool         `json:"onLink,omitempty"`
	MTU         int          `json:"mtu,omitempty"`  // 0: the link's
	Hops        []Hop        `json:"hops,omitempty"` // of a multipath route
	// ExpiresSeconds is what was left of an IPv6 route when the snapshot was taken; 0: no end.
	ExpiresSeconds uint32      `json:"expiresSeconds,omitempty"`
	Other          []Attribute `json:"other,omitempty"` // MTU is in here too
}

// Hop is one next hop of a multipath route.
type Hop struct {
	Link    int        `json:"link"`
	Gateway netip.Addr `json:"gateway,omitzero"`
	Weight  uint8      `json:"weight"` // less one
	OnLink  bool       `json:"onLink,omitempty"`
}

// Attribute is a netlink attribute as the kernel gave it.
type Attribute struct {
	Type uint16 `json:"type"`
	Data []byte `json:"data"`
}

// Values of routes that matter here (linux/rtnetlink.h).
const (
	TableMain      = 254
	PriorityMain   = 32766 // of the rule for it
	TableLocal     = 255
	RouteUnicast   = 1
	RouteLocal     = 2
	RouteMulticast = 5 // up to here lead somewhere
	RouteThrow     = 9 // goes on with the next table
	ScopeUniverse  = 0
	ScopeLink      = 253
	ProtocolKernel = 2
	ProtocolStatic = 4
	ProtocolRA     = 9
)

// Uses says whether the route leads through the link.
func (r Route) Uses(link int) bool {
	return r.Link == link || slices.ContainsFunc(r.Hops, func(h Hop) bool { return h.Link == link })
}

// Default says that the route is one for everything.
func (r Route) Default() bool { return r.Destination.Bits() == 0 }

// Rule is a policy rule: what it is about is looked up in a table (ip-rule(8)).
type Rule struct {
	Priority uint32       `json:"priority"`
	Table    uint32       `json:"table"`
	IPv6     bool         `json:"ipv6,omitempty"`
	Source   netip.Prefix `json:"source,omitzero"` // zero: any
	// Other says that it is about something else than the source as well, or does something else.
	Other bool `json:"other,omitempty"`
}

// Neighbour is an ARP or NDP entry of a link; without an address it says that a bridge finds the MAC
// behind that port of it, a static entry of its forwarding database.
type Neighbour struct {
	Link      int        `json:"link"`
	Address   netip.Addr `json:"address"`
	MAC       cache.MAC  `json:"mac"`
	Permanent bool       `json:"permanent,omitempty"`
	Flags     uint8      `json:"flags,omitempty"` // NTF_*, of a permanent one, only those that a user can set
}

// Neighbour flags (linux/neighbour.h).
const (
	NeighbourExtLearned = 0x10
	NeighbourRouter     = 0x80
)

// Listener is a socket of the namespace that waits for TCP connections or UDP datagrams.
type Listener struct {
	Protocol string     `json:"protocol"` // "tcp", "udp"
	Address  netip.Addr `json:"address"`
	Port     uint16     `json:"port"`
}

// Filter is one u32 classifier at a link's ingress that redirects what matches to another link's
// egress.
type Filter struct {
	// Foreign says what lies at the ingress that is no such classifier ("flower", "u32 with
	// police", "clsact qdisc"); then only Link counts.
	Foreign  string `json:"foreign,omitempty"`
	Link     int    `json:"link"`
	Priority uint16 `json:"priority"`
	Protocol uint16 `json:"protocol"` // an Ethernet type; EthernetAll: any
	Keys     []Key  `json:"keys"`
	Target   int    `json:"target"` // index
}

// Key compares 32 bits at an offset from the network header, a multiple of 4, in network order.
type Key struct {
	Offset int    `json:"offset"`
	Mask   uint32 `json:"mask"`
	Value  uint32 `json:"value"`
}

// Ethernet types (linux/if_ether.h).
const (
	EthernetAll  = 0x0003
	EthernetIPv4 = 0x0800
	EthernetARP  = 0x0806
	EthernetIPv6 = 0x86dd
)

// Link returns the one with this index.
func (s *Snapshot) Link(index int) (Link, bool) {
	i := slices.IndexFunc(s.Links, func(l Link) bool { return l.Index == index })
	if i < 0 {
		return Link{}, false
	}
	return s.Links[i], true
}

// Named returns the link with this name.
func (s *Snapshot) Named(name string) (Link, bool) {
	i := slices.IndexFunc(s.Links, func(l Link) bool { return l.Name == name })
	if i < 0 {
		return Link{}, false
	}
	return s.Links[i], true
}
