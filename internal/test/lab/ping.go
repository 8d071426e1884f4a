package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// pingInterval is the time between two echo requests.
const pingInterval = time.Second

// Ping sends an ICMP echo request each second until one is answered, and returns its round-trip time. Without a route
// to the address the error comes at once. The zone of a link-local address is the number of a link.
func (n Namespace) Ping(ctx context.Context, to netip.Addr) (time.Duration, error) {
	rtt, err := n.ping(ctx, to)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
	if err != nil {
		return 0, fmt.Errorf("ping %v: %w", to, err)
	}
	return rtt, nil
}

func (n Namespace) ping(ctx context.Context, to netip.Addr) (time.Duration, error) {
	network, protocol := "ip4:icmp", 1
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		network, protocol = "ip6:ipv6-icmp", 58
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var conn net.PacketConn
	err := n.Do(func() (err error) {
		conn, err = net.ListenPacket(network, "")
		return err
	})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	peer := &net.IPAddr{IP: to.WithZone("").AsSlice(), Zone: to.Zone()}
	var sent []time.Time
	answer := make([]byte, 1500)
	for {
		echo := icmp.Message{Type: request, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: len(sent), Data: make([]byte, 56)}}
		packet, err := echo.Marshal(nil) // the kernel makes the checksum of ICMPv6
		if err != nil {
			return 0, err
		}
		sent = append(sent, time.Now())
		if _, err := conn.WriteTo(packet, peer); err != nil {
			return 0, err
		}
		if err := conn.SetReadDeadline(time.Now().Add(pingInterval)); err != nil {
			return 0, err
		}
		for {
			size, from, err := conn.ReadFrom(answer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return 0, err
			}
			m, err := icmp.ParseMessage(protocol, answer[:size])
			if err != nil || m.Type != reply || !from.(*net.IPAddr).IP.Equal(peer.IP) {
				continue
			}
			if echo, ok := m.Body.(*icmp.Echo); ok && echo.ID == os.Getpid()&0xffff && echo.Seq < len(sent) {
				return time.Since(sent[echo.Seq]), nil
			}
		}
	}
}
