package podnet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/sctp"
)

// host asks and answers questions: a station, a process in the pod, or a guest.
type host struct {
	Station
	link4, link6 string // between it and the pod; empty: a gateway is between
}

// hostOf returns a guest with its addresses as a host, for as long as the test.
func hostOf(t testing.TB, g *guest.Guest) host {
	t.Helper()
	h := host{Station{Name: "guest", Namespace: nstest.Adopt(t, "guest", fmt.Sprintf("/proc/self/fd/%d", g.File.Fd()))}, guest.NIC, guest.NIC}
	for _, p := range g.Addresses() {
		switch a := p.Addr(); {
		case a.Is4():
			h.IPv4 = a
		case !a.IsLinkLocalUnicast():
			h.IPv6 = a
		}
	}
	return h
}

// link returns the link of the family of like.
func (s host) link(like netip.Addr) string {
	if like.Is4() {
		return s.link4
	}
	return s.link6
}

// dialer opens a TCP connection.
type dialer func(ctx context.Context, to netip.AddrPort) (net.Conn, error)

// dial opens a TCP connection from the station's address.
func (s Station) dial(ctx context.Context, to netip.AddrPort) (c net.Conn, err error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.address(to.Addr()), 0))}
	err = netns.Do(s.Namespace.File, func() (err error) {
		c, err = d.DialContext(ctx, "tcp", to.String())
		return err
	})
	return c, err
}

func (s host) dialUDP(to netip.AddrPort) (c net.Conn, err error) {
	err = netns.Do(s.Namespace.File, func() (err error) {
		from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.address(to.Addr()), 0))
		c, err = net.DialUDP("udp", from, net.UDPAddrFromAddrPort(to))
		return err
	})
	return c, err
}

func (s host) openUDP(group netip.Addr) (net.PacketConn, error) {
	var link *net.Interface
	var c *net.UDPConn
	err := netns.Do(s.Namespace.File, func() (err error) {
		if link, err = net.InterfaceByName(s.link(group)); err != nil {
			return err
		}
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.address(group), 0)))
		return err
	})
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err == nil {
		var set error
		err = raw.Control(func(fd uintptr) {
			if group.Is4() {
				set = unix.SetsockoptIPMreqn(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(link.Index)})
			} else {
				set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, link.Index)
			}
		})
		err = errors.Join(err, set)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// openSCTP returns a raw socket at the station's address, so the kernel needs no SCTP.
func (s host) openSCTP(like netip.Addr) (c net.PacketConn, err error) {
	network := "ip6:132"
	if like.Is4() {
		network = "ip4:132"
	}
	err = netns.Do(s.Namespace.File, func() (err error) {
		c, err = net.ListenPacket(network, s.address(like).String())
		return err
	})
	return c, err
}

func (s host) askSCTP(ctx context.Context, to netip.AddrPort) (string, error) {
	c, err := s.openSCTP(to.Addr())
	if err != nil {
		return "", err
	}
	defer c.Close()
	init := sctp.Packet{Source: uint16(32768 + rand.IntN(28000)), Destination: to.Port(), Initiate: rand.Uint32() | 1}
	b := make([]byte, 1<<16)
	for err := error(nil); ; {
		if ctx.Err() != nil {
			return "", errors.Join(context.Cause(ctx), err)
		}
		if _, err = c.WriteTo(init.Marshal(), &net.IPAddr{IP: to.Addr().AsSlice()}); err == nil {
			err = c.SetReadDeadline(time.Now().Add(time.Second))
		}
		for err == nil {
			var n int
			if n, _, err = c.ReadFrom(b); err == nil {
				if p, err := sctp.Parse(b[:n]); err == nil && p.Tag == init.Initiate && p.Cookie != nil {
					return string(p.Cookie), nil
				}
			}
		}
	}
}

func (s host) askUnfragmented(ctx context.Context, to netip.AddrPort) (int, string, error) {
	conn, err := s.dialUDP(to)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		return 0, "", err
	}
	// The kernel's notion of the path's MTU.
	known := func() (mtu int, err error) {
		level, discover, option := unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU
		if to.Addr().Is4() {
			level, discover, option = unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU
		}
		failed := raw.Control(func(fd uintptr) {
			if err = unix.SetsockoptInt(int(fd), level, discover, unix.IP_PMTUDISC_DO); err == nil {
				mtu, err = unix.GetsockoptInt(int(fd), level, option)
			}
		})
		return mtu, errors.Join(err, failed)
	}
	headers := 28
	if to.Addr().Is6() {
		headers = 48
	}
	for {
		mtu, err := known()
		if err != nil {
			return 0, "", err
		}
		answer, err := exchange(ctx, conn, mtu-headers, 300*time.Millisecond)
		if err == nil {
			return mtu, answer, nil
		}
		if ctx.Err() != nil {
			return 0, "", errors.Join(context.Cause(ctx), err)
		}
	}
}

// listen has the station answer TCP, UDP and SCTP at a port of its addresses until the test ends, and join the groups.
func (s host) listen(t testing.TB, name string, port uint16) {
	t.Helper()
	for _, a := range []netip.Addr{s.IPv4, s.IPv6} {
		if !a.IsValid() {
			continue
		}
		at := netip.AddrPortFrom(a, port)
		s.Namespace.Listen(name, at.String())
		var own *net.UDPConn
		err := netns.Do(s.Namespace.File, func() (err error) {
			own, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := s.openSCTP(a)
		if err != nil {
			t.Fatal(err)
		}
		answerEach(t, own, func(b []byte, from net.Addr) {
			copy(b, fmt.Sprintf("%s sees %v\n", name, from))
			own.WriteTo(b, from)
		})
		answerEach(t, raw, func(b []byte, from net.Addr) {
			p, err := sctp.Parse(b)
			if err == nil && p.Cookie == nil && p.Destination == port {
				raw.WriteTo(p.Answer(fmt.Appendf(nil, "%s sees %v", name, net.JoinHostPort(from.String(), fmt.Sprint(p.Source)))).Marshal(), from)
			}
		})
		for _, group := range groups {
			if group.Is4() == a.Is4() && s.link(a) != "" {
				s.join(t, name, group, own)
			}
		}
	}
}

// join joins a group on the host's link, and answers from a socket with the host's own address. A link without
// multicast, such as a tunnel, is left out.
func (s host) join(t testing.TB, name string, group netip.Addr, own *net.UDPConn) {
	t.Helper()
	var c *net.UDPConn
	err := netns.Do(s.Namespace.File, func() error {
		link, err := net.InterfaceByName(s.link(group))
		if err == nil && link.Flags&net.FlagMulticast != 0 {
			c, err = net.ListenMulticastUDP("udp", link, net.UDPAddrFromAddrPort(netip.AddrPortFrom(group, groupPort)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if c == nil {
		return
	}
	answerEach(t, c, func(b []byte, from net.Addr) {
		copy(b, fmt.Sprintf("%s sees %v\n", name, from))
		own.WriteTo(b, from)
	})
}
