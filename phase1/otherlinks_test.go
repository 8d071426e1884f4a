package phase1_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// addNeighbour adds net9 to the pod, and a neighbour there whose router is the pod.
func (s *scene) addNeighbour(t *testing.T) {
	t.Helper()
	neighbour := nstest.New(t, "neighbour")
	s.who["neighbour"] = neighbour
	neighbour.IP("link add eth0 type veth peer name net9 netns " + s.Pod.Name)
	neighbour.IP("link set eth0 up")
	neighbour.IP("addr add 10.246.0.2/24 dev eth0")
	neighbour.IP("addr add fd00:246::2/64 dev eth0 nodad")
	s.Pod.IP("link set net9 up")
	s.Pod.IP("addr add 10.246.0.7/24 dev net9")
	s.Pod.IP("addr add fd00:246::7/64 dev net9 nodad")
	neighbour.IP("route add default via 10.246.0.7")
	neighbour.IP("route add default via fd00:246::7")
	s.name("neighbour", "neighbour", netip.MustParseAddr("10.246.0.2"), netip.MustParseAddr("fd00:246::2"))
	s.name("pod", "pod9", netip.MustParseAddr("10.246.0.7"), netip.MustParseAddr("fd00:246::7"))
}

// forwardsByLink reports whether the kernel has IPv6 forwarding of one link.
func (s *scene) forwardsByLink() bool {
	return s.Pod.Exec("sh", "-c", "cat /proc/sys/net/ipv6/conf/eth0/force_forwarding 2>/dev/null || echo none") != "none\n"
}

// otherLinkRefused wants the guest to get a refusal for each protocol and version of IP, which are counted.
func (s *scene) otherLinkRefused(t *testing.T, c wired.NIC, families ...int) {
	t.Helper()
	count := func() uint64 {
		drops := counters(t, c).Drops
		if at := slices.IndexFunc(drops, func(d phase1.Count) bool { return d.Reason == "other-link" }); at >= 0 {
			return drops[at].Packets
		}
		return 0
	}
	for _, family := range families {
		before := count()
		s.refused(t, "tcp", family, "neighbour:8000")
		s.refused(t, "udp", family, "neighbour:8000")
		out := s.who["guest"].Exec("sh", "-c", "ping -c1 -w20 "+s.addresses["neighbour"][family].String()+" || true")
		if want := []string{"Packet filtered", "Administratively prohibited"}[family]; !strings.Contains(out, want) {
			t.Errorf("ping by IPv%d: want %q\n%s", 4+2*family, want, out)
		}
		if n := count() - before; n < 3 {
			t.Errorf("of IPv%d, %d packets are counted as other-link, want 3", 4+2*family, n)
		}
	}
}

// byBothLinks are the exchanges of the guest with the neighbour and with the world. Without IPv6 at the neighbour, only
// is 4.
func byBothLinks(c wired.NIC, only int) []exchange {
	sees := "pod9" // the address of the link by which it leaves
	if _, routed := c.Binding.(infra.Routed); routed {
		sees = "pod"
	}
	return []exchange{
		{from: "guest", to: "neighbour:8000", want: "neighbour:8000 sees " + sees, only: only},
		{from: "guest", to: "beyond:8000", want: "world:8000 sees pod"},
	}
}

