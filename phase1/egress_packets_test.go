package phase1_test

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// eachTracking calls f with each binding that tracks connections, by all that can translate.
func eachTracking(t *testing.T, f func(t *testing.T, b infra.Binding)) {
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) { f(t, infra.Masquerade{Firewall: firewall}) })
	t.Run("routed", func(t *testing.T) { f(t, infra.Routed{}) })
}

// TestEgressPackets: a packet leaves if the policy allows its protocol, port and host, also in fragments, and after
// options and extension headers. The same packet to another port or host is refused. What has no ports, or is of a
// protocol without a name, leaves for a host that is allowed as a whole.
func TestEgressPackets(t *testing.T) {
	const port, other = 9000, 9001
	open := []netip.Addr{netip.MustParseAddr("198.51.100.77"), netip.MustParseAddr("2001:db8:9::77")}
	eachTracking(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		var texts []string
		for i, far := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
			for _, what := range []string{"9000/tcp", "9000/udp", "9000/sctp", "icmp", fmt.Sprintf("%d/udp", frames.SentinelPort)} {
				texts = append(texts, fmt.Sprintf("allow %v %s", far, what))
			}
			texts = append(texts, fmt.Sprintf("allow %v", open[i]))
		}
		c.Egress = policy(t, append(texts, "refuse all")...)
		setup(t, c)
		w := attach(t, n, true, true)
		for family, far := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
			no := []netip.Addr{refused4, refused6}[family]
			for i, k := range w.packets(family) {
				var left []string
				for _, to := range []struct {
					name string
					netip.AddrPort
				}{
					{"the port", netip.AddrPortFrom(far, port)}, {"another port", netip.AddrPortFrom(far, other)},
					{"an open host", netip.AddrPortFrom(open[family], other)}, {"another host", netip.AddrPortFrom(no, port)},
				} {
					if w.arrivesAt(to.Addr(), k.build(to.Addr(), uint16(5000+i), to.Port())) {
						left = append(left, to.name)
					}
				}
				if have := strings.Join(left, ", "); have != k.want {
					t.Errorf("IPv%d, %s: leaves for %q, want %q", 4+2*family, k.name, have, k.want)
				}
			}
		}
	})
}

// arrivesAt reports whether the frames come to the network as a packet for the address. What a busy machine loses is
// sent again.
func (w *wire) arrivesAt(to netip.Addr, list [][]byte) bool {
	w.t.Helper()
	for range 3 {
		world, _ := w.send(list...)
		if slices.ContainsFunc(world, func(s nstest.Sniffed) bool { return bytes.Contains(s.Frame, to.AsSlice()) }) {
			return true
		}
	}
	return false
}

// answerSentinel answers one, so that the exchange is open, and goes on where the policy allows no new one.
func (w *wire) answerSentinel() {
	w.t.Helper()
	w.sentinels++
	mark := frames.SentinelData(w.sentinels)
	write := func() {
		if _, err := w.port.Write(w.link.Sentinel(w.address(), w.sentinels)); err != nil {
			w.t.Fatal(err)
		}
	}
	write()
	seen := w.world.Until(func(s nstest.Sniffed) bool { return !s.Outgoing && bytes.Contains(s.Frame, mark) }, write)
	if err := w.inject(answerTo(seen[len(seen)-1].Frame)); err != nil {
		w.t.Fatal(err)
	}
	w.send()
}

// shape is a packet of the guest.
type shape struct {
	name, want string // where it leaves for
	build      func(to netip.Addr, source, port uint16) [][]byte
}

