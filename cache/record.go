// Package cache is the contract between the phases: the record of one network interface. The privileged Phase1 writes
// the record into a directory, and the unprivileged Phase2 reads it.
//
// A [Record] holds all that Phase2 needs to answer the guest and to describe the interface to libvirt. In its directory
// it is a JSON file NAME.json with a schema version and plain values only, so that a program of another version, in
// another container, can read it, or say that it cannot.
//
// [Read] and [List] refuse a record that is damaged. [Write] and [Remove] are for Phase1, and for the tests of programs
// that read records.
package cache

import (
	"net/netip"
	"slices"
	"strings"
)

// Version is the version of the schema that this package writes and reads. It changes with the fields, not with each
// release.
const Version = 1

// Kind is a kind of binding, as a record and a Spec name it.
type Kind string

// The kinds that [Record.Binding] can name.
const (
	BindingBridge     Kind = "bridge"
	BindingRedirect   Kind = "redirect"
	BindingMasquerade Kind = "masquerade"
	BindingRouted     Kind = "routed"
	BindingMacvtap    Kind = "macvtap"
	BindingSRIOV      Kind = "sriov"
	BindingPasst      Kind = "passt"
)

// Firewall is a program whose rules translate addresses.
type Firewall string

// The programs that [Record.Firewall] can name.
const (
	FirewallNFTables       Firewall = "nftables"
	FirewallIPTablesNFT    Firewall = "iptables-nft"
	FirewallIPTablesLegacy Firewall = "iptables-legacy"
)

// Limits of the kernel and of the protocols.
const (
	MaxQueues = 256   // MAX_TAP_QUEUES
	MinMTU    = 68    // RFC 791
	MaxMTU    = 65521 // a tap's: 65535 less an Ethernet header
)

const maxVLAN = 4094 // IEEE 802.1Q table 9-2

