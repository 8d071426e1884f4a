package phase1_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// policy is a Spec's Egress of texts.
func policy(t *testing.T, texts ...string) (list []infra.Egress) {
	t.Helper()
	for _, text := range texts {
		var e infra.Egress
		if err := e.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// eachRouter calls f with a scene of each binding that tracks connections, by all that can translate, wired with the
// entries.
func eachRouter(t *testing.T, entries []string, f func(t *testing.T, s *scene, c wired.NIC)) {
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		c := config(s.Network, infra.Masquerade{Firewall: firewall})
		c.Egress = policy(t, entries...)
		s.wire(t, "guest", c)
		f(t, s, c)
	})
	t.Run("routed", func(t *testing.T) {
		s, c := newRouted(t, func(s *scene) wired.NIC {
			c := config(s.Network, infra.Routed{})
			c.Egress = policy(t, entries...)
			return c
		})
		f(t, s, c)
	})
}

// refused wants the guest's connection to the port to be refused by the namespace: the world serves it.
func (s *scene) refused(t *testing.T, protocol string, family int, to string) {
	t.Helper()
	q, err := s.question(protocol, family, exchange{from: "guest", to: to})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	want := syscall.ECONNREFUSED // a reset
	if protocol == "udp" {
		want = []syscall.Errno{syscall.EHOSTUNREACH, syscall.EACCES}[family] // administratively prohibited, in Linux' words
	}
	if answer, err := q.Answer(patience); !errors.Is(err, want) {
		t.Errorf("%s, %s: %q, %v; want %v", protocol, to, answer, err, want)
	}
}

// serveWorld has the world answer at ports of its address beyond.
func (s *scene) serveWorld(protocol string, ports ...uint16) {
	for _, a := range s.addresses["beyond"] {
		for _, p := range ports {
			s.World.Serve("world", protocol, netip.AddrPortFrom(a, p))
		}
	}
}

