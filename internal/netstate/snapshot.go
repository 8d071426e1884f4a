// Package netstate is what a network namespace holds, as plain values, and the operations that change
// it. Each prints as the command that an administrator would type. It is pure: package
// internal/kernel reads these values from a kernel and carries the operations out.
package netstate

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Snapshot is what a namespace holds, as far as the wiring of one NIC needs it. A journal keeps it on disk
// until Teardown.
type Snapshot struct {
	// UptimeMS is when the snapshot was taken, in milliseconds of the clock that the kernel counts lifetimes by
	// (CLOCK_MONOTONIC); 0: not known.
	UptimeMS int64 `json:"uptimeMS,omitempty"`
	// Links are all links of the namespace.
	Links []Link `json:"links"`
	// Addresses are all addresses of the namespace.
	Addresses []Address `json:"addresses,omitempty"`
	// OffStack are the addresses that the namespace does not take as its own, because their route of the table local is
	// missing. Only the plans of a routed binding keep them.
	OffStack []OffStack `json:"offStack,omitempty"`
	// Routes are all routes of the namespace, except cached ones and those that the kernel adds to the
	// table local for addresses.
	Routes []Route `json:"routes,omitempty"`
	// Listeners are the sockets whose ports a guest could take.
	Listeners []Listener `json:"listeners,omitempty"`
	// Connections are the local ports of TCP connections, and of UDP sockets with a peer, outside of the ports that
	// the kernel gives to clients.
	Connections []LocalPort `json:"connections,omitempty"`
	// Rules are the policy rules other than the kernel's three.
	Rules []Rule `json:"rules,omitempty"`
	// NoMain are the IP versions for which the kernel's rule for the table main is missing.
	NoMain []ip.Version `json:"noMain,omitempty"`
	// Neighbours are the neighbour entries that have a link-layer address, and static forwarding entries.
	Neighbours []Neighbour `json:"neighbours,omitempty"`
	// Filters are the tc filters of the wiring's taps.
	Filters []Filter `json:"filters,omitempty"`
	// Ingress are the indices of those taps that have an ingress qdisc of their own.
	Ingress []int `json:"ingress,omitempty"`
	// Clsact are those that have a clsact qdisc, which is one for both directions.
	Clsact []int `json:"clsact,omitempty"`
	// Tables are the nftables tables with the wiring's name, the wiring's chains in tables that others share, and those
	// in the tables of iptables if the plan wants some.
	Tables []firewall.Image `json:"tables,omitempty"`
	// TablesStay says that the tables are as an earlier comparison with the same plan found and wanted them. Then
	// Tables is empty.
	TablesStay bool `json:"-"`
	// Sysctls are values below /proc/sys, by path with slashes. The binding decides which ones are read.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// ReadOnly are the paths of Sysctls that the caller cannot write. Only the Snapshots of a first plan
	// and of a salvage have them.
	ReadOnly []string `json:"readOnly,omitempty"`
	// OnNode has the numbers that the Spec's owner has in Phase1's user namespace, if Owner.Inside is set. Only the
	// Snapshots of a first plan have it.
	OnNode infra.Owner `json:"onNode,omitzero"`
	// NoNFTables says that the kernel has no nf_tables.
	NoNFTables bool `json:"noNFTables,omitempty"`
	// NoLog says that the kernel cannot report dropped packets to an nflog group (nfnetlink_log).
	NoLog bool `json:"noLog,omitempty"`
	// NoShaper says that the kernel has no tbf for a Shape. Unset: it has, or nobody has asked.
	NoShaper bool `json:"noShaper,omitempty"`
	// NoFwd says that no rule can forward frames to another link (nft_fwd_netdev). Unset: it can, or nobody has asked.
	NoFwd bool `json:"noFwd,omitempty"`
	// FlowTables says that the kernel has flow tables, and that no rules of other programs see each packet that the
	// namespace forwards. Only the Snapshots of a first plan have it.
	FlowTables bool `json:"flowTables,omitempty"`
	// Checksums are the versions of IP whose packets a rule can complete the checksums of
	// (firewall.CompleteChecksum). Only the Snapshots of plans with a policy have them.
	Checksums []ip.Version `json:"checksums,omitempty"`
	// EarlyChecksums says that the kernel takes frames for whose checksums no such rule does anything.
	EarlyChecksums bool `json:"earlyChecksums,omitempty"`
	// ClearsChecksums says that the kernel has what a Filter with Clears needs. Only asked of kernels with
	// EarlyChecksums.
	ClearsChecksums bool `json:"clearsChecksums,omitempty"`
	// LocalSources says that a rule can match firewall.LocalSource. Only asked beside a policy.
	LocalSources bool `json:"localSources,omitempty"`
	// LoopbackDNS is the first resolver of the namespace's resolv.conf with an IPv4 loopback address. Only the
	// Snapshots of a first plan have it.
	LoopbackDNS netip.Addr `json:"loopbackDNS,omitzero"`
	// Dummy says that the kernel has the link kind dummy.
	Dummy bool `json:"dummy"`
}

