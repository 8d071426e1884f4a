package guest_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/sctp"
)

// newDatagrams returns a configured guest that answers datagrams.
func newDatagrams(t *testing.T) (*kernel, *guest.Guest) {
	k := newKernel(t)
	k.serve(&fakeServer{ra: defaultRA(), ack: []dhcpv4.Modifier{classless("0.0.0.0/0 via 10.9.0.1")}})
	g := k.start()
	if _, err := g.Configure(timeLimit(t, 20*time.Second), both); err != nil {
		t.Fatal(err)
	}
	if err := g.ListenUDP(7); err != nil {
		t.Fatal(err)
	}
	g.ListenSCTP(7)
	return k, g
}

// TestAnswersDatagrams has the kernel send datagrams of several sizes, to the guest and to groups that it has joined.
func TestAnswersDatagrams(t *testing.T) {
	k, g := newDatagrams(t)
	for _, to := range []string{"10.9.0.50:7", "[fd09::50]:7", "239.9.9.9:8", "[ff15::9]:8"} {
		at := netip.MustParseAddrPort(to)
		from, guest := "10.9.0.1:0", "10.9.0.50"
		if at.Addr().Is6() {
			from, guest = "[fd09::1]:0", "fd09::50"
		}
		sizes := []int{64, 1300, 4000} // the last one in fragments
		if at.Addr().IsMulticast() {
			k.run("ip route replace " + at.Addr().String() + " dev tap0")
			if err := g.ListenGroup(at); err != nil {
				t.Fatal(err)
			}
		}
		var c net.PacketConn
		k.inNamespace(func() (err error) {
			c, err = net.ListenPacket("udp", from)
			return err
		})
		defer c.Close()
		for _, size := range sizes {
			sent := bytes.Repeat([]byte("x"), size)
			b := make([]byte, 1<<16)
			var n int
			var by net.Addr
			var err error
			for range 20 { // a datagram can be lost
				c.SetDeadline(time.Now().Add(time.Second))
				if _, err = c.WriteTo(sent, net.UDPAddrFromAddrPort(at)); err == nil {
					if n, by, err = c.ReadFrom(b); err == nil {
						break
					}
				}
			}
			line := fmt.Sprintf("alice sees %v\n", c.LocalAddr())
			if err != nil || string(b[:n]) != line+strings.Repeat("x", size-len(line)) || netip.MustParseAddrPort(by.String()).Addr().String() != guest {
				t.Errorf("%s, %d octets: %d octets %.60q of %v, %v", to, size, n, b[:n], by, err)
			}
		}
	}
}

// TestSCTP has the kernel's side and the guest ask each other. A raw socket stands for a kernel's SCTP.
func TestSCTP(t *testing.T) {
	k, g := newDatagrams(t)
	for _, version := range []struct{ network, kernel, guest string }{{"ip4:132", "10.9.0.1", "10.9.0.50"}, {"ip6:132", "fd09::1", "fd09::50"}} {
		var c net.PacketConn
		k.inNamespace(func() (err error) {
			c, err = net.ListenPacket(version.network, version.kernel)
			return err
		})
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		receive := func() (sctp.Packet, net.Addr) {
			b := make([]byte, 1<<16)
			n, from, err := c.ReadFrom(b)
			if err != nil {
				t.Fatal(err)
			}
			p, err := sctp.Parse(b[:n])
			if err != nil {
				t.Fatal(err)
			}
			return p, from
		}
		init := sctp.Packet{Source: 4000, Destination: 7, Initiate: 0x01020304}
		if _, err := c.WriteTo(init.Marshal(), &net.IPAddr{IP: net.ParseIP(version.guest)}); err != nil {
			t.Fatal(err)
		}
		want := "alice sees " + net.JoinHostPort(version.kernel, "4000")
		if p, from := receive(); from.String() != version.guest || p.Tag != init.Initiate || string(p.Cookie) != want {
			t.Errorf("%v answers %+v with the cookie %q, want %q", from, p, p.Cookie, want)
		}

		answer := make(chan string, 1)
		go func() {
			text, err := g.AskSCTP(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(version.kernel), 9))
			if err != nil {
				text = err.Error()
			}
			answer <- text
		}()
		p, from := receive()
		if p.Destination != 9 || p.Cookie != nil || from.String() != version.guest {
			t.Errorf("%v asks %+v", from, p)
		}
		if _, err := c.WriteTo(p.Answer([]byte("hello")).Marshal(), from); err != nil {
			t.Fatal(err)
		}
		if got := <-answer; got != "hello" {
			t.Errorf("the guest is told %q", got)
		}
	}
}

// TestAskUnfragmented has a router of a smaller MTU between the guest and the kernel's socket: a second namespace that
// the kernel reaches by a route.
func TestAskUnfragmented(t *testing.T) {
	k, g := newDatagrams(t)
	far := k.behind("192.0.2.9", "2001:db8:ffff::9", 1280)
	for _, version := range []struct {
		to   string
		want string
	}{{"192.0.2.9:9", "10.9.0.50"}, {"[2001:db8:ffff::9]:9", "fd09::50"}} {
		var c net.PacketConn
		far.inNamespace(func() (err error) {
			c, err = net.ListenPacket("udp", version.to)
			return err
		})
		defer c.Close()
		go func() {
			b := make([]byte, 1<<16)
			for {
				n, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				copy(b, fmt.Sprintf("%d octets from %v\n", n, netip.MustParseAddrPort(from.String()).Addr()))
				c.WriteTo(b[:n], from)
			}
		}()
		mtu, answer, err := g.AskUnfragmented(timeLimit(t, 20*time.Second), netip.MustParseAddrPort(version.to))
		headers := 28
		if strings.Contains(version.to, "[") {
			headers = 48
		}
		if want := fmt.Sprintf("%d octets from %s", 1280-headers, version.want); err != nil || mtu != 1280 || answer != want {
			t.Errorf("%s: MTU %d, %q, %v; want 1280, %q", version.to, mtu, answer, err, want)
		}
	}
}

// behind returns a namespace with the addresses, to which the kernel forwards, by a route with an MTU.
func (k *kernel) behind(v4, v6 string, mtu int) *kernel {
	k.t.Helper()
	namespace := nstest.New(k.t, "far")
	far := &kernel{t: k.t, ns: namespace.File}
	k.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	k.run("ip link add far0 type veth peer name eth0 netns " + namespace.Name)
	k.run("ip link set far0 up")
	k.run("ip addr add 10.8.0.1/24 dev far0")
	k.run("ip addr add fd08::1/64 dev far0 nodad")
	far.run("ip link set eth0 up")
	far.run("ip addr add 10.8.0.2/24 dev eth0")
	far.run("ip addr add fd08::2/64 dev eth0 nodad")
	far.run("ip addr add " + v4 + "/32 dev lo")
	far.run("ip addr add " + v6 + "/128 dev lo nodad")
	far.run("ip route add default via 10.8.0.1")
	far.run("ip route add default via fd08::1")
	k.run(fmt.Sprintf("ip route add %s via 10.8.0.2 mtu %d", v4, mtu))
	k.run(fmt.Sprintf("ip route add %s via fd08::2 mtu %d", v6, mtu))
	return far
}