// TestEgress: the guest reaches what the policy allows, and is refused at once elsewhere, by TCP and UDP. What others
// open to the guest is answered, and errors about permitted connections arrive. A drop is counted and reported. A
// damaged set refuses, and is repaired.
func TestEgress(t *testing.T) {
	t.Parallel()
	eachRouter(t, []string{"refuse all 9001/tcp", "allow 198.51.100.9 9000-9002", "allow 198.51.100.9 9000-9002/udp", "allow 198.51.100.9 9000/sctp",
		"allow 2001:db8:9::9 9000-9002", "allow 2001:db8:9::9 9000-9002/udp", "allow 2001:db8:9::9 9000/sctp", "refuse all"}, func(t *testing.T, s *scene, c wired.NIC) {
		for _, protocol := range []string{"tcp", "udp"} {
			s.serveWorld(protocol, 9001, 9100)
		}
		f := follow(t, c)
		s.ask(t, []exchange{
			{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"},
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "guest", to: "beyond:9002", protocol: "udp", want: "refused"}, // the world's error arrives
		})
		for family := range 2 {
			s.refused(t, "tcp", family, "beyond:9001")
			s.refused(t, "tcp", family, "beyond:9100")
			s.refused(t, "udp", family, "beyond:9100")
		}
		d := f.next()
		for d.Reason != "egress" { // what the guest sent to the namespace before
			d = f.next()
		}
		if !strings.Contains(d.Text, " TCP") || !strings.Contains(d.Text, "198.51.100.9:9001") {
			t.Errorf("reported %+v", d)
		}
		if n := counted(t, c)["egress"]; n < 6 {
			t.Errorf("%d packets are counted, want at least 6", n)
		}
		check(t, c)
		s.Pod.Exec("nft", "flush", "set", "inet", "guestwire-eth0", "egress-4")
		s.refused(t, "tcp", 0, "beyond:9000")
		if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "egress-4") {
			t.Errorf("Check says %v of a set that is empty", err)
		}
		setup(t, c)
		s.Pod.Exec("nft", "add", "element", "inet", "guestwire-eth0", "egress-4", "{ * }")
		if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "egress-4") {
			t.Errorf("Check says %v of a set that has everything", err)
		}
		setup(t, c)
		check(t, c)
		s.refused(t, "tcp", 0, "beyond:9100")
		s.ask(t, []exchange{{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"}})
	})
}

// TestEgressOwnProcesses: beside a policy, processes of the namespace reach the guest from each address of the
// namespace, also from those in guard.prefixes, but not from others there. A transparent proxy answers the guest from
// the address of the host that the guest has asked.
func TestEgressOwnProcesses(t *testing.T) {
	t.Parallel()
	eachRouter(t, []string{"refuse all"}, func(t *testing.T, s *scene, c wired.NIC) {
		to, gateway := "guest:8001", "guest's gateway"
		if s.at["hop"] != "" { // routed
			to, gateway = "pod:8001", "hop"
		}
		c.Guard.Open = []infra.Ports{{First: 9100}, {First: 9100, Protocol: "udp"}}
		for _, a := range s.addresses[gateway] {
			c.Guard.Prefixes = append(c.Guard.Prefixes, netip.PrefixFrom(a, a.BitLen()-8).Masked())
		}
		setup(t, c)
		s.name("pod", "other", netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8:77::7"))
		s.Pod.IP("addr add 192.0.2.77 dev lo")
		s.Pod.IP("addr add 2001:db8:77::7 dev lo nodad")
		s.ask(t, []exchange{
			{from: "pod", to: to, want: "guest:8001 sees " + gateway},
			{from: "pod@other", to: to, want: "guest:8001 sees other"},
		})
		for family, p := range c.Guard.Prefixes {
			from, to := p.Addr().Next().Next().Next(), s.addresses["guest"][family]
			if gateway == "hop" {
				to = s.addresses["pod"][family]
			}
			packet := frames.Link{}.Packet(unix.IPPROTO_UDP, from, to, frames.Datagram(53, 8001, nil))[14:]
			if err := netns.Do(s.Pod.File, func() error { return sendRaw(packet) }); !errors.Is(err, unix.EPERM) {
				t.Errorf("a process sends from %v: %v, want EPERM", from, err)
			}
		}
		s.Pod.IP("rule add iif eth0-tap lookup 100")
		s.Pod.IP("-6 rule add iif eth0-tap lookup 100")
		for family, a := range s.addresses["beyond"] {
			s.Pod.IP(fmt.Sprintf("route add local %v dev lo table 100", a))
			s.answerFor(t, netip.AddrPortFrom(a, 9100))
			for _, protocol := range []string{"tcp", "udp"} {
				q, err := s.question(protocol, family, exchange{from: "guest", to: "beyond:9100"})
				if err != nil {
					t.Fatal(err)
				}
				if answer, err := q.Answer(patience); answer != "proxy" {
					t.Errorf("a transparent proxy answers by %s from %v: %q, %v", protocol, a, answer, err)
				}
				q.Close()
			}
		}
	})
}

// answerFor has a process of the pod answer by TCP and UDP at an address that is not the pod's (IP_TRANSPARENT).
func (s *scene) answerFor(t *testing.T, at netip.AddrPort) {
	t.Helper()
	const transparent6 = 75 // IPV6_TRANSPARENT, linux/in6.h
	transparent := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		level, option := unix.SOL_IP, unix.IP_TRANSPARENT
		if at.Addr().Is6() {
			level, option = unix.SOL_IPV6, transparent6
		}
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }), err)
	}}
	var l net.Listener
	var p net.PacketConn
	in(t, s.Pod, func() (err error) {
		if l, err = transparent.Listen(t.Context(), "tcp", at.String()); err == nil {
			p, err = transparent.ListenPacket(t.Context(), "udp", at.String())
		}
		return err
	})
	var ends sync.WaitGroup
	ends.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "proxy")
			c.Close()
		}
	})
	ends.Go(func() {
		for b := make([]byte, 100); ; {
			_, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			p.WriteTo([]byte("proxy\n"), from)
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.Close()
		ends.Wait()
	})
}

