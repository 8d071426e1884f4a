// Package cache is the contract between the phases: the [Record] of one network interface, with all that Phase2 needs.
// Phase1 writes it into a directory, as the JSON file NAME.json. Its schema has a version, and a program of another
// version reports that it cannot read the record. Write and Remove are for Phase1, and for the tests of programs that
// read records.
package cache

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/syntax"
)

// Version is the version of the record's schema. It changes when fields change, not with each release.
const Version = 1

const maxVLAN = 4094 // IEEE 802.1Q table 9-2

// Record is one network interface of the guest.
type Record struct {
	// Version is the version of the schema: the constant Version.
	Version int `json:"version"`

	// Name is the interface's name in the namespace, such as eth0. The record's file is
	// NAME.json.
	Name string `json:"name"`

	// Namespace names the network namespace, as phase1.List does. Empty: not known.
	Namespace string `json:"namespace,omitempty"`

	// Binding is how the guest is attached. With BindingMacvtap, BindingSRIOV, BindingPasst and
	// BindingSlirp there is no responder. ResponderTap, MACs, IPv4, IPv6, Neighbours, DNS and
	// Options are empty then, except that BindingSlirp can have DNS.Search.
	Binding Kind `json:"binding"`

	// Firewall is the program whose rules translate the guest's addresses, with
	// BindingMasquerade. Empty: no addresses are translated.
	Firewall Firewall `json:"firewall,omitempty"`

	// Tap is the guest's tap. It is persistent, owned by the launcher's user, with vnet_hdr and
	// without packet information. With BindingMacvtap it is the NIC itself, which is opened as
	// /dev/tapINDEX. Empty, with BindingSRIOV, BindingPasst and BindingSlirp: there is none.
	//
	// Rules of the namespace see the guest's packets at the tap with BindingMasquerade and
	// BindingRouted.
	Tap string `json:"tap,omitempty"`

	// SRIOV is the guest's virtual function. Nil: the binding is not BindingSRIOV.
	SRIOV *SRIOV `json:"sriov,omitempty"`

	// Passt is how passt(1) is started. Nil: the binding is not BindingPasst.
	Passt *Passt `json:"passt,omitempty"`

	// Slirp is QEMU's user network. Nil: the binding is not BindingSlirp.
	Slirp *Slirp `json:"slirp,omitempty"`

	// Queues is the number of queue pairs of Tap, 1 to 256. A tap with several is opened with
	// IFF_MULTI_QUEUE. Without a Tap it is 1.
	Queues int `json:"queues"`

	// ResponderTap is the responder's tap, owned by the launcher's user. The kernel redirects
	// the guest's DHCP, router solicitations and solicitations for Neighbours to it. What is
	// sent there goes to the guest. Empty: there is no responder.
	ResponderTap string `json:"responderTap,omitempty"`

	// ResponderMAC is the responder's MAC, from which its link-local address and its DHCPv6
	// identifier are made. It is computed from the interface's name and the guest's MAC, or
	// with BindingMasquerade from the gateway's MAC. So it does not change when Setup is called
	// again, nor when a guest moves and keeps that MAC.
	ResponderMAC MAC `json:"responderMAC,omitzero"`

	// MAC is the guest's.
	MAC MAC `json:"mac"`

	// MACs are further MACs of the guest, which the guard allows, such as that of a bridge in
	// the guest. The responder serves each of them as it serves MAC.
	MACs []MAC `json:"macs,omitempty"`

	// GatewayMAC is the MAC of the guest's gateway, IPv4 and IPv6, with BindingMasquerade and
	// BindingRouted. Zero: the gateway is a station of the network.
	GatewayMAC MAC `json:"gatewayMAC,omitzero"`

	// MTU is the guest's, in octets of IP. 0, with BindingSRIOV: not known.
	MTU int `json:"mtu"`

	// IPv4 is what the guest gets by DHCPv4. Nil: no IPv4 address.
	IPv4 *IPv4 `json:"ipv4,omitempty"`

	// IPv6 is what the guest gets by DHCPv6 and router advertisements. Nil: no IPv6 address.
	IPv6 *IPv6 `json:"ipv6,omitempty"`

	// Neighbours are the stations for which the responder answers ARP requests and neighbour
	// solicitations.
	Neighbours []Neighbour `json:"neighbours,omitempty"`

	// DNS is the guest's DNS configuration. Nil: Phase2 takes it from a resolv.conf.
	DNS *DNS `json:"dns,omitempty"`

	// Resolver is a loopback address of the namespace. The guest asks it by port 53 of its IPv4
	// gateway, which the guest gets in its place. Zero: the guest reaches no loopback address.
	Resolver netip.Addr `json:"resolver,omitzero"`

	// DNSProxy is where a DNS proxy (phase2/names) must listen, ports of the guest's gateway. What
	// the guest asks at port 53 arrives there. The guest gets the gateway as its DNS server in the
	// place of DNS.Servers, which the proxy asks. Empty: there is no proxy.
	DNSProxy []netip.AddrPort `json:"dnsProxy,omitempty"`

	// Options are further values for the guest.
	Options Options `json:"options,omitzero"`

	// Static is what the namespace had on the NIC, for a guest without DHCP. Nil: IPv4 and IPv6
	// are all that is known. That is so with BindingMasquerade, BindingRouted, BindingPasst and
	// BindingSlirp, and for a NIC without addresses or ARP.
	Static *Static `json:"static,omitempty"`

	// Device is how the guest sees its network device.
	Device Device `json:"device,omitzero"`

	// Role says whether frames pass the guest's tap. Empty: they do.
	Role Role `json:"role,omitempty"`

	// Source is the namespace that the guest comes from, with RoleStandby. Empty: not known.
	Source string `json:"source,omitempty"`

	// Turn is higher in each record that Deactivate writes, in all namespaces of the guest. By
	// it, Activate knows the latest record. It is below 2^53, and at least 1 with RoleInactive.
	Turn uint64 `json:"turn,omitempty"`

	// Limits bound what passes between the guest and its network.
	Limits Limits `json:"limits,omitzero"`

	// Losses are what the namespace has and the guest does not get, as Setup found it.
	Losses []Loss `json:"losses,omitempty"`

	// Warnings are risks and advice as of the first Setup, a sentence each.
	Warnings []string `json:"warnings,omitempty"`
}

