package infra

import (
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/privatenet"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Masquerade makes the guest a private host behind the NIC's addresses, by NAT. The guest gets the families in which
// the NIC has a global address. A NIC without a global address is a [*RefusedError].
//
// The guest's packets leave from the NIC's address that the default route names (ip-route(8), src), if it has no
// lifetime. Where another address of the NIC is the namespace's source, or none is named, the kernel's masquerade
// chooses.
type Masquerade struct {
	// IPv4 and IPv6 are the guest's networks: IPv4 is /8 to /30, IPv6 is /8 to /126. Zero:
	// 10.0.2.0/24 and fd10:0:2::/120.
	//
	// ErrCollision: the namespace reaches the network already, or the Spec names a server in it
	// that is not the gateway. If Guest has an IPv4 address, the IPv4 network may be one that
	// the namespace reaches.
	IPv4 netip.Prefix `json:"ipv4,omitzero"`
	IPv6 netip.Prefix `json:"ipv6,omitzero"`

	// Guest and Gateway are addresses in these networks, at most one of each family. They are
	// for an image or a snapshot that has addresses baked in. If a family is missing, gateway
	// and guest get the network's first addresses, in this order.
	//
	//	{"masquerade": {"ipv4": "169.254.0.20/30",
	//	  "guest": ["169.254.0.21"], "gateway": ["169.254.0.22"]}}
	//
	// With an IPv4 address in Guest, the network may be one that the namespace reaches, such as
	// the NIC's. The guest reaches all of that network. Neither guest nor namespace reach a
	// station that has the guest's address. ErrCollision: the namespace itself needs the
	// address, or one of its links answers ARP for others (proxy_arp).
	Guest   []netip.Addr `json:"guest,omitempty"`
	Gateway []netip.Addr `json:"gateway,omitempty"`

	// MAC is the guest's. Zero: computed from the NIC's name and the Spec's Guest, or from the
	// NIC's name and MAC if the Spec has no Guest.
	MAC cache.MAC `json:"mac,omitzero"`

	// NICMAC gives the guest the NIC's MAC. Leave MAC out then. A guest that moves keeps the
	// MAC that it has.
	NICMAC bool `json:"nicMAC,omitempty"`

	// GatewayMAC is the MAC of the guest's gateway, from which the gateway's link-local address
	// is made. Zero: 02:00:00:00:00:00 in every namespace, so that a guest that moves keeps its
	// neighbour tables.
	GatewayMAC cache.MAC `json:"gatewayMAC,omitzero"`

	// Ports are forwarded to the guest. Nil: everything, of every protocol. An empty list:
	// nothing (in Go, one that is not nil).
	//
	// TCP connections that are open at Setup stay with the namespace's process. Running UDP
	// flows switch to the guest, unless the process sends first, and back to the process at
	// Teardown. If a later Setup removes a port, what others have opened to the guest stays
	// open.
	Ports []Ports `json:"ports,omitzero"`

	// Excluded are ports that stay the namespace's own. They matter if Ports is nil, or if
	// Sidecar is set. A port cannot be both in Ports and in Excluded.
	Excluded []Ports `json:"excluded,omitempty"`

	// Loopback also forwards what the namespace's own processes send to 127.0.0.1 and ::1. The
	// guest sees the gateway as the source.
	Loopback bool `json:"loopback,omitempty"`

	// Sidecar is for the proxies of a service mesh in the namespace. Nil: there are none.
	Sidecar *Sidecar `json:"sidecar,omitempty"`

	// MaxConnections is the most connections that the guest may have open, and the most that
	// others may have open to it. 0: DefaultMaxConnections. At most 1048576.
	//
	// In each direction it is also the most new TCP connections a minute, because the kernel
	// keeps an ended connection for two minutes. The first packet of a connection above the
	// limit is dropped.
	//
	// Under iptables each family has its own limit, and the limit a minute needs nf_tables in
	// addition.
	MaxConnections int `json:"maxConnections,omitempty"`

	// Firewall is the program that translates. Empty: nftables, or iptables-legacy if the
	// kernel has no nf_tables. A program of iptables must be installed, for both families. Its
	// own tables and built-in chains stay after Teardown.
	Firewall cache.Firewall `json:"firewall,omitempty"`
}

// Sidecar leaves what comes from the network to proxies in the namespace, whose own rules catch it. The proxies reach
// the guest at the NIC's addresses. Under Masquerade, name the proxies' ports in Masquerade.Excluded.
type Sidecar struct {
	// Sources are loopback addresses from which the proxies connect to the guest, such as
	// Istio's 127.0.0.6 and ::6. The guest sees the gateway as the source. If
	// Masquerade.Loopback is set, it covers 127.0.0.0/8 and ::1: they need not be named.
	Sources []netip.Addr `json:"sources,omitempty"`
}

// validate checks the sources; nil is valid. Field begins the name of the binding's fields.
func (s *Sidecar) validate(field string) error {
	if s == nil {
		return nil
	}
	for i, a := range s.Sources {
		if !a.IsValid() || a.Is4() && !a.IsLoopback() || a.Is6() && (a.Is4In6() || a.Zone() != "") {
			return &cache.FieldError{Field: fmt.Sprintf("%ssidecar.sources[%d]", field, i), Reason: fmt.Sprintf("%v, want an address of the namespace's loopback such as 127.0.0.6", a)}
		}
	}
	return nil
}

// DefaultMaxConnections is the limit of a Masquerade or Routed without MaxConnections. With it, guest and peers fill at
// most half of the kernel's usual table of 262144 connections. In each direction that is 16384 open connections, 32768
// that ended within the last two minutes, in which the kernel keeps them, and a burst of 16384.
const DefaultMaxConnections = 16384

func (Masquerade) Kind() cache.Kind            { return cache.BindingMasquerade }
func (Masquerade) validateGuard(g Guard) error { return g.carriesIP(cache.BindingMasquerade) }

func (b Masquerade) network() privatenet.Network {
	return privatenet.Network{IPv4: b.IPv4, IPv6: b.IPv6, Guest: b.Guest, Gateway: b.Gateway}
}

const maxConnections = 1 << 20

func (b Masquerade) validate() error {
	const field = "binding.masquerade."
	switch b.Firewall {
	case "", cache.FirewallNFTables, cache.FirewallIPTablesNFT, cache.FirewallIPTablesLegacy:
	default:
		return &cache.FieldError{Field: field + "firewall", Reason: fmt.Sprintf("%q, want %q, %q or %q",
			b.Firewall, cache.FirewallNFTables, cache.FirewallIPTablesNFT, cache.FirewallIPTablesLegacy)}
	}
	if err := checkNetwork(field+"ipv4", b.IPv4, privatenet.DefaultIPv4, 30, "network, gateway, guest and broadcast"); err != nil {
		return err
	}
	if err := checkNetwork(field+"ipv6", b.IPv6, privatenet.DefaultIPv6, 126, "the routers' anycast address, gateway and guest"); err != nil {
		return err
	}
	if err := b.validateEnds(field); err != nil {
		return err
	}
	if err := checkPorts(field+"ports", b.Ports); err != nil {
		return err
	}
	if err := checkExcluded(field, b.Excluded); err != nil {
		return err
	}
	for i, p := range b.Excluded {
		for j, o := range b.Ports {
			if overlap(p, o) {
				return &cache.FieldError{Field: fmt.Sprintf("%sexcluded[%d]", field, i), Reason: fmt.Sprintf("%v is forwarded as well, by ports[%d], %v", p, j, o)}
			}
		}
	}
	if err := checkMaxConnections(field, b.MaxConnections); err != nil {
		return err
	}
	if err := b.Sidecar.validate(field); err != nil {
		return err
	}
	if err := checkStation(field+"gatewayMAC", b.GatewayMAC); err != nil {
		return err
	}
	if b.NICMAC && !b.MAC.IsZero() {
		return &cache.FieldError{Field: field + "mac", Reason: fmt.Sprintf("%v, but nicMAC gives the guest the NIC's: want one of the two", b.MAC)}
	}
	if !b.GatewayMAC.IsZero() && b.GatewayMAC == b.MAC {
		return &cache.FieldError{Field: field + "gatewayMAC", Reason: fmt.Sprintf("%v is the guest's: want another one", b.GatewayMAC)}
	}
	return checkStation(field+"mac", b.MAC)
}

// routedOwn are the namespace's own addresses behind Routed.
var routedOwn = []netip.Addr{netip.AddrFrom4([4]byte{169, 254, 75, 1}), netip.MustParseAddr("fd00:a9fe:4b01::1")}

// validateEnds checks the addresses of the guest and its gateway.
func (b Masquerade) validateEnds(field string) error {
	for _, of := range []struct {
		field string
		list  []netip.Addr
	}{{field + "guest", b.Guest}, {field + "gateway", b.Gateway}} {
		for i, a := range of.list {
			if err := b.validateEnd(of.list[:i], a); err != "" {
				return &cache.FieldError{Field: fmt.Sprintf("%s[%d]", of.field, i), Reason: fmt.Sprintf("%v %s", a, err)}
			}
		}
	}
	for _, version := range ip.Both {
		guest, gateway := b.network().Ends(version)
		if own := privatenet.OfVersion(routedOwn, version); guest.Addr() == own || gateway == own {
			return &cache.FieldError{Field: fmt.Sprintf("%sipv%d", field, version),
				Reason: fmt.Sprintf("%v is the namespace's own under the routed binding: want other addresses in guest and gateway", own)}
		}
	}
	return nil
}

// validateEnd is what is wrong with the address of the guest or the gateway, after others of the same list; empty:
// nothing.
func (b Masquerade) validateEnd(others []netip.Addr, a netip.Addr) string {
	if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
		return "is no address, want one such as 10.0.2.10"
	}
	version := ip.Of(a)
	guest, gateway := b.network().Ends(version)
	network := b.network().Prefix(version)
	switch {
	case privatenet.OfVersion(others, version).IsValid():
		return fmt.Sprintf("is a second one of %v: want one of each version", version)
	case !network.Contains(a):
		return fmt.Sprintf("is not in %v: want an address in it, or another network in ipv%d", network, version)
	case a == network.Addr() && version == 6:
		return fmt.Sprintf("is the routers' anycast address of %v: want another one", network)
	case a == network.Addr():
		return fmt.Sprintf("is the address of the network %v: want another one", network)
	case version == 4 && !network.Contains(a.Next()):
		return fmt.Sprintf("is the broadcast address of %v: want another one", network)
	case guest.Addr() == gateway:
		return "is both the guest's and the gateway's: want two addresses"
	}
	return ""
}