// TestEgressLinkLocal: with the list that the documentation begins with, a guest reaches what is permitted through its
// own gateway, and a link-local resolver that an entry above allows. No other port of that resolver is reached, nor
// another link-local service, such as GKE's metadata server, nor a metadata service elsewhere.
func TestEgressLinkLocal(t *testing.T) {
	t.Parallel()
	services := map[string]string{"resolver": "169.254.20.10", "gke": "169.254.169.252", "aws": "169.254.169.253", "azure": "168.63.129.16", "volcano": "100.96.0.96"}
	eachRouter(t, []string{"allow 169.254.20.10 53/udp", "refuse link-local", "refuse metadata", "refuse private", "allow all"}, func(t *testing.T, s *scene, c wired.NIC) {
		for name, address := range services {
			s.World.IP("addr add " + address + "/32 dev lo")
			s.name("world", name, netip.MustParseAddr(address), nstest.Beyond6)
			s.World.Serve("world", "udp", netip.AddrPortFrom(netip.MustParseAddr(address), 53))
		}
		s.ask(t, []exchange{
			{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"},
			{from: "guest", to: "resolver:53", protocol: "udp", only: 4, want: "world:53 sees pod"},
		})
		s.refused(t, "tcp", 0, "resolver:53")
		for _, name := range []string{"gke", "aws", "azure", "volcano"} {
			s.refused(t, "udp", 0, name+":53")
			s.refused(t, "tcp", 0, name+":988")
		}
	})
}

// TestEgressChange: a later Setup with another policy, in either list, holds for the next connection. What is open goes
// on, and Status has the lists.
func TestEgressChange(t *testing.T) {
	t.Parallel()
	eachRouter(t, []string{"allow all"}, func(t *testing.T, s *scene, c wired.NIC) {
		s.serveWorld("tcp", 9000)
		s.serveWorld("udp", 9000)
		for family := range 2 {
			q, err := s.question("tcp", family, exchange{from: "guest", to: "beyond:9000"})
			if err != nil {
				t.Fatal(err)
			}
			if answer, err := q.Answer(patience); err != nil {
				t.Fatalf("%q, %v", answer, err)
			}
			c.EgressWithin = policy(t, "allow all 9001/tcp", "allow all 9001/udp", "allow all 9001/sctp", "refuse all")
			setup(t, c)
			s.refused(t, "tcp", family, "beyond:9000")
			s.ask(t, []exchange{{from: "guest", to: "beyond:9001", want: "world:9001 sees pod"}})
			if report, err := c.Status(t.Context()); err != nil || !slices.Equal(report.Egress, c.Egress) || !slices.Equal(report.EgressWithin, c.EgressWithin) {
				t.Errorf("Status says %+v, %v", report, err)
			}
			c.Egress, c.EgressWithin = c.EgressWithin, nil
			setup(t, c)
			s.refused(t, "tcp", family, "beyond:9000")
			c.Egress = policy(t, "refuse all")
			setup(t, c)
			s.refused(t, "tcp", family, "beyond:9001")
			s.refused(t, "udp", family, "beyond:9000")
			if err := q.Echo(1<<16, patience); err != nil {
				t.Errorf("an open connection: %v", err)
			}
			q.Close()
			c.Egress = nil
			said := ""
			c.Progress = func(text string) { said += text }
			setup(t, c)
			if c.Progress = nil; !strings.Contains(said, "the guest may go everywhere") {
				t.Errorf("Progress says %q", said)
			}
			if list := s.Pod.Exec("nft", "list", "ruleset"); strings.Contains(list, "egress") {
				t.Errorf("without a policy there is still\n%s", list)
			}
			s.ask(t, []exchange{{from: "guest", to: "beyond:9001", want: "world:9001 sees pod"}})
		}
	})
}

// TestManyRefused: a list refuses 10,000 hosts and allows the rest. The guest is refused at a host of the list alone,
// also after a change of one entry. A range that gets lost, and one that nobody asked for, is found.
func TestManyRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var hosts []string
	for i := range 5000 {
		hosts = append(hosts, fmt.Sprintf("refuse 192.0.%d.%d", i/128, i%128*2), fmt.Sprintf("refuse 2001:db8:5555:%x:aaaa:5555:aaaa:5555", i))
	}
	c := config(s.Network, infra.Masquerade{})
	list := func(more ...string) []infra.Egress {
		return policy(t, slices.Concat(more, hosts[len(more):], []string{"allow all"})...)
	}
	c.Egress = list("refuse 198.51.100.9", "refuse 2001:db8:9::9")
	s.wire(t, "guest", c)
	s.serveWorld("tcp", 9000, 9001)
	for family := range 2 {
		s.refused(t, "tcp", family, "beyond:9000")
	}
	c.Egress = list("refuse 198.51.100.10", "refuse 2001:db8:9::9")
	setup(t, c)
	check(t, c)
	s.reached(t, "tcp", 0, "beyond:9000")
	s.refused(t, "tcp", 1, "beyond:9000")
	s.Pod.Exec("nft", "delete element inet guestwire-eth0 egress-4-all { 198.51.100.11-255.255.255.255 }; add element inet guestwire-eth0 egress-6-all { 2001:db8:9::9 }")
	if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "egress-4-all") || !strings.Contains(err.Error(), "egress-6-all") {
		t.Errorf("Check says %v", err)
	}
	setup(t, c)
	check(t, c)
	s.refused(t, "tcp", 1, "beyond:9000")
	s.reached(t, "tcp", 0, "beyond:9001")
	c.Down.CutOff = true
	if err := c.Teardown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := s.Pod.Exec("nft", "list", "ruleset"); strings.Contains(left, "egress") {
		t.Errorf("left is %.200s", left)
	}
}