// Announces reports whether the responder can send to the network with the guest's MAC, and so announce where the guest
// is. It cannot with BindingMasquerade and BindingRouted, nor if the guest has the MAC of its next hop, as behind an
// ipvlan of mode L3.
func (r *Record) Announces() bool {
	isGuest := func(n Neighbour) bool { return n.MAC == r.MAC }
	return r.ResponderTap != "" && (r.Binding == BindingBridge || r.Binding == BindingRedirect) &&
		!slices.ContainsFunc(r.Neighbours, isGuest) && (r.IPv6 == nil || r.IPv6.Router == nil || r.IPv6.Router.MAC != r.MAC)
}

// SRIOV is the virtual function of a network card that the guest gets.
type SRIOV struct {
	// PCIAddress is the function's address on the host, such as 0000:03:10.1.
	PCIAddress string `json:"pciAddress"`

	// VLAN is the VLAN into which the card puts the guest, 1 to 4094. 0: none.
	VLAN uint16 `json:"vlan,omitempty"`

	// Managed has libvirt bind the function to vfio-pci and give it back. If it is false, bind
	// the function before the guest starts.
	Managed bool `json:"managed,omitempty"`
}

// Passt is how passt(1) is started in the namespace, as the launcher's user.
type Passt struct {
	// Forwards are the ports that are forwarded to the guest. Empty: none.
	Forwards []Forward `json:"forwards,omitempty"`

	// VhostUser says that passt and the VMM share the guest's memory, in place of a socket for
	// frames (passt(1), --vhost-user). The device must be virtio, and the VMM must share the
	// guest's memory. False: a socket.
	VhostUser bool `json:"vhostUser,omitempty"`
}

// Slirp is QEMU's user network. In each of the guest's networks, host 2 is the gateway and host 3 the resolver.
type Slirp struct {
	// IPv4 is the guest's network, /8 to /27. DHCP gives the guest host 15. Zero: no IPv4.
	IPv4 netip.Prefix `json:"ipv4,omitzero"`

	// IPv6 is the guest's network, a /64. The guest gets it by router advertisements. Zero: no
	// IPv6.
	IPv6 netip.Prefix `json:"ipv6,omitzero"`

	// Forwards are the ports of IPv4 that are forwarded to the guest. Empty: none.
	Forwards []Forward `json:"forwards,omitempty"`
}

// Forward is a range of ports that is forwarded to the guest.
type Forward struct {
	Protocol string `json:"protocol"` // "tcp" or "udp"
	First    uint16 `json:"first"`    // 1 to 65535
	Last     uint16 `json:"last"`     // First to 65535

	// Guest is the guest's port for First, and the next ports follow.
	Guest uint16 `json:"guest"`
}

