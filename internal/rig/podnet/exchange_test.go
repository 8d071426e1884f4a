package podnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// protocol is what a question is asked with.
type protocol string

const (
	tcp         protocol = "TCP"             // a connection, and 20000 octets back and forth
	udp         protocol = "UDP"             // a short datagram
	full        protocol = "full packets"    // a datagram of the pod's MTU, which IPv6 fragments once it knows a smaller one of the path
	fragments   protocol = "fragments"       // a datagram of the size fragmented
	sctpInit    protocol = "SCTP"            // INIT and INIT ACK
	unreachable protocol = "ICMP errors"     // a datagram to a closed port
	pathMTU     protocol = "path MTU"        // TCP and UDP through a router with a smaller MTU behind it
	multicast   protocol = "multicast"       // a datagram to a group that the other host has joined, on the link
	standing    protocol = "older exchanges" // UDP from a socket that has asked the process before Setup
)

// protocols are all, in the order of docs/reference/networks.md.
var protocols = []protocol{tcp, udp, full, standing, sctpInit, fragments, pathMTU, unreachable, multicast}

// groups are the multicast groups, and groupPort their port.
var groups = []netip.Addr{addr("239.22.0.1"), addr("ff15::2201")}

const groupPort = 7000

// portUnreachable is the answer of a closed port.
const portUnreachable = "the port is unreachable"

// fragmented is the size of a datagram in fragments, in octets.
const fragmented = 4000

// minDatagram is the size of a datagram that has room for each answer.
const minDatagram = 128

// exchange sends a datagram of the size and waits for its answer, the same one with a line over its first octets. It
// returns the line.
func exchange(ctx context.Context, c net.Conn, size int, patience time.Duration) (string, error) {
	sent := datagram(size)
	end := time.Now().Add(patience)
	if limit, ok := ctx.Deadline(); ok && limit.Before(end) {
		end = limit
	}
	if err := c.SetDeadline(end); err != nil {
		return "", err
	}
	if _, err := c.Write(sent); err != nil {
		return "", err
	}
	b := make([]byte, 1<<16)
	for {
		n, err := c.Read(b)
		if err != nil {
			return "", err
		}
		if line, ok := answerTo(sent, b[:n]); ok {
			return line, nil
		}
	}
}

// datagram returns a datagram of the size that differs from each other one.
func datagram(size int) []byte {
	b := fmt.Appendf(make([]byte, 0, size), "%016x ", rand.Uint64())
	for len(b) < size {
		b = append(b, b[:min(len(b), size-len(b))]...)
	}
	return b[:size]
}

// answerTo returns the line of the answer to a datagram; not ok: it is another datagram's.
func answerTo(sent, answer []byte) (string, bool) {
	line, rest, ok := bytes.Cut(answer, []byte("\n"))
	return string(line), ok && len(answer) == len(sent) && bytes.Equal(rest, sent[len(line)+1:])
}

// answerEach calls f for each packet that a socket receives, until the test ends.
func answerEach(t testing.TB, c net.PacketConn, f func(b []byte, from net.Addr)) {
	ended := make(chan struct{})
	t.Cleanup(func() {
		c.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		b := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // otherwise an ICMP error about an earlier answer
				f(b[:n], from)
			}
		}
	}()
}

// converse asks a question once. The error says which part failed.
func (l *network) converse(ctx context.Context, from host, q question) (string, error) {
	attempt := time.Second
	if nstest.Emulated {
		attempt = 4 * time.Second
	}
	switch q.protocol {
	case tcp:
		return converseTCP(ctx, from.dial, q.at, 20000)
	case udp, full, fragments:
		size := map[protocol]int{udp: minDatagram, full: l.datagramSize(q.at.Addr()), fragments: fragmented}[q.protocol]
		c, err := from.dialUDP(q.at)
		if err != nil {
			return "", err
		}
		defer c.Close()
		return exchangeUDP(ctx, c, attempt, size)
	case standing:
		c, err := l.keptSocket(from, q)
		if err != nil {
			return "", err
		}
		return exchangeUDP(ctx, c, attempt, minDatagram)
	case sctpInit:
		once, cancel := context.WithTimeout(ctx, 3*attempt)
		defer cancel()
		answer, err := from.askSCTP(once, q.at)
		if err != nil {
			return "", err
		}
		return withoutPort(answer)
	case unreachable:
		c, err := from.dialUDP(q.at)
		if err != nil {
			return "", err
		}
		defer c.Close()
		// A socket reports the error when it sends again, or waits.
		for end := time.Now().Add(attempt); ; {
			answer, err := exchange(ctx, c, minDatagram, attempt/10)
			switch {
			case err == nil:
				return "", fmt.Errorf("%q answers at a closed port", answer)
			case strings.Contains(err.Error(), "refused"):
				return portUnreachable, nil
			case time.Now().After(end) || ctx.Err() != nil:
				return "", err
			}
		}
	case pathMTU:
		return l.conversePathMTU(ctx, from, q, 2*attempt)
	case multicast:
		return l.converseMulticast(ctx, from, q, attempt)
	}
	panic(q.protocol)
}