// Link is a network interface.
type Link struct {
	Index  int       `json:"index"`
	Name   string    `json:"name"`
	Kind   string    `json:"kind,omitempty"` // rtnetlink's: veth, bridge, dummy, tun, macvlan, ...; empty: hardware
	MAC    cache.MAC `json:"mac,omitzero"`
	MTU    int       `json:"mtu"`
	MTU6   int       `json:"mtu6,omitempty"` // net.ipv6.conf.LINK.mtu, which a router can lower; 0: as MTU, or no IPv6
	Up     bool      `json:"up,omitempty"`
	Master int       `json:"master,omitempty"` // index; 0: none
	Parent int       `json:"parent,omitempty"` // index of the link of this namespace that it lies on; 0: none
	Alias  string    `json:"alias,omitempty"`
	Group  uint32    `json:"group,omitempty"`
	// AltNames are further names of the link (ip-link(8), altname), which no other link can have. A journal does not
	// need them.
	AltNames []string `json:"-"`

	// NoCarrier: the link is up, and the kernel has noticed no carrier so far. It notices one up to a second later.
	NoCarrier bool `json:"noCarrier,omitempty"`
	// Ports are the indices of an hsr's ports, which have no master.
	Ports []int `json:"ports,omitempty"`

	// AllMulticast says that a user has set the link to receive all multicast frames.
	AllMulticast bool `json:"allMulticast,omitempty"`

	Loopback bool `json:"loopback,omitempty"`
	NoARP    bool `json:"noARP,omitempty"`
	Ethernet bool `json:"ethernet,omitempty"`

	// Mode is the mode of a macvlan or macvtap ("passthru", ...), or one of those below of a bond; empty: another mode
	// of a bond, or another kind.
	Mode string `json:"mode,omitempty"`
	// VRF is the table of a VRF device; 0 for other kinds.
	VRF uint32 `json:"vrf,omitempty"`
	// PCI is the PCI address of the link's device, of the form 0000:03:10.1; empty: the link is no PCI device.
	PCI string `json:"pci,omitempty"`
	// Tap is nil for a link that is no tap.
	Tap *Tap `json:"tap,omitempty"`
	// QueueLength is the number of frames that can wait for a tap's process; 0 for a link that is no tap. Of a wanted
	// link, 0 is any number.
	QueueLength int `json:"queueLength,omitempty"`
	// Offloads says that a VMM has asked a tap to leave checksums unfinished, and has ended: the next one may not know.
	// Only the wiring's own guest's tap has it.
	Offloads bool `json:"-"`
	// Shape limits what reaches the guest's tap. Only the wiring's taps have it.
	Shape Shape `json:"-"`
	// Bridge are the settings of a bridge, BridgePort those of a bridge's port; nil for other links.
	Bridge     Settings `json:"bridge,omitempty"`
	BridgePort Settings `json:"port,omitempty"`
	// Forwarding4 is net.ipv4.conf.LINK.forwarding.
	Forwarding4 bool `json:"forwarding4,omitempty"`
	// Forwarding6 is net.ipv6.conf.LINK.force_forwarding, which Linux has since 6.17.
	Forwarding6 bool `json:"forwarding6,omitempty"`
	// AcceptLocal is net.ipv4.conf.LINK.accept_local: packets may come in from an address of the namespace.
	AcceptLocal bool `json:"acceptLocal,omitempty"`
	// NoSourceRoutes: net.ipv4.conf.LINK.accept_source_route is 0, so packets that choose their way are dropped.
	NoSourceRoutes bool `json:"noSourceRoutes,omitempty"`
	// IgnoresARP: net.ipv4.conf.LINK.arp_ignore is not 0, so the kernel may leave ARP requests unanswered.
	IgnoresARP bool `json:"-"`
	// ProxyARP is net.ipv4.conf.LINK.proxy_arp: the kernel answers ARP requests for what it reaches by other links.
	ProxyARP bool `json:"proxyARP,omitempty"`
	// NoIPv6 is net.ipv6.conf.LINK.disable_ipv6.
	NoIPv6 bool `json:"noIPv6,omitempty"`
	// RouteLocalnet is net.ipv4.conf.LINK.route_localnet.
	RouteLocalnet bool `json:"routeLocalnet,omitempty"`
	// AddrGen is the mode in which IPv6 addresses are generated (IN6_ADDR_GEN_MODE_*: 0 EUI-64,
	// 1 none, ...); -1: the link has no IPv6.
	AddrGen int `json:"addrGen"`
}

