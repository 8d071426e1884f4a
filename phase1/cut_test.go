package phase1_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// cut wants CutRefused to cut so many connections.
func cut(t *testing.T, c wired.NIC, want int) {
	t.Helper()
	if n, err := c.CutRefused(t.Context()); err != nil || n != want {
		t.Errorf("%d connections are cut, %v, want %d", n, err, want)
	}
}

// arrivals counts what arrives in the world from now on that the expression of nft matches.
func (s *scene) arrivals(t *testing.T, match string) func() int {
	t.Helper()
	return countPackets(t, s.World, "arrivals", "prerouting priority -400", match)
}

// countPackets counts the packets from now on that meet a chain of its own at the hook and match.
func countPackets(t *testing.T, n *nstest.Namespace, table, hook, match string) func() int {
	t.Helper()
	n.Exec("nft", fmt.Sprintf("add table inet %[1]s; delete table inet %[1]s; add table inet %[1]s; "+
		"add chain inet %[1]s c { type filter hook %[2]s; }; add rule inet %[1]s c %[3]s counter", table, hook, match))
	return func() int {
		_, after, _ := strings.Cut(n.Exec("nft", "list", "chain", "inet", table, "c"), "packets ")
		n, err := strconv.Atoi(strings.Fields(after)[0])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// TestCutRefused: what the policy allows no more ends. What it allows goes on, and what others have opened.
func TestCutRefused(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachRouter(t, []string{"allow all"}, func(t *testing.T, s *scene, c wired.NIC) {
		protocols := []string{"tcp", "udp"}
		if nstest.HasSCTP() {
			protocols = append(protocols, "sctp")
		}
		for _, protocol := range protocols {
			s.serveWorld(protocol, 9000, 9001)
		}
		for family, a := range s.addresses["pod"] {
			if s.at["pod"] == "pod" {
				a = s.addresses["guest"][family]
			}
			s.who["guest"].Serve("guest", "tcp", netip.AddrPortFrom(a, 8000))
		}
		open := func(protocol string, family int, e exchange) *nstest.Question {
			t.Helper()
			q, err := s.question(protocol, family, e)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(q.Close)
			if answer, err := q.Answer(patience); err != nil {
				t.Fatalf("%s, %v: %q, %v", protocol, e, answer, err)
			}
			return q
		}
		var ending, going []*nstest.Question
		var datagrams [2][2]net.Conn // by family: to the port that ends, to the one that goes on
		for family := range 2 {
			for _, protocol := range protocols {
				if protocol != "udp" {
					ending = append(ending, open(protocol, family, exchange{from: "guest", to: "beyond:9000"}))
					going = append(going, open(protocol, family, exchange{from: "guest", to: "beyond:9001"}))
				}
			}
			going = append(going, open("tcp", family, exchange{from: "world", to: "pod:8000"}))
			for i := range 2 {
				datagrams[family][i] = dial(t, s.who["guest"], "udp", netip.AddrPortFrom(s.addresses["beyond"][family], uint16(9000+i)))
				exchangeDatagram(t, datagrams[family][i])
			}
		}
		goOn := func(when string, list []*nstest.Question) {
			t.Helper()
			for i, q := range list {
				if err := q.Echo(1<<16, patience); err != nil {
					t.Errorf("%s, connection %d: %v", when, i, err)
				}
			}
		}
		goOn("before", ending)
		goOn("before", going)
		cut(t, c, 0)
		var entries []string
		for _, protocol := range protocols {
			entries = append(entries, "allow all 9001/"+protocol)
		}
		c.Egress = policy(t, append(entries, "refuse all")...)
		setup(t, c)
		goOn("after Setup", ending)
		goOn("after Setup", going)
		cut(t, c, 2*len(protocols))
		arrived := s.arrivals(t, "th dport 9000")
		for i, q := range ending {
			tcp, wait := i%(len(protocols)-1) == 0, time.Second // SCTP tries again
			if tcp {
				wait = patience
			}
			if err := q.Echo(10, wait); err == nil {
				t.Errorf("connection %d goes on", i)
			} else if tcp && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("connection %d of TCP: %v, want %v", i, err, syscall.ECONNRESET)
			}
		}
		for family := range 2 {
			ended := datagrams[family][0]
			ended.SetDeadline(time.Time{})
			nstest.Eventually(t, func() error {
				_, err := ended.Write([]byte("question"))
				if want := []error{syscall.EHOSTUNREACH, syscall.EACCES}[family]; !errors.Is(err, want) {
					return fmt.Errorf("a datagram after the cut: %v, want %v", err, want)
				}
				return nil
			})
			exchangeDatagram(t, datagrams[family][1])
		}
		goOn("after the cut", going)
		if n := arrived(); n != 0 {
			t.Errorf("%d packets of connections that are cut arrive", n)
		}
		for line := range strings.Lines(listTracked(t, s.Pod)) {
			_, original, _ := strings.Cut(line, " dport=") // the answers of another connection may come to this port
			if strings.HasPrefix(original, "9000 ") {
				t.Errorf("still tracked: %s", line)
			}
		}
		cut(t, c, 0)
		check(t, c)
		c.Egress = nil
		setup(t, c)
		cut(t, c, 0)
		s.ask(t, []exchange{{from: "guest", to: "beyond:9002", want: "world:9002 sees pod"}})
	})
}

// exchangeDatagram sends until an answer comes.
func exchangeDatagram(t *testing.T, c net.Conn) {
	t.Helper()
	nstest.Eventually(t, func() error {
		c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.Write([]byte("question")); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 100))
		return err
	})
}

