package phase1_test

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// TestDivertChange: a later Setup adds, moves and removes diverts, for the next connection. What is open goes on, also
// what was open to the destination itself. CutRefused ends what the new list leads elsewhere, and nothing else.
func TestDivertChange(t *testing.T) {
	t.Parallel()
	first := entries(divertTo("all", 9160, ":15960"), divertTo("all", 9163, ":15960"), divertTo("198.51.100.9", 9164, "127.0.0.1:15960"), []string{"allow all"})
	second := entries(divertTo("all", 9161, ":15960"), divertTo("198.51.100.9", 9164, "127.0.0.1:15961"), divertTo("all", 9160, ":15961"), divertTo("all", 9163, ":15960"), []string{"allow all"})
	eachRouter(t, first, func(t *testing.T, s *scene, c wired.NIC) {
		s.nameGuest(t, c)
		s.ask(t, []exchange{
			{from: "guest", to: "beyond:9160", want: "pod:15960 sees guest"},
			{from: "guest", to: "beyond:9161", want: "world:9161 sees pod"},
			{from: "guest", to: "beyond:9162", want: "world:9162 sees pod"},
			{from: "guest", to: "beyond:9163", want: "pod:15960 sees guest"},
			{from: "guest", to: "beyond:9164", want: "pod:15960 sees guest", only: 4},
		})
		var ending, going []*nstest.Question
		var ends []net.Conn
		for family := range 2 {
			for to, want := range map[string]string{"beyond:9160": "pod:15960 sees guest", "beyond:9161": "world:9161 sees pod", "beyond:9164": "pod:15960 sees guest"} {
				if to == "beyond:9164" && family == 1 {
					continue
				}
				ending = append(ending, s.opened(t, "tcp", family, exchange{from: "guest", to: to, want: want}))
				ends = append(ends, dial(t, s.who["guest"], "udp", netip.AddrPortFrom(s.addresses["beyond"][family], port(to))))
				exchangeDatagram(t, ends[len(ends)-1])
			}
			for to, want := range map[string]string{"beyond:9162": "world:9162 sees pod", "beyond:9163": "pod:15960 sees guest"} {
				going = append(going, s.opened(t, "tcp", family, exchange{from: "guest", to: to, want: want}))
			}
		}
		goOn := func(when string, list []*nstest.Question) {
			t.Helper()
			for i, q := range list {
				if err := q.Echo(1<<14, patience); err != nil {
					t.Errorf("%s, connection %d: %v", when, i, err)
				}
			}
		}
		cutAll := func() {
			t.Helper()
			if _, err := c.CutRefused(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		cutAll()
		goOn("cut by the same list", append(ending, going...))
		c.Egress = policy(t, second...)
		setup(t, c)
		check(t, c)
		goOn("after Setup", append(ending, going...))
		for _, d := range ends {
			exchangeDatagram(t, d)
		}
		s.ask(t, []exchange{
			{from: "guest", to: "beyond:9160", want: "pod:15961 sees guest"},
			{from: "guest", to: "beyond:9161", want: "pod:15960 sees guest"},
			{from: "guest", to: "beyond:9164", want: "pod:15961 sees guest", only: 4},
		})
		cutAll()
		for i, q := range ending {
			if err := q.Echo(10, patience); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("connection %d after the cut: %v, want %v", i, err, syscall.ECONNRESET)
			}
		}
		goOn("after the cut", going)
		for line := range strings.Lines(listTracked(t, s.Pod)) {
			if strings.Contains(line, " dport=9160 ") && strings.Contains(line, " sport=15960 ") {
				t.Errorf("still tracked: %s", line)
			}
		}
		for _, list := range [][]string{{"refuse all"}, first, {"allow all"}, second, {"divert all 9161 :15960", "refuse all"}, nil, first} { // and back
			c.Egress = policy(t, list...)
			setup(t, c)
			check(t, c)
		}
		if report, err := c.Status(t.Context()); err != nil || len(report.Egress) != len(first) {
			t.Errorf("Status says %+v, %v", report, err)
		}
	})
}

// TestDivertReopened: a connection that begins between the addresses and ports of one that connection tracking still
// knows is judged by the list of now: at a target to which no entry leads any more it is refused, and so is one to the
// destination itself if that is diverted by now. The same for datagrams that nobody has answered.
func TestDivertReopened(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachRouter(t, []string{"refuse all"}, func(t *testing.T, s *scene, c wired.NIC) {
		s.nameGuest(t, c)
		guest := s.who["guest"]
		diverted, direct := []string{"divert all 9170 :15970", "divert all 9170/udp :15970", "allow all"}, []string{"allow all"}
		moved := []string{"divert all 9170 :15971", "divert all 9170/udp :15971", "allow all"}
		for family := range 2 {
			at := netip.AddrPortFrom(s.addresses["beyond"][family], 9170)
			world, target := listen(t, s.World, at), listen(t, s.Pod, netip.AddrPortFrom(s.addresses["guest's gateway"][family], 15970))
			for i, change := range []struct {
				before, after []string
				server        net.Listener
				of            *nstest.Namespace
			}{{diverted, moved, target, s.Pod}, {diverted, []string{"allow all"}, target, s.Pod}, {diverted, []string{"refuse all"}, target, s.Pod}, {direct, diverted, world, s.World}} {
				c.Egress = policy(t, change.before...)
				setup(t, c)
				source := 5700 + 10*i + family
				client, err := dialFrom(t, guest, source, at)
				if err != nil {
					t.Fatal(err)
				}
				peer, err := change.server.Accept()
				if err != nil {
					t.Fatal(err)
				}
				forgotten(t, map[*nstest.Namespace]net.Conn{guest: client, change.of: peer})
				unanswered := dial(t, guest, "udp", at)
				toTarget, toWorld := s.atInput(t, "udp dport 15970"), s.arrivals(t, "udp dport 9170")
				if _, err := unanswered.Write([]byte("question")); err != nil {
					t.Fatal(err)
				}
				// Nobody listens: the answer is an error, which is no packet of the connection.
				if have := toTarget() + toWorld(); have != 1 {
					nstest.Eventually(t, func() error {
						if have := toTarget() + toWorld(); have != 1 {
							return fmt.Errorf("%d datagrams arrive, want 1", have)
						}
						return nil
					})
				}
				c.Egress = policy(t, change.after...)
				setup(t, c)
				again, err := dialFrom(t, guest, source, at)
				if err == nil { // the kernel forgot the connection at the refusal, and the guest tried once more: the list decides
					again.Close()
					old := []string{"15970", "15970", "", "9170"}[i]
					if old != "" && !strings.Contains(listTracked(t, s.Pod), fmt.Sprintf(" sport=%s dport=%d ", old, source)) {
						err = syscall.ECONNREFUSED
					}
				}
				if !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("IPv%d, %d: once more between the same ports: %v, want %v", 4+2*family, i, err, syscall.ECONNREFUSED)
				}
				for range 3 {
					unanswered.Write([]byte("question"))
				}
				s.ask(t, []exchange{{protocol: "tcp", from: "world@gateway", to: "pod:9171", want: "guest:9171 sees gateway"}}) // by then they have come
				if have := toTarget() + toWorld(); have != 1 {
					t.Errorf("IPv%d, %d: %d datagrams arrive after the change", 4+2*family, i, have-1)
				}
			}
		}
	})
}

