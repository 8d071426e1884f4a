package phase1_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// service is one of the namespace's own, at all its addresses or at the loopback's.
type service struct {
	network  string
	loopback bool
	port     uint16
}

var services = []service{
	{"tcp", false, 22}, {"tcp", false, 80}, {"tcp", false, 8443}, {"tcp", false, 9999}, {"tcp", false, 65535},
	{"tcp", true, 9443}, {"tcp", true, 15000},
	{"udp", false, 53}, {"udp", false, 68}, {"udp", false, 5353}, {"udp", false, 9999}, {"udp", false, 65535},
	{"udp", true, 15000},
}

// serve starts them, and returns the sockets of those that speak UDP.
func serve(t *testing.T, n nstest.Network) (sockets []net.PacketConn) {
	t.Helper()
	for _, s := range services {
		hosts := []string{""}
		if s.loopback {
			hosts = []string{"127.0.0.1", "::1"}
		}
		for _, host := range hosts {
			address := net.JoinHostPort(host, fmt.Sprint(s.port))
			if s.network == "tcp" {
				n.Pod.Listen("the namespace", address)
				continue
			}
			err := netns.Do(n.Pod.File, func() error {
				socket, err := net.ListenPacket("udp", address)
				sockets = append(sockets, socket)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { sockets[0].Close(); sockets = sockets[1:] })
		}
	}
	return sockets
}

// TestScan asks the namespace from the guest, at all its addresses and all its ports: the opened
// ports answer, and nothing else.
func TestScan(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for _, c := range []struct {
		name    string
		binding infra.Binding
		open    []infra.Ports
		all     bool // ports of the gateway's addresses and the NIC's, and not only some
	}{
		{name: "bridge", binding: infra.Bridge{}},
		{name: "redirect", binding: infra.Redirect{}},
		{name: "masquerade", binding: infra.Masquerade{}},
		{name: "masquerade of a port, others opened", binding: infra.Masquerade{Ports: []infra.Ports{{First: 80}}, Loopback: true},
			open: []infra.Ports{{First: 8443}, {Protocol: "udp", First: 53}}, all: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := nstest.NewNetwork(t)
			secondNIC(n, "10.245.0.7/24", "fd00:245::7/64")
			n.Pod.Settle("net1")
			sockets := serve(t, n)
			config := config(n, c.binding)
			config.Guard.Open = c.open
			setup(t, config)
			s := scan{wire: attachDeaf(t, n, true, true), answers: map[string]bool{}}
			// The guest here answers no neighbour solicitation.
			n.World.IP("neigh replace " + s.link.IPv4.String() + " lladdr " + s.link.MAC.String() + " dev pod")
			if s.bridge != 0 {
				n.Pod.IP("neigh replace " + eui64.LinkLocal(s.link.MAC).String() + " lladdr " + s.link.MAC.String() + " dev eth0-tap")
			}
			near := []netip.Addr{nstest.Pod4, nstest.Pod6}
			if s.masquerade {
				near = append(near, s.link.Gateway4, s.link.Gateway6)
			}
			answering := append(near[:len(near):len(near)], netip.MustParseAddr("10.245.0.7"), netip.MustParseAddr("fd00:245::7"))
			closed := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.53"), netip.IPv6Loopback()}
			if s.bridge != 0 {
				answering = append(answering, eui64.LinkLocal(s.own[1]))
				closed = append(closed, eui64.LinkLocal(s.own[0]))
			}
			groups := []netip.Addr{netip.MustParseAddr("10.0.2.255"), netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("ff02::1")}
			for _, to := range slices.Concat(answering, groups, closed) {
				s.ask(to, c.all && slices.Contains(near, to))
			}
			for _, socket := range sockets {
				s.received(socket)
			}

			want := map[string]bool{}
			for _, p := range c.open {
				at := answering
				if p.Protocol == "udp" {
					at = append(at, groups...)
				}
				for _, a := range at {
					want[cmp.Or(p.Protocol, "tcp")+" "+netip.AddrPortFrom(a, p.First).String()] = true
				}
			}
			for answer := range s.answers {
				if !want[answer] {
					t.Errorf("the namespace answers: %s", answer)
				}
			}
			for answer := range want {
				if !s.answers[answer] {
					t.Errorf("the namespace does not answer: %s", answer)
				}
			}
			t.Logf("%d questions, %d answers", s.asked, len(s.answers))
		})
	}
}

