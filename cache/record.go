// Package cache is the contract between the phases: the [Record] of one network interface, with all that Phase2 needs.
// Phase1 writes it into a directory as the JSON file NAME.json. Its schema has a version: a program of another one
// reports that it cannot read it. Write and Remove are for Phase1, and for the tests of programs that read records.
package cache

import (
	"net/netip"
	"slices"
	"strings"
)

// Version is that of the schema. It changes with the fields, not at a release.
const Version = 1

// Kind is a kind of binding, as a record and a Spec name it.
type Kind string

const (
	BindingBridge     Kind = "bridge"
	BindingRedirect   Kind = "redirect"
	BindingMasquerade Kind = "masquerade"
	BindingRouted     Kind = "routed"
	BindingMacvtap    Kind = "macvtap"
	BindingSRIOV      Kind = "sriov"
	BindingPasst      Kind = "passt"
	BindingSlirp      Kind = "slirp"
)

// Firewall is a program whose rules translate addresses.
type Firewall string

const (
	FirewallNFTables       Firewall = "nftables"
	FirewallIPTablesNFT    Firewall = "iptables-nft"
	FirewallIPTablesLegacy Firewall = "iptables-legacy"
)

const maxVLAN = 4094 // IEEE 802.1Q table 9-2

// Record is one interface of the guest.
type Record struct {
	Version   int    `json:"version"`             // of the schema: [Version]
	Name      string `json:"name"`                // the interface's in the namespace, such as eth0, and the file's
	Namespace string `json:"namespace,omitempty"` // the network namespace, as phase1.List names it; empty: not known
	// Binding is how the guest is attached. With BindingMacvtap, BindingSRIOV, BindingPasst and BindingSlirp there is no
	// responder, and ResponderTap, IPv4, IPv6, Neighbours, DNS (but BindingSlirp's Search) and Options are empty.
	Binding  Kind     `json:"binding"`
	Firewall Firewall `json:"firewall,omitempty"` // that translates the guest's addresses; empty: none
	// Tap is the guest's tap: persistent, owned by the launcher's user, with vnet_hdr and without packet information; the
	// namespace's rules see it under BindingMasquerade and BindingRouted. With BindingMacvtap it is the NIC, opened as
	// /dev/tapINDEX. Empty, with BindingSRIOV, BindingPasst and BindingSlirp: none.
	Tap    string `json:"tap,omitempty"`
	SRIOV  *SRIOV `json:"sriov,omitempty"` // the guest's virtual function; nil without BindingSRIOV
	Passt  *Passt `json:"passt,omitempty"` // how passt(1) is started; nil without BindingPasst
	Slirp  *Slirp `json:"slirp,omitempty"` // how QEMU's user network is; nil without BindingSlirp
	Queues int    `json:"queues"`          // queue pairs of Tap, 1 to 256; several need IFF_MULTI_QUEUE
	// ResponderTap is the responder's tap, owned by the launcher's user. The kernel redirects the guest's DHCP, router
	// solicitations and solicitations for Neighbours to it; what is sent there goes to the guest. Empty: no responder.
	ResponderTap string `json:"responderTap,omitempty"`
	// ResponderMAC is the responder's, from which its link-local address and its DHCPv6 identifier are made. It is the
	// same after each Setup of the interface, and for a guest that keeps its MAC, or its gateway's with BindingMasquerade
	// and BindingRouted, also in another namespace.
	ResponderMAC MAC         `json:"responderMAC,omitzero"`
	MAC          MAC         `json:"mac"`                  // the guest's
	GatewayMAC   MAC         `json:"gatewayMAC,omitzero"`  // with BindingMasquerade and BindingRouted; else zero
	MTU          int         `json:"mtu"`                  // the guest's, in octets of IP; 0, with BindingSRIOV: not known
	IPv4         *IPv4       `json:"ipv4,omitempty"`       // nil: the guest gets no IPv4 address
	IPv6         *IPv6       `json:"ipv6,omitempty"`       // nil: the guest gets no IPv6 address
	Neighbours   []Neighbour `json:"neighbours,omitempty"` // for which the responder answers ARP and ND
	DNS          *DNS        `json:"dns,omitempty"`        // nil: Phase2 takes it from a resolv.conf
	Options      Options     `json:"options,omitzero"`     // what else the guest gets
	// Static is what the namespace had on the NIC, for a guest without DHCP. Nil, with BindingMasquerade, BindingRouted,
	// BindingPasst and BindingSlirp, and for a NIC without addresses or ARP: such a guest can get IPv4 and IPv6 alone.
	Static  *Static `json:"static,omitempty"`
	Device  Device  `json:"device,omitzero"`   // how the guest sees its network device
	Standby bool    `json:"standby,omitempty"` // the guest's tap is down, so nothing passes, until NIC.Activate
	// Inactive says that Deactivate of phase1.NIC wrote the record: the guest is active in no namespace until an Activate
	// that takes it. Standby alone waits for its first Activate, and says nothing of other namespaces.
	Inactive bool `json:"inactive,omitempty"`
	// Turn is higher in each record that Deactivate writes, in all namespaces of the guest, so Activate knows the latest
	// one. Below 2^53; with Inactive at least 1.
	Turn     uint64   `json:"turn,omitempty"`
	Limits   Limits   `json:"limits,omitzero"`    // of what passes between the guest and its network
	Warnings []string `json:"warnings,omitempty"` // sentences about what the guest could not be given
}