// A host that no policy of TestHostileEgress allows.
var refused4, refused6 = netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("2001:db8:bad::5")

// TestHostileEgress: where the guest may send to one port of one host, nothing of what it tries else leaves, by any
// protocol, header, fragment or address, not even where the namespace accepts source routes. Without the policy most of
// it leaves.
func TestHostileEgress(t *testing.T) {
	for _, b := range []infra.Binding{infra.Masquerade{}, infra.Masquerade{Firewall: cache.FirewallIPTablesNFT}, infra.Masquerade{Firewall: cache.FirewallIPTablesLegacy}, infra.Routed{}} {
		name := string(b.Kind())
		if m, is := b.(infra.Masquerade); is {
			name += string(m.Firewall)
		}
		t.Run(name, func(t *testing.T) {
			n := nstest.NewNetwork(t)
			secondNIC(n, "192.168.9.2/24", "fd00:9::2/64")
			n.Pod.Exec("sh", "-c", `for s in net.ipv4.conf.all.accept_source_route=1 net.ipv6.conf.all.accept_source_route=1 net.ipv6.conf.all.seg6_enabled=1 net.ipv6.conf.default.seg6_enabled=1; do sysctl -qw $s || true; done`)
			c := config(n, b)
			c.Egress = policy(t, fmt.Sprintf("allow 198.51.100.9 %d/udp", frames.SentinelPort), fmt.Sprintf("allow 2001:db8:9::9 %d/udp", frames.SentinelPort),
				"refuse metadata", "refuse private", "refuse all")
			setup(t, c)
			rebind(t, n, c)
			w := attach(t, n, true, true)
			w.addEnds(n)
			kinds := evasions(w)
			before := counted(t, c)["egress"]
			for _, k := range kinds {
				if world, pod := w.send(k.Frames...); len(world)+len(pod) > 0 {
					t.Errorf("%s: %v %v left", k.Name, world, pod)
				}
			}
			if counted(t, c)["egress"] < before+len(kinds)/2 {
				t.Errorf("%d packets are counted for %d kinds", counted(t, c)["egress"]-before, len(kinds))
			}
			if err := c.Pin(t.Context(), phase1.Pin{Addresses: []netip.Addr{refused4, refused6}, Ports: []infra.Ports{{First: 53, Protocol: "udp"}}, Life: time.Hour}); err != nil {
				t.Fatal(err)
			}
			if world, _ := w.send(w.link.Ask(17, w.link.IPv4, refused4, 53), w.link.Ask(17, w.link.IPv6, refused6, 53)); len(world) != 2 {
				t.Errorf("of what is pinned %v left", world)
			}
			c.Egress = nil
			setup(t, c)
			left := 0
			for _, k := range kinds {
				if world, pod := w.send(k.Frames...); len(world)+len(pod) > 0 {
					left++
				}
			}
			if left < len(kinds)/2 {
				t.Errorf("without the policy %d of %d leave: they try nothing", left, len(kinds))
			}
			t.Logf("%d ways round; %d leave without the policy", len(kinds), left)
		})
	}
}

