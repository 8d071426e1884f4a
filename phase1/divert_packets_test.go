package phase1_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// divertJudge counts what the pod's stack takes: wrong is what comes to it by no divert, and right what does. It is
// after all rules that could drop it.
const divertJudge = `table inet judge {
	counter wrong { }
	counter right { }
	chain c {
		type filter hook input priority 300;
		iifname "lo" return
		ip daddr 127.0.0.0/8 udp dport != 8080 counter name wrong
		ip daddr 127.0.0.0/8 meta l4proto != { udp, icmp } counter name wrong
		ip daddr 127.0.0.0/8 meta l4proto icmp ct state != related counter name wrong
		ip daddr 127.0.0.0/8 ct status & dnat == 0 counter name wrong
		ip saddr 127.0.0.0/8 counter name wrong
		iifname "eth0-tap" meta l4proto { tcp, udp, sctp, udplite, dccp } th dport != { 15443, 15353, 8080 } counter name wrong
		meta l4proto { tcp, udp, sctp, udplite, dccp } th dport { 15443, 15353, 8080 } ct status & dnat == 0 counter name wrong
		iifname != "eth0-tap" th dport { 15443, 15353, 8080 } counter name wrong
		iifname "eth0-tap" th dport { 15443, 15353, 8080 } ct status dnat counter name right
	}
}`

