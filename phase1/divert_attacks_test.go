package phase1_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// divertAttack is what a guest, the network or another program does beside a list of entries.
type divertAttack struct {
	name    string
	entries []string
	// prepare is before Setup with the entries, and may be nil.
	prepare func(t *testing.T, s *scene)
	attack  func(t *testing.T, s *scene, c wired.NIC)
}

// transports are those that a divert leads to a port, and that this kernel has.
func transports() []string { return protocols() }

// divertTo are entries for each of them.
func divertTo(to string, port int, target string) (list []string) {
	for _, protocol := range []string{"tcp", "udp", "sctp"} {
		list = append(list, fmt.Sprintf("divert %s %d/%s %s", to, port, protocol, target))
	}
	return list
}

func entries(lists ...[]string) (all []string) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// targetAlone is an address of the pod that is on its loopback link. The world leads packets for it to the pod.
var targetAlone = [2]string{"192.0.2.200", "2001:db8:2::200"}

func addTargetAlone(_ *testing.T, s *scene) {
	s.name("pod", "target", netip.MustParseAddr(targetAlone[0]), netip.MustParseAddr(targetAlone[1]))
	for _, a := range targetAlone {
		s.Pod.IP("addr replace " + a + " dev lo nodad")
	}
}

// opened asks, wants the answer, and leaves the connection open until the test ends.
func (s *scene) opened(t *testing.T, protocol string, family int, e exchange) *nstest.Question {
	t.Helper()
	q, err := s.question(protocol, family, e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	if answer, err := q.Answer(patience); err != nil || answer != s.wanted(e, family) {
		t.Fatalf("%s, IPv%d, %v: %q, %v, want %q", protocol, 4+2*family, e, answer, err, s.wanted(e, family))
	}
	return q
}

// atInput counts what the pod's own stack takes from the guest that the expression of nft matches. It is after all
// rules that could drop it.
func (s *scene) atInput(t *testing.T, match string) func() int {
	t.Helper()
	return countPackets(t, s.Pod, "judge", "input priority 300", "iifname eth0-tap "+match)
}

// datagramRefused sends by the socket until the namespace's refusal of an earlier datagram is reported.
func datagramRefused(t *testing.T, when string, c net.Conn) {
	t.Helper()
	c.SetDeadline(time.Time{})
	nstest.Eventually(t, func() error {
		_, err := c.Write([]byte("question"))
		if !errors.Is(err, syscall.EHOSTUNREACH) && !errors.Is(err, syscall.EACCES) {
			return fmt.Errorf("%s: %v, want a refusal", when, err)
		}
		return nil
	})
}

var divertAttacks = []divertAttack{
	{"nobody listens: the world serves the ports, and nothing gets there", entries(
		divertTo("all", 9101, ":15901"), divertTo("all", 9102, "127.0.0.1:15902"), divertTo("all", 9103, "192.0.2.200:15903"), divertTo("all", 9104, "[2001:db8:2::200]:15904"), []string{"allow all"},
	), addTargetAlone, func(t *testing.T, s *scene, c wired.NIC) {
		arrived := s.arrivals(t, "th dport 9101-9104")
		for _, protocol := range transports() {
			s.serveWorld(protocol, 9101, 9102, 9103, 9104)
		}
		s.ask(t, []exchange{
			{from: "guest", to: "beyond:9101", want: "refused"},
			{from: "guest", to: "beyond:9102", want: "refused", only: 4},
			{from: "guest", to: "beyond:9103", want: "refused", only: 4},
			{from: "guest", to: "beyond:9104", want: "refused", only: 6},
			{from: "guest", to: "beyond:9105", want: "world:9105 sees pod"},
		})
		for _, protocol := range []string{"tcp", "udp"} { // no target of this family
			s.refused(t, protocol, 1, "beyond:9102")
			s.refused(t, protocol, 1, "beyond:9103")
			s.refused(t, protocol, 0, "beyond:9104")
		}
		if n := arrived(); n > 0 {
			t.Errorf("%d packets arrive", n)
		}
	}},
	{"beside TCP 443 nothing passes, by both families and NAT64", []string{"divert all 443 :15443", "refuse all"}, nil, func(t *testing.T, s *scene, c wired.NIC) {
		s.name("world", "nat64", nstest.Beyond4, netip.MustParseAddr("64:ff9b::198.51.100.9"))
		s.World.IP("addr replace 64:ff9b::198.51.100.9/128 dev lo")
		others := map[string][]uint16{"tcp": {53, 853}, "udp": {443, 53, 853}}
		arrived := s.arrivals(t, "th dport { 53, 443, 853 }")
		s.serveAll(others)
		for protocol, ports := range others {
			for _, p := range ports {
				for family := range 2 {
					s.refused(t, protocol, family, fmt.Sprintf("beyond:%d", p))
				}
				s.refused(t, protocol, 1, fmt.Sprintf("nat64:%d", p))
			}
		}
		s.ask(t, []exchange{
			{protocol: "tcp", from: "guest", to: "beyond:443", want: "pod:15443 sees guest"},
			{protocol: "tcp", from: "guest", to: "nat64:443", want: "pod:15443 sees guest"},
		})
		if n := arrived(); n > 0 {
			t.Errorf("%d packets arrive", n)
		}
	}},
	{"NAT64's spelling of a network is diverted and refused as the network", entries(
		divertTo("198.51.100.0/24", 9110, ":15910"), divertTo("198.51.100.0/24", 9111, "127.0.0.1:15910"), []string{"allow all"},
	), nil, func(t *testing.T, s *scene, c wired.NIC) {
		s.name("world", "nat64", nstest.Beyond4, netip.MustParseAddr("64:ff9b::198.51.100.9"))
		s.World.IP("addr replace 64:ff9b::198.51.100.9/128 dev lo")
		for _, a := range []netip.Addr{nstest.Beyond4, netip.MustParseAddr("64:ff9b::198.51.100.9")} {
			s.World.Serve("world", "tcp", netip.AddrPortFrom(a, 9111))
			s.World.Serve("world", "udp", netip.AddrPortFrom(a, 9111))
		}
		s.ask(t, []exchange{
			{from: "guest", to: "nat64:9110", want: "pod:15910 sees guest"},
			{from: "guest", to: "beyond:9110", want: "pod:15910 sees guest", only: 4},
			{from: "guest", to: "beyond:9110", want: "world:9110 sees pod", only: 6},
		})
		s.refused(t, "tcp", 1, "nat64:9111")
		s.refused(t, "udp", 1, "nat64:9111")
	}},
	{"a target is reached by the divert alone", entries(
		divertTo("all", 9120, ":15920"), divertTo("198.51.100.9", 9121, "127.0.0.1:15921"), []string{"allow all 9122", "allow all 9122/udp", "allow all 9122/sctp", "refuse all"},
	), nil, func(t *testing.T, s *scene, c wired.NIC) {
		gateway := s.addresses["guest's gateway"]
		s.World.IP(fmt.Sprintf("route replace %v via %v", gateway[0], nstest.Pod4))
		s.World.IP(fmt.Sprintf("route replace %v via %v", gateway[1], nstest.Pod6))
		s.ask(t, []exchange{
			{from: "guest", to: "beyond:9120", want: "pod:15920 sees guest"},
			{from: "guest", to: "beyond:9121", want: "pod:15921 sees guest", only: 4},
			{from: "guest", to: "guest's gateway:9120", want: "pod:15920 sees guest"},
			{from: "guest", to: "guest's gateway:15920", want: ""},
			{from: "guest", to: "guest's gateway:15921", want: ""}, // which the pod serves as well
			{from: "world@gateway", to: "pod:9123", want: map[bool]string{true: "guest:9123 sees gateway", false: "guest:9123 sees gateway"}[s.at["pod"] == "guest"]},
			{from: "world@gateway", to: "guest's gateway:15920", want: ""},
			{from: "world@gateway", to: "guest's gateway:9120", want: ""},
			{from: "pod", to: "beyond:9120", want: "world:9120 sees pod"}, // a process of the namespace
			{from: "pod", to: "beyond:9121", want: "world:9121 sees pod"},
		})
		s.wantLocalnet(t, true)
	}},
	{"route_localnet is off where no target needs it", []string{"divert all 9124 :15924", "refuse all"}, nil, func(t *testing.T, s *scene, c wired.NIC) {
		s.wantLocalnet(t, false)
	}},
	{"a target that is a destination of its own entry", entries(
		divertTo("all", 9125, ":9125"), []string{"allow all 9126", "allow all 9126/udp", "allow all 9126/sctp", "refuse all"},
	), nil, func(t *testing.T, s *scene, c wired.NIC) {
		s.ask(t, []exchange{
			{from: "guest", to: "beyond:9125", want: "pod:9125 sees guest"},
			{from: "guest", to: "guest's gateway:9125", want: "pod:9125 sees guest"},
			{from: "guest", to: "guest's gateway:9126", want: ""},
		})
	}},
	{"the target's address is gone", entries(
		divertTo("all", 9130, "192.0.2.200:15930"), divertTo("all", 9131, "[2001:db8:2::200]:15930"), []string{"allow all"},
	), addTargetAlone, func(t *testing.T, s *scene, c wired.NIC) {
		for _, protocol := range []string{"tcp", "udp"} {
			s.serveWorld(protocol, 9130, 9131)
		}
		var connections []*nstest.Question
		var datagrams [2]net.Conn
		for family, to := range []uint16{9130, 9131} {
			e := exchange{from: "guest", to: fmt.Sprintf("beyond:%d", to), want: "pod:15930 sees guest"}
			at := netip.AddrPortFrom(s.addresses["target"][family], 15930)
			s.Pod.Serve("pod", "tcp", at)
			s.Pod.Serve("pod", "udp", at)
			connections = append(connections, s.opened(t, "tcp", family, e))
			datagrams[family] = dial(t, s.who["guest"], "udp", netip.AddrPortFrom(s.addresses["beyond"][family], to))
			exchangeDatagram(t, datagrams[family])
		}
		arrived := s.arrivals(t, "th dport { 9130, 9131, 15930 }")
		for _, a := range targetAlone {
			s.Pod.IP("addr del " + a + " dev lo")
		}
		for family, to := range []string{"beyond:9130", "beyond:9131"} {
			s.refused(t, "tcp", family, to)
			s.refused(t, "udp", family, to)
			datagramRefused(t, "what was open", datagrams[family])
			if err := connections[family].Echo(10, time.Second); err == nil {
				t.Errorf("IPv%d: an open connection goes on", 4+2*family)
			}
		}
		if n := arrived(); n > 0 {
			t.Errorf("%d packets arrive", n)
		}
		addTargetAlone(t, s)
		for _, d := range datagrams { // the route of IPv6 comes a moment later
			exchangeDatagram(t, d)
		}
	}},
	{"rules of other programs", entries(
		divertTo("10.96.0.1", 9140, ":15940"), divertTo("all", 9141, ":15941"), divertTo("198.51.100.9", 9142, "127.0.0.1:15942"), []string{"allow all"},
	), func(t *testing.T, s *scene) {
		s.name("nobody", "service", netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1"))
		s.name("nobody", "early", netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8:9::10"))
		add := func(table string, priority int, rules ...string) {
			commands := []string{"add table inet " + table, "delete table inet " + table, "add table inet " + table, fmt.Sprintf("add chain inet %s c { type nat hook prerouting priority %d; }", table, priority)}
			for _, r := range rules {
				commands = append(commands, fmt.Sprintf("add rule inet %s c meta l4proto { tcp, udp } %s", table, r))
			}
			s.Pod.Exec("nft", strings.Join(commands, "; "))
		}
		add("early", -150, "ip daddr 198.51.100.10 th dport 9141 dnat ip to 198.51.100.9:9143")
		add("late", -100, // as kube-proxy's, Docker's and Istio's
			"ip daddr 10.96.0.1 th dport 9140 dnat ip to 198.51.100.9:9143", "ip daddr 10.96.0.1 th dport 9144 dnat ip to 198.51.100.9:9142",
			"ip daddr 10.96.0.1 th dport 9145 dnat ip to 198.51.100.9:9143",
			"ip daddr 198.51.100.9 th dport 9146 dnat ip to 127.0.0.1:15942", "ip daddr 198.51.100.9 th dport 9147 dnat ip to 127.0.0.1:15943",
			"th dport { 9141, 9142, 9148 } redirect to :15001")
	}, func(t *testing.T, s *scene, c wired.NIC) {
		for _, protocol := range []string{"tcp", "udp"} {
			for _, p := range []uint16{15001, 15943} {
				s.Pod.Serve("pod", protocol, netip.AddrPortFrom(s.addresses["loopback"][0], p), netip.AddrPortFrom(s.addresses["guest's gateway"][0], p), netip.AddrPortFrom(s.addresses["guest's gateway"][1], p))
			}
			s.serveWorld(protocol, 9146)
			s.ask(t, []exchange{
				{protocol: protocol, from: "guest", to: "beyond:9141", want: "pod:15941 sees guest"},
				{protocol: protocol, from: "guest", to: "service:9140", want: "pod:15940 sees guest", only: 4},
				{protocol: protocol, from: "guest", to: "service:9145", want: "world:9143 sees pod", only: 4},
				{protocol: protocol, from: "guest", to: "beyond:9142", want: "pod:15942 sees guest", only: 4},
				{protocol: protocol, from: "guest", to: "beyond:9143", want: "world:9143 sees pod"},
				// What the others lead to the namespace, also to a target, is no divert.
				{protocol: protocol, from: "guest", to: "beyond:9147", want: "", only: 4},
				{protocol: protocol, from: "guest", to: "beyond:9148", want: ""},
			})
			s.refused(t, protocol, 0, "service:9144") // what it becomes is diverted
			s.refused(t, protocol, 0, "early:9141")   // it is diverted, and was translated before
		}
		taken := s.atInput(t, "th dport { 15001, 15942, 15943 }")
		for _, protocol := range []string{"tcp", "udp"} {
			q, err := s.question(protocol, 0, exchange{from: "guest", to: "beyond:9146"})
			if err != nil {
				t.Fatal(err)
			}
			s.ask(t, []exchange{{protocol: protocol, from: "guest", to: "beyond:9143", want: "world:9143 sees pod", only: 4}})
			if answer, err := q.Answer(0); err == nil {
				t.Errorf("%s, to a target by the rule of another program: %q", protocol, answer)
			}
			q.Close()
		}
		if n := taken(); n > 0 {
			t.Errorf("%d packets come to the namespace by rules of others", n)
		}
		s.Pod.Exec("nft", "delete table inet early; delete table inet late; delete table inet judge")
	}},
	{"an expected connection of what is diverted", entries(
		divertTo("all", 21, ":2121"), []string{"allow all"},
	), nil, func(t *testing.T, s *scene, c wired.NIC) {
		if err := nstestLacksFTP(t); err != nil {
			nstest.LeaveOut(t, "this kernel has no nf_conntrack_ftp")
		}
		s.Pod.Exec("nft", addHelper("ftp")+`add chain inet ftp first { type filter hook prerouting priority -150; }; add rule inet ftp first tcp dport 21 ct helper set "control"; `+
			`add chain inet ftp expected { type filter hook prerouting priority 0; }; add rule inet ftp expected ct state related tcp dport 2222 counter`)
		defer s.Pod.Exec("nft", "delete", "table", "inet", "ftp")
		for family := range 2 {
			gateway := s.addresses["guest's gateway"][family]
			s.Pod.Serve("pod", "tcp", netip.AddrPortFrom(gateway, 2222))
			server := listen(t, s.Pod, netip.AddrPortFrom(gateway, 2121))
			control := dial(t, s.who["guest"], "tcp", netip.AddrPortFrom(s.addresses["beyond"][family], 21))
			there, err := server.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer there.Close()
			passive := "229 Entering Extended Passive Mode (|||2222|)\r\n"
			if family == 0 {
				a := gateway.As4()
				passive = fmt.Sprintf("227 Entering Passive Mode (%d,%d,%d,%d,8,174)\r\n", a[0], a[1], a[2], a[3])
			}
			for _, line := range []string{"220 ready\r\n", passive} {
				if _, err := io.WriteString(there, line); err != nil {
					t.Fatal(err)
				}
				if _, err := control.Read(make([]byte, 100)); err != nil {
					t.Fatal(err)
				}
			}
			s.refused(t, "tcp", family, "beyond:2222")
			if list := s.Pod.Exec("nft", "list", "chain", "inet", "ftp", "expected"); !strings.Contains(list, fmt.Sprintf("counter packets %d ", family+1)) {
				t.Errorf("nothing was expected:\n%s", list)
			}
		}
	}},
	{"two destinations from one port", entries(
		divertTo("all", 9150, ":15950"), divertTo("all", 9151, ":15950"), []string{"allow all"},
	), nil, func(t *testing.T, s *scene, c wired.NIC) {
		for family := range 2 {
			server := listen(t, s.Pod, netip.AddrPortFrom(s.addresses["guest's gateway"][family], 15950))
			for _, p := range []uint16{9150, 9151} {
				to := netip.AddrPortFrom(s.addresses["beyond"][family], p)
				client, err := dialFrom(t, s.who["guest"], 5600, to)
				if err != nil {
					t.Errorf("%v: %v", to, err)
					continue
				}
				defer client.Close()
				there, err := server.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer there.Close()
				if first, err := firstDestination(there); err != nil || first != to {
					t.Errorf("the service is told %v, %v, want %v", first, err, to)
				}
			}
		}
	}},
	{"connections are counted, and not packets", []string{"divert all 9153 :15953", "divert all 9153/udp :15953", "divert all 9154/udp :15954", "refuse all"}, nil, func(t *testing.T, s *scene, c wired.NIC) {
		count := func() int {
			t.Helper()
			status, err := c.Status(t.Context())
			if err != nil || status.Diverted == nil {
				t.Fatal(status.Diverted, err)
			}
			return int(*status.Diverted)
		}
		e := exchange{from: "guest", to: "beyond:9153", want: "pod:15953 sees guest"}
		for _, protocol := range []string{"tcp", "udp"} {
			e.protocol = protocol
			s.serve(t, []exchange{e})
		}
		for family := range 2 {
			before := count()
			if err := s.opened(t, "tcp", family, e).Echo(1<<16, patience); err != nil {
				t.Error(err)
			}
			if n := count() - before; n != 1 {
				t.Errorf("IPv%d: a connection of TCP counts %d", 4+2*family, n)
			}
			d := dial(t, s.who["guest"], "udp", netip.AddrPortFrom(s.addresses["beyond"][family], 9153))
			for range 5 {
				exchangeDatagram(t, d)
			}
			if n := count() - before; n != 2 {
				t.Errorf("IPv%d: an exchange of datagrams counts %d", 4+2*family, n-1)
			}
			var silent net.PacketConn
			in(t, s.Pod, func() (err error) {
				silent, err = net.ListenPacket("udp", netip.AddrPortFrom(s.addresses["guest's gateway"][family], 15954).String())
				return err
			})
			defer silent.Close()
			d = dial(t, s.who["guest"], "udp", netip.AddrPortFrom(s.addresses["beyond"][family], 9154))
			silent.SetReadDeadline(time.Now().Add(patience))
			for range 5 { // nobody answers, so each is looked up
				if _, err := d.Write([]byte("question")); err != nil {
					t.Fatal(err)
				}
				if _, _, err := silent.ReadFrom(make([]byte, 100)); err != nil {
					t.Fatal(err)
				}
			}
			if n := count() - before; n != 3 {
				t.Errorf("IPv%d: datagrams without an answer count %d", 4+2*family, n-2)
			}
		}
	}},
	{"a pin opens nothing that is diverted", []string{"divert all 9152 :15952", "refuse all"}, nil, func(t *testing.T, s *scene, c wired.NIC) {
		a := s.addresses["beyond"]
		if err := c.Pin(t.Context(), phase1.Pin{Addresses: a[:], Ports: []infra.Ports{{First: 9152}}, Life: time.Hour}); err != nil || strings.Contains(s.pins(), "9152") {
			t.Errorf("a pin of what is diverted: %v, %s", err, s.pins())
		}
		s.ask(t, []exchange{{protocol: "tcp", from: "guest", to: "beyond:9152", want: "pod:15952 sees guest"}})
	}},
}

// serveAll has the world answer at its addresses beyond and nat64.
func (s *scene) serveAll(ports map[string][]uint16) {
	for protocol, list := range ports {
		s.serveWorld(protocol, list...)
		for _, p := range list {
			s.World.Serve("world", protocol, netip.AddrPortFrom(s.addresses["nat64"][1], p))
		}
	}
}

// wantLocalnet wants route_localnet to be on at the guest's tap alone, or nowhere.
func (s *scene) wantLocalnet(t *testing.T, atTap bool) {
	t.Helper()
	list := s.Pod.Exec("sh", "-c", "grep . /proc/sys/net/ipv4/conf/*/route_localnet")
	for line := range strings.Lines(list) {
		if on := strings.Contains(line, "/eth0-tap/") && atTap; strings.HasSuffix(line, ":1\n") != on {
			t.Errorf("%s, want it on: %t", line, on)
		}
	}
}

// firstDestination is what a service learns of a connection (SO_ORIGINAL_DST, linux/netfilter_ipv4.h).
func firstDestination(c net.Conn) (to netip.AddrPort, err error) {
	const original = 80
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return to, err
	}
	v6 := c.LocalAddr().(*net.TCPAddr).IP.To4() == nil
	outer := raw.Control(func(fd uintptr) {
		if v6 {
			var info *unix.IPv6MTUInfo // which begins with a sockaddr_in6
			if info, err = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, original); err == nil {
				to = netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), info.Addr.Port<<8|info.Addr.Port>>8)
			}
			return
		}
		var b *unix.IPv6Mreq // which is as long as a sockaddr_in
		if b, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, original); err == nil {
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b.Multiaddr[4:])), uint16(b.Multiaddr[2])<<8|uint16(b.Multiaddr[3]))
		}
	})
	return to, errors.Join(outer, err)
}

// nstestLacksFTP is the kernel's answer that it cannot follow FTP; nil: it can.
func nstestLacksFTP(t *testing.T) error {
	err := run("unshare", "--net", "nft", addHelper("ftp"))
	if err != nil && !lacksHelper(err) {
		t.Fatal(err)
	}
	return err
}

// TestDivertAttacks: each attack has its list. What the rules promise of it holds under each binding that tracks
// connections, and Check finds no difference.
func TestDivertAttacks(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachRouter(t, []string{"refuse all"}, func(t *testing.T, s *scene, c wired.NIC) {
		s.nameGuest(t, c)
		s.Pod.Exec("sysctl", "-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0") // each datagram has its answer
		for _, a := range divertAttacks {
			t.Run(a.name, func(t *testing.T) {
				c := c
				c.Egress = policy(t, a.entries...)
				if a.prepare != nil {
					a.prepare(t, s)
				}
				setup(t, c)
				a.attack(t, s, c)
				check(t, c)
			})
		}
	})
}