// TestCutOtherSide: the other side of a connection that is cut goes on to send. Its packets open no connection to the
// guest, whose packets would then pass as answers.
func TestCutOtherSide(t *testing.T) {
	t.Parallel()
	eachRouter(t, []string{"allow all"}, func(t *testing.T, s *scene, c wired.NIC) {
		for family := range 2 {
			world := netip.AddrPortFrom(s.addresses["beyond"][family], uint16(9000+family))
			server := listen(t, s.World, world)
			client := dial(t, s.who["guest"], "tcp", world)
			peer, err := server.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			say := func(from, to net.Conn) error {
				if _, err := from.Write([]byte("said")); err != nil {
					return err
				}
				to.SetReadDeadline(time.Now().Add(patience))
				_, err := io.ReadFull(to, make([]byte, 4))
				return err
			}
			if err := errors.Join(say(client, peer), say(peer, client)); err != nil {
				t.Fatal(err)
			}
			c.Egress = policy(t, "refuse all")
			setup(t, c)
			cut(t, c, 1)
			arrived := s.arrivals(t, fmt.Sprintf("tcp dport %d tcp flags & rst == 0", world.Port()))
			before := counted(t, c)
			if _, err := peer.Write([]byte("after the cut")); err != nil {
				t.Fatal(err)
			}
			nstest.Eventually(t, func() error { // it is dropped, or the namespace resets it
				after := counted(t, c)
				if after["no-connection"]+after["not-forwarded"] > before["no-connection"]+before["not-forwarded"] {
					return nil
				}
				if _, err := peer.Write([]byte("once more")); errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
					return nil
				}
				return errors.New("what the world sends is neither dropped nor refused")
			})
			client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if n, err := client.Read(make([]byte, 100)); !errors.Is(err, syscall.ECONNRESET) && n > 0 {
				t.Errorf("the guest receives %d octets of the connection, %v", n, err)
			}
			nstest.Eventually(t, func() error {
				if _, err := client.Write([]byte("an answer")); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
					return fmt.Errorf("the guest goes on to send: %v", err)
				}
				return nil
			})
			if n := arrived(); n > 0 {
				t.Errorf("%d packets of the guest arrive", n)
			}
			c.Egress = policy(t, "allow all")
			setup(t, c)
		}
	})
}

// TestCutFrames: of a connection that is cut nothing leaves, in whatever form it comes: by protocols without ports,
// after extension headers, in fragments. Before the cut it does, as it was open.
func TestCutFrames(t *testing.T) {
	for _, b := range []infra.Binding{infra.Masquerade{}, infra.Masquerade{Firewall: cache.FirewallIPTablesNFT}, infra.Routed{}} {
		name := string(b.Kind())
		if m, is := b.(infra.Masquerade); is {
			name += string(m.Firewall)
		}
		t.Run(name, func(t *testing.T) {
			n := nstest.NewNetwork(t)
			c := config(n, b)
			c.Egress = policy(t, "allow all")
			setup(t, c)
			w := attach(t, n, true, true)
			kinds := openings(w)
			w.leave("allowed", true, kinds)
			for _, k := range kinds {
				world, _ := w.send(k.Frames...)
				for _, s := range world {
					if err := w.inject(answerTo(s.Frame)); err != nil {
						t.Fatal(err)
					}
				}
			}
			w.send()
			c.Egress = policy(t, fmt.Sprintf("allow 198.51.100.9 %d/udp", frames.SentinelPort), fmt.Sprintf("allow 2001:db8:9::9 %d/udp", frames.SentinelPort), "refuse all")
			setup(t, c)
			w.leave("open", true, kinds)
			cut(t, c, len(kinds))
			w.leave("cut", false, kinds)
			w.leave("cut, once more", false, kinds)
		})
	}
}