// IPv4 is what the guest gets by DHCPv4.
type IPv4 struct {
	// Address is the guest's, with the prefix length that the guest gets. That is 32 if the
	// namespace had no connected route for the address, or if the gateway is outside of the
	// network.
	Address netip.Prefix `json:"address"`

	// Server is the server identifier (RFC 2132 section 9.7): a gateway, or one of Neighbours.
	Server netip.Addr `json:"server"`

	// Routes are the guest's, in an order in which the guest can install them: those on the
	// link, those with a gateway, the default route. The route to the network of Address is
	// left out. Each gateway, and Server, is in that network or in a destination on the link.
	Routes []Route `json:"routes,omitempty"`

	// StandIn is for guests that do not ask for classless routes (RFC 3442), and cannot use a
	// gateway outside of their network. Such a guest gets a /31: its own address, and StandIn
	// as its router. StandIn is the gateway itself, or the responder answers for it with the
	// gateway's MAC (Neighbours). Zero: all guests get Address and the gateway.
	StandIn netip.Addr `json:"standIn,omitzero"`

	// Shared says that other stations have addresses of the guest's network, with
	// BindingMasquerade. If it is false, the gateway alone is there.
	Shared bool `json:"shared,omitempty"`
}

// Gateway returns the next hop of the default route. If the routes have both halves of a default
// route, it is that of the first half. Zero: there is none.
func (v *IPv4) Gateway() netip.Addr {
	if i := syntax.DefaultIndex(v.Routes, func(r Route) netip.Prefix { return r.Destination }); i >= 0 {
		return v.Routes[i].Gateway
	}
	return netip.Addr{}
}

// Route is one route of the guest.
type Route struct {
	Destination netip.Prefix `json:"destination"`
	Gateway     netip.Addr   `json:"gateway,omitzero"` // zero: the destination is on the link
}

// Default reports whether r is a default route, or a half of one, such as 128.0.0.0/1.
func (r Route) Default() bool { return syntax.IsDefault(r.Destination) }

// IPv6 is what the guest gets by DHCPv6 and router advertisements.
type IPv6 struct {
	// Address is the address that DHCPv6 leases.
	Address netip.Addr `json:"address"`

	// Others are the NIC's further addresses. DHCPv6 leases them together with Address.
	Others []netip.Addr `json:"others,omitempty"`

	// Deprecated are those of Address and Others that the guest sends from only if no other
	// address fits. DHCPv6 leases them with a preferred lifetime of 0.
	Deprecated []netip.Addr `json:"deprecated,omitempty"`

	// Gateway is an address of the gateway in addition to Router.Address, with
	// BindingMasquerade. It is a next hop for a guest without router advertisements. Zero:
	// there is none.
	Gateway netip.Addr `json:"gateway,omitzero"`

	// OnLink are the prefixes on the guest's link.
	OnLink []netip.Prefix `json:"onLink,omitempty"`

	// Delegated are the networks that DHCPv6 delegates to a guest that asks for prefixes (IA_PD,
	// RFC 9915 section 6.3): those of the guard's prefixes that lie beyond the guest. None
	// overlaps another one, or a prefix in OnLink except ::/0.
	Delegated []netip.Prefix `json:"delegated,omitempty"`

	// Router is the guest's next hop. Nil: there is none. The responder then advertises a
	// router lifetime of zero, because advertisements start DHCPv6 in the guest.
	Router *Router `json:"router,omitempty"`
}

// Addresses returns Address and Others.
func (v *IPv6) Addresses() []netip.Addr { return append([]netip.Addr{v.Address}, v.Others...) }

// Router is the guest's IPv6 next hop. The responder advertises in its name.
type Router struct {
	// Address is the source of the advertisements, and so the guest's next hop: a link-local
	// address.
	Address netip.Addr `json:"address"`

	// MAC is the MAC in the advertisements. Zero: the guest solicits it.
	MAC MAC `json:"mac,omitzero"`

	// Default says that the namespace has a default route through the router.
	Default bool `json:"default"`

	// Preference is that of the router among those of all of the guest's NICs (RFC 4191 section
	// 2.1): 1 high, 0 medium, -1 low.
	Preference int `json:"preference,omitzero"`

	// Routes are other destinations that the namespace reaches through the router (RFC 4191
	// section 2.3).
	Routes []netip.Prefix `json:"routes,omitempty"`
}

// Neighbour is a station on the guest's link for which the responder answers.
type Neighbour struct {
	Address netip.Addr `json:"address"`
	MAC     MAC        `json:"mac"`

	// Station is the station of the network whose MAC it is: the namespace's gateway. The
	// responder asks for it as the guest does, and follows if it gets another MAC. Zero: the
	// MAC stays as it is.
	Station netip.Addr `json:"station,omitzero"`
}

// DNS is the guest's DNS configuration. Both fields may be empty. A server to which no route of the guest leads by the
// NIC is left out, as that of another NIC of the guest.
type DNS struct {
	Servers []netip.Addr `json:"servers,omitempty"` // the resolvers' addresses
	Search  []string     `json:"search,omitempty"`  // the search domains, in order
}