// TestOtherLinks: what the guest sends by a link of the namespace that does not forward is refused, and counted. When
// the link forwards, Check says so, and from the next Setup on the guest gets answers. It stays so while the link is
// gone.
func TestOtherLinks(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	nstest.Need(t, "ping")
	eachRouter(t, nil, func(t *testing.T, s *scene, c wired.NIC) {
		s.addNeighbour(t)
		s.ask(t, byBothLinks(c, 0)[1:])
		s.otherLinkRefused(t, c, 0, 1)
		check(t, c)

		says, only := "net9 forwards IPv4", 4
		s.Pod.Exec("sysctl", "-qw", "net.ipv4.conf.net9.forwarding=1")
		if s.forwardsByLink() {
			s.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.net9.force_forwarding=1")
			says, only = says+", net9 forwards IPv6", 0
		}
		var drift *phase1.DriftError
		if err := c.Check(t.Context()); !errors.As(err, &drift) || len(drift.Differs) != 1 || drift.Differs[0].Kind != "forwarding" || drift.Differs[0].What != says {
			t.Errorf("Check says %v, want one difference: %s", err, says)
		}
		setup(t, c)
		check(t, c)
		s.ask(t, byBothLinks(c, only))
		if only == 4 {
			s.otherLinkRefused(t, c, 1)
		}

		s.Pod.Exec("sysctl", "-qw", "net.ipv4.conf.net9.forwarding=0")
		setup(t, c)
		s.otherLinkRefused(t, c, 0)
		s.Pod.IP("link del net9")
		check(t, c)
	})
}

// TestOtherLinksForward: in a namespace that forwards before Setup, the guest gets answers by each link.
func TestOtherLinksForward(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]infra.Binding{"masquerade": infra.Masquerade{}, "routed": infra.Routed{}} {
		t.Run(name, func(t *testing.T) {
			nstest.KernelDecides(t, "IPv6 forwards in the whole namespace before Linux 6.17")
			s := newScene(t)
			s.addNeighbour(t)
			s.Pod.Exec("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
			c := config(s.Network, b)
			if name == "routed" {
				setup(t, c)
				s.routedGuest(t, record(t, s.Network))
			} else {
				s.wire(t, "guest", c)
			}
			check(t, c)
			s.ask(t, byBothLinks(c, 0))
		})
	}
}

// TestVPN: policy rules lead all of the namespace's packets to another link, as wg-quick(8) does. A guest of bridge
// or redirect passes that link by, which is a loss. If the link forwards, a guest of masquerade or routed goes
// there. Only masquerade has the VPN's address there, so a routed guest loses it, and auto becomes masquerade. If the
// link does not forward, the guest gets a refusal, and sends nothing past the VPN. auto is routed there.
func TestVPN(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		binding  infra.Binding
		forwards bool
		sees     string // whom the VPN sees; empty: the guest is refused
	}{
		{"auto", infra.Auto{}, true, "pod9"},
		{"routed", infra.Routed{}, true, "pod"}, // the neighbour has a way back
		{"masquerade", infra.Masquerade{}, true, "pod9"},
		{"auto", infra.Auto{}, false, ""}, // redirect and bridge would lose the policy rules as well
		{"masquerade", infra.Masquerade{}, false, ""},
	} {
		t.Run(fmt.Sprintf("%s, forwards %t", c.name, c.forwards), func(t *testing.T) {
			s := newScene(t)
			s.addNeighbour(t)
			neighbour, far4, far6 := s.who["neighbour"], netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8:9::9")
			neighbour.IP("addr add 203.0.113.9/32 dev lo")
			neighbour.IP("addr add 2001:db8:9::9/128 dev lo nodad")
			s.name("neighbour", "far", far4, far6)
			for _, line := range []string{
				"-4 route add default via 10.246.0.2 table 51820", "-6 route add default via fd00:246::2 table 51820",
				"-4 rule add not fwmark 0xca6c table 51820", "-6 rule add not fwmark 0xca6c table 51820",
				"-4 rule add table main suppress_prefixlength 0", "-6 rule add table main suppress_prefixlength 0",
			} {
				s.Pod.IP(line)
			}
			if c.forwards {
				s.Pod.Exec("sysctl", "-qw", "net.ipv4.conf.net9.forwarding=1", "net.ipv6.conf.all.forwarding=1")
			}
			for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
				preview, err := config(s.Network, b).Plan(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				losses := fmt.Sprint(preview.Record.Losses)
				for _, says := range []string{"other-link net9: 0.0.0.0/0, 10.246.0.0/24: a policy rule leads to table 51820 and out by net9", "other-link net9: ::/0, fd00:246::/64: a policy rule"} {
					if !strings.Contains(losses, says) {
						t.Errorf("%s loses %s, want %q", b.Kind(), losses, says)
					}
				}
			}
			config := config(s.Network, c.binding)
			setup(t, config)
			r := record(t, s.Network)
			s.who["guest"] = recordsGuest(t, s.Network, r, r.MTU)
			s.who["guest"].Settle("eth0")
			if r.Binding == cache.BindingRouted {
				s.at["pod"] = "guest"
			}
			want := cache.Kind(c.name)
			if c.name == "auto" && c.forwards {
				want = cache.BindingMasquerade
			} else if c.name == "auto" {
				want = cache.BindingRouted
			}
			if keeps := r.Binding == cache.BindingMasquerade; c.forwards && keeps != (len(r.Losses) == 0) || r.Binding != want || !c.forwards && len(r.Losses) == 0 {
				t.Errorf("%s loses %v, want %s", r.Binding, r.Losses, want)
			}
			for _, l := range r.Losses {
				if c.forwards && (l.Kind != "other-link" || l.Way != "masquerade keeps it") {
					t.Errorf("%s loses %v, want what masquerade keeps", r.Binding, l)
				}
			}
			if c.forwards {
				s.ask(t, []exchange{{from: "guest", to: "far:8000", want: "neighbour:8000 sees " + c.sees}})
				return
			}
			for family := range 2 {
				s.refused(t, "tcp", family, "beyond:8000")
				s.refused(t, "udp", family, "far:8000")
			}
		})
	}
}