// Announces reports whether the responder can send to the network with the guest's MAC, and so announce where the guest
// is. It cannot with BindingMasquerade and BindingRouted, and where the guest has the MAC of its next hop, as behind an
// ipvlan of mode L3.
func (r *Record) Announces() bool {
	isGuest := func(n Neighbour) bool { return n.MAC == r.MAC }
	return r.ResponderTap != "" && (r.Binding == BindingBridge || r.Binding == BindingRedirect) &&
		!slices.ContainsFunc(r.Neighbours, isGuest) && (r.IPv6 == nil || r.IPv6.Router == nil || r.IPv6.Router.MAC != r.MAC)
}

// SRIOV is the virtual function of a network card that the guest gets.
type SRIOV struct {
	PCIAddress string `json:"pciAddress"`        // of the function on the host, such as 0000:03:10.1
	VLAN       uint16 `json:"vlan,omitempty"`    // into which the card puts the guest, 1 to 4094; 0: none
	Managed    bool   `json:"managed,omitempty"` // libvirt binds it to vfio-pci and gives it back; else bind it before
}

// Passt is how passt(1) is started, as the launcher's user, on the NIC.
type Passt struct {
	Forwards []Forward `json:"forwards,omitempty"` // to the guest; none: nothing reaches it
}

// Slirp is QEMU's user network, and the guest's networks in it: hosts 2 and 3 are the gateway and the resolver.
type Slirp struct {
	IPv4     netip.Prefix `json:"ipv4,omitzero"`      // /8 to /27, where DHCP gives the guest host 15; zero: no IPv4
	IPv6     netip.Prefix `json:"ipv6,omitzero"`      // a /64, by router advertisements; zero: no IPv6
	Forwards []Forward    `json:"forwards,omitempty"` // to the guest, of IPv4 alone
}

// Forward is a range of ports that is forwarded to the guest.
type Forward struct {
	Protocol string `json:"protocol"` // "tcp" or "udp"
	First    uint16 `json:"first"`    // 1 to 65535
	Last     uint16 `json:"last"`     // First to 65535
	Guest    uint16 `json:"guest"`    // the guest's port for First; for First+1 it is Guest+1
}

// IPv4 is what the guest gets by DHCPv4.
type IPv4 struct {
	// Address is the guest's, with the prefix length that it gets: 32 if the namespace had no connected route for the
	// address, or if the gateway is outside of the network.
	Address netip.Prefix `json:"address"`
	Server  netip.Addr   `json:"server"` // the server identifier (RFC 2132 section 9.7): a gateway, or one of Neighbours
	// Routes are the guest's, in the order in which a guest can install them: those on the link, those with a gateway, the
	// default route. Each gateway, and Server, is in the network of Address, whose route is left out, or in a destination
	// on the link.
	Routes []Route `json:"routes,omitempty"`
	// StandIn is the router of a guest that asks for no classless routes (RFC 3442), if the gateway is outside of its
	// network: the other address of the /31 of Address, which the responder then sends. It is the gateway itself, or
	// Neighbours has it with the gateway's MAC. Zero: all guests get Address and the gateway.
	StandIn netip.Addr `json:"standIn,omitzero"`
}

// Gateway returns the next hop of the default route; zero: there is none.
func (v *IPv4) Gateway() netip.Addr {
	if i := slices.IndexFunc(v.Routes, Route.Default); i >= 0 {
		return v.Routes[i].Gateway
	}
	return netip.Addr{}
}

// Route is one route of the guest.
type Route struct {
	Destination netip.Prefix `json:"destination"`
	Gateway     netip.Addr   `json:"gateway,omitzero"` // zero: the destination is on the link
}

func (r Route) Default() bool { return r.Destination.IsValid() && r.Destination.Bits() == 0 }

// IPv6 is what the guest gets by DHCPv6 and router advertisements.
type IPv6 struct {
	Address netip.Addr   `json:"address"`          // which DHCPv6 leases
	Others  []netip.Addr `json:"others,omitempty"` // the NIC's further addresses, leased with Address
	// Gateway is the gateway's address in addition to Router.Address, with BindingMasquerade: a next hop for a guest
	// without router advertisements. Zero: there is none.
	Gateway netip.Addr     `json:"gateway,omitzero"`
	OnLink  []netip.Prefix `json:"onLink,omitempty"` // the prefixes on the guest's link
	// Router is nil if the guest has no next hop. The responder then advertises a router lifetime of zero, because
	// advertisements start DHCPv6 in the guest.
	Router *Router `json:"router,omitempty"`
}