// Options are further values for the guest. A field that is zero is not sent.
type Options struct {
	// NoResponder switches guestwire's responder off, so that the record has no ResponderTap.
	// Under bridge and redirect the network's DHCP servers and routers then reach the guest.
	NoResponder bool `json:"noResponder,omitempty"`

	// NoDefaultRoute gives the guest no default route by this NIC, in either family, and no half
	// of one, such as 128.0.0.0/1. It is for a second NIC. The guest still reaches the NIC's
	// network and its other routes. Behind a masquerade it reaches the gateway alone. Answers to
	// others leave by the guest's other NIC.
	NoDefaultRoute bool `json:"noDefaultRoute,omitempty"`

	// Hostname is DHCPv4 option 12: at most 64 octets, in labels of 1 to 63 letters, digits, -
	// and _. A label has no - first or last. Subdomain and search domains are of such labels,
	// too.
	Hostname string `json:"hostname,omitempty"`

	// Subdomain makes the guest's domain: the Subdomain before the first search domain. In a
	// Kubernetes pod that is SUBDOMAIN.NAMESPACE.svc.cluster.local. The guest gets its domain
	// as DHCPv4 option 15 and as the first search domain. Without a search domain there is no
	// domain.
	Subdomain string `json:"subdomain,omitempty"`

	// LeaseSeconds is the time of a lease. 0: infinite.
	LeaseSeconds uint32 `json:"leaseSeconds,omitempty"`

	// NTP are time servers: DHCPv4 option 42, DHCPv6 options 31 and 56. One to which no route
	// of the guest leads by the NIC is left out.
	NTP []netip.Addr `json:"ntp,omitempty"`

	// TFTPServer is a name or an IPv4 address: DHCPv4 option 66, siaddr and sname.
	TFTPServer string `json:"tftpServer,omitempty"`

	// BootFile is DHCPv4 option 67 and the file field.
	BootFile string `json:"bootFile,omitempty"`

	// BootFileURL is DHCPv6 option 59 (RFC 5970).
	BootFileURL string `json:"bootFileURL,omitempty"`

	// CaptivePortal is a URI (RFC 8910). It is sent as DHCPv4 option 114 if the guest asks for
	// it, as DHCPv6 option 103, and in router advertisements.
	CaptivePortal string `json:"captivePortal,omitempty"`

	// IPv6OnlySeconds is DHCPv4 option 108 (RFC 8925), for a guest that asks for it. Such a
	// guest uses no IPv4 for that time. A guest with IPv4 alone cannot have it. A guest with
	// IPv6 alone that asks for it gets an offer without an address, after which it may stop asking.
	IPv6OnlySeconds uint32 `json:"ipv6OnlySeconds,omitempty"`

	// NAT64 is the prefix of the network's NAT64 (RFC 6052), of 96, 64, 56, 48, 40 or 32 bits. It
	// is sent in router advertisements (RFC 8781). IPv4 networks of egress also mean their
	// addresses in it. The namespace does not know it, so none is found.
	NAT64 netip.Prefix `json:"nat64,omitzero"`

	// DHCPv4 and DHCPv6 are further options by their code. Examples in DHCPv4 are 43
	// (vendor-specific) and 224 to 254 (private use, RFC 3942). Examples in DHCPv6 are 17
	// (vendor-specific) and 32 (the refresh time of other information). Validate refuses
	// options that have a field here, that come from the addresses, or that belong to the
	// protocol.
	DHCPv4 map[uint8]Data  `json:"dhcpv4,omitempty"`
	DHCPv6 map[uint16]Data `json:"dhcpv6,omitempty"`
}

// Search returns the guest's search list: the domain that Subdomain makes, if there is one, and the given domains.
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
	// Model is the device's model in libvirt. Empty: virtio-non-transitional.
	Model string `json:"model,omitempty"`

	// Driver is the backend, "qemu" or "vhost". Empty: libvirt chooses.
	Driver string `json:"driver,omitempty"`

	// BootOrder is the device's place among the boot devices, from 1 to 2147483647. 0: the
	// guest does not boot from it.
	BootOrder uint `json:"bootOrder,omitempty"`

	// ROM is the option ROM: "on", "off" or the path of an image. Empty: on if BootOrder is
	// set, else off.
	ROM string `json:"rom,omitempty"`

	// PCIAddress is the device's address in the guest, such as 0000:01:00.0. It is not
	// 0000:00:00, the place of the host bridge. Empty: libvirt chooses.
	PCIAddress string `json:"pciAddress,omitempty"`

	// ACPIIndex is the index by which the guest can name the device: 7 can make the name eno7.
	// At most 16383. 0: none.
	ACPIIndex uint `json:"acpiIndex,omitempty"`

	// Alias is the device's name in libvirt, with or without the prefix ua-. Empty: libvirt
	// chooses.
	Alias string `json:"alias,omitempty"`

	// LinkState is "up" or "down". Empty: up.
	LinkState string `json:"linkState,omitempty"`
}