// TestDivertWithin: what an operator's list diverts is diverted wherever the tenant's allows, and also where the
// tenant diverts it. What the tenant refuses is refused. A tenant's target needs the operator's word.
func TestDivertWithin(t *testing.T) {
	t.Parallel()
	eachRouter(t, []string{"refuse all"}, func(t *testing.T, s *scene, c wired.NIC) {
		s.nameGuest(t, c)
		c.EgressWithin = policy(t, entries(divertTo("all", 9180, ":15980"), []string{"refuse all 9181", "allow gateway 15981", "allow 127.0.0.0/8 15981-15982/tcp", "allow all 9182-9185", "refuse all"})...)
		c.Egress = policy(t, "divert all 9180 :15981", "divert all 9181 :15981", "refuse all 9183", "divert 198.51.100.9 9184 127.0.0.1:15982", "allow all")
		s.serveWorld("tcp", 9183)
		s.serveWorld("udp", 9181)
		setup(t, c)
		check(t, c)
		s.ask(t, []exchange{
			{from: "guest", to: "beyond:9180", want: "pod:15980 sees guest"},
			{protocol: "tcp", from: "guest", to: "beyond:9181", want: "pod:15981 sees guest"},
			{protocol: "tcp", from: "guest", to: "beyond:9182", want: "world:9182 sees pod"},
			{protocol: "tcp", from: "guest", to: "beyond:9184", want: "pod:15982 sees guest", only: 4},
		})
		for family := range 2 {
			s.refused(t, "udp", family, "beyond:9181")
			s.refused(t, "tcp", family, "beyond:9183")
		}
		c.Egress = policy(t, "refuse all 9180/tcp", "allow all")
		setup(t, c)
		s.ask(t, []exchange{{protocol: "udp", from: "guest", to: "beyond:9180", want: "pod:15980 sees guest"}})
		for family := range 2 {
			s.refused(t, "tcp", family, "beyond:9180")
		}
		before := s.Pod.Exec("nft", "-s", "-t", "list", "ruleset")
		for _, target := range []string{":22", "127.0.0.1:15983", "192.0.2.200:15981", "[2001:db8:2::200]:15981"} {
			c.Egress = policy(t, "divert all 9185 "+target, "refuse all")
			var field *cache.FieldError
			if _, err := c.Setup(t.Context()); !errors.As(err, &field) || field.Field != "egress[0]" {
				t.Errorf("a tenant's target %s: %v", target, err)
			}
		}
		if after := s.Pod.Exec("nft", "-s", "-t", "list", "ruleset"); after != before {
			t.Errorf("a refused Setup changes rules: %v", difference(before, after))
		}
	})
}

