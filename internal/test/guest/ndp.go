package guest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/ndp"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// solicitWait is RTR_SOLICITATION_INTERVAL, the first wait of RFC 7559 section 2. It doubles each time.
const solicitWait = 4 * time.Second

var allRouters = netip.MustParseAddr("ff02::2")

// Advertisement is a router advertisement that the guest accepted.
type Advertisement struct {
	// Source is the router's link-local address.
	Source netip.Addr
	*ndp.RouterAdvertisement
}

// RouterSolicitation sends a router solicitation from the link-local address and returns the next router
// advertisement, solicited or not. The advertisement's default route, on-link prefixes, further routes, MTU and
// autonomous prefixes are in use then.
//
// RFC 4861 section 6.3.7, RFC 7559.
func (g *Guest) RouterSolicitation(ctx context.Context) (*Advertisement, error) {
	ctx, free := g.withGuestContext(ctx)
	defer free()
	source, err := g.linkLocal(ctx)
	if err != nil {
		return nil, fmt.Errorf("router solicitation: %w", err)
	}
	frame, err := g.solicitation(source)
	if err != nil {
		return nil, fmt.Errorf("router solicitation: %w", err)
	}
	g.mu.Lock()
	before := g.raNumber
	g.mu.Unlock()
	var ra *Advertisement
	arrived := func() bool {
		ra = g.ra
		return g.raNumber != before
	}
	for wait := solicitWait; ; wait *= 2 {
		if err := g.link.write(frame); err != nil {
			return nil, fmt.Errorf("router solicitation: %w", err)
		}
		turn, done := context.WithTimeout(ctx, wait)
		err := g.waitUntil(turn, arrived)
		done()
		if err == nil {
			return ra, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("router solicitation: no advertisement: %w", context.Cause(ctx))
		}
	}
}

// linkLocal waits until the guest's link-local address is no longer tentative, and returns it.
func (g *Guest) linkLocal(ctx context.Context) (netip.Addr, error) {
	a := g.config.MAC.LinkLocal()
	return a, g.waitForProbe(ctx, a)
}

// waitForProbe waits for the end of an IPv6 address's duplicate address detection, and returns its result:
// ErrDuplicate if another station has the address.
func (g *Guest) waitForProbe(ctx context.Context, a netip.Addr) error {
	var result error
	err := g.waitUntil(ctx, func() bool {
		var over bool
		result, over = g.probed[a]
		return over
	})
	if err != nil {
		return fmt.Errorf("duplicate address detection of %v: %w", a, err)
	}
	return result
}

func (g *Guest) solicitation(source netip.Addr) ([]byte, error) {
	mac := g.config.MAC
	message, err := ndp.MarshalMessageChecksum(&ndp.RouterSolicitation{
		Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: net.HardwareAddr(mac[:])}},
	}, source, allRouters)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, header.EthernetMinimumSize+header.IPv6MinimumSize, 128)
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: g.link.LinkAddress(),
		DstAddr: header.EthernetAddressFromMulticastIPv6Address(address(allRouters)),
		Type:    header.IPv6ProtocolNumber,
	})
	header.IPv6(frame[header.EthernetMinimumSize:]).Encode(&header.IPv6Fields{
		PayloadLength:     uint16(len(message)),
		TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit:          header.NDPHopLimit,
		SrcAddr:           address(source),
		DstAddr:           address(allRouters),
	})
	return append(frame, message...), nil
}

// parseAdvertisement returns nil if the frame is not a router advertisement that the stack accepts (RFC 4861
// section 6.1.2).
func parseAdvertisement(frame []byte) *Advertisement {
	if header.Ethernet(frame).Type() != header.IPv6ProtocolNumber {
		return nil
	}
	packet := frame[header.EthernetMinimumSize:]
	if len(packet) < header.IPv6MinimumSize || !header.IPv6(packet).IsValid(len(packet)) {
		return nil
	}
	ip := header.IPv6(packet)
	if ip.TransportProtocol() != header.ICMPv6ProtocolNumber || ip.HopLimit() != header.NDPHopLimit {
		return nil
	}
	message := header.ICMPv6(packet[header.IPv6MinimumSize:][:ip.PayloadLength()])
	if len(message) < header.ICMPv6HeaderSize+header.NDPRAMinimumSize ||
		message.Type() != header.ICMPv6RouterAdvert || message.Code() != 0 {
		return nil
	}
	source := fromAddress(ip.SourceAddress())
	sum := header.PseudoHeaderChecksum(header.ICMPv6ProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), uint16(len(message)))
	if checksum.Checksum(message, sum) != 0xffff || !source.IsLinkLocalUnicast() {
		return nil
	}
	parsed, err := ndp.ParseMessage(message)
	if err != nil {
		return nil
	}
	ra, ok := parsed.(*ndp.RouterAdvertisement)
	if !ok {
		return nil
	}
	return &Advertisement{Source: source, RouterAdvertisement: ra}
}

