package phase1_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// tracked is how many connections the namespace's table has.
func tracked(t *testing.T, n *nstest.Namespace) (count int) {
	t.Helper()
	if _, err := fmt.Sscan(n.Exec("cat", "/proc/sys/net/netfilter/nf_conntrack_count"), &count); err != nil {
		t.Fatal(err)
	}
	return count
}

// TestConnectionsOfOthers: what the network opens to the guest takes nothing from what the guest may open, and the
// other way round. What the guest opens to itself is the guest's.
func TestConnectionsOfOthers(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		in, out := exchange{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"}, exchange{from: "guest", to: "gateway:9000", want: "world:9000 sees pod"}
		hairpin := exchange{from: "guest", to: "pod:8000", want: "guest:8000 sees guest's gateway"}
		for _, c := range []struct {
			name           string
			fills, opening exchange
		}{{"others open", in, out}, {"the guest opens", out, in}, {"the guest opens to itself", hairpin, in}} {
			t.Run(c.name, func(t *testing.T) {
				s := newScene(t)
				const most = 20
				s.wire(t, "guest", config(s.Network, infra.Masquerade{MaxConnections: most, Firewall: firewall}))
				s.serve(t, []exchange{in, out})
				answers := func(e exchange, family, times int, patience time.Duration) (count int) {
					for range times {
						q, err := s.question("udp", family, e)
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(q.Close)
						answer, err := q.Answer(patience)
						if err == nil && answer != s.wanted(e, family) {
							t.Errorf("%v: %q", e, answer)
						}
						if err == nil {
							count++
						}
					}
					return count
				}
				for family := range 2 {
					if n := answers(c.fills, family, 3*most, 20*time.Millisecond); n > most {
						t.Errorf("IPv%d, %v: %d connections, want at most %d", 4+2*family, c.fills, n, most)
					}
				}
				for family := range 2 {
					if n := answers(c.opening, family, most/4, patience); n < most/4 {
						t.Errorf("IPv%d, %v: %d of %d connections", 4+2*family, c.opening, n, most/4)
					}
				}
			})
		}
	})
}

// TestEndedConnections has a guest that plays both ends of TCP connections, by the NIC's address, and opens and closes
// one after another. The kernel keeps each for two minutes.
func TestEndedConnections(t *testing.T) {
	nstest.Long(t)
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		n := nstest.NewNetwork(t)
		const most, tries = 50, 600
		setup(t, config(n, infra.Masquerade{MaxConnections: most, Firewall: firewall}))
		w := attachDeaf(t, n, true, true)
		begin := time.Now()
		ended := 0
		for i := range uint16(tries) {
			if w.talkToItself(10000+i, nstest.Pod4, w.link.Gateway4) {
				ended++
			}
		}
		// The burst, and what the time has added.
		want := most + int(time.Since(begin).Seconds()*most/60) + 1
		if ended < most/2 || ended > want {
			t.Errorf("%d connections were opened and closed, want %d to %d", ended, most/2, want)
		}
		if have := tracked(t, n.Pod); have > 4*most {
			t.Errorf("there are %d connections, want at most %d", have, 4*most)
		}
		t.Logf("%d of %d connections, %d in the table, in %v", ended, tries, tracked(t, n.Pod), time.Since(begin))
	})
}

// talkToItself opens a TCP connection from the guest's port to the pod's address, at which the guest answers as well,
// and closes it; false: the connection is not opened.
func (w *wire) talkToItself(port uint16, pod, gateway netip.Addr) bool {
	w.t.Helper()
	const fin, syn = 1, 2
	send := func(from, to uint16, host netip.Addr, flags byte, sequence, acknowledged uint32) {
		segment := frames.Segment(from, to, flags, nil)
		binary.BigEndian.PutUint32(segment[4:], sequence)
		binary.BigEndian.PutUint32(segment[8:], acknowledged)
		w.write(w.link.Packet(unix.IPPROTO_TCP, w.link.IPv4, host, segment))
	}
	// receive waits for a segment to a port of the guest, and returns the sender's.
	receive := func(to uint16, flags byte) (from uint16, ok bool) {
		frame := make([]byte, 1<<16)
		for {
			if err := w.port.SetReadDeadline(time.Now().Add(3 * time.Millisecond)); err != nil {
				w.t.Fatal(err)
			}
			size, err := w.port.Read(frame)
			if os.IsTimeout(err) {
				return 0, false
			}
			if err != nil {
				w.t.Fatal(err)
			}
			if f := frame[:size]; size >= 54 && f[23] == unix.IPPROTO_TCP && binary.BigEndian.Uint16(f[36:]) == to && f[47] == flags {
				return binary.BigEndian.Uint16(f[34:]), true
			}
		}
	}
	const client, server = 1000, 9000
	send(port, 80, pod, syn, client, 0)
	outer, ok := receive(80, syn)
	if !ok {
		return false
	}
	send(80, outer, gateway, syn|tcpACK, server, client+1)
	send(port, 80, pod, tcpACK, client+1, server+1)
	send(port, 80, pod, fin|tcpACK, client+1, server+1)
	send(80, outer, gateway, fin|tcpACK, server+1, client+2)
	send(port, 80, pod, tcpACK, client+2, server+2)
	_, ok = receive(80, tcpACK)
	return ok
}

