package phase1_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase2"
)

// TestOriginalDestination: a program without capabilities asks where a diverted connection was opened to, by IPv4 and
// IPv6, on sockets for one family and for both, at a loopback target, by TCP and SCTP, also to a link-local address. A
// connection that nobody diverted has no other destination, and a datagram none at all.
func TestOriginalDestination(t *testing.T) {
	t.Parallel()
	entries := []string{
		"divert 198.51.100.9 9000 127.0.0.1:8080", "divert all 9005/sctp :15447",
		"divert all 9001 :15443", "divert all 9002 :15444", "divert all 9003 :15445", "divert all 9004 :15446", "divert all 9006 :15448", "divert all 9001/udp :15443", "refuse all",
	}
	eachRouter(t, entries, func(t *testing.T, s *scene, c wired.NIC) {
		s.nameGuest(t, c)
		// SCTP uses no loopback and link-local address with a peer of another scope, and the gateway's is one under
		// routed.
		family := 0
		if s.at["pod"] == "guest" {
			family = 1
		}
		gateway := netip.AddrPortFrom(s.addresses["guest's gateway"][family], 15447).String()
		for _, at := range []struct {
			protocol, listen string
			port             int // to which the guest connects
			families         []int
		}{
			{"tcp4", "127.0.0.1:8080", 9000, []int{0}},
			{"sctp", gateway, 9005, []int{family}},
			{"tcp", "[::]:15443", 9001, []int{0, 1}}, // a socket for both families
			{"tcp4", "0.0.0.0:15444", 9002, []int{0}},
			{"tcp6", "[::]:15445", 9003, []int{1}},
		} {
			protocol := "tcp"
			if at.protocol == "sctp" {
				if protocol = at.protocol; !nstest.HasSCTP() {
					continue
				}
			}
			l := s.listen(t, at.protocol, at.listen)
			for _, family := range at.families {
				q, err := s.question(protocol, family, exchange{from: "guest", to: fmt.Sprintf("beyond:%d", at.port)})
				if err != nil {
					t.Fatal(err)
				}
				accepted := accept(t, l, at.protocol)
				want := netip.AddrPortFrom(s.addresses["beyond"][family], uint16(at.port))
				if have, err := s.destination(t, accepted); err != nil || have != want {
					t.Errorf("%s %s: the guest has opened a connection to %v, %v; want %v", at.protocol, at.listen, have, err, want)
				}
				q.Close()
				accepted.Close()
				if to, err := phase2.OriginalDestination(accepted); !errors.Is(err, net.ErrClosed) {
					t.Errorf("a closed connection went to %v, %v", to, err)
				}
			}
			if protocol == "sctp" {
				continue
			}
			loopback := s.addresses["loopback"][at.families[len(at.families)-1]]
			own, err := s.Pod.Question(protocol, netip.Addr{}, netip.AddrPortFrom(loopback, uint16(l.Addr().(*net.TCPAddr).Port)), 0)
			if err != nil {
				t.Fatal(err)
			}
			accepted := accept(t, l, at.protocol)
			if to, err := s.destination(t, accepted); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s %s: a connection that nobody diverted went to %v, %v", at.protocol, at.listen, to, err)
			}
			own.Close()
			accepted.Close()
		}
		s.multipath(t)
		s.linkLocal(t)
		var datagrams net.PacketConn
		in(t, s.Pod, func() (err error) {
			datagrams, err = net.ListenPacket("udp", ":15443")
			return err
		})
		defer datagrams.Close()
		if to, err := s.destination(t, datagrams.(*net.UDPConn)); !errors.Is(err, unix.ENOPROTOOPT) {
			t.Errorf("a socket of UDP: %v, %v", to, err)
		}
	})
}

// multipath has the guest open connections of Multipath TCP. A listener that allows them, as Go's do, gets connections
// whose original destination the kernel does not say. One without gets connections of TCP.
func (s *scene) multipath(t *testing.T) {
	t.Helper()
	for _, allowed := range []bool{true, false} {
		config, want := net.ListenConfig{}, netip.AddrPortFrom(nstest.Beyond4, 9004)
		config.SetMultipathTCP(allowed)
		var l net.Listener
		nstest.Eventually(t, func() error { // the kernel closes a socket of Multipath TCP later than its program
			return netns.Do(s.Pod.File, func() (err error) {
				l, err = config.Listen(t.Context(), "tcp4", "0.0.0.0:15446")
				return err
			})
		})
		opened := -1
		in(t, s.who["guest"], func() (err error) {
			opened, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_MPTCP)
			if err == nil {
				if err = unix.Connect(opened, &unix.SockaddrInet4{Addr: want.Addr().As4(), Port: int(want.Port())}); err == unix.EINPROGRESS {
					err = nil
				}
			}
			return err
		})
		accepted := accept(t, l, "multipath")
		to, err := s.destination(t, accepted)
		if allowed && !errors.Is(err, errors.ErrUnsupported) || !allowed && (err != nil || to != want) {
			t.Errorf("Multipath TCP at a listener that allows it (%v): %v, %v", allowed, to, err)
		}
		unix.Close(opened)
		accepted.Close()
		l.Close()
	}
}

// linkLocal has the guest open a connection to its gateway's link-local address.
func (s *scene) linkLocal(t *testing.T) {
	t.Helper()
	router := nstest.Record(t, s.State, "eth0").IPv6.Router.Address
	l := s.listen(t, "tcp", "[::]:15448")
	opened := -1
	in(t, s.who["guest"], func() error {
		card, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if opened, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		if err := unix.Connect(opened, &unix.SockaddrInet6{Addr: router.As16(), Port: 9006, ZoneId: uint32(card.Index)}); err != unix.EINPROGRESS {
			return err
		}
		return nil
	})
	defer unix.Close(opened)
	tap := ""
	in(t, s.Pod, func() error {
		link, err := net.InterfaceByName("eth0-tap")
		if err == nil {
			tap = strconv.Itoa(link.Index)
		}
		return err
	})
	want := netip.AddrPortFrom(router.WithZone(tap), 9006)
	if to, err := s.destination(t, accept(t, l, "link-local")); err != nil || to != want {
		t.Errorf("the guest has opened a connection to %v, %v; want %v", to, err, want)
	}
}

// destination calls OriginalDestination by a thread without capabilities, which ends with the call.
func (s *scene) destination(t *testing.T, c syscall.Conn) (to netip.AddrPort, err error) {
	t.Helper()
	in(t, s.Pod, func() error {
		none := [2]unix.CapUserData{}
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			return err
		}
		to, err = phase2.OriginalDestination(c)
		return nil
	})
	return to, err
}

func accept(t *testing.T, l net.Listener, protocol string) *net.TCPConn {
	t.Helper()
	l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(protocol, err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// listen listens in the pod. The package net takes a socket of SCTP for one of TCP.
func (s *scene) listen(t *testing.T, protocol, address string) (l net.Listener) {
	t.Helper()
	in(t, s.Pod, func() (err error) {
		if protocol != "sctp" {
			var config net.ListenConfig
			config.SetMultipathTCP(false)
			l, err = config.Listen(t.Context(), protocol, address)
			return err
		}
		at := netip.MustParseAddrPort(address)
		family, bound := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()})
		if at.Addr().Is4() {
			family, bound = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
		}
		socket, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(socket), protocol)
		defer f.Close()
		if err := errors.Join(unix.Bind(socket, bound), unix.Listen(socket, 1)); err != nil {
			return err
		}
		l, err = net.FileListener(f)
		return err
	})
	t.Cleanup(func() { l.Close() })
	return l
}