// packets are the shapes of a family.
func (w *wire) packets(family int) (shapes []shape) {
	const byPort, byHost, byProtocol = "the port, an open host", "the port, another port, an open host", "an open host"
	own := []netip.Addr{w.link.IPv4, w.link.IPv6}[family]
	add := func(want, name string, build func(to netip.Addr, source, port uint16) [][]byte) {
		shapes = append(shapes, shape{name, want, build})
	}
	packet := func(protocol uint8, to netip.Addr, body []byte) []byte { return w.link.Packet(protocol, own, to, body) }
	tcp := func(to netip.Addr, source, port uint16) []byte {
		return packet(unix.IPPROTO_TCP, to, frames.Segment(source, port, 2, nil))
	}
	udp := func(to netip.Addr, source, port uint16) []byte {
		return packet(unix.IPPROTO_UDP, to, frames.Datagram(source, port, make([]byte, 64)))
	}
	one := func(build func(to netip.Addr, source, port uint16) []byte) func(netip.Addr, uint16, uint16) [][]byte {
		return func(to netip.Addr, source, port uint16) [][]byte { return [][]byte{build(to, source, port)} }
	}
	add(byPort, "TCP", one(tcp))
	add(byPort, "UDP", one(udp))
	add(byPort, "SCTP", one(func(to netip.Addr, source, port uint16) []byte {
		return packet(unix.IPPROTO_SCTP, to, association(source, port))
	}))
	add(byPort, "UDP in fragments", func(to netip.Addr, source, port uint16) [][]byte {
		return fragments(udp(to, source, port), 16, 56)
	})
	add(byPort, "UDP in fragments, the last one first", func(to netip.Addr, source, port uint16) [][]byte {
		list := fragments(udp(to, source, port), 16, 56)
		slices.Reverse(list)
		return list
	})
	add(byHost, "an echo request", one(func(to netip.Addr, source, _ uint16) []byte {
		kind, protocol := byte(8), uint8(unix.IPPROTO_ICMP)
		if family == 1 {
			kind, protocol = 128, unix.IPPROTO_ICMPV6
		}
		return packet(protocol, to, append([]byte{kind, 0, 0, 0, byte(source >> 8), byte(source)}, 0, 1))
	}))
	for _, protocol := range []uint8{unix.IPPROTO_GRE, unix.IPPROTO_ESP, unix.IPPROTO_IPV6} {
		add(byProtocol, fmt.Sprintf("protocol %d", protocol), one(func(to netip.Addr, source, port uint16) []byte {
			return packet(protocol, to, append(portHeader(0, port), make([]byte, 36)...))
		}))
	}
	if family == 0 {
		add(byPort, "UDP after options", one(func(to netip.Addr, source, port uint16) []byte {
			return withOptions(udp(to, source, port), 148, 4, 0, 0)
		}))
		return shapes
	}
	padding := []byte{0, 0, 1, 4, 0, 0, 0, 0}
	for _, h := range []struct {
		name   string
		number byte
		rest   []byte
	}{{"hop-by-hop options", 0, padding}, {"destination options", 60, padding}, {"an atomic fragment", 44, []byte{0, 0, 0, 0, 0, 0, 0, 9}}} {
		for name, of := range map[string]func(netip.Addr, uint16, uint16) []byte{"TCP": tcp, "UDP": udp} {
			add(byPort, name+" after "+h.name, one(func(to netip.Addr, source, port uint16) []byte {
				return withHeader(of(to, source, port), h.number, h.rest...)
			}))
		}
	}
	return shapes
}