// TestOtherLinkSources: by a link that forwards, a routed guest has its own address. That is a loss if the namespace
// has another one there, whatever the link is. The neighbour, unlike a WireGuard peer, answers each address to which it
// has a way.
func TestOtherLinkSources(t *testing.T) {
	t.Parallel()
	const noARP = "link set LINK down; link set LINK address 02:00:00:00:00:99 arp off up"
	for _, c := range []struct {
		name           string
		pod, neighbour string   // commands of ip(8)
		lost           []string // of net9 or the tunnel
		from           string   // whom the kernel says that the namespace sends as
		unanswered     bool
	}{
		{"veth", "route add 203.0.113.9 via 10.246.0.2", "", []string{"net9: 10.246.0.0/24, 203.0.113.9/32"}, "10.246.0.7", false},
		{"vxlan", "link add vxlan9 type vxlan id 9 dstport 4789 local 10.246.0.7 remote 10.246.0.2; link set vxlan9 up; addr add 10.66.0.7/24 dev vxlan9; route add 203.0.113.9 via 10.66.0.2",
			"link add vxlan9 type vxlan id 9 dstport 4789 local 10.246.0.2 remote 10.246.0.7; link set vxlan9 up; addr add 10.66.0.2/24 dev vxlan9; route replace default via 10.66.0.7",
			[]string{"net9: 10.246.0.0/24", "vxlan9: 10.66.0.0/24, 203.0.113.9/32"}, "10.66.0.7", false},
		{"a route from the guest's address", "route add 203.0.113.9 via 10.246.0.2 src 10.244.1.7", "", []string{"net9: 10.246.0.0/24"}, "10.244.1.7", false},
		{"no address", "-4 addr flush dev net9; route add 203.0.113.9 via 10.246.0.2 dev net9 onlink", "route replace default dev eth0; neigh replace 10.244.1.7 lladdr MAC dev eth0", nil, "10.244.1.7", false},
		{"the guest's network, without ARP", "-4 addr flush dev net9; addr add 10.244.9.7/16 dev net9; " + strings.ReplaceAll(noARP, "LINK", "net9") + "; route add 203.0.113.9 dev net9",
			"-4 addr flush dev eth0; addr add 10.244.9.2/16 dev eth0; " + strings.ReplaceAll(noARP, "LINK", "eth0"), nil, "10.244.9.7", false},
		{"the guest's network, with ARP", "-4 addr flush dev net9; addr add 10.244.9.7/16 dev net9; route add 203.0.113.9 via 10.244.9.2", "-4 addr flush dev eth0; addr add 10.244.9.2/16 dev eth0",
			[]string{"net9: 10.244.0.0/16, 203.0.113.9/32"}, "10.244.9.7", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.addNeighbour(t)
			neighbour, far := s.who["neighbour"], netip.MustParseAddr("203.0.113.9")
			neighbour.IP("addr add 203.0.113.9/32 dev lo")
			s.addresses = map[string][2]netip.Addr{"pod": s.addresses["pod"], "far": {far}} // who serves
			s.at = map[string]string{"pod": "pod", "far": "neighbour"}
			mac := strings.Fields(s.Pod.IP("-br link show net9"))[2]
			for _, line := range strings.Split(c.pod, "; ") {
				s.Pod.IP(line)
			}
			for _, line := range strings.Split(strings.ReplaceAll(c.neighbour, "MAC", mac), "; ") {
				if line != "" {
					neighbour.IP(line)
				}
			}
			s.Pod.Exec("sh", "-c", "for link in net9 vxlan9; do sysctl -qew net.ipv4.conf.$link.forwarding=1; done")
			if out := s.Pod.IP("route get 203.0.113.9"); !strings.Contains(out, " src "+c.from+" ") {
				t.Errorf("the namespace sends so, want from %s: %s", c.from, out)
			}
			config := config(s.Network, infra.Routed{})
			setup(t, config)
			r := record(t, s.Network)
			s.routedGuest(t, r)
			var lost []string
			for _, l := range r.Losses {
				if strings.Contains(l.What, ":") && strings.Contains(l.What, ".") && l.Kind == "other-link" && l.Way == "masquerade keeps it" {
					lost = append(lost, l.What)
				}
			}
			if !slices.Equal(lost, c.lost) {
				t.Errorf("routed loses %v, want %q", r.Losses, c.lost)
			}
			if !c.unanswered {
				s.ask(t, []exchange{{from: "guest", to: "far:8000", want: "neighbour:8000 sees pod", only: 4}})
				return
			}
			nstest.Eventually(t, func() error { // nobody answers the neighbour's ARP request
				q, err := s.question("tcp", 0, exchange{from: "guest", to: "far:8000"})
				if err != nil {
					return err
				}
				defer q.Close()
				if out := neighbour.IP("neigh show 10.244.1.7"); !strings.Contains(out, "FAILED") {
					return errors.New(out)
				}
				return nil
			})
		})
	}
}