// TestDivertAfterTeardown: neither what was diverted goes on after Teardown and another Setup, nor what was open to the
// destination itself before a Setup that diverts it.
func TestDivertAfterTeardown(t *testing.T) {
	nstest.Long(t)
	diverted := []string{"divert all 9190/udp :15990", "divert 203.0.113.5 9191/udp 127.0.0.1:15990", "divert 2001:db8:bad::5 9191/udp :15990"}
	direct := []string{"allow all 9190-9191/udp"}
	eachTracking(t, func(t *testing.T, b infra.Binding) {
		for _, c := range []struct {
			name          string
			before, after []string
			leaves, taken int // of four, after the change
		}{
			{"diverted, and then refused", diverted, nil, 0, 0},
			{"diverted, and then allowed", diverted, direct, 4, 0},
			{"allowed, and then diverted", direct, diverted, 0, 4},
		} {
			t.Run(c.name, func(t *testing.T) {
				s := &scene{Network: nstest.NewNetwork(t)}
				nic := config(s.Network, b)
				nic.Down.CutOff = true
				list := func(texts []string) []infra.Egress {
					return policy(t, entries(onlySentinels[:2], texts, []string{"refuse all"})...)
				}
				try := func(w *wire) (leaves int, sent [][]byte) {
					t.Helper()
					for _, ends := range [][2]netip.Addr{{w.link.IPv4, refused4}, {w.link.IPv6, refused6}} {
						for i := range uint16(2) {
							world, _ := w.send(w.link.Packet(unix.IPPROTO_UDP, ends[0], ends[1], frames.Datagram(5000+i, 9190+i, []byte("question"))))
							for _, f := range world {
								leaves++
								sent = append(sent, f.Frame)
							}
						}
					}
					return leaves, sent
				}
				nic.Egress = list(c.before)
				setup(t, nic)
				r := record(t, s.Network)
				stops := []func(){}
				for _, a := range []netip.Addr{r.IPv4.Gateway(), cmp.Or(r.IPv6.Gateway, lease.RoutedIPv6), netip.MustParseAddr("127.0.0.1")} {
					stop, err := s.Pod.TryServe("pod", "udp", netip.AddrPortFrom(a, 15990))
					if err != nil {
						t.Fatal(err)
					}
					stops = append(stops, stop)
				}
				w := attach(t, s.Network, true, true)
				taken := s.atInput(t, "udp dport 15990")
				leaves, sent := try(w)
				if leaves+taken() != 4 {
					t.Fatalf("%d leave and %d are taken, want 4 in all", leaves, taken())
				}
				for _, f := range sent {
					if err := w.inject(answerTo(f)); err != nil {
						t.Fatal(err)
					}
				}
				w.send()
				for _, stop := range stops {
					stop()
				}
				w.detach()
				unwire(t, nic)
				nic.Egress = list(c.after)
				setup(t, nic)
				w = attach(t, s.Network, true, true)
				taken = s.atInput(t, "udp dport 15990")
				if leaves, _ := try(w); leaves != c.leaves || taken() != c.taken {
					t.Errorf("%d leave and %d are taken, want %d and %d", leaves, taken(), c.leaves, c.taken)
				}
			})
		}
	})
}