// leave wants each kind to leave, or none.
func (w *wire) leave(when string, want bool, kinds []frames.Kind) {
	w.t.Helper()
	for _, k := range kinds {
		if world, _ := w.send(k.Frames...); (len(world) > 0) != want {
			w.t.Errorf("%s, %s: it leaves: %t", when, k.Name, !want)
		}
	}
}

// answerTo is the answer to a frame: with its addresses and ports exchanged, and of ICMP the reply.
func answerTo(frame []byte) []byte {
	f := slices.Clone(frame)
	exchange := func(at, size int) {
		for i := range size {
			f[at+i], f[at+size+i] = f[at+size+i], f[at+i]
		}
	}
	exchange(0, 6)
	protocol, at, first := f[23], 14+4*int(f[14]&15), binary.BigEndian.Uint16(f[20:])&0x1fff == 0
	if f[12] == 0x86 {
		protocol, at, first = f[20], 54, true
		exchange(22, 16)
	} else {
		exchange(26, 4)
	}
	for protocol == 60 || protocol == 44 {
		if protocol == 44 {
			first = binary.BigEndian.Uint16(f[at+2:])&^7 == 0
		}
		protocol, at = f[at], at+8
	}
	switch {
	case !first:
	case protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_UDP:
		exchange(at, 2)
	case protocol == unix.IPPROTO_SCTP:
		exchange(at, 2)
		f[at+12] = 5 // HEARTBEAT ACK
		copy(f[at+8:], make([]byte, 4))
		binary.LittleEndian.PutUint32(f[at+8:], crc32.Checksum(f[at:], crc32.MakeTable(crc32.Castagnoli)))
	case protocol == unix.IPPROTO_ICMP || protocol == unix.IPPROTO_ICMPV6:
		reply := map[byte]byte{8: 0, 128: 129}[f[at]]
		checksum := uint32(binary.BigEndian.Uint16(f[at+2:])) + uint32(f[at])<<8 + uint32(^reply)<<8 + 0xff
		binary.BigEndian.PutUint16(f[at+2:], uint16(checksum+checksum>>16))
		f[at] = reply
	}
	return f
}

// openings are packets of the guest, each of a connection of its own.
func openings(w *wire) (kinds []frames.Kind) {
	add := func(name string, list ...[]byte) { kinds = append(kinds, frames.Kind{Name: name, Frames: list}) }
	port := uint16(5000)
	for _, v := range []struct {
		name         string
		own, far, no netip.Addr
		icmp, echo   uint8
	}{{"IPv4 ", w.link.IPv4, w.link.Far4, refused4, unix.IPPROTO_ICMP, 8}, {"IPv6 ", w.link.IPv6, w.link.Far6, refused6, unix.IPPROTO_ICMPV6, 128}} {
		udp := func(to netip.Addr, size int) []byte {
			port++
			return w.link.Packet(unix.IPPROTO_UDP, v.own, to, frames.Datagram(port, 53, make([]byte, size)))
		}
		add(v.name+"UDP", udp(v.no, 8))
		add(v.name+"UDP to the allowed host", udp(v.far, 8))
		add(v.name+"UDP in fragments", fragments(udp(v.no, 64), 16, 56)...)
		add(v.name+"echo request", w.link.Packet(v.icmp, v.own, v.no, []byte{v.echo, 0, 0, 0, 0, 9, 0, 1}))
		port++
		port++
		add(v.name+"SCTP in its middle", w.link.Packet(unix.IPPROTO_SCTP, v.own, v.no, slices.Concat(portHeader(port, 80), []byte{0, 0, 0, 1, 0, 0, 0, 0}, []byte{4, 0, 0, 12, 0, 1, 0, 8, 0, 0, 0, 1}))) // a HEARTBEAT (RFC 9260 section 3.3.5)
		add(v.name+"TCP in its middle", w.link.Packet(unix.IPPROTO_TCP, v.own, v.no, frames.Segment(port, 80, 0x10, []byte("data"))))
		if w.routed { // behind masquerade they do not leave at all
			add(v.name+"ESP", w.link.Packet(50, v.own, v.no, make([]byte, 40)))
			add(v.name+"GRE", w.link.Packet(47, v.own, v.no, make([]byte, 40)))
			add(v.name+"protocol 253", w.link.Packet(253, v.own, v.no, make([]byte, 40)))
		}
		if v.own.Is6() {
			add(v.name+"UDP after destination options", withHeader(udp(v.no, 8), 60, 0, 0, 1, 4, 0, 0, 0, 0))
			add(v.name+"UDP after an atomic fragment header", withHeader(udp(v.no, 8), 44, 0, 0, 0, 0, 0, 0, 0, 9))
		}
	}
	return kinds
}

