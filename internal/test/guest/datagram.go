package guest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/ports"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// ListenUDP answers datagrams to a port of all the guest's addresses until the guest is closed. The answer to a datagram
// is the datagram itself, and over its first octets, as far as it is long enough, the line
//
//	NAME sees PEER-ADDRESS:PORT
func (g *Guest) ListenUDP(port uint16) error {
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if err := g.answerDatagrams(netip.AddrPortFrom(any, port), netip.Addr{}); err != nil {
			return err
		}
	}
	return nil
}

// ListenGroup joins a multicast group and answers datagrams to a port as ListenUDP does, from the guest's own address.
func (g *Guest) ListenGroup(group netip.AddrPort) error {
	any := netip.IPv6Unspecified()
	if group.Addr().Is4() {
		any = netip.IPv4Unspecified()
	}
	return g.answerDatagrams(netip.AddrPortFrom(any, group.Port()), group.Addr())
}

// answerDatagrams starts the answers of a socket. A valid group is joined.
func (g *Guest) answerDatagrams(at netip.AddrPort, group netip.Addr) error {
	var queue waiter.Queue
	ep, terr := g.stack.NewEndpoint(udp.ProtocolNumber, networkOf(at), &queue)
	if terr != nil {
		return fmt.Errorf("UDP port %d: socket: %s", at.Port(), terr)
	}
	ep.SocketOptions().SetV6Only(true)
	terr = ep.Bind(tcpip.FullAddress{NIC: nicID, Port: at.Port()})
	if terr == nil && group.IsValid() {
		terr = ep.SetSockOpt(&tcpip.AddMembershipOption{NIC: nicID, MulticastAddr: address(group)})
	}
	if terr != nil {
		ep.Close()
		return fmt.Errorf("UDP port %d: %s", at.Port(), terr)
	}
	conn := gonet.NewUDPConn(&queue, ep)
	g.tasks.Go(func() {
		defer conn.Close()
		defer context.AfterFunc(g.ctx, func() { conn.Close() })()
		b := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(b)
			if g.ctx.Err() != nil {
				return
			}
			if err != nil {
				continue // an ICMP error about an earlier answer
			}
			copy(b[:n], fmt.Sprintf("%s sees %v\n", g.config.Name, from))
			if _, err := conn.WriteTo(b[:n], from); err != nil {
				g.log.Info("datagram not answered", "peer", from, "err", err)
			}
		}
	})
	return nil
}

// OpenUDP returns an unconnected UDP socket of the family of an address, which may be a multicast group's: the guest
// sends to groups with one hop.
func (g *Guest) OpenUDP(family netip.Addr) (net.PacketConn, error) {
	conn, err := gonet.DialUDP(g.stack, &tcpip.FullAddress{NIC: nicID}, nil, networkOf(netip.AddrPortFrom(family, 0)))
	if err != nil {
		return nil, fmt.Errorf("UDP socket: %w", err)
	}
	return conn, nil
}

// AskUnfragmented sends a datagram of the guest's MTU that no router may fragment (DF), to a port that answers as
// ListenUDP does. If a router reports that the packet is too big, the guest sends one of the reported size. AskUnfragmented
// returns the size in octets of IP that was answered, and the answer's first line.
//
// The stack's own UDP sockets have no path MTU discovery (RFC 1191, RFC 8201).
func (g *Guest) AskUnfragmented(ctx context.Context, to netip.AddrPort) (mtu int, answer string, err error) {
	ctx, free := g.withGuestContext(ctx)
	defer free()
	mtu, answer, err = g.askUnfragmented(ctx, to)
	if err != nil {
		return 0, "", fmt.Errorf("unfragmented UDP to %v: %w", to, err)
	}
	return mtu, answer, nil
}

func (g *Guest) askUnfragmented(ctx context.Context, to netip.AddrPort) (int, string, error) {
	network := networkOf(to)
	route, terr := g.stack.FindRoute(nicID, tcpip.Address{}, address(to.Addr()), network, false)
	if terr != nil {
		return 0, "", fmt.Errorf("%s", terr)
	}
	defer route.Release()
	p := &prober{answers: make(chan string, 1), tooBig: make(chan uint32, 1)}
	networks := []tcpip.NetworkProtocolNumber{network}
	// A port that is taken, by a probe at the same time, is no reason to fail.
	id := stack.TransportEndpointID{LocalAddress: route.LocalAddress(), RemoteAddress: route.RemoteAddress(), RemotePort: to.Port()}
	for id.LocalPort = 30000; ; id.LocalPort++ {
		terr := g.stack.RegisterTransportEndpoint(networks, udp.ProtocolNumber, id, p, ports.Flags{}, nicID)
		if terr == nil {
			break
		}
		if _, taken := terr.(*tcpip.ErrPortInUse); !taken {
			return 0, "", fmt.Errorf("port %d: %s", id.LocalPort, terr)
		}
	}
	defer g.stack.UnregisterTransportEndpoint(networks, udp.ProtocolNumber, id, p, ports.Flags{}, nicID)
	headers := header.IPv4MinimumSize
	if network == header.IPv6ProtocolNumber {
		headers = header.IPv6MinimumSize
	}
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for size := g.MTU(); ; {
		if err := writeUnfragmented(route, id, size-headers); err != nil {
			return 0, "", err
		}
		select {
		case answer := <-p.answers:
			return size, answer, nil
		case reported := <-p.tooBig:
			size = min(size, int(reported)+headers)
		case <-again.C: // a lost packet
		case <-ctx.Done():
			return 0, "", fmt.Errorf("no answer to a packet of %d octets: %w", size, context.Cause(ctx))
		}
	}
}

// writeUnfragmented sends a UDP packet of a length, with its header.
func writeUnfragmented(route *stack.Route, id stack.TransportEndpointID, length int) error {
	b := make([]byte, length)
	u := header.UDP(b)
	u.Encode(&header.UDPFields{SrcPort: id.LocalPort, DstPort: id.RemotePort, Length: uint16(length)})
	sum := route.PseudoHeaderChecksum(udp.ProtocolNumber, uint16(length))
	u.SetChecksum(^checksum.Checksum(b, sum))
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(route.MaxHeaderLength()), Payload: buffer.MakeWithData(b),
	})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber = udp.ProtocolNumber
	if terr := route.WritePacket(stack.NetworkHeaderParams{Protocol: udp.ProtocolNumber, TTL: 64, DF: true}, pkt); terr != nil {
		return fmt.Errorf("%s", terr)
	}
	return nil
}

// prober receives what comes back for the datagrams of askUnfragmented.
type prober struct {
	answers chan string
	tooBig  chan uint32 // the MTU of the next hop, as a router reports it, less the IP header
}

// HandlePacket implements stack.TransportEndpoint.
func (p *prober) HandlePacket(_ stack.TransportEndpointID, pkt *stack.PacketBuffer) {
	line, _, _ := strings.Cut(string(pkt.Data().AsRange().ToSlice()), "\n")
	select {
	case p.answers <- line:
	default: // an answer to a packet that was sent again
	}
}

// HandleError implements stack.TransportEndpoint.
func (p *prober) HandleError(err stack.TransportError, _ *stack.PacketBuffer) {
	if err.Kind() != stack.PacketTooBigTransportError {
		return
	}
	select {
	case p.tooBig <- err.Info():
	default:
	}
}

// Abort implements stack.TransportEndpoint.
func (*prober) Abort() {}

// Wait implements stack.TransportEndpoint.
func (*prober) Wait() {}