// TestDefaultMaxConnections: a guest cannot fill the table of a namespace where no limit is asked for.
func TestDefaultMaxConnections(t *testing.T) {
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		n := nstest.NewNetwork(t)
		setup(t, config(n, infra.Masquerade{Firewall: firewall}))
		n.Pod.Exec("sysctl", "-qw", "net.netfilter.nf_conntrack_udp_timeout=3600") // on a busy machine the first ones would end
		w := attachDeaf(t, n, true, true)
		begin := time.Now()
		for i := range uint16(infra.DefaultMaxConnections + 4000) {
			w.write(w.link.Packet(unix.IPPROTO_UDP, w.link.IPv4, nstest.Beyond4, frames.Datagram(5000, 10000+i, nil)))
		}
		const fuzz = 100 // the test's own, and ended ones
		if have := tracked(t, n.Pod); have > infra.DefaultMaxConnections+fuzz || have < infra.DefaultMaxConnections/2 {
			t.Errorf("there are %d connections, want nearly %d", have, infra.DefaultMaxConnections)
		}
		t.Logf("%d connections in %v", tracked(t, n.Pod), time.Since(begin))
	})
}

// TestUnansweredConnections has a guest that sends many datagrams that nobody answers. Each of them is new to the
// kernel, but belongs to few connections, and these are what is counted.
func TestUnansweredConnections(t *testing.T) {
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		if firewall == cache.FirewallNFTables {
			nstest.KernelDecides(t, "older kernels count a connection more than once")
		}
		n := nstest.NewNetwork(t)
		n.World.Exec("nft", "add table inet quiet; add chain inet quiet output { type filter hook output priority 0; icmp type 3 drop; }")
		const most = 50
		setup(t, config(n, infra.Masquerade{MaxConnections: most, Firewall: firewall}))
		w := attachDeaf(t, n, true, true)
		for range 100 {
			for i := range uint16(most / 2) {
				w.write(w.link.Packet(unix.IPPROTO_UDP, w.link.IPv4, nstest.Beyond4, frames.Datagram(5000, 6000+i, nil)))
			}
		}
		n.World.Serve("world", "udp", netip.AddrPortFrom(nstest.Beyond4, 9000))
		nstest.Eventually(t, func() error {
			w.write(w.link.Packet(unix.IPPROTO_UDP, w.link.IPv4, nstest.Beyond4, frames.Datagram(5000, 9000, make([]byte, 100))))
			if !w.get([]byte("world:9000 sees"), nstest.Gateway4) {
				return fmt.Errorf("a guest with %d connections of %d opens no more", tracked(t, n.Pod), most)
			}
			return nil
		})
	})
}