// applyAdvertisement applies those parts of an advertisement that the stack ignores.
func (g *Guest) applyAdvertisement(ra *Advertisement) {
	g.mu.Lock()
	for _, o := range ra.Options {
		if mtu, ok := o.(*ndp.MTU); ok && mtu.MTU >= header.IPv6MinimumMTU {
			g.raMTU = int(min(mtu.MTU, 1<<16))
		}
	}
	g.mu.Unlock()
	g.installRoutes()
	g.changeState(func() {
		g.ra = ra
		g.raNumber++
	})
}

// discovery is Guest as the stack's receiver of neighbour discovery events. The methods must not call the
// stack, so they only change the state.
type discovery Guest

var _ ipv6.NDPDispatcher = (*discovery)(nil)

// OnDuplicateAddressDetectionResult implements ipv6.NDPDispatcher.
func (d *discovery) OnDuplicateAddressDetectionResult(_ tcpip.NICID, a tcpip.Address, result stack.DADResult) {
	ip := fromAddress(a)
	(*Guest)(d).changeState(func() { d.probed[ip] = probeError(ip, result) })
}

// OnOffLinkRouteUpdated implements ipv6.NDPDispatcher.
func (d *discovery) OnOffLinkRouteUpdated(_ tcpip.NICID, to tcpip.Subnet, via tcpip.Address, p header.NDPRoutePreference) {
	r := route(to, via)
	(*Guest)(d).changeState(func() {
		d.offLink = append(without(d.offLink, r), offLinkRoute{r, p})
	})
}

// OnOffLinkRouteInvalidated implements ipv6.NDPDispatcher.
func (d *discovery) OnOffLinkRouteInvalidated(_ tcpip.NICID, to tcpip.Subnet, via tcpip.Address) {
	r := route(to, via)
	(*Guest)(d).changeState(func() { d.offLink = without(d.offLink, r) })
}

func without(routes []offLinkRoute, r Route) []offLinkRoute {
	return slices.DeleteFunc(routes, func(known offLinkRoute) bool { return known.Route == r })
}

// OnOnLinkPrefixDiscovered implements ipv6.NDPDispatcher.
func (d *discovery) OnOnLinkPrefixDiscovered(_ tcpip.NICID, s tcpip.Subnet) {
	(*Guest)(d).changeState(func() { d.onLink = append(d.onLink, prefix(s)) })
}

// OnOnLinkPrefixInvalidated implements ipv6.NDPDispatcher.
func (d *discovery) OnOnLinkPrefixInvalidated(_ tcpip.NICID, s tcpip.Subnet) {
	gone := prefix(s)
	(*Guest)(d).changeState(func() {
		d.onLink = slices.DeleteFunc(d.onLink, func(p netip.Prefix) bool { return p == gone })
	})
}

// OnAutoGenAddress implements ipv6.NDPDispatcher. This method and those below do nothing: the stack itself adds
// and removes such addresses, and the resolvers are in the Advertisement.
func (d *discovery) OnAutoGenAddress(tcpip.NICID, tcpip.AddressWithPrefix) stack.AddressDispatcher {
	return nil
}

// OnAutoGenAddressDeprecated implements ipv6.NDPDispatcher.
func (d *discovery) OnAutoGenAddressDeprecated(tcpip.NICID, tcpip.AddressWithPrefix) {}

// OnAutoGenAddressInvalidated implements ipv6.NDPDispatcher.
func (d *discovery) OnAutoGenAddressInvalidated(tcpip.NICID, tcpip.AddressWithPrefix) {}

// OnRecursiveDNSServerOption implements ipv6.NDPDispatcher.
func (d *discovery) OnRecursiveDNSServerOption(tcpip.NICID, []tcpip.Address, time.Duration) {}

// OnDNSSearchListOption implements ipv6.NDPDispatcher.
func (d *discovery) OnDNSSearchListOption(tcpip.NICID, []string, time.Duration) {}

// OnDHCPv6Configuration implements ipv6.NDPDispatcher.
func (d *discovery) OnDHCPv6Configuration(tcpip.NICID, ipv6.DHCPv6ConfigurationFromNDPRA) {}

// probeError returns nil if no other station has the address.
func probeError(a netip.Addr, result stack.DADResult) error {
	switch r := result.(type) {
	case *stack.DADSucceeded:
		return nil
	case *stack.DADDupAddrDetected:
		return fmt.Errorf("%v, held by %v: %w", a, r.HolderLinkAddress, ErrDuplicate)
	case *stack.DADError:
		return fmt.Errorf("duplicate address detection of %v: %s", a, r.Err)
	default:
		return fmt.Errorf("duplicate address detection of %v: aborted", a)
	}
}