// Record is one interface of the guest.
type Record struct {
	// Version is the version of the schema: [Version].
	Version int `json:"version"`
	// Name is the interface's name in the namespace, such as eth0. The file of the record has this name.
	Name string `json:"name"`
	// Namespace names the network namespace that the record belongs to, as phase1.List does. Empty: not known, as in a
	// record that no Setup wrote.
	Namespace string `json:"namespace,omitempty"`
	// Binding is how the guest is attached. With BindingMacvtap, BindingSRIOV and BindingPasst there is no responder, and
	// ResponderTap, IPv4, IPv6, Neighbours, DNS and Options are empty.
	Binding Kind `json:"binding"`
	// Firewall is the program whose rules translate the guest's addresses, with BindingMasquerade: FirewallNFTables,
	// FirewallIPTablesNFT or FirewallIPTablesLegacy. Empty: no addresses are translated.
	Firewall Firewall `json:"firewall,omitempty"`
	// Tap is the guest's tap: persistent, owned by the launcher's user, with vnet_hdr and without packet information. With
	// BindingMacvtap it is the NIC itself, which is opened as /dev/tapINDEX. Empty with BindingSRIOV and BindingPasst:
	// there is no tap. With BindingMasquerade and BindingRouted rules of the namespace see the guest's packets come in by
	// it.
	Tap string `json:"tap,omitempty"`
	// SRIOV is the guest's virtual function with BindingSRIOV; nil with another binding.
	SRIOV *SRIOV `json:"sriov,omitempty"`
	// Passt is how passt(1) is started with BindingPasst; nil with another binding.
	Passt *Passt `json:"passt,omitempty"`
	// Queues is the number of queue pairs of Tap, 1 to MaxQueues. A tap with more than one has to be opened with
	// IFF_MULTI_QUEUE. Without a Tap, Queues is 1.
	Queues int `json:"queues"`
	// ResponderTap is the responder's own tap, owned by the launcher's user. The kernel redirects the guest's DHCP,
	// DHCPv6, router solicitations and solicitations for Neighbours to this tap, and what the responder sends there goes
	// to the guest. Empty: guestwire has no responder for this guest.
	ResponderTap string `json:"responderTap,omitempty"`
	// ResponderMAC is the responder's Ethernet address, from which its link-local address and its DHCPv6 identifier are
	// made. It is the same after every Setup of the same interface, and for a guest that keeps its MAC, or its gateway's
	// with BindingMasquerade and BindingRouted, also in another namespace.
	ResponderMAC MAC `json:"responderMAC,omitzero"`
	// MAC is the guest's Ethernet address.
	MAC MAC `json:"mac"`
	// GatewayMAC is the Ethernet address of the guest's gateway, IPv4 and IPv6, with BindingMasquerade and BindingRouted.
	// Zero: the gateway is a station of the network.
	GatewayMAC MAC `json:"gatewayMAC,omitzero"`
	// MTU is the guest's, in octets of IP, MinMTU to MaxMTU; 0, with BindingSRIOV only: not known.
	MTU int `json:"mtu"`
	// IPv4 is nil if the guest gets no IPv4 address.
	IPv4 *IPv4 `json:"ipv4,omitempty"`
	// IPv6 is nil if the guest gets no IPv6 address.
	IPv6 *IPv6 `json:"ipv6,omitempty"`
	// Neighbours are the stations for which the responder answers the guest's ARP requests and neighbour solicitations.
	Neighbours []Neighbour `json:"neighbours,omitempty"`
	// DNS is nil if Phase2 takes the DNS configuration from a resolv.conf.
	DNS *DNS `json:"dns,omitempty"`
	// Options are further options for the guest.
	Options Options `json:"options,omitzero"`
	// Static is what the namespace had on the NIC, for a guest that is configured without DHCP. It is nil with
	// BindingMasquerade, BindingRouted and BindingPasst, and for a NIC without addresses or without ARP. IPv4 and IPv6,
	// where they are set, then are all that such a guest can be given.
	Static *Static `json:"static,omitempty"`
	// Device is how the guest sees its network device.
	Device Device `json:"device,omitzero"`
	// Standby says that the guest's tap is down: nothing passes between the guest and the network until phase1.Activate.
	Standby bool `json:"standby,omitempty"`
	// Inactive says that phase1.Deactivate wrote the record, so that the guest is active in no namespace until a
	// phase1.Activate that takes this record. A record with Standby and without Inactive is that of a namespace which
	// waits for its first Activate, and says nothing of the others.
	Inactive bool `json:"inactive,omitempty"`
	// Turn is higher in each record that phase1.Deactivate writes, in all namespaces through which the guest moves. By it,
	// phase1.Activate knows the latest record of an inactive guest. Below 2^53; with Inactive at least
	// 1.
	Turn uint64 `json:"turn,omitempty"`
	// Limits bound what passes between the guest and its network.
	Limits Limits `json:"limits,omitzero"`
	// Warnings are sentences about what the guest could not be given.
	Warnings []string `json:"warnings,omitempty"`
}

// Announces reports whether a frame that the responder sends with the guest's MAC as its source leaves as if the guest
// had sent it, so that the responder can announce where the guest is. All other frames of the responder go to the
// guest.
//
// It is false without a responder, and with BindingMasquerade, whose guest is known to no station but the namespace,
// and with BindingRouted, whose namespace answers for the guest. It is false where the guest has the MAC of its next
// hop, as behind an ipvlan of mode L3.
func (r *Record) Announces() bool {
	isGuest := func(n Neighbour) bool { return n.MAC == r.MAC }
	return r.ResponderTap != "" && (r.Binding == BindingBridge || r.Binding == BindingRedirect) &&
		!slices.ContainsFunc(r.Neighbours, isGuest) && (r.IPv6 == nil || r.IPv6.Router == nil || r.IPv6.Router.MAC != r.MAC)
}

// SRIOV is the virtual function of a network card that the guest gets.
type SRIOV struct {
	// PCIAddress is the function's address on the host, of the form 0000:03:10.1.
	PCIAddress string `json:"pciAddress"`
	// VLAN is the VLAN into which the card puts the guest, 1 to 4094; 0: none.
	VLAN uint16 `json:"vlan,omitempty"`
	// Managed reports whether libvirt binds the function to vfio-pci and gives it back to its driver. Without Managed, the
	// function has to be bound to vfio-pci before the guest starts.
	Managed bool `json:"managed,omitempty"`
}