// addEnds adds the MACs of the second NIC's ends to those whose own frames are ignored.
func (w *wire) addEnds(n nstest.Network) {
	w.t.Helper()
	for name, in := range map[string]*nstest.Namespace{"net1": n.Pod, "pod2": n.World} {
		var mac cache.MAC
		if err := mac.UnmarshalText([]byte(linkMAC(in, name))); err != nil {
			w.t.Fatal(err)
		}
		w.own = append(w.own, mac)
	}
}

// rebound are addresses of the corpus that earlier entries refuse, and with which a guest's name may answer a DNS
// proxy.
var rebound = []string{"169.254.169.254", "192.168.9.7", "10.244.1.9", "100.64.0.1", "fd00:9::7", "fd00:ec2::254", "64:ff9b::169.254.169.254", "64:ff9b::10.244.1.9"}

// rebind pins these addresses, and adds them to the sets as well, as if Pin had not looked.
func rebind(t *testing.T, n nstest.Network, c wired.NIC) {
	t.Helper()
	var list []netip.Addr
	for _, text := range rebound {
		a := netip.MustParseAddr(text)
		list = append(list, a)
		set := map[bool]string{true: "pins-4", false: "pins-6"}[a.Is4()]
		n.Pod.Exec("nft", "add", "element", "inet", "guestwire-eth0", set, fmt.Sprintf("{ %v . udp . 53 timeout 1h }", a))
	}
	wantUnpinned(t, c.Pin(t.Context(), phase1.Pin{Addresses: list, Ports: []infra.Ports{{First: 53, Protocol: "udp"}}, Life: time.Hour}), list...)
}

// TestSourceRoutes: where the namespace takes packets that choose their way, the guest's do not choose theirs, with and
// without a policy.
func TestSourceRoutes(t *testing.T) {
	for _, b := range []infra.Binding{infra.Masquerade{}, infra.Routed{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			n.Pod.Exec("sysctl", "-qw", "net.ipv4.conf.all.accept_source_route=1", "net.ipv6.conf.all.seg6_enabled=1", "net.ipv6.conf.default.seg6_enabled=1",
				"net.ipv6.conf.all.rpl_seg_enabled=1", "net.ipv6.conf.default.rpl_seg_enabled=1")
			c := config(n, b)
			setup(t, c)
			w := attach(t, n, true, true)
			tried := 0
			for _, k := range evasions(w) {
				if !strings.HasSuffix(k.Name, " by the gateway") {
					continue
				}
				tried++
				if world, pod := w.send(k.Frames...); len(world)+len(pod) > 0 {
					t.Errorf("%s: %v %v left", k.Name, world, pod)
				}
			}
			if tried < 6 {
				t.Errorf("%d ways are tried", tried)
			}
			check(t, c)
		})
	}
}

// TestLaterSourceRoutes: a tap that takes such packets later is a difference, also where new links do not take them.
func TestLaterSourceRoutes(t *testing.T) {
	for _, b := range []infra.Binding{infra.Masquerade{}, infra.Routed{}} {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		setup(t, c)
		check(t, c)
		for _, name := range []string{"seg6_enabled", "rpl_seg_enabled"} {
			n.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.eth0-tap."+name+"=1")
			var drift *phase1.DriftError
			if err := c.Check(t.Context()); !errors.As(err, &drift) || len(drift.Differs) != 1 || !strings.Contains(drift.Differs[0].What, "sysctl net/ipv6/conf/eth0-tap/"+name+" is 1, not 0") {
				t.Errorf("%s: Check says %v, want %s", b.Kind(), err, name)
			}
			setup(t, c)
			check(t, c)
			if out := n.Pod.Exec("sysctl", "-n", "net.ipv6.conf.eth0-tap."+name); out != "0\n" {
				t.Errorf("%s: %s is %s", b.Kind(), name, out)
			}
		}
	}
}