// TestOtherLinksOfGuests: a guest reaches the network of another guest's NIC through the namespace, whichever of the
// two is wired first, until that NIC is taken down. The NIC gets its group back.
func TestOtherLinksOfGuests(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		s.addNeighbour(t)
		first := config(s.Network, infra.Masquerade{Firewall: firewall})
		second := config(s.Network, infra.Masquerade{IPv4: netip.MustParsePrefix("10.0.3.0/24"), IPv6: netip.MustParsePrefix("fd10:0:3::/120"), Firewall: firewall})
		second.Name = "net9"
		s.wire(t, "guest", first)
		before := s.Pod.IP("link show net9")
		s.wire(t, "guest9", second)
		check(t, first)
		both := append(byBothLinks(first, 0),
			exchange{from: "guest9", to: "beyond:8000", want: "world:8000 sees pod"},
			exchange{from: "guest9", to: "neighbour:8000", want: "neighbour:8000 sees pod9"})
		s.ask(t, both)
		second.Down.CutOff = true // the guest has the tap open
		unwire(t, second)
		if after := s.Pod.IP("link show net9"); after != before {
			t.Errorf("net9 is\n%swant\n%s", after, before)
		}
		check(t, first)
		s.otherLinkRefused(t, first, 0, 1)
	})
}