// scan is a guest that asks.
type scan struct {
	*wire
	asked, pings int
	answers      map[string]bool
}

// ask asks at the ports of an address, all of them or some.
func (s *scan) ask(to netip.Addr, all bool) {
	s.t.Helper()
	own, link := s.link.IPv4, s.link
	if to.Is6() {
		own = s.link.IPv6
	}
	if to.IsLinkLocalUnicast() || to.IsLinkLocalMulticast() {
		own = eui64.LinkLocal(s.link.MAC)
	}
	stations := []cache.MAC{s.link.Gateway}
	if !s.masquerade {
		stations = s.own // the bridge, and its port
	}
	var list [][]byte
	for port := 1; port <= 65535; port++ {
		some := port <= 100 || slices.ContainsFunc(services, func(v service) bool { return int(v.port) == port })
		if !all && !some {
			continue
		}
		for _, link.Gateway = range stations {
			list = append(list, link.Ask(unix.IPPROTO_TCP, own, to, uint16(port)), link.Ask(unix.IPPROTO_UDP, own, to, uint16(port)))
		}
	}
	// A tap keeps some hundred frames for who does not read.
	for batch := range slices.Chunk(list, 100) {
		for _, frame := range batch {
			if _, err := s.port.Write(frame); err != nil {
				s.t.Fatal(err)
			}
			s.asked++
		}
		s.read()
	}
}

// read takes what the guest gets, until an echo reply that was asked for last; again and again, as a
// full queue loses a frame.
func (s *scan) read() {
	s.t.Helper()
	s.pings++
	frame := make([]byte, 1<<16)
	end := time.Now().Add(time.Minute)
	for ask := true; ; {
		if ask {
			if _, err := s.port.Write(s.link.Ping(s.link.IPv4, s.link.Gateway4, s.pings)); err != nil {
				s.t.Fatal(err)
			}
			ask = false
		}
		if err := s.port.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			s.t.Fatal(err)
		}
		size, err := s.port.Read(frame)
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
			ask = true
			continue
		}
		if err != nil {
			s.t.Fatalf("no echo reply: %v", err)
		}
		if bytes.Contains(frame[:size], frames.SentinelData(s.pings)) && frame[23] == unix.IPPROTO_ICMP && frame[34] == 0 {
			return
		}
		if answer := answerIn(frame[:size]); answer != "" {
			s.answers[answer] = true
		}
	}
}

// answerIn is what a frame says of who sent it: that a port is open, or that none is.
func answerIn(f []byte) string {
	var source netip.Addr
	var protocol byte
	var rest []byte
	switch {
	case len(f) >= 34+14 && binary.BigEndian.Uint16(f[12:]) == netstate.EthernetIPv4:
		source, protocol, rest = netip.AddrFrom4([4]byte(f[26:])), f[23], f[34:]
	case len(f) >= 54+14 && binary.BigEndian.Uint16(f[12:]) == netstate.EthernetIPv6:
		source, protocol, rest = netip.AddrFrom16([16]byte(f[22:])), f[20], f[54:]
	default:
		return ""
	}
	const syn, rst, ack = 2, 4, 16
	switch {
	case protocol == unix.IPPROTO_TCP && rest[13]&(syn|ack) == syn|ack:
		return "tcp " + netip.AddrPortFrom(source, binary.BigEndian.Uint16(rest)).String()
	case protocol == unix.IPPROTO_TCP && rest[13]&rst != 0:
		return "a reset by " + netip.AddrPortFrom(source, binary.BigEndian.Uint16(rest)).String()
	case protocol == unix.IPPROTO_ICMP && rest[0] == 3, protocol == unix.IPPROTO_ICMPV6 && rest[0] == 1:
		return "an error by " + source.String()
	}
	return ""
}

// received takes what came to a service, which is the target's name.
func (s *scan) received(socket net.PacketConn) {
	s.t.Helper()
	b := make([]byte, 100)
	for {
		if err := socket.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			s.t.Fatal(err)
		}
		n, _, err := socket.ReadFrom(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			s.t.Fatal(err)
		}
		s.answers["udp "+string(b[:n])] = true
	}
}