// checkNetwork checks the guest's network of one family, that of the example; zero is valid. Addresses name those that
// a network of maxBits has room for. The anycast address of IPv6 is the first one: RFC 4291 section 2.6.1.
func checkNetwork(field string, n, example netip.Prefix, maxBits int, addresses string) error {
	if n == (netip.Prefix{}) {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return &cache.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	a := n.Addr()
	switch {
	case a.Is4() != example.Addr().Is4() || a.Is4In6() || a.Zone() != "":
		return refuse("%v is of another family, want one like %v", n, example)
	case !n.IsValid():
		return refuse("%v is no network, want one like %v", n, example)
	case n.Bits() > maxBits:
		return refuse("%v is too small: %s need at least a /%d", n, addresses, maxBits)
	case n != n.Masked():
		return refuse("%v has host bits, want %v", n, n.Masked())
	case n.Bits() < syntax.MinNetwork || a.IsMulticast() || a.IsLoopback() || a.IsUnspecified() || a.Is6() && a.IsLinkLocalUnicast():
		return refuse("%v is no network for hosts, want one like %v", n, example)
	}
	return nil
}

// checkExcluded checks ports that stay the namespace's.
func checkExcluded(field string, list []Ports) error {
	if err := checkPorts(field+"excluded", list); err != nil {
		return err
	}
	for i, p := range list {
		if p.Guest != 0 {
			return &cache.FieldError{Field: fmt.Sprintf("%sexcluded[%d]", field, i), Reason: fmt.Sprintf("%v: what stays the namespace's becomes no other port", p)}
		}
	}
	return nil
}