// judged are the two counters.
func judged(t *testing.T, n nstest.Network) (wrong, right int) {
	t.Helper()
	read := func(name string) int {
		_, after, _ := strings.Cut(n.Pod.Exec("nft", "list", "counter", "inet", "judge", name), "packets ")
		count, err := strconv.Atoi(strings.Fields(after)[0])
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	return read("wrong"), read("right")
}

// divertEvasions are what a guest may try beside the diverts of TestHostileDivert, in addition to evasions.
func divertEvasions(w *wire) (kinds []frames.Kind) {
	add := func(name string, list ...[]byte) { kinds = append(kinds, frames.Kind{Name: name, Frames: list}) }
	loopback := netip.MustParseAddr("127.0.0.1")
	for _, to := range []netip.Addr{loopback, netip.MustParseAddr("127.255.255.254"), w.link.Gateway4, w.link.Gateway6} {
		own := w.link.IPv4
		if to.Is6() {
			own = w.link.IPv6
		}
		for _, port := range []uint16{8080, 15353, 15443, 22} {
			add(fmt.Sprintf("UDP to %v, %d", to, port), w.link.Ask(17, own, to, port))
			add(fmt.Sprintf("TCP to %v, %d", to, port), w.link.Ask(6, own, to, port))
		}
	}
	add("UDP from a loopback address", w.link.Packet(17, loopback, refused4, frames.Datagram(5000, 53, nil)))
	add("UDP from a loopback address to itself", w.link.Packet(17, loopback, loopback, frames.Datagram(5000, 8080, nil)))
	add("UDP as an answer of the target", w.link.Packet(17, w.link.IPv4, w.link.Gateway4, frames.Datagram(15353, 5353, nil)))
	mapped := netip.MustParseAddr("::ffff:127.0.0.1")
	for _, port := range []uint16{8080, 22} {
		add(fmt.Sprintf("UDP to %v, %d", mapped, port), w.link.Ask(17, w.link.IPv6, mapped, port))
		add(fmt.Sprintf("UDP to 64:ff9b::127.0.0.1, %d", port), w.link.Ask(17, w.link.IPv6, netip.MustParseAddr("64:ff9b::127.0.0.1"), port))
	}
	for _, v := range []struct {
		own, no   netip.Addr
		icmp, bad uint8
	}{{w.link.IPv4, refused4, unix.IPPROTO_ICMP, 3}, {w.link.IPv6, refused6, unix.IPPROTO_ICMPV6, 1}} {
		// An error about an answer of what is diverted, to its destination and to another one.
		about := w.link.Packet(17, v.no, v.own, frames.Datagram(53, 5353, []byte("an answer")))[14:]
		for _, to := range []netip.Addr{v.no, w.link.Far4, w.link.Far6} {
			if to.Is4() == v.own.Is4() {
				add(fmt.Sprintf("IPv%d, an error about what is diverted to %v", about[0]>>4, to), w.link.Packet(17, v.own, v.no, frames.Datagram(5353, 53, nil)),
					w.link.Packet(v.icmp, v.own, to, slices.Concat([]byte{v.bad, 1, 0, 0, 0, 0, 0, 0}, about)))
			}
		}
		add(fmt.Sprintf("IPv%d, TCP in its middle", about[0]>>4), w.link.Packet(6, v.own, v.no, frames.Segment(5001, 80, 0x10, []byte("data"))))
		add(fmt.Sprintf("IPv%d, TCP to the target in its middle", about[0]>>4), w.link.Packet(6, v.own, []netip.Addr{w.link.Gateway4, w.link.Gateway6}[about[0]>>4/6], frames.Segment(5001, 15443, 0x10, []byte("data"))))
		add(fmt.Sprintf("IPv%d, SCTP in its middle", about[0]>>4), w.link.Packet(132, v.own, v.no, slices.Concat(portHeader(5002, 80), []byte{0, 0, 0, 1, 0, 0, 0, 0}, []byte{4, 0, 0, 12, 0, 1, 0, 8, 0, 0, 0, 1})))
	}
	return kinds
}

// hostileDiverts lead some of what evasions try to ports of the namespace.
var hostileDiverts = append(onlySentinels[:2:2], "divert all 80 :15443", "divert 203.0.113.0/24 53/udp 127.0.0.1:8080", "divert all 53/udp :15353", "divert all sctp :15443",
	"allow 198.51.100.9 5454/udp", "allow 2001:db8:9::9 5454/udp", "refuse all")

// TestHostileDivert: nothing of what a guest tries leaves beside diverts, and nothing of it gets to the namespace
// except what is diverted, at the targets: by any protocol, header, fragment or address. The network gets to no target
// either.
func TestHostileDivert(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachTracking(t, func(t *testing.T, b infra.Binding) {
		t.Parallel()
		n := nstest.NewNetwork(t)
		n.Pod.LoadRules(divertJudge)
		c := config(n, b)
		c.Egress = policy(t, hostileDiverts...)
		setup(t, c)
		w := attach(t, n, true, true)
		kinds := slices.Concat(evasions(w), divertEvasions(w))
		were, _ := judged(t, n)
		for some := range slices.Chunk(kinds, 12) {
			var names []string
			for _, k := range some {
				names = append(names, k.Name)
				if world, pod := w.send(k.Frames...); len(world)+len(pod) > 0 {
					t.Errorf("%s: %v %v left", k.Name, world, pod)
				}
			}
			if wrong, _ := judged(t, n); wrong != were {
				t.Errorf("%d packets of these come to the namespace: %q", wrong-were, names)
				were = wrong
			}
		}
		if _, right := judged(t, n); right < 10 {
			t.Errorf("%d packets are diverted: the kinds try nothing", right)
		}
		check(t, c)

		toPod := func(protocol uint8, from, to netip.Addr, port uint16) []byte {
			return slices.Concat(w.own[0][:], w.router[:], w.link.Packet(protocol, from, to, frames.Datagram(5000, port, nil))[12:])
		}
		for _, to := range []netip.Addr{netip.MustParseAddr("127.0.0.1"), w.link.Gateway4, w.link.Gateway6, netip.IPv6Loopback()} {
			from := nstest.Gateway4
			if to.Is6() {
				from = nstest.Gateway6
			}
			for _, port := range []uint16{8080, 15353, 15443, 53} {
				if err := w.inject(toPod(17, from, to, port)); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.send()
		if wrong, _ := judged(t, n); wrong != were {
			t.Errorf("%d packets of the network come to a target", wrong-were)
		}
	})
}

// rewritten is a frame of which whatever completes its checksum writes the value at the place, as rewriting is for a
// device.
func rewritten(f []byte, start, at, balance int, value uint16) []byte {
	f = slices.Clone(f)
	copy(f[balance:], []byte{0, 0})
	binary.BigEndian.PutUint16(f[balance:], ^sum(slices.Concat(portHeader(^value, sum(f[start:])))))
	return partial(start, at).before(f)
}

// TestHostileDivertVirtio: a header that says where a checksum is written leads neither to another port of the
// namespace nor to another loopback address, nor round a divert, also on a connection that is open.
func TestHostileDivertVirtio(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachTracking(t, func(t *testing.T, b infra.Binding) {
		nstest.KernelDecides(t, "where checksums are written")
		n := nstest.NewNetwork(t)
		n.Pod.LoadRules(divertJudge)
		c := config(n, b)
		c.Egress = policy(t, hostileDiverts...)
		setup(t, c)
		if r := record(t, n); slices.ContainsFunc(r.Warnings, func(text string) bool { return strings.Contains(text, "guest's root") }) {
			t.Fatalf("the policy does not hold under this kernel: %q", r.Warnings)
		}
		w := attachPort(t, n, true, true, true)
		w.pod, w.world = n.Pod.Sniff(t), n.World.Sniff(t)
		const open = 5454
		n.World.Serve("beyond", "udp", netip.AddrPortFrom(nstest.Beyond4, open), netip.AddrPortFrom(nstest.Beyond6, open))
		data := func() []byte { return make([]byte, 64) }
		were, _ := judged(t, n)
		try := func(name string, f []byte) {
			t.Helper()
			if _, err := w.port.Write(f); err != nil {
				t.Logf("%s: %v", name, err)
			}
			if world, pod := w.send(); len(world)+len(pod) > 0 {
				t.Errorf("%s: %v %v left", name, world, pod)
			}
			if wrong, _ := judged(t, n); wrong != were {
				t.Errorf("%s: it comes to the namespace", name)
				were = wrong
			}
		}
		for _, v := range []struct{ own, far, no netip.Addr }{{w.link.IPv4, nstest.Beyond4, refused4}, {w.link.IPv6, nstest.Beyond6, refused6}} {
			udp := func(to netip.Addr, source, port uint16) []byte {
				f := w.link.Packet(17, v.own, to, frames.Datagram(source, port, data()))
				if to.Is4() {
					head := transportOf(f)
					copy(f[head+6:], []byte{0, 0})
				}
				return f
			}
			head := transportOf(udp(v.far, 1, 1))
			balance := head + 8 + 32
			if err := w.put(udp(v.far, 6020, open)); err != nil {
				t.Fatal(err)
			}
			w.awaitAtTap([]byte("beyond:5454 sees"))
			w.send()
			for source, from := range map[uint16][2]uint16{6000: {53, 161}, 6001: {161, 53}, 6002: {53, 8080}, 6003: {53, 15353}, 6004: {15353, 53}, 6005: {open, 161}} {
				try(fmt.Sprintf("IPv%d, port %d becomes %d", f4(v.own), from[0], from[1]), rewritten(udp(v.no, source, from[0]), head+2, head+2, balance, from[1]))
				// And once more, of what is tracked.
				try(fmt.Sprintf("IPv%d, port %d becomes %d again", f4(v.own), from[0], from[1]), rewritten(udp(v.no, source, from[0]), head+2, head+2, balance, from[1]))
			}
			if v.own.Is4() {
				const destination = 30
				for _, port := range []uint16{open, 53, 8080} {
					try(fmt.Sprintf("the address becomes a loopback address, port %d", port), rewritten(udp(v.far, 6020, port), destination, destination, balance, 0x7f00))
				}
				if !w.routed { // 10.244.1.7 is the guest's there
					try("the address becomes the gateway's", rewritten(udp(netip.MustParseAddr("198.51.2.1"), 6010, 15353), destination, destination, balance, 0x0a00))
				}
			} else {
				const last = 52
				try("the address, to what is diverted", rewritten(udp(v.far, 6020, open), last, last, balance, 0xbad))
			}
		}
		check(t, c)
	})
}

// f4 is the version of IP.
func f4(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}
