package phase1_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// track has the namespace track its connections, as Docker's rules for its DNS server do.
func track(n *nstest.Namespace) {
	for family, server := range map[string]string{"ip": "127.0.0.11", "ip6": "::1"} {
		n.Exec("nft", fmt.Sprintf(`table %s docker {
			chain prerouting { type nat hook prerouting priority -100; }
			chain output { type nat hook output priority -100; %[1]s daddr %s udp dport 53 dnat to :5353; }
			chain postrouting { type nat hook postrouting priority 100; }
		}`, family, server))
	}
}

// listTracked lists the connections that the namespace tracks. Not every kernel has /proc/net/nf_conntrack.
func listTracked(t *testing.T, n *nstest.Namespace) string {
	t.Helper()
	var lines []string
	err := netns.Do(n.File, func() error {
		for _, family := range []netlink.InetFamily{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, c := range list {
				lines = append(lines, c.String())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// endpoint is a socket that goes on.
type endpoint struct {
	name string
	c    net.Conn
}

// open opens a UDP socket, or a TCP connection, that lasts as long as the test.
func open(t *testing.T, n *nstest.Namespace, network string, to netip.AddrPort) endpoint {
	t.Helper()
	var c net.Conn
	nstest.Eventually(t, func() error {
		return netns.Do(n.File, func() (err error) {
			c, err = net.DialTimeout(network, to.String(), 3*time.Second)
			return err
		})
	})
	t.Cleanup(func() { c.Close() })
	return endpoint{fmt.Sprintf("%s %v to %v", network, c.LocalAddr(), c.RemoteAddr()), c}
}

// goesOn sends until an answer holds the text. TCP sends again what was lost while a wiring changed, but only after
// about as long as the change has taken, which is much on an emulated machine.
func (e endpoint) goesOn(t *testing.T, when, want string) {
	t.Helper()
	answer, b := "", make([]byte, 1500)
	for end := time.Now().Add(3 * patience); !strings.Contains(answer, want); {
		if time.Now().After(end) {
			t.Errorf("%s, %s: the last answer is %q, want %s", when, e.name, answer, want)
			return
		}
		if _, err := e.c.Write([]byte(fmt.Sprintf("%-127s\n", want))); err != nil {
			time.Sleep(10 * time.Millisecond) // the error is an ICMP message about an earlier datagram
			continue
		}
		e.c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if n, err := e.c.Read(b); err == nil {
			answer = string(b[:n])
		}
	}
}

// TestTrackedExchanges: in a namespace that tracks its connections, UDP exchanges of others with a port go on with
// whoever has the port: the process, the guest from Setup on, and the process after Teardown. Connections of TCP,
// exchanges of the process itself, and those with an excluded port go on as they are. Teardown leaves no connection
// with an address of the wiring.
func TestTrackedExchanges(t *testing.T) {
	excluded := []infra.Ports{{Protocol: "udp", First: 8001}}
	for _, b := range []struct {
		binding infra.Binding
		own     bool // the process's own sockets go on
		inner   []string
		force   bool
	}{
		{infra.Masquerade{Excluded: excluded}, true, []string{"10.0.2.", "fd10:0:2::"}, false},
		{infra.Masquerade{Excluded: excluded}, true, []string{"10.0.2.", "fd10:0:2::"}, true},
		{infra.Masquerade{Ports: []infra.Ports{{Protocol: "udp", First: 8000}}, Loopback: true, Firewall: "iptables-nft"}, true, []string{"10.0.2.", "fd10:0:2::"}, false},
		{infra.Routed{Excluded: excluded}, false, []string{lease.RoutedIPv4.String(), lease.RoutedIPv6.String()}, false},
		{infra.Routed{Excluded: excluded}, false, []string{lease.RoutedIPv4.String(), lease.RoutedIPv6.String()}, true},
	} {
		name := b.binding.Kind()
		if m, is := b.binding.(infra.Masquerade); is && m.Ports != nil {
			name += ", one port, iptables-nft"
		}
		if b.force {
			name += ", by force"
		}
		t.Run(string(name), func(t *testing.T) {
			if name == "masquerade" || name == "routed" {
				nstest.KernelDecides(t, "the list of connections is a module, and some pass by a flow table")
			}
			t.Parallel()
			nstest.Need(t, "nft")
			s := newScene(t)
			track(s.Pod)
			any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
			var taken, kept, own []endpoint
			for _, port := range []uint16{8000, 8001} {
				// At all addresses, where a routed binding gives the process others.
				s.Pod.Serve("process", "udp", netip.AddrPortFrom(any4, port))
				s.Pod.Serve("process", "udp", netip.AddrPortFrom(nstest.Pod6, port))
			}
			s.Pod.Serve("process", "tcp", netip.AddrPortFrom(any6, 8003))
			s.World.Serve("world", "udp", netip.AddrPortFrom(nstest.Gateway4, 8002), netip.AddrPortFrom(nstest.Gateway6, 8002))
			for _, a := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
				taken = append(taken, open(t, s.World, "udp", netip.AddrPortFrom(a, 8000)))
				if a.Is4() || b.own { // by a routed binding the service that listens at its own address alone does not receive it
					kept = append(kept, open(t, s.World, "udp", netip.AddrPortFrom(a, 8001)))
				}
				if b.own {
					tcp := open(t, s.World, "tcp", netip.AddrPortFrom(a, 8003))
					if _, err := tcp.c.Read(make([]byte, 1500)); err != nil { // who answers; then the connection echoes
						t.Fatal(err)
					}
					own = append(own, tcp)
				}
			}
			for _, a := range []netip.Addr{nstest.Gateway4, nstest.Gateway6} {
				if b.own {
					own = append(own, open(t, s.Pod, "udp", netip.AddrPortFrom(a, 8002)))
				}
			}
			all := func(when, takenBy string) {
				t.Helper()
				for _, e := range taken {
					e.goesOn(t, when, takenBy+":8000 sees")
				}
				for _, e := range kept {
					e.goesOn(t, when, "process:8001 sees")
				}
				for _, e := range own {
					want := "echo"
					if strings.HasPrefix(e.name, "udp") {
						want = "world:8002 sees"
					}
					e.goesOn(t, when, want)
				}
			}
			all("before Setup", "process")
			if list := listTracked(t, s.Pod); !strings.Contains(list, "dport=8000") {
				t.Fatalf("the pod does not track the exchanges:\n%s", list)
			}
			c := config(s.Network, b.binding)
			setup(t, c)
			r := record(t, s.Network)
			var at []netip.AddrPort
			if b.own {
				s.wire(t, "guest", c)
			} else {
				s.routedGuest(t, r)
			}
			at = append(at, netip.AddrPortFrom(r.IPv4.Address.Addr(), 8000), netip.AddrPortFrom(r.IPv6.Address, 8000))
			s.who["guest"].Serve("guest", "udp", at...)
			all("after Setup", "guest")
			m, translates := b.binding.(infra.Masquerade)
			if translates && m.Firewall == "" && nstest.HasFlowTables() { // an exchange that has lasted for two seconds passes by one
				nstest.Eventually(t, func() error {
					taken[0].goesOn(t, "in the flow table", "guest:8000 sees")
					if len(connections(s.Pod, "udp", "dport=8000 ", offloaded)) == 0 {
						return fmt.Errorf("no exchange is in the flow table:\n%s", connections(s.Pod, "udp"))
					}
					return nil
				})
			}

			if !b.own { // the guest asks the namespace
				for _, a := range []netip.Addr{lease.RoutedIPv4, lease.RoutedIPv6} {
					s.who["guest"].Exec("ping", "-nc1", "-W10", a.String())
				}
			}
			c.Down.CutOff = true // the guest has the tap until the test ends
			if b.force {
				harmJournal(t, s.Network, "removed")
				if _, err := c.ForceTeardown(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				unwire(t, c)
			}
			for _, inner := range b.inner {
				if list := listTracked(t, s.Pod); strings.Contains(list, "="+inner) {
					t.Errorf("connections with %s are left:\n%s", inner, list)
				}
			}
			all("after Teardown", "process")
		})
	}
}

// TestTrackedPortless: what a process of the pod has open without ports does not keep the guest of a masquerade from
// the same, and what others have open with the process comes to the guest.
func TestTrackedPortless(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		n := nstest.NewNetwork(t)
		track(n.Pod)
		b := &begun{T: t, n: n, c: config(n, infra.Masquerade{Firewall: firewall})}
		b.openAsProcess(nstest.Pod4, nstest.Pod6)
		var from frames.Link
		if err := errors.Join(from.MAC.UnmarshalText([]byte(linkMAC(n.World, "pod"))), from.Gateway.UnmarshalText([]byte(linkMAC(n.Pod, "eth0")))); err != nil {
			t.Fatal(err)
		}
		send, others := n.World.Injector(t, linkIndex(t, n.World, "pod")), map[string][]byte{}
		for _, v := range []struct {
			own, far   netip.Addr
			icmp, echo uint8
		}{{nstest.Pod4, nstest.Beyond4, unix.IPPROTO_ICMP, 8}, {nstest.Pod6, nstest.Beyond6, unix.IPPROTO_ICMPV6, 128}} {
			for _, protocol := range []uint8{v.icmp, 4, 41, 47, 50, 253} {
				mark := fmt.Sprintf("protocol %d to %v", protocol, v.own)
				others[mark] = from.Packet(protocol, v.far, v.own, append([]byte{v.echo, 0, 0, 0, 0, 9, 0, 1}, mark...))
			}
		}
		for _, f := range others {
			if err := send(f); err != nil {
				t.Fatal(err)
			}
		}
		nstest.Eventually(t, func() error {
			if list := listTracked(t, n.Pod); strings.Count(list, nstest.Beyond4.String())+strings.Count(list, nstest.Beyond6.String()) < len(others) {
				return fmt.Errorf("the pod does not track what others send:\n%s", list)
			}
			return nil
		})
		setup(t, b.c)
		w := attach(t, n, true, true)
		w.leave("after Setup", true, openings(&wire{link: w.link, routed: true}))
		for mark, f := range others {
			if err := send(f); err != nil {
				t.Fatal(err)
			}
			w.receives(mark)
		}
	})
}

// receives wants a frame with the mark at the guest's tap.
func (w *wire) receives(mark string) {
	w.t.Helper()
	if err := w.port.SetReadDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	for b := make([]byte, 1<<16); ; {
		size, err := w.port.Read(b)
		if err != nil {
			w.t.Errorf("%s does not come to the guest: %v", mark, err)
			return
		}
		if bytes.Contains(b[:size], []byte(mark)) {
			return
		}
	}
}

// TestTrackedLater: an exchange of others goes on with the guest from the Setup on that forwards its port, also if that
// is not the first one; and from Activate on, which repairs what others removed meanwhile.
func TestTrackedLater(t *testing.T) {
	t.Parallel()
	nstest.Need(t, "nft")
	s := newScene(t)
	track(s.Pod)
	exchanges := map[uint16][]endpoint{}
	for _, port := range []uint16{8000, 8001} {
		for _, a := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
			s.Pod.Serve("process", "udp", netip.AddrPortFrom(a, port))
			exchanges[port] = append(exchanges[port], open(t, s.World, "udp", netip.AddrPortFrom(a, port)))
		}
	}
	goOn := func(when string, port uint16, with string) {
		t.Helper()
		for _, e := range exchanges[port] {
			e.goesOn(t, when, fmt.Sprintf("%s:%d sees", with, port))
		}
	}
	goOn("before Setup", 8000, "process")
	goOn("before Setup", 8001, "process")
	ports := []infra.Ports{{Protocol: "udp", First: 8000}, {Protocol: "udp", First: 8001}}
	c := config(s.Network, infra.Masquerade{Ports: ports[:1]})
	r := s.wire(t, "guest", c)
	s.who["guest"].Serve("guest", "udp", netip.AddrPortFrom(r.IPv4.Address.Addr(), 8000), netip.AddrPortFrom(r.IPv6.Address, 8000),
		netip.AddrPortFrom(r.IPv4.Address.Addr(), 8001), netip.AddrPortFrom(r.IPv6.Address, 8001))
	goOn("after Setup", 8000, "guest")
	goOn("after Setup", 8001, "process")
	c.Binding = infra.Masquerade{Ports: ports}
	setup(t, c)
	goOn("after the second Setup", 8000, "guest")
	goOn("after the second Setup", 8001, "guest")

	if _, err := c.Deactivate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Pod.Exec("nft", "delete", "table", "inet", "guestwire-eth0")
	if err := netns.Do(s.Pod.File, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
		t.Fatal(err)
	}
	goOn("without rules", 8000, "process")
	if _, err := c.Activate(t.Context(), phase1.Other{Gone: true}); err != nil {
		t.Fatal(err)
	}
	goOn("after Activate", 8000, "guest")
}

// TestConnectionsOfOtherNICs: Setup and Teardown of a NIC cost another NIC's wiring no connection. Routed NICs have one
// address of the namespace together.
func TestConnectionsOfOtherNICs(t *testing.T) {
	for _, c := range []struct {
		name  string
		wired [2]infra.Binding // eth0's, net1's
		from  string           // who has a connection by net1
	}{
		{"routed", [2]infra.Binding{infra.Routed{}, infra.Routed{}}, "pod"},
		{"masquerade", [2]infra.Binding{infra.Masquerade{}, otherMasquerade}, "guest"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			secondNIC(s.Network, "10.245.0.7/24")
			s.World.IP("addr add 10.245.0.1/24 dev pod2")
			s.Pod.Settle("net1")
			first, second := config(s.Network, c.wired[0]), configOfSecondNIC(s.Network, c.wired[1])
			setup(t, second)
			world := netip.MustParseAddrPort("10.245.0.1:8002")
			server := listen(t, s.World, world)
			from := s.Pod
			if c.from == "guest" {
				r := nstest.Record(t, second.State, "net1")
				from = recordsGuest(t, s.Network, r, r.MTU)
			}
			client := open(t, from, "tcp", world).c
			peer, err := server.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			// The peer sends: what the pod itself sends would be translated anew.
			receives := func(when string) {
				t.Helper()
				sent, received := []byte(when), make([]byte, len(when))
				if _, err := peer.Write(sent); err != nil {
					t.Fatal(err)
				}
				client.SetReadDeadline(time.Now().Add(patience))
				if _, err := io.ReadFull(client, received); err != nil || !bytes.Equal(sent, received) {
					t.Fatalf("%s, the connection by net1: %q, %v", when, received, err)
				}
			}
			receives("before Setup of eth0")
			setup(t, first)
			receives("after Setup of eth0")
			unwire(t, first)
			receives("after Teardown of eth0")
		})
	}
}
