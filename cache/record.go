// Package cache is the contract between the phases: the record of one network interface, which
// the privileged Phase1 leaves in a directory and the unprivileged Phase2 reads.
//
// A record is a document of plain values with a schema version. It says everything that Phase2
// needs to answer the guest and to describe the interface to libvirt, and nothing else. It holds
// no structs of other libraries, so another program version in another container can read it.
package cache

import (
	"net/netip"
	"slices"
)

// Version is the schema that this package writes and the only one it reads.
const Version = 1

// The bindings a record can name.
const (
	BindingBridge     = "bridge"
	BindingRedirect   = "redirect"
	BindingMasquerade = "masquerade"
	BindingMacvtap    = "macvtap"
	BindingSRIOV      = "sriov"
	BindingPasst      = "passt"
)

// What translates.
const (
	FirewallNFTables       = "nftables"
	FirewallIPTablesNFT    = "iptables-nft"
	FirewallIPTablesLegacy = "iptables-legacy"
)

// Limits that the kernel sets.
const (
	MaxQueues = 256   // MAX_TAP_QUEUES
	MinMTU    = 68    // RFC 791
	MaxMTU    = 65521 // a tap's: 65535 less an Ethernet header
	MaxVLAN   = 4094  // IEEE 802.1Q table 9-2
)

// Record is one interface of the guest.
type Record struct {
	// Version is the schema, always Version.
	Version int `json:"version"`
	// Name is the name under which the namespace knows the interface, such as eth0.
	Name string `json:"name"`
	// Binding is how the guest is attached. Behind BindingMacvtap, BindingSRIOV and BindingPasst there
	// is no responder: ResponderTap, IPv4, IPv6, Neighbours, DNS and Options say nothing.
	Binding string `json:"binding"`
	// Firewall is what translates behind BindingMasquerade: FirewallNFTables, FirewallIPTablesNFT or
	// FirewallIPTablesLegacy. Empty: nothing does.
	Firewall string `json:"firewall,omitempty"`
	// Tap is the guest's tap: persistent, owned by the launcher's user, with vnet_hdr and
	// without packet information. Behind BindingMacvtap it is the NIC itself, which is opened by
	// /dev/tapINDEX. Empty: there is none, behind BindingSRIOV and BindingPasst.
	Tap string `json:"tap,omitempty"`
	// SRIOV is what the guest has behind BindingSRIOV; nil behind another one.
	SRIOV *SRIOV `json:"sriov,omitempty"`
	// Passt is for passt(1) behind BindingPasst; nil behind another one.
	Passt *Passt `json:"passt,omitempty"`
	// Queues is the number of queue pairs of Tap, 1 to MaxQueues. With more than one it has
	// to be opened with IFF_MULTI_QUEUE. Without a Tap it is 1.
	Queues int `json:"queues"`
	// ResponderTap is the responder's own tap, owned by the launcher's user, on which the guest's
	// DHCP, DHCPv6, router and listed neighbour solicitations arrive and from which frames go
	// to the guest. Empty: the guest is served by somebody else, or by nobody.
	ResponderTap string `json:"responderTap,omitempty"`
	// ResponderMAC is the responder's Ethernet address, the source of its link-local address and of
	// its DHCPv6 identifier. It is the same after every Setup of the same interface.
	ResponderMAC MAC `json:"responderMAC,omitzero"`
	// MAC is the guest's Ethernet address.
	MAC MAC `json:"mac"`
	// MTU is the guest's, in octets of IP, MinMTU to MaxMTU; 0, behind BindingSRIOV only: not known.
	MTU int `json:"mtu"`
	// IPv4 is nil if the guest gets no IPv4 address.
	IPv4 *IPv4 `json:"ipv4,omitempty"`
	// IPv6 is nil if the guest gets no IPv6 address.
	IPv6 *IPv6 `json:"ipv6,omitempty"`
	// Neighbours are answered to the guest by the responder, ARP and neighbour solicitations.
	Neighbours []Neighbour `json:"neighbours,omitempty"`
	// DNS is nil if Phase2 is to take it from a resolv.conf.
	DNS *DNS `json:"dns,omitempty"`
	// Options is what else the responder tells the guest.
	Options Options `json:"options,omitzero"`
	// Device is how the guest sees its network device.
	Device Device `json:"device,omitzero"`
	// Warnings are sentences about what could not be handed to the guest.
	Warnings []string `json:"warnings,omitempty"`
}

// SRIOV is a virtual function of a network card that the guest gets.
type SRIOV struct {
	// PCIAddress is the function's on the host, of the form 0000:03:10.1.
	PCIAddress string `json:"pciAddress"`
	// VLAN is the one in which the card puts the guest, 1 to MaxVLAN; 0: none.
	VLAN uint16 `json:"vlan,omitempty"`
	// Managed: libvirt binds the function to vfio-pci and gives it back to its driver. Otherwise
	// somebody has to bind it before.
	Managed bool `json:"managed,omitempty"`
}

// Passt is how passt(1) is to be started, as the user of the launcher, on the interface Name.
type Passt struct {
	// Forwards are the ports that passt takes for the guest; none: nothing reaches the guest.
	Forwards []Forward `json:"forwards,omitempty"`
}

// Forward is one port, or several in a row.
type Forward struct {
	Protocol string `json:"protocol"` // "tcp" or "udp"
	First    uint16 `json:"first"`    // 1 to 65535
	Last     uint16 `json:"last"`     // First to 65535
	Guest    uint16 `json:"guest"`    // that of the guest which First becomes; those after it follow
}