// Passt is how passt(1) is started, as the launcher's user, on the interface of the record.
type Passt struct {
	// Forwards are the ports that passt forwards to the guest; none: nothing reaches the guest.
	Forwards []Forward `json:"forwards,omitempty"`
}

// Forward is one port, or a range of ports, that is forwarded to the guest.
type Forward struct {
	Protocol string `json:"protocol"` // "tcp" or "udp"
	First    uint16 `json:"first"`    // 1 to 65535
	Last     uint16 `json:"last"`     // First to 65535
	Guest    uint16 `json:"guest"`    // the guest's port for First; the guest's port for First+1 is Guest+1
}

// IPv4 is the guest's IPv4 configuration, which it gets by DHCPv4.
type IPv4 struct {
	// Address is the guest's, with the prefix length that the guest gets: 32 if the namespace had no connected route for
	// the address, or if the gateway is outside of the network.
	Address netip.Prefix `json:"address"`
	// Server is the server identifier (RFC 2132 section 9.7), an address on the link. If it is none of the guest's
	// gateways, Neighbours lists it.
	Server netip.Addr `json:"server"`
	// Routes are the guest's, in the order in which a guest can install them: routes on the link first, then routes with a
	// gateway, the default route last. Each gateway, and Server, is in the network of Address or in the destination of a
	// route on the link. The route that Address implies is not among them.
	Routes []Route `json:"routes,omitempty"`
	// StandIn is the router of a guest that asks for no classless routes (RFC 3442): such a guest cannot use a gateway
	// outside of its network. It is the other address of the /31 of Address, and the responder sends that /31. It is the
	// gateway itself, or Neighbours lists it with the gateway's MAC. Zero: all guests get Address and the gateway.
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
	// Gateway is the next hop; zero: the destination is on the link.
	Gateway netip.Addr `json:"gateway,omitzero"`
}

// Default reports whether the route is a default route.
func (r Route) Default() bool { return r.Destination.IsValid() && r.Destination.Bits() == 0 }

// IPv6 is the guest's IPv6 configuration, which it gets by DHCPv6 and router advertisements.
type IPv6 struct {
	// Address is the address that DHCPv6 leases, without a prefix length.
	Address netip.Addr `json:"address"`
	// Others are the NIC's further addresses, which DHCPv6 leases together with Address.
	Others []netip.Addr `json:"others,omitempty"`
	// Gateway is the gateway's address besides Router.Address, which is link-local, with BindingMasquerade: what a guest
	// without router advertisements can have as its next hop. Zero: there is no such address.
	Gateway netip.Addr `json:"gateway,omitzero"`
	// OnLink are the prefixes that are on the guest's link.
	OnLink []netip.Prefix `json:"onLink,omitempty"`
	// Router is nil if the guest has no next hop. The responder advertises then as well, with a router lifetime of zero,
	// because advertisements start DHCPv6 in the guest.
	Router *Router `json:"router,omitempty"`
}

// Addresses returns Address and Others.
func (v *IPv6) Addresses() []netip.Addr { return append([]netip.Addr{v.Address}, v.Others...) }

// Router is the guest's IPv6 next hop. The responder sends router advertisements in its name.
type Router struct {
	// Address is the source of the advertisements, and so the guest's next hop: a link-local address.
	Address netip.Addr `json:"address"`
	// MAC is in the advertisements; zero: the guest asks for it by neighbour discovery.
	MAC MAC `json:"mac,omitzero"`
	// Default reports whether the namespace has a default route through this router.
	Default bool `json:"default"`
	// Routes are the other destinations that the namespace reaches through this router (RFC 4191 section 2.3).
	Routes []netip.Prefix `json:"routes,omitempty"`
}

// Neighbour is a station on the guest's link for which the responder answers.
type Neighbour struct {
	Address netip.Addr `json:"address"`
	MAC     MAC        `json:"mac"`
}

// DNS is the guest's DNS configuration. Both fields may be empty.
type DNS struct {
	Servers []netip.Addr `json:"servers,omitempty"`
	Search  []string     `json:"search,omitempty"`
}