// Shape is a root qdisc that delays what is above a rate: tbf with guestwire's handle. Zero: there is none.
type Shape struct {
	Rate         uint64 // octets a second
	Burst, Limit uint32 // octets
	// Other is the kind of a root qdisc that another program has put there; then the rest is zero.
	Other string
}

// ShapeHandle is the major number of the qdisc of a Shape, by which a comparison knows it.
const ShapeHandle = 0x6777 // gw

// Ticks are the time of the bucket in the kernel's unit of 64 ns (PSCHED_SHIFT, net/pkt_sched.h).
func (s Shape) Ticks() uint32 { return uint32(float64(s.Burst) / float64(s.Rate) * 1e9 / 64) }

// Same reports whether the kernel's shape s is the wanted one. It has the bucket as a time, rounded.
func (s Shape) Same(want Shape) bool {
	if s.Rate != want.Rate || s.Limit != want.Limit || s.Other != want.Other {
		return false
	}
	return s.Rate == 0 || max(s.Ticks(), want.Ticks())-min(s.Ticks(), want.Ticks()) <= 2
}

// Has reports whether the link has the name. No other link can have it.
func (l Link) Has(name string) bool { return l.Name == name || slices.Contains(l.AltNames, name) }

// SharesMAC reports whether the link has the MAC of the link that it lies on, as an ipvlan has.
func (l Link) SharesMAC() bool { return l.Kind == "ipvlan" || l.Kind == "ipvtap" }

// ChangesMACUp reports whether links of the kind take another MAC while they are up (IFF_LIVE_ADDR_CHANGE, or a driver
// that does not ask for it). Of other kinds, among them network cards, some refuse it with EBUSY.
func ChangesMACUp(kind string) bool { return kind == "veth" || kind == "dummy" || kind == "vlan" }

// Modes of a bond that decide about MACs, as ip(8) names them. A bond with ModeActive or ModeFollow takes no MAC that
// is set. With ModeActive it takes that of its active port at each failover. With ModeTLB and ModeALB each port has a
// MAC of its own, and a MAC that is set for a bond with ModeTLB replaces them all.
const (
	ModeTLB    = "balance-tlb"
	ModeALB    = "balance-alb"
	ModeActive = "fail_over_mac active"
	ModeFollow = "fail_over_mac follow"
)

// Settings are the settings of a bridge, or of its port, that decide which frames pass. A setting that the
// kernel does not know is missing.
type Settings map[string]uint32

// DefaultBridge and DefaultBridgePort are the settings of a new bridge and of a new port. The names are those of
// bridge(8), or of ip(8) where bridge(8) has none.
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

// StateSetting is the state of a bridge's port. A Snapshot has it only for a port with a carrier: without one,
// the kernel sets the state by itself.
const StateSetting = "state"

const stateForwarding = 3 // BR_STATE_FORWARDING, linux/if_bridge.h

// With returns the settings with some values replaced.
func (s Settings) With(others Settings) Settings {
	s = maps.Clone(s)
	maps.Copy(s, others)
	return s
}

// Differing returns the wanted settings that the kernel has with another value.
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

// Names are the names of the settings in alphabetical order.
func (s Settings) Names() []string { return slices.Sorted(maps.Keys(s)) }

// Modes of Link.AddrGen.
const (
	AddrGenNoIPv6 = -1
	AddrGenNone   = 1
)

// Tap is what only a tap has.
type Tap struct {
	// Owner.Root is set if the owner is user 0. A tap without an owner, which another program made, has only zeros.
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
	// Temporary: the kernel has made the address at random and replaces it, which only the kernel can (RFC 8981).
	Temporary bool `json:"temporary,omitempty"`
	// Duplicate: another station has the IPv6 address (ip-address(8), dadfailed), so the namespace does not use it.
	Duplicate bool `json:"duplicate,omitempty"`
	// ValidSeconds and PreferredSeconds are the lifetimes left when the snapshot was taken;
	// Forever: no end.
	ValidSeconds     uint32 `json:"validSeconds"`
	PreferredSeconds uint32 `json:"preferredSeconds"`
}