// TestDivertTwoGuests: what is diverted for one guest is not for another one in the same namespace, which reaches no
// target either. The kernel takes packets for loopback addresses from the first one's tap alone.
func TestDivertTwoGuests(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		secondNIC(s.Network, "192.168.9.2/24", "fd00:9::2/64")
		first, second := config(s.Network, infra.Masquerade{Firewall: firewall}), configOfSecondNIC(s.Network, infra.Masquerade{Firewall: firewall, IPv4: netip.MustParsePrefix("10.0.3.0/24"), IPv6: netip.MustParsePrefix("fd10:0:3::/64")})
		first.State, second.State = filepath.Join(s.State, "first"), filepath.Join(s.State, "second")
		first.Egress = policy(t, entries(divertTo("all", 9192, ":15992"), divertTo("198.51.100.9", 9193, "127.0.0.1:15992"), []string{"refuse all"})...)
		second.Guard.Open = each("9194")
		s.wire(t, "guest", first)
		s.wire(t, "second", second)
		check(t, first)
		check(t, second)
		s.ask(t, []exchange{
			{from: "guest", to: "beyond:9192", want: "pod:15992 sees guest"},
			{from: "guest", to: "beyond:9193", want: "pod:15992 sees guest", only: 4},
			{from: "guest", to: "second's gateway:9192", want: "pod:15992 sees guest"},
			{from: "second", to: "second's gateway:9194", want: "pod:9194 sees second"},
			{from: "second", to: "second's gateway:9192", want: ""},
			{from: "second", to: "second's gateway:15992", want: ""},
			{from: "second", to: "guest's gateway:9192", want: ""},
			{from: "second", to: "guest's gateway:15992", want: ""},
		})
		s.wantLocalnet(t, true)
	})
}