// Addresses returns Address and Others.
func (v *IPv6) Addresses() []netip.Addr { return append([]netip.Addr{v.Address}, v.Others...) }

// Router is the guest's IPv6 next hop, in whose name the responder advertises.
type Router struct {
	Address netip.Addr     `json:"address"`          // link-local: the source of the advertisements, the next hop
	MAC     MAC            `json:"mac,omitzero"`     // in the advertisements; zero: the guest solicits it
	Default bool           `json:"default"`          // the namespace has a default route through it
	Routes  []netip.Prefix `json:"routes,omitempty"` // other destinations through it (RFC 4191 section 2.3)
}

// Neighbour is a station on the guest's link for which the responder answers.
type Neighbour struct {
	Address netip.Addr `json:"address"`
	MAC     MAC        `json:"mac"`
}

// DNS is the guest's DNS configuration. Both fields may be empty.
type DNS struct {
	Servers []netip.Addr `json:"servers,omitempty"` // the resolvers' addresses
	Search  []string     `json:"search,omitempty"`  // the search domains, in order
}

// Options is what else the guest gets. A field that is zero is not sent.
type Options struct {
	// NoResponder switches guestwire's responder off: nothing of guestwire answers the guest, the record has no
	// ResponderTap, and under bridge and redirect the network's DHCP servers and routers reach the guest.
	NoResponder bool `json:"noResponder,omitempty"`
	// NoDefaultRoute gives the guest no default route by this NIC, in either family, for a second NIC. It still reaches
	// the NIC's network and its other routes; behind a masquerade, the gateway alone, and what comes in from elsewhere is
	// answered by the guest's other NIC.
	NoDefaultRoute bool   `json:"noDefaultRoute,omitempty"`
	Hostname       string `json:"hostname,omitempty"` // DHCPv4 option 12
	// Subdomain makes the guest's domain (DHCPv4 option 15, and the first search domain): the Subdomain before the first
	// search domain; without one there is none. In a pod, SUBDOMAIN.NAMESPACE.svc.cluster.local.
	Subdomain    string       `json:"subdomain,omitempty"`
	LeaseSeconds uint32       `json:"leaseSeconds,omitempty"` // of a lease; 0: infinite
	NTP          []netip.Addr `json:"ntp,omitempty"`          // time servers: DHCPv4 option 42, DHCPv6 options 31 and 56
	TFTPServer   string       `json:"tftpServer,omitempty"`   // name or IPv4 address: DHCPv4 option 66, siaddr, sname
	BootFile     string       `json:"bootFile,omitempty"`     // DHCPv4 option 67 and the file field
	BootFileURL  string       `json:"bootFileURL,omitempty"`  // DHCPv6 option 59 (RFC 5970)
	// CaptivePortal is a URI (RFC 8910): DHCPv4 option 114 if the guest asks, DHCPv6 option 103, and in advertisements.
	CaptivePortal   string `json:"captivePortal,omitempty"`
	IPv6OnlySeconds uint32 `json:"ipv6OnlySeconds,omitempty"` // DHCPv4 option 108 (RFC 8925), if the guest asks: no IPv4
	// DHCPv4 and DHCPv6 are further options by their code, such as 43 and 224 to 254 (RFC 3942), or 17 and 32. Validate
	// refuses those that have a field here, that come from the addresses, or that belong to the protocol.
	DHCPv4 map[uint8]Data  `json:"dhcpv4,omitempty"`
	DHCPv6 map[uint16]Data `json:"dhcpv6,omitempty"`
}

// Search returns the guest's search list: the domain that Subdomain makes, if any, and the given domains.
func (o *Options) Search(domains []string) []string {
	at := slices.IndexFunc(domains, func(d string) bool { return strings.Trim(d, " .") != "" }) // the root is no search domain
	if o.Subdomain == "" || at < 0 || strings.HasPrefix(strings.ToLower(domains[at]), strings.ToLower(o.Subdomain)+".") {
		return domains
	}
	return append([]string{o.Subdomain + "." + domains[at]}, domains...)
}

// Device is how the guest sees its network device, in libvirt's terms
// (https://libvirt.org/formatdomain.html#network-interfaces).
type Device struct {
	Model      string `json:"model,omitempty"`      // in libvirt; empty: virtio-non-transitional
	Driver     string `json:"driver,omitempty"`     // "qemu" or "vhost"; empty: libvirt chooses
	BootOrder  uint   `json:"bootOrder,omitempty"`  // among the boot devices, from 1; 0: none
	ROM        string `json:"rom,omitempty"`        // "on", "off" or a path; empty: on if BootOrder is set, else off
	PCIAddress string `json:"pciAddress,omitempty"` // in the guest, such as 0000:01:00.0; empty: libvirt chooses
	ACPIIndex  uint   `json:"acpiIndex,omitempty"`  // 7 can make the name eno7; 0: none
	Alias      string `json:"alias,omitempty"`      // the name in libvirt, with or without ua-; empty: libvirt chooses
	LinkState  string `json:"linkState,omitempty"`  // "up" or "down"; empty: up
}