// exchangeUDP is exchange with an answer in the form of answers.
func exchangeUDP(ctx context.Context, c net.Conn, patience time.Duration, size int) (string, error) {
	line, err := exchange(ctx, c, size, patience)
	if err == nil {
		line, err = withoutPort(line)
	}
	if err != nil {
		return "", fmt.Errorf("datagram of %d octets: %w", size, err)
	}
	return line, nil
}

// datagramSize returns the size of the data in a packet of the pod's MTU, or of Ethernet's.
func (l *network) datagramSize(like netip.Addr) int {
	mtu := min(l.mtu, 1500)
	if like.Is4() {
		return mtu - 28
	}
	return mtu - 48
}

// keptSocket returns the socket of a question that stays open from the first time on.
func (l *network) keptSocket(from host, q question) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.kept[q]; c != nil {
		return c, nil
	}
	c, err := from.dialUDP(q.at)
	if err == nil {
		l.kept[q] = c
	}
	return c, err
}

// conversePathMTU opens a connection and sends a datagram that no router may fragment. The answer is that of both. If
// a short datagram is answered, and none of this kind, no router reports its MTU.
func (l *network) conversePathMTU(ctx context.Context, from host, q question, patience time.Duration) (string, error) {
	once, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	mtu, line, err := from.askUnfragmented(once, q.at)
	if err != nil && ctx.Err() == nil {
		if c, dialing := from.dialUDP(q.at); dialing == nil {
			defer c.Close()
			if _, short := exchange(ctx, c, minDatagram, patience); short == nil {
				return "", errNotAnswered
			}
		}
	}
	if err != nil {
		return "", fmt.Errorf("UDP: %w", err)
	}
	line, err = withoutPort(line)
	if err != nil {
		return "", fmt.Errorf("UDP: %w", err)
	}
	answer, err := converseTCP(ctx, from.dial, q.at, 2000)
	switch {
	case err != nil:
		return "", fmt.Errorf("TCP: %w", err)
	case answer != line:
		return "", fmt.Errorf("by TCP %q and by UDP %q", answer, line)
	case q.from == pod && mtu != NarrowMTU:
		return "", fmt.Errorf("packets of %d octets pass, want %d", mtu, NarrowMTU)
	}
	return answer, nil
}

// converseMulticast sends to a group until the wanted host answers from its own address. Each time a datagram to that
// address follows. If three of these are answered, and none to the group, the group does not reach the host.
func (l *network) converseMulticast(ctx context.Context, from host, q question, attempt time.Duration) (string, error) {
	c, err := from.openUDP(q.at.Addr())
	if err != nil {
		return "", err
	}
	defer c.Close()
	host, port := l.IPv6, uint16(Port)
	if q.at.Addr().Is4() {
		host = l.IPv4
	}
	for _, s := range l.Stations {
		if s.Name == q.to {
			host, port = s.address(q.at.Addr()), stationPort
		}
	}
	direct := net.UDPAddrFromAddrPort(netip.AddrPortFrom(host, port))
	b := make([]byte, 1<<16)
	for answered := 0; answered < 3; {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		toGroup, toHost := datagram(minDatagram), datagram(minDatagram)
		_, err := c.WriteTo(toGroup, net.UDPAddrFromAddrPort(q.at))
		if err == nil {
			_, err = c.WriteTo(toHost, direct)
		}
		if err != nil {
			return "", err
		}
		for end := time.Now().Add(attempt); ; {
			if err := c.SetReadDeadline(end); err != nil {
				return "", err
			}
			n, from, err := c.ReadFrom(b)
			if errors.Is(err, os.ErrDeadlineExceeded) || err != nil && strings.Contains(err.Error(), "timeout") {
				break
			}
			if err != nil {
				return "", err
			}
			if a, err := netip.ParseAddrPort(from.String()); err != nil || a.Addr().Unmap() != host {
				continue // another member of the group
			}
			if line, ok := answerTo(toGroup, b[:n]); ok {
				return withoutPort(line)
			}
			if _, ok := answerTo(toHost, b[:n]); ok {
				answered++
				end = time.Now().Add(attempt / 10) // the answers may come in another order
			}
		}
	}
	return "", errNotAnswered
}

// errNotAnswered means that a host answers other questions meanwhile, so that to wait longer makes no sense.
var errNotAnswered = errors.New("not answered, and another question is")