// TestEgressFamilies: a guest of one family opens what the policy allows there. Of the other family nothing leaves,
// though the policy allows it and another NIC has it, with the guest filter and without. By a policy that allows
// networks of the other family alone the guest opens nothing.
func TestEgressFamilies(t *testing.T) {
	families := []struct {
		option            string
		far, own, by, hop string // the host beyond, a source, the other NIC's address and the next hop's
	}{
		{"-4", "198.51.100.9", "10.0.2.2", "192.168.9.2/24", "192.168.9.1/24"},
		{"-6", "2001:db8:9::9", "fd10:0:2::2", "fd00:9::2/64", "fd00:9::1/64"},
	}
	for i, has := range families {
		lacks := families[1-i]
		for _, off := range []bool{false, true} {
			t.Run(fmt.Sprintf("IPv%s, guard off %v", has.option[1:], off), func(t *testing.T) {
				eachTracking(t, func(t *testing.T, b infra.Binding) {
					n := nstest.NewNetwork(t)
					n.Pod.IP(lacks.option + " route flush dev eth0")
					n.Pod.IP(lacks.option + " addr flush dev eth0")
					secondNIC(n, lacks.by)
					n.World.IP("addr add " + lacks.hop + " dev pod2")
					n.Pod.Settle("net1")
					n.Pod.IP("route add " + lacks.far + " via " + netip.MustParsePrefix(lacks.hop).Addr().String())
					n.Pod.Exec("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
					c := config(n, b)
					c.Guard.Off = off
					far, foreign := netip.MustParseAddr(has.far), netip.MustParseAddr(lacks.far)
					sentinel := fmt.Sprintf(" %d/udp", frames.SentinelPort)
					c.Egress = policy(t, "allow "+has.far+sentinel, "allow "+lacks.far, "refuse all")
					setup(t, c)
					w := attach(t, n, i == 0, i == 1)
					w.addEnds(n)
					stays := func(what string, f []byte) {
						t.Helper()
						if world, pod := w.send(f); len(world)+len(pod) > 0 {
							t.Errorf("%s: %v %v left", what, world, pod)
						}
					}
					fresh := func(source uint16) []byte {
						return w.link.Packet(17, w.address(), far, frames.Datagram(source, frames.SentinelPort, []byte("new")))
					}
					if !w.arrivesAt(far, [][]byte{fresh(5000)}) {
						t.Error("what is allowed does not leave")
					}
					stays("another port", w.link.Ask(17, w.address(), far, 53))
					ofOther := func(source uint16) [][]byte {
						from := netip.MustParseAddr(lacks.own)
						return [][]byte{w.link.Packet(17, from, foreign, frames.Datagram(source, 53, []byte("new"))), w.link.Ping(from, foreign, int(source))}
					}
					for _, f := range ofOther(5001) {
						stays("the other family", f)
					}

					w.answerSentinel()
					c.Egress = policy(t, "allow "+lacks.far, "refuse all")
					setup(t, c)
					check(t, c)
					before := counted(t, c)["egress"]
					stays("by a policy of the other family", fresh(5002))
					if n := counted(t, c)["egress"]; n != before+1 {
						t.Errorf("%d packets are counted, want 1", n-before)
					}
					for _, f := range ofOther(5003) {
						stays("the other family, alone in the policy", f)
					}
				})
			})
		}
	}
}

// addHelper is the command of nft(8) that adds a helper of connection tracking.
func addHelper(name string) string {
	return `add table inet ftp; add ct helper inet ftp control { type "` + name + `" protocol tcp; }; `
}

// lacksHelper reports whether the error of nft(8) is the kernel's answer to addHelper that it has no such helper
// (ENOENT).
func lacksHelper(err error) bool {
	return err != nil && strings.Contains(err.Error(), "Could not process rule: No such file or directory")
}

// TestLacksHelper: the kernel says that it has no such helper. A program that is not found, and a command that nft
// refuses, say nothing of the kernel.
func TestLacksHelper(t *testing.T) {
	nstest.Need(t)
	for _, c := range []struct {
		program, command string
		lacks            bool
	}{
		{"nft", addHelper("none-such"), true},
		{"none-such", addHelper("none-such"), false},
		{"nft", "add helper", false},
	} {
		if err := run("unshare", "--net", c.program, c.command); err == nil || lacksHelper(err) != c.lacks {
			t.Errorf("%s %q: %v, want an error, and lacksHelper %v", c.program, c.command, err, c.lacks)
		}
	}
}

// TestEgressExpected: a connection that connection tracking expects, as FTP's of data, is looked up like any other one.
func TestEgressExpected(t *testing.T) {
	t.Parallel()
	helper := addHelper("ftp")
	nstest.Need(t)
	if err := run("unshare", "--net", "nft", helper); lacksHelper(err) {
		nstest.LeaveOut(t, "this kernel has no nf_conntrack_ftp")
	} else if err != nil {
		t.Fatal(err)
	}
	eachRouter(t, []string{"allow 198.51.100.9 21", "allow 2001:db8:9::9 21", "refuse all"}, func(t *testing.T, s *scene, c wired.NIC) {
		s.serveWorld("tcp", 9000)
		s.Pod.Exec("nft", helper+`add chain inet ftp first { type filter hook prerouting priority 0; tcp dport 21 ct helper set "control"; }; `+
			`add chain inet ftp expected { type filter hook forward priority -1; ct state related tcp dport 9000 counter; }`)
		expect := map[int]func(){}
		for family, passive := range []string{"227 Entering Passive Mode (198,51,100,9,35,40)\r\n", "229 Entering Extended Passive Mode (|||9000|)\r\n"} {
			at := netip.AddrPortFrom(s.addresses["beyond"][family], 21)
			server := listen(t, s.World, at)
			expect[family] = func() {
				t.Helper()
				control := dial(t, s.who["guest"], "tcp", at)
				there, err := server.Accept()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { there.Close() })
				for _, line := range []string{"220 ready\r\n", passive} {
					if _, err := io.WriteString(there, line); err != nil {
						t.Fatal(err)
					}
					if _, err := io.ReadFull(control, make([]byte, len(line))); err != nil {
						t.Fatal(err)
					}
				}
			}
			expect[family]()
			s.refused(t, "tcp", family, "beyond:9000")
			if list := s.Pod.Exec("nft", "list", "chain", "inet", "ftp", "expected"); !strings.Contains(list, fmt.Sprintf("counter packets %d ", family+1)) {
				t.Fatalf("nothing was expected:\n%s", list)
			}
		}
		c.Egress = policy(t, "allow 198.51.100.9 21", "allow all 9000", "allow 2001:db8:9::9 21", "refuse all")
		setup(t, c)
		for family := range 2 {
			expect[family]()
			q, err := s.question("tcp", family, exchange{from: "guest", to: "beyond:9000"})
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			if answer, err := q.Answer(patience); err != nil {
				t.Errorf("IPv%d, allowed: %q, %v", 4+2*family, answer, err)
			}
		}
	})
}
