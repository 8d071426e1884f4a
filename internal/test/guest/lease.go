package guest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// Lease4 is a DHCPv4 lease.
type Lease4 struct {
	// Address is the guest's address, with the prefix length of the subnet mask.
	Address netip.Prefix
	// Server is the server identifier; renewals are sent to it.
	Server netip.Addr
	// Routes are the routes of the classless static route option in the option's order; without the
	// option, a default route through the first router. The route to Address's prefix is not listed.
	Routes []Route
	// DNS are the resolvers. Search are the domains of option 119, or else that of option 15.
	DNS    []netip.Addr
	Search []string
	// MTU is option 26; 0: no option. A value below 68 is not used (RFC 2132 section 5.1).
	MTU int
	// Duration is the lease time; 4294967295 s is infinite.
	Duration time.Duration
	// Message is the whole acknowledgement.
	Message *dhcpv4.DHCPv4

	offer *dhcpv4.DHCPv4
}

// Lease6 is a DHCPv6 lease.
type Lease6 struct {
	// Address is the guest's address, used as a /128. DHCPv6 has no prefix length: on-link prefixes
	// and routers come from router advertisements.
	Address netip.Addr
	// DNS are the resolvers. Search are the search domains.
	DNS    []netip.Addr
	Search []string
	// Preferred and Valid are the address's lifetimes; 4294967295 s is infinite.
	Preferred, Valid time.Duration
	// Message is the whole reply.
	Message *dhcpv6.Message
}

// Route is one route of the guest.
type Route struct {
	Destination netip.Prefix
	// Gateway is the next hop; zero: the destination is on the link.
	Gateway netip.Addr
}

// String returns the route as ip-route(8) prints it, without the device: "default via 10.0.2.1" or
// "10.0.2.0/24".
func (r Route) String() string {
	text := r.Destination.String()
	if r.Destination.Bits() == 0 {
		text = "default"
	}
	if r.Gateway.IsValid() {
		text += " via " + r.Gateway.String()
	}
	return text
}

func parseLease4(ack *dhcpv4.DHCPv4) (*Lease4, error) {
	ones, bits := ack.SubnetMask().Size()
	if bits != 32 {
		return nil, errors.New("acknowledgement without a subnet mask")
	}
	l := &Lease4{
		Address:  netip.PrefixFrom(fromIP(ack.YourIPAddr), ones),
		Server:   fromIP(ack.ServerIdentifier()),
		DNS:      fromIPs(ack.DNS()),
		Duration: ack.IPAddressLeaseTime(0),
		Message:  ack,
	}
	if l.Duration == 0 {
		return nil, errors.New("acknowledgement without a lease time")
	}
	switch {
	case ack.Options.Has(dhcpv4.OptionClasslessStaticRoute):
		for _, r := range ack.ClasslessStaticRoute() {
			ones, _ := r.Dest.Mask.Size()
			route := Route{Destination: netip.PrefixFrom(fromIP(r.Dest.IP), ones).Masked()}
			if via := fromIP(r.Router); !via.IsUnspecified() {
				route.Gateway = via
			}
			l.Routes = append(l.Routes, route)
		}
		if l.Routes == nil {
			return nil, errors.New("acknowledgement with a malformed classless static route option")
		}
	case len(ack.Router()) > 0:
		l.Routes = []Route{{Destination: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: fromIP(ack.Router()[0])}}
	}
	if search := ack.DomainSearch(); search != nil {
		l.Search = search.Labels
	} else if domain := ack.DomainName(); domain != "" {
		l.Search = []string{domain}
	}
	if ack.Options.Has(dhcpv4.OptionInterfaceMTU) {
		mtu, err := dhcpv4.GetUint16(dhcpv4.OptionInterfaceMTU, ack.Options)
		if err != nil {
			return nil, fmt.Errorf("acknowledgement with a malformed MTU option: %w", err)
		}
		l.MTU = int(mtu)
	}
	return l, nil
}

func parseLease6(m *dhcpv6.Message) (*Lease6, error) {
	association := m.Options.OneIANA()
	if association == nil || association.Options.OneAddress() == nil {
		return nil, fmt.Errorf("no address in %v", m)
	}
	a := association.Options.OneAddress()
	l := &Lease6{Address: fromIP(a.IPv6Addr), DNS: fromIPs(m.Options.DNS()), Preferred: a.PreferredLifetime, Valid: a.ValidLifetime, Message: m}
	if search := m.Options.DomainSearchList(); search != nil {
		l.Search = search.Labels
	}
	return l, nil
}

func fromIP(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip) // zero if there is none
	return a.Unmap()
}

func fromIPs(ips []net.IP) []netip.Addr {
	var addresses []netip.Addr
	for _, ip := range ips {
		addresses = append(addresses, fromIP(ip))
	}
	return addresses
}