// LinkPrefix is an address of a link, with its prefix length, or a network of the link.
type LinkPrefix struct {
	Link   int // index
	Prefix netip.Prefix
}

// LinkPrefix returns the address with its link.
func (a Address) LinkPrefix() LinkPrefix { return LinkPrefix{a.Link, a.Prefix} }

// Forever is an address lifetime without an end.
const Forever = 1<<32 - 1

// Address flags (linux/if_addr.h).
const (
	AddrNoDAD         = 0x02
	AddrNoPrefixRoute = 0x200
	// AddrUserFlags are the flags that a user can set: nodad, home, mngtmpaddr, noprefixroute, autojoin.
	AddrUserFlags = AddrNoDAD | 0x10 | 0x100 | AddrNoPrefixRoute | 0x400
)

// OffStack is an address of a link without a route of the table local.
type OffStack struct {
	Link    int        `json:"link"` // index
	Address netip.Addr `json:"address"`
	// Tentative: the kernel adds the route when duplicate address detection has ended.
	Tentative bool `json:"tentative,omitempty"`
}

// LocalRoute is the route of the table local that the kernel makes of an address. The source of a secondary IPv4
// address's route is the primary address.
func (e Earlier) LocalRoute(a Address) Route {
	addr := a.Prefix.Addr()
	r := Route{Link: a.Link, Table: TableLocal, Destination: netip.PrefixFrom(addr, addr.BitLen()), Type: RouteLocal, Protocol: ProtocolKernel}
	if !addr.Is4() {
		return r
	}
	r.Scope, r.PrefSrc = ScopeHost, addr
	if first, there := e[LinkPrefix{a.Link, a.Prefix.Masked()}]; there {
		r.PrefSrc = first
	}
	return r
}

// Route is a route of any table. Attributes without a field of their own are in Other.
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
	// ExpiresSeconds is the lifetime of an IPv6 route left when the snapshot was taken; 0: no end.
	ExpiresSeconds uint32      `json:"expiresSeconds,omitempty"`
	Other          []Attribute `json:"other,omitempty"` // with the attribute of MTU
}

// Hop is one next hop of a multipath route.
type Hop struct {
	Link    int        `json:"link"`
	Gateway netip.Addr `json:"gateway,omitzero"`
	Weight  uint8      `json:"weight"` // the weight of ip-route(8) less one
	OnLink  bool       `json:"onLink,omitempty"`
}

// Attribute is a netlink attribute as the kernel gave it.
type Attribute struct {
	Type uint16 `json:"type"`
	Data []byte `json:"data"`
}

// Values of routes that matter here (linux/rtnetlink.h).
const (
	TableDefault   = 253
	TableMain      = 254
	PriorityMain   = 32766 // of the kernel's rule for the table main
	TableLocal     = 255
	RouteUnicast   = 1
	RouteLocal     = 2
	RouteMulticast = 5 // types up to this one deliver packets
	RouteThrow     = 9 // the lookup goes on with the next table
	ScopeUniverse  = 0
	ScopeLink      = 253
	ScopeHost      = 254
	ProtocolKernel = 2
	ProtocolBoot   = 3 // the default of ip(8)
	ProtocolStatic = 4
	ProtocolRA     = 9
)

// Refuses is "blackhole", "unreachable" or "prohibit" for a route that refuses or drops packets; empty: it does not
// (linux/rtnetlink.h).
func (r Route) Refuses() string {
	return map[uint8]string{6: "blackhole", 7: "unreachable", 8: "prohibit"}[r.Type]
}

// NextHops are the hops of a multipath route, and else the only one. A Hop without a link leads nowhere.
func (r Route) NextHops() []Hop {
	own := Hop{Link: r.Link, Gateway: r.Gateway, OnLink: r.OnLink}
	if len(r.Hops) > 0 && own == (Hop{}) {
		return r.Hops
	}
	return append([]Hop{own}, r.Hops...)
}

// HopNames are the names of the links of Hops.
func (r Route) HopNames(name func(index int) string) (names []string) {
	for _, h := range r.Hops {
		names = append(names, name(h.Link))
	}
	return names
}

// Uses reports whether the route leads through the link.
func (r Route) Uses(link int) bool {
	return r.Link == link || slices.ContainsFunc(r.Hops, func(h Hop) bool { return h.Link == link })
}

// Links are the indices of the links through which the route leads, each once.
func (r Route) Links() []int {
	if len(r.Hops) == 0 {
		return []int{r.Link}
	}
	var links []int
	for _, h := range r.NextHops() {
		links = append(links, h.Link)
	}
	slices.Sort(links)
	return slices.Compact(links)
}