// TestDivertRepair: what is done to the chains, the sets and the sysctl of diverts, Check names and Setup repairs.
func TestDivertRepair(t *testing.T) {
	nstest.Long(t)
	eachRouter(t, []string{"divert all 9195 :15995", "divert 198.51.100.9 9196 127.0.0.1:15995", "divert all 9197 192.0.2.200:15995", "refuse all"}, func(t *testing.T, s *scene, c wired.NIC) {
		s.nameGuest(t, c)
		table := "inet guestwire-eth0 "
		for damage, words := range map[string]string{
			"nft flush chain " + table + "divert":                                                            "divert",
			"nft flush chain " + table + "to-divert":                                                         "to-divert",
			"nft flush chain " + table + "diverted":                                                          "diverted",
			"nft flush chain " + table + "astray":                                                            "astray",
			"nft 'flush chain " + table + "divert; delete chain " + table + "divert'":                        "divert",
			"nft insert rule " + table + "to-divert accept":                                                  "to-divert",
			"nft insert rule " + table + "divert ip daddr 198.51.100.9 tcp dport 22 dnat ip to 127.0.0.1:22": "divert",
			"nft flush set " + table + "divert-4-1":                                                          "divert-4-1",
			"nft flush set " + table + "divert-6-1":                                                          "divert-6-1",
			"nft 'add element " + table + "divert-4-2 { 203.0.113.5 . tcp . 22 }'":                           "divert-4-2",
			"sysctl -qw net.ipv4.conf.eth0-tap.route_localnet=0":                                             "route_localnet",
			"nft delete table " + table:                                                                      "guestwire-eth0",
		} {
			s.Pod.Exec("sh", "-c", damage)
			drifted(t, c, words)
			s.ask(t, []exchange{
				{protocol: "tcp", from: "guest", to: "beyond:9195", want: "pod:15995 sees guest"},
				{protocol: "tcp", from: "guest", to: "beyond:9196", want: "pod:15995 sees guest", only: 4},
			})
		}
		c.Egress = policy(t, "divert all 9195 :15995", "refuse all")
		setup(t, c)
		s.Pod.Exec("sysctl", "-qw", "net.ipv4.conf.eth0-tap.route_localnet=1")
		drifted(t, c, "route_localnet")
		s.wantLocalnet(t, false)
	})
}

// TestDivertLimit: MaxConnections counts what is diverted.
func TestDivertLimit(t *testing.T) {
	const most = 10
	eachTracking(t, func(t *testing.T, b infra.Binding) {
		switch of := b.(type) {
		case infra.Masquerade:
			of.MaxConnections = most
			b = of
		case infra.Routed:
			of.MaxConnections = most
			b = of
		}
		s := &scene{Network: nstest.NewNetwork(t)}
		c := config(s.Network, b)
		c.Egress = policy(t, append(onlySentinels[:2:2], "divert all 9198/udp :15998", "divert 203.0.113.5 9199/udp 127.0.0.1:15998", "refuse all")...)
		setup(t, c)
		w := attach(t, s.Network, true, true)
		taken := s.atInput(t, "udp dport 15998")
		for i := range uint16(300) {
			w.write(w.link.Packet(unix.IPPROTO_UDP, w.link.IPv4, refused4, frames.Datagram(5000+i, 9198+i%2, nil)))
		}
		w.send()
		if n := taken(); n == 0 || n > most {
			t.Errorf("%d connections are diverted, want at most %d", n, most)
		}
	})
}

// TestDivertLeaves: when the list has no loopback target any more, what was open to one ends, as the kernel takes no
// packet for it. When there is no list any more, what was diverted ends. The guest's next packet goes to its
// destination.
func TestDivertLeaves(t *testing.T) {
	t.Parallel()
	eachRouter(t, []string{"divert all 9180 127.0.0.1:15980", "divert all 9181 :15980", "allow all"}, func(t *testing.T, s *scene, c wired.NIC) {
		s.Pod.Serve("pod", "tcp", netip.MustParseAddrPort("0.0.0.0:15980"))
		s.serveWorld("tcp", 9180, 9181)
		opened := func(to string) *nstest.Question {
			q, err := s.question("tcp", 0, exchange{from: "guest", to: to})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(q.Close)
			if answer, err := q.Answer(patience); err != nil || !strings.HasPrefix(answer, "pod:15980 ") {
				t.Fatalf("%q, %v", answer, err)
			}
			return q
		}
		loopback, gateway := opened("beyond:9180"), opened("beyond:9181")
		c.Egress = policy(t, "allow all")
		setup(t, c)
		if err := loopback.Echo(10, patience); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("open to 127.0.0.1: %v, want %v", err, syscall.ECONNRESET)
		}
		if err := gateway.Echo(10, patience); err != nil {
			t.Errorf("open to the gateway: %v", err)
		}
		c.Egress = policy(t, "divert all 9181 :15980", "allow all")
		setup(t, c)
		c.Egress = nil
		setup(t, c)
		if err := gateway.Echo(10, patience); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("open to the gateway, without a list: %v, want %v", err, syscall.ECONNRESET)
		}
	})
}