// IPv4 is what DHCPv4 tells the guest.
type IPv4 struct {
	// Address is the guest's, with the prefix length it is told: 32 where the namespace had no
	// connected route for the address, or where the gateway lies outside of it.
	Address netip.Prefix `json:"address"`
	// Server is the server identifier (RFC 2132 section 9.7), an address on the link. If it is none of
	// the guest's gateways, Neighbours lists it.
	Server netip.Addr `json:"server"`
	// Routes are the guest's, in the order in which a guest can install them: routes on the link
	// first, then routes with a gateway, the default route last. Each gateway, and Server, is in the
	// network of Address or in the destination of a route on the link. The route that Address
	// implies is not among them.
	Routes []Route `json:"routes,omitempty"`
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

// IPv6 is what DHCPv6 and router advertisements tell the guest.
type IPv6 struct {
	// Address is the one that DHCPv6 leases, without a prefix.
	Address netip.Addr `json:"address"`
	// OnLink are the prefixes that the guest may take to be on its link.
	OnLink []netip.Prefix `json:"onLink,omitempty"`
	// Router is nil if the guest has no next hop. Without it there are advertisements still,
	// with a router lifetime of zero, as they start DHCPv6 in the guest.
	Router *Router `json:"router,omitempty"`
}

// Router is the guest's next hop, in whose name the responder advertises.
type Router struct {
	// Address is the link-local source of the advertisements, and with that the next hop.
	Address netip.Addr `json:"address"`
	// MAC goes into the source link-layer option; zero: the guest asks for it by itself.
	MAC MAC `json:"mac,omitzero"`
	// Default says that the namespace has a default route through this router.
	Default bool `json:"default"`
	// Routes are the further destinations behind it (RFC 4191 section 2.3).
	Routes []netip.Prefix `json:"routes,omitempty"`
}

// Neighbour is a station that cannot, or should not, answer for itself.
type Neighbour struct {
	Address netip.Addr `json:"address"`
	MAC     MAC        `json:"mac"`
}

// DNS is the guest's resolver configuration. Both may be empty.
type DNS struct {
	Servers []netip.Addr `json:"servers,omitempty"`
	Search  []string     `json:"search,omitempty"`
}

// Options is what the responder tells the guest besides addresses. Zero values are not told.
type Options struct {
	// NoResponder: guestwire does not answer the guest. Such a record has no ResponderTap.
	NoResponder bool `json:"noResponder,omitempty"`
	// Hostname is DHCPv4 option 12.
	Hostname string `json:"hostname,omitempty"`
	// LeaseSeconds is the lifetime of a lease; 0: infinite.
	LeaseSeconds uint32 `json:"leaseSeconds,omitempty"`
	// NTP are time servers: DHCPv4 option 42, DHCPv6 option 56.
	NTP []netip.Addr `json:"ntp,omitempty"`
	// TFTPServer is a name or an IPv4 address: DHCPv4 option 66 and siaddr or sname.
	TFTPServer string `json:"tftpServer,omitempty"`
	// BootFile is DHCPv4 option 67 and the file field.
	BootFile string `json:"bootFile,omitempty"`
	// BootFileURL is DHCPv6 option 59 (RFC 5970).
	BootFileURL string `json:"bootFileURL,omitempty"`
	// CaptivePortal is the URI of RFC 8910: DHCPv4 option 114, DHCPv6 option 103, and one of the
	// router advertisements.
	CaptivePortal string `json:"captivePortal,omitempty"`
	// IPv6OnlySeconds is DHCPv4 option 108 (RFC 8925), told to a guest that asks for it: for so
	// long it does without IPv4.
	IPv6OnlySeconds uint32 `json:"ipv6OnlySeconds,omitempty"`
	// DHCPv4 are further options by their code, such as 43 (vendor-specific) and the private
	// ones, 224 to 254 (RFC 3942). Those that have a field of their own, that come of the
	// addresses, or that belong to the protocol itself are refused.
	DHCPv4 map[uint8]Data `json:"dhcpv4,omitempty"`
	// DHCPv6 are the same for DHCPv6, such as 17 (vendor), 32, 82 and 83 (timers).
	DHCPv6 map[uint16]Data `json:"dhcpv6,omitempty"`
}

// Device is how the guest sees its network device, in libvirt's terms
// (https://libvirt.org/formatdomain.html#network-interfaces).
type Device struct {
	// Model is libvirt's; empty: virtio-non-transitional.
	Model string `json:"model,omitempty"`
	// Driver is the backend, "qemu" or "vhost"; empty: libvirt chooses.
	Driver string `json:"driver,omitempty"`
	// BootOrder counts from 1; 0: the device is not booted from.
	BootOrder uint `json:"bootOrder,omitempty"`
	// ROM is the option ROM: "on", "off" or the absolute path of an image. Empty: on if
	// BootOrder is set, else off.
	ROM string `json:"rom,omitempty"`
	// PCIAddress has the form 0000:01:00.0; empty: libvirt chooses.
	PCIAddress string `json:"pciAddress,omitempty"`
	// ACPIIndex is the stable index that names the device in the guest; 0: none.
	ACPIIndex uint `json:"acpiIndex,omitempty"`
	// Alias is the device's in libvirt, with the prefix ua- (added if it is missing); empty: libvirt chooses.
	Alias string `json:"alias,omitempty"`
	// LinkState is "up" or "down"; empty: libvirt's default, up.
	LinkState string `json:"linkState,omitempty"`
}

// Default says that the route is one for everything.
func (r Route) Default() bool { return r.Destination.IsValid() && r.Destination.Bits() == 0 }
