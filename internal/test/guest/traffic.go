package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// pingInterval is the time between two echo requests.
const pingInterval = time.Second

// Ping sends an ICMP echo request each second until one is answered, and returns its round-trip time. Without a
// route to the address the error comes at once.
func (g *Guest) Ping(ctx context.Context, to netip.Addr) (time.Duration, error) {
	ctx, free := g.withGuestContext(ctx)
	defer free()
	rtt, err := g.ping(ctx, to)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
	if err != nil {
		return 0, fmt.Errorf("ping %v: %w", to, err)
	}
	return rtt, nil
}

func (g *Guest) ping(ctx context.Context, to netip.Addr) (time.Duration, error) {
	transport, network, request, reply := icmp.ProtocolNumber6, ipv6.ProtocolNumber, byte(header.ICMPv6EchoRequest), byte(header.ICMPv6EchoReply)
	if to.Is4() {
		transport, network, request, reply = icmp.ProtocolNumber4, ipv4.ProtocolNumber, byte(header.ICMPv4Echo), byte(header.ICMPv4EchoReply)
	}
	var queue waiter.Queue
	ep, terr := g.stack.NewEndpoint(transport, network, &queue)
	if terr != nil {
		return 0, fmt.Errorf("socket: %s", terr)
	}
	defer ep.Close()
	if terr := ep.Connect(fullAddress(netip.AddrPortFrom(to, 0))); terr != nil {
		return 0, fmt.Errorf("%s", terr)
	}
	defer context.AfterFunc(ctx, ep.Close)()
	conn := gonet.NewUDPConn(&queue, ep)

	// Type, code, checksum, identifier, sequence number, data: the same layout in RFC 792 and RFC 4443 section
	// 4.1. The stack sets checksum and identifier.
	echo := make([]byte, 8+56)
	echo[0] = request
	answer := make([]byte, 1<<16)
	var sent []time.Time
	for {
		binary.BigEndian.PutUint16(echo[6:], uint16(len(sent)))
		sent = append(sent, time.Now())
		if _, err := conn.Write(echo); err != nil {
			return 0, err
		}
		if err := conn.SetReadDeadline(time.Now().Add(pingInterval)); err != nil {
			return 0, err
		}
		for {
			n, err := conn.Read(answer)
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				break
			}
			if err != nil {
				return 0, err
			}
			if n != len(echo) || answer[0] != reply || !bytes.Equal(answer[8:n], echo[8:]) {
				continue
			}
			if number := int(binary.BigEndian.Uint16(answer[6:])); number < len(sent) {
				return time.Since(sent[number]), nil
			}
		}
	}
}

// DialTCP connects to an address. The stack chooses the source address.
func (g *Guest) DialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	ctx, free := g.withGuestContext(ctx)
	defer free()
	conn, err := gonet.DialContextTCP(ctx, g.stack, fullAddress(to), networkOf(to))
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if conn != nil {
			conn.Close()
		}
		return nil, fmt.Errorf("TCP connection to %v: %w", to, err)
	}
	return conn, nil
}

// DialUDP returns a connected UDP socket.
func (g *Guest) DialUDP(to netip.AddrPort) (net.Conn, error) {
	remote := fullAddress(to)
	conn, err := gonet.DialUDP(g.stack, nil, &remote, networkOf(to))
	if err != nil {
		return nil, fmt.Errorf("UDP socket to %v: %w", to, err)
	}
	return conn, nil
}

func networkOf(a netip.AddrPort) tcpip.NetworkProtocolNumber {
	if a.Addr().Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

// ListenTCP serves a port of all the guest's addresses until the guest is closed. Each connection receives the
// line
//
//	NAME sees PEER-ADDRESS:PORT at OWN-ADDRESS:PORT
//
// and then an echo of what it sends.
func (g *Guest) ListenTCP(port uint16) error {
	listener, err := gonet.ListenTCP(g.stack, tcpip.FullAddress{NIC: nicID, Port: port}, ipv6.ProtocolNumber)
	if err != nil {
		return fmt.Errorf("TCP port %d: %w", port, err)
	}
	g.tasks.Go(func() {
		defer listener.Close()
		defer context.AfterFunc(g.ctx, listener.Shutdown)()
		for {
			conn, err := listener.Accept()
			if err != nil {
				if g.ctx.Err() == nil {
					g.log.Error("TCP port ended", "port", port, "err", err)
				}
				return
			}
			g.tasks.Go(func() { g.serve(conn) })
		}
	})
	return nil
}

func (g *Guest) serve(conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(g.ctx, func() { conn.Close() })()
	_, err := fmt.Fprintf(conn, "%s sees %v at %v\n", g.config.Name, addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr()))
	if err == nil {
		_, err = io.Copy(conn, conn)
	}
	if err != nil && g.ctx.Err() == nil {
		g.log.Info("TCP connection ended", "peer", conn.RemoteAddr(), "err", err)
	}
}

// addrPort returns a with an IPv4 address where a has an IPv4-mapped IPv6 one.
func addrPort(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