// TestNextHops has a guest that opens connections to hosts of the NIC's networks that do not exist, and one that sends
// from many sources. The namespace asks for few of them: the neighbour tables of all namespaces have 1024 entries
// together. A host that was among the first goes on, and so does one behind the gateway.
func TestNextHops(t *testing.T) {
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		n := nstest.NewNetwork(t)
		const tries, mostSources = 350, 256
		n.Pod.IP("route add 10.200.0.0/16 dev eth0")
		c := config(n, infra.Masquerade{Firewall: firewall})
		c.Guard.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/20"), netip.MustParsePrefix("fd00:9::/64"), netip.MustParsePrefix("fe80::/64")}
		mostNextHops := 64
		if firewall != cache.FirewallNFTables {
			mostNextHops = 150
			setup(t, c) // a later Setup has another limit
			c.Guard.MaxNeighbours = mostNextHops
		}
		setup(t, c)
		check(t, c)
		w := attachDeaf(t, n, true, true)
		neighbours := func(family, link string) int { return strings.Count(n.Pod.IP(family+" neigh show dev "+link), "\n") }
		for _, version := range []struct {
			family        string
			far, to, from netip.Addr
		}{
			{"-4", nstest.Beyond4, netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("10.9.0.1")},
			{"-6", nstest.Beyond6, netip.MustParseAddr("fd00:244:1::1000"), netip.MustParseAddr("fd00:9::1")},
		} {
			w.get([]byte("nothing"), version.far)
			to, from := version.to, version.from
			for range tries {
				w.write(w.link.Packet(unix.IPPROTO_UDP, w.guestAddress(to), to, frames.Datagram(5000, 5001, nil)))
				to = to.Next()
			}
			if have := neighbours(version.family, "eth0"); have > mostNextHops+5 || have < mostNextHops/2 {
				t.Errorf("IPv%s: the namespace asks for %d neighbours at the NIC, want about %d", version.family[1:], have, mostNextHops)
			}
			w.get([]byte("nothing"), version.far) // the gateway is one of the next hops that the guest has
			for range tries {                     // the world refuses, and the namespace has to find who asked
				w.write(w.link.Packet(unix.IPPROTO_TCP, from, version.far, frames.Segment(5000, 7, 2, nil)))
				from = from.Next()
			}
			if have := neighbours(version.family, "eth0-tap"); have > 5 { // the guest is the next hop to its prefixes
				t.Errorf("IPv%s: the namespace asks for %d neighbours at the tap", version.family[1:], have)
			}
			w.get([]byte("nothing"), version.far)
			if version.family == "-6" {
				local := netip.MustParseAddr("fe80::9:0:0:1")
				for i := range tries { // the namespace answers on the link
					w.write(w.link.Ping(local, eui64.LinkLocal(w.link.Gateway), i))
					local = local.Next()
				}
				if have := neighbours(version.family, "eth0-tap"); have > mostSources+5 || have < mostSources/2 {
					t.Errorf("the namespace asks for %d link-local neighbours, want about %d", have, mostSources)
				}
			}
			n.Pod.IP(version.family + " neigh flush dev eth0-tap nud all")
			for range tries { // who asks for the gateway is noted as well
				w.write(w.link.AskAs(from))
				from = from.Next()
			}
			if have := neighbours(version.family, "eth0-tap"); have > mostSources+5 || have < mostSources/2 {
				t.Errorf("IPv%s: the namespace notes %d neighbours that ask, want about %d", version.family[1:], have, mostSources)
			}
		}
	})
}

// TestTakenPorts has a neighbour send from a server's port to each port that the guest's connections leave by, before
// the guest asks that server. The guest's questions arrive all the same.
func TestTakenPorts(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		n := nstest.NewNetwork(t)
		c := config(n, infra.Masquerade{Ports: []infra.Ports{{First: 80}}, Firewall: firewall})
		setup(t, c)
		w := attachDeaf(t, n, true, true)
		for _, of := range []struct{ server, pod netip.Addr }{{nstest.Gateway4, nstest.Pod4}, {nstest.Gateway6, nstest.Pod6}} {
			var server *net.UDPConn
			err := netns.Do(n.World.File, func() (err error) {
				server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(of.server, 5300)))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			for port := 61000; port <= 65535; port++ {
				if _, err := server.WriteToUDPAddrPort([]byte("taken"), netip.AddrPortFrom(of.pod, uint16(port))); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
					t.Fatal(err)
				}
			}
			for i := range uint16(20) {
				question := fmt.Appendf(nil, "question %02d", i)
				w.write(w.link.Packet(unix.IPPROTO_UDP, w.guestAddress(of.server), of.server, frames.Datagram(40000+i, 5300, question)))
				if err := server.SetReadDeadline(time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
				answer := make([]byte, 100)
				for {
					size, _, err := server.ReadFromUDPAddrPort(answer)
					if errors.Is(err, unix.ECONNREFUSED) { // about an earlier datagram
						continue
					}
					if err != nil {
						t.Fatalf("%s of the guest to %v: %v", question, of.server, err)
					}
					if bytes.Equal(answer[:size], question) {
						break
					}
				}
			}
		}
	})
}

// TestReservedPorts: where the kernel gives nearly all ports to clients, some are reserved until Teardown.
func TestReservedPorts(t *testing.T) {
	t.Parallel()
	for found, want := range map[string]string{"": "61000-65535", "8080,9148,60990-61005": "8080,9148,60990-65535"} {
		n := nstest.NewNetwork(t)
		n.Pod.Exec("sysctl", "-qw", "net.ipv4.ip_local_port_range=1024 65535", "net.ipv4.ip_local_reserved_ports="+found)
		before := settled(t, n)
		c := config(n, infra.Masquerade{})
		reserved := func() string {
			return strings.TrimSpace(n.Pod.Exec("sysctl", "-n", "net.ipv4.ip_local_reserved_ports"))
		}
		for range 2 {
			setup(t, c)
			if have := reserved(); have != want {
				t.Errorf("%q is reserved, want %q", have, want)
			}
		}
		check(t, c)
		teardown(t, n, c, before)
		if have := reserved(); have != found {
			t.Errorf("after Teardown %q is reserved, want %q", have, found)
		}
	}
}