// Options is what the guest gets besides addresses and routes. A field that is zero is not sent.
type Options struct {
	// NoResponder says that guestwire does not answer the guest. The record then has no ResponderTap.
	NoResponder bool `json:"noResponder,omitempty"`
	// NoDefaultRoute says that the guest gets no default route by this NIC, in either family, for a second NIC that must
	// not take the first one's traffic. Setup leaves the default routes out of the record, and out of Static those of the
	// table main. The guest still reaches its network and the other routes' destinations; behind a masquerade, the gateway
	// alone, and what comes in from elsewhere is answered by the guest's other NIC.
	NoDefaultRoute bool `json:"noDefaultRoute,omitempty"`
	// Hostname is DHCPv4 option 12.
	Hostname string `json:"hostname,omitempty"`
	// Subdomain, of one label or several, makes the guest's own domain: the Subdomain before the first search domain, of
	// DNS or of the resolv.conf that Phase2 follows. Beside a pod's resolv.conf, the subdomain of the pod makes
	// SUBDOMAIN.NAMESPACE.svc.cluster.local, where Kubernetes has the name of a host with that subdomain. The guest's
	// domain is DHCPv4 option 15 and the first search domain. Without a search domain there is none.
	Subdomain string `json:"subdomain,omitempty"`
	// LeaseSeconds is the lifetime of a lease; 0: infinite.
	LeaseSeconds uint32 `json:"leaseSeconds,omitempty"`
	// NTP are time servers: DHCPv4 option 42, DHCPv6 options 31 and 56.
	NTP []netip.Addr `json:"ntp,omitempty"`
	// TFTPServer is a name or an IPv4 address: DHCPv4 option 66 and siaddr or sname.
	TFTPServer string `json:"tftpServer,omitempty"`
	// BootFile is DHCPv4 option 67 and the file field.
	BootFile string `json:"bootFile,omitempty"`
	// BootFileURL is DHCPv6 option 59 (RFC 5970).
	BootFileURL string `json:"bootFileURL,omitempty"`
	// CaptivePortal is the URI of RFC 8910: DHCPv4 option 114 for a guest that asks for it, DHCPv6 option 103, and an
	// option of the router advertisements.
	CaptivePortal string `json:"captivePortal,omitempty"`
	// IPv6OnlySeconds is DHCPv4 option 108 (RFC 8925), for a guest that asks for it: such a guest uses no IPv4 for that
	// time.
	IPv6OnlySeconds uint32 `json:"ipv6OnlySeconds,omitempty"`
	// DHCPv4 are further options by their code, such as 43 (vendor-specific) and the private ones, 224 to 254 (RFC 3942).
	// Validate refuses options that have a field here, that are made from the addresses, or that belong to the protocol
	// itself.
	DHCPv4 map[uint8]Data `json:"dhcpv4,omitempty"`
	// DHCPv6 are further options of DHCPv6, such as 17 (vendor), 32, 82 and 83 (timers). Validate refuses the same ones as
	// for DHCPv4.
	DHCPv6 map[uint16]Data `json:"dhcpv6,omitempty"`
}

// Search returns the guest's search list beside a resolver configuration with these search domains: the domain that
// Subdomain makes, if there is one, and the domains as they are.
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
	// Model is the device's model in libvirt; empty: virtio-non-transitional.
	Model string `json:"model,omitempty"`
	// Driver is the backend, "qemu" or "vhost"; empty: libvirt chooses.
	Driver string `json:"driver,omitempty"`
	// BootOrder is the device's place among the boot devices, from 1; 0: the guest does not boot from it.
	BootOrder uint `json:"bootOrder,omitempty"`
	// ROM is the option ROM: "on", "off" or the absolute path of an image. Empty: on if BootOrder is set, else off.
	ROM string `json:"rom,omitempty"`
	// PCIAddress is the device's address in the guest, of the form 0000:01:00.0; empty: libvirt chooses.
	PCIAddress string `json:"pciAddress,omitempty"`
	// ACPIIndex is the index by which the guest can name the device, such as eno7 for 7; 0: none.
	ACPIIndex uint `json:"acpiIndex,omitempty"`
	// Alias is the device's name in libvirt. The prefix ua- is added if it is missing. Empty: libvirt chooses.
	Alias string `json:"alias,omitempty"`
	// LinkState is "up" or "down"; empty: libvirt's default, up.
	LinkState string `json:"linkState,omitempty"`
}