// TestCutExpected: a connection that connection tracking expected ends together with the connection that announced it,
// as FTP's data connection, which the server opens.
func TestCutExpected(t *testing.T) {
	t.Parallel()
	s, c := newRouted(t, func(s *scene) wired.NIC {
		c := config(s.Network, infra.Routed{})
		c.Egress = policy(t, "allow all")
		return c
	})
	s.Pod.Exec("nft", `add table ip ftp; add ct helper ip ftp h { type "ftp" protocol tcp; }; add chain ip ftp c { type filter hook prerouting priority 0; }; add rule ip ftp c tcp dport 21 ct helper set "h"`)
	accept := func(l net.Listener) net.Conn {
		t.Helper()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	at := netip.AddrPortFrom(nstest.Beyond4, 21)
	server, client := listen(t, s.World, at), listen(t, s.who["guest"], netip.AddrPortFrom(nstest.Pod4, 8080))
	control := dial(t, s.who["guest"], "tcp", at)
	asked := accept(server)
	for _, line := range []string{"USER guest\r\n", "PORT 10,244,1,7,31,144\r\n"} { // the kernel reads from the second line on
		if _, err := control.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if _, err := asked.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	var sent net.Conn
	in(t, s.World, func() (err error) {
		sent, err = (&net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(nstest.Beyond4, 20)), Timeout: patience}).Dial("tcp", "10.244.1.7:8080")
		return err
	})
	defer sent.Close()
	data, others := accept(client), dial(t, s.World, "tcp", netip.MustParseAddrPort("10.244.1.7:8080"))
	other := accept(client)
	c.Egress = policy(t, "refuse all")
	setup(t, c)
	cut(t, c, 2)
	nstest.Eventually(t, func() error {
		if _, err := data.Write([]byte("data")); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			return fmt.Errorf("data goes on: %v", err)
		}
		return nil
	})
	if _, err := other.Write([]byte("data")); err != nil {
		t.Error(err)
	}
	others.SetReadDeadline(time.Now().Add(patience))
	if _, err := others.Read(make([]byte, 100)); err != nil {
		t.Errorf("what others have opened: %v", err)
	}
}

// TestCutDatagrams: where the network opens nothing to the guest, a UDP exchange that is cut ends though the other side
// goes on to send.
func TestCutDatagrams(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := config(s.Network, infra.Masquerade{Ports: []infra.Ports{}})
	c.Egress = policy(t, "allow all")
	s.wire(t, "guest", c)
	for family, world := range s.addresses["beyond"] {
		var peer net.PacketConn
		in(t, s.World, func() (err error) {
			peer, err = net.ListenPacket("udp", netip.AddrPortFrom(world, 9000).String())
			return err
		})
		defer peer.Close()
		guest := dial(t, s.who["guest"], "udp", netip.AddrPortFrom(world, 9000))
		var from net.Addr
		nstest.Eventually(t, func() error {
			if _, err := guest.Write([]byte("question")); err != nil {
				return err
			}
			peer.SetReadDeadline(time.Now().Add(time.Second))
			_, a, err := peer.ReadFrom(make([]byte, 100))
			from = a
			return err
		})
		say := func() {
			t.Helper()
			if _, err := peer.WriteTo([]byte("answer"), from); err != nil {
				t.Fatal(err)
			}
		}
		say()
		guest.SetReadDeadline(time.Now().Add(patience))
		if _, err := guest.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		c.Egress = policy(t, "refuse all")
		setup(t, c)
		cut(t, c, 1)
		before := counted(t, c)["not-forwarded"]
		nstest.Eventually(t, func() error {
			say()
			if counted(t, c)["not-forwarded"] < before+3 {
				return errors.New("what the world sends is not dropped")
			}
			return nil
		})
		nstest.Eventually(t, func() error {
			_, err := guest.Write([]byte("question"))
			if want := []error{syscall.EHOSTUNREACH, syscall.EACCES}[family]; !errors.Is(err, want) {
				return fmt.Errorf("%v, want %v", err, want)
			}
			return nil
		})
		c.Egress = policy(t, "allow all")
		setup(t, c)
	}
}