// Default reports whether the route is a default route, or a half of one.
func (r Route) Default() bool { return syntax.IsDefault(r.Destination) }

// Rule is a policy rule: packets that match it are looked up in a table (ip-rule(8)).
type Rule struct {
	Priority uint32       `json:"priority"`
	Table    uint32       `json:"table"`
	IPv6     bool         `json:"ipv6,omitempty"`
	Source   netip.Prefix `json:"source,omitzero"` // zero: any
	// Destination, TOS, Mark under Mask, and In, the link by which packets come, are what else it asks for; zero:
	// nothing.
	Destination netip.Prefix `json:"destination,omitzero"`
	TOS         uint8        `json:"tos,omitempty"`
	Mark        uint32       `json:"mark,omitempty"`
	Mask        uint32       `json:"mask,omitempty"`
	In          string       `json:"in,omitempty"`
	// Suppress: a route with a prefix length below this does not count (suppress_prefixlength of ip-rule(8), and one).
	Suppress int `json:"suppress,omitempty"`
	// VRF says that the rule looks up the table of the VRF that a packet's link is in (l3mdev). Table is 0 then.
	VRF bool `json:"vrf,omitempty"`
	// Other says that the rule asks for something that has no field here, or does not look up a table.
	Other bool `json:"other,omitempty"`
}

// Version is the version of IP of the packets.
func (r Rule) Version() ip.Version {
	if r.IPv6 {
		return ip.V6
	}
	return ip.V4
}

// BySource reports whether the rule looks up a table, and asks for nothing but the source.
func (r Rule) BySource() bool {
	return r == Rule{Priority: r.Priority, Table: r.Table, IPv6: r.IPv6, Source: r.Source, VRF: r.VRF}
}

// Neighbour is an ARP or NDP entry of a link. Without an address it is a static entry of a bridge's forwarding
// database: the MAC is behind the bridge's port Link.
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

// LocalPort is a port that a socket of the namespace has.
type LocalPort struct {
	Protocol string `json:"protocol"` // "tcp" or "udp"
	Port     uint16 `json:"port"`
}

// Listener is a socket of the namespace that waits for TCP connections or UDP datagrams.
type Listener struct {
	Protocol string     `json:"protocol"` // "tcp", "udp"
	Address  netip.Addr `json:"address"`
	Port     uint16     `json:"port"`
}

// Filter is one u32 classifier at a link's ingress that redirects what matches to another link's
// egress, or ingress, or that clears its checksum; or one at its egress that copies what matches
// to another link's egress.
type Filter struct {
	// Foreign names what lies at the ingress and is no such classifier ("flower", "u32 with police",
	// "clsact qdisc"); then the other fields but Link are zero.
	Foreign  string `json:"foreign,omitempty"`
	Link     int    `json:"link"`
	Priority uint16 `json:"priority"`
	Protocol uint16 `json:"protocol"` // an Ethernet type; EthernetAll: any
	Keys     []Key  `json:"keys"`
	Target   int    `json:"target"` // index
	// Ingress: to the target's ingress, as if the frame had come in there. Its filters see the frame.
	Ingress bool `json:"ingress,omitempty"`
	// Clears says that the filter redirects nothing: a checksum of an untagged frame that a device would compute from
	// the Ethernet header on is not computed, and the frame goes on.
	Clears bool `json:"clears,omitempty"`
	// Copies says that the filter is at the link's egress, and that the frame goes on. The link has a clsact qdisc
	// then. Filters of both directions have different priorities, as u32 has them in one list.
	Copies bool `json:"copies,omitempty"`
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
	EthernetRARP = 0x8035
	EthernetIPv6 = 0x86dd
)

// Link returns the link with the index.
func (s *Snapshot) Link(index int) (Link, bool) {
	i := slices.IndexFunc(s.Links, func(l Link) bool { return l.Index == index })
	if i < 0 {
		return Link{}, false
	}
	return s.Links[i], true
}

// PermanentNeighbours are those of the link.
func (s *Snapshot) PermanentNeighbours(link int) (list []Neighbour) {
	for _, n := range s.Neighbours {
		if n.Link == link && n.Permanent {
			list = append(list, n)
		}
	}
	return list
}

// Named returns the link with the name.
func (s *Snapshot) Named(name string) (Link, bool) {
	i := slices.IndexFunc(s.Links, func(l Link) bool { return l.Name == name })
	if i < 0 {
		return Link{}, false
	}
	return s.Links[i], true
}
