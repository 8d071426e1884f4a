package phase1_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// wire is a guest's tap, and everything around it.
type wire struct {
	t        *testing.T
	n        nstest.Network
	link     frames.Link
	port     *os.File
	receiver net.PacketConn // of the sentinels
	virtio   bool           // its frames have a virtio header

	masquerade bool // the namespace is the guest's gateway
	routed     bool // and the guest has the NIC's addresses
	unguarded  bool // without the guest filter
	pod, world *nstest.Sniffer
	sentinels  int
	inject     func(frames ...[]byte) error // from the world's end of the NIC

	tap, dhcp, nic, bridge int         // indices in the pod
	gateway                int         // the world's end of the NIC
	router                 cache.MAC   // its
	own                    []cache.MAC // of the namespace's links, the NIC's first, if they are not the guest's
}

// attach attaches to the tap of a wiring whose guest has these families, and listens around it.
func attach(t *testing.T, n nstest.Network, v4, v6 bool) *wire {
	t.Helper()
	w := attachDeaf(t, n, v4, v6)
	w.pod, w.world = n.Pod.Sniff(t), n.World.Sniff(t)
	w.send()
	return w
}

// attachDeaf only attaches to the tap.
func attachDeaf(t *testing.T, n nstest.Network, v4, v6 bool) *wire {
	t.Helper()
	return attachPort(t, n, v4, v6, false)
}

// attachPort is attachDeaf, also by frames with a virtio header.
func attachPort(t *testing.T, n nstest.Network, v4, v6, virtio bool) *wire {
	t.Helper()
	r := record(t, n)
	w := &wire{t: t, n: n, masquerade: r.Binding == cache.BindingMasquerade || r.Binding == cache.BindingRouted, routed: r.Binding == cache.BindingRouted}
	link := func(ns *nstest.Namespace, name string) (index int, mac cache.MAC) {
		err := netns.Do(ns.File, func() error {
			l, err := net.InterfaceByName(name)
			if err == nil {
				index, mac = l.Index, cache.MAC(l.HardwareAddr)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return index, mac
	}
	w.tap, _ = link(n.Pod, r.Tap)
	if r.ResponderTap != "" {
		w.dhcp, _ = link(n.Pod, r.ResponderTap)
	}
	w.link = frames.Link{MAC: r.MAC, Far4: nstest.Beyond4, Far6: nstest.Beyond6, Served: r.ResponderTap != ""}
	var nic, bridge cache.MAC
	switch r.Binding {
	case cache.BindingBridge:
		w.nic, nic = link(n.Pod, "eth0-nic")
		w.bridge, bridge = link(n.Pod, "eth0-br")
		w.own = []cache.MAC{nic, bridge}
	case cache.BindingRedirect:
		// The namespace has the guest's MAC, so it is not to say anything.
		w.nic, _ = link(n.Pod, "eth0")
		w.link.MTU = r.MTU
		n.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.router_solicitations=0")
	case cache.BindingRouted, cache.BindingMasquerade:
		w.nic, nic = link(n.Pod, "eth0")
		w.bridge, bridge = link(n.Pod, r.Tap)
		w.own = []cache.MAC{nic, bridge}
	}
	w.gateway, w.router = link(n.World, "pod")
	if w.routed {
		w.link.IPv4, w.link.IPv6 = nstest.Pod4, nstest.Pod6
		w.link.Gateway, w.link.Gateway4, w.link.Gateway6 = bridge, lease.RoutedIPv4, eui64.LinkLocal(bridge)
	} else if w.masquerade {
		w.link.IPv4, w.link.IPv6 = netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("fd10:0:2::2")
		w.link.Gateway, w.link.Gateway4, w.link.Gateway6 = bridge, netip.MustParseAddr("10.0.2.1"), netip.MustParseAddr("fd10:0:2::1")
	} else {
		w.link.IPv4, w.link.IPv6 = nstest.Pod4, nstest.Pod6
		w.link.Gateway, w.link.Gateway4, w.link.Gateway6 = w.router, nstest.Gateway4, nstest.Gateway6
	}
	if !v4 {
		w.link.IPv4 = netip.Addr{}
	}
	if !v6 {
		w.link.IPv6 = netip.Addr{}
	}
	if w.virtio = virtio; virtio {
		w.port = openOffloads(t, n, r, 0)
	} else {
		w.port = openPort(t, n, r.Tap)
	}
	w.inject = n.World.Injector(t, w.gateway)
	w.receiver = receive(t, n)
	oneProcessor(t)
	// Until carriers have been noticed and neighbours found, frames are lost.
	nstest.Eventually(t, func() error {
		if err := w.put(w.link.Sentinel(w.address(), 0)); err != nil {
			return err
		}
		if err := w.receiver.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return err
		}
		if _, _, err := w.receiver.ReadFrom(make([]byte, 100)); err != nil {
			return err
		}
		if state := n.Pod.IP("-br link show dev " + r.Tap); !strings.Contains(state, " UP ") {
			return fmt.Errorf("%s is not up: %s", r.Tap, state)
		}
		return nil
	})
	return w
}

// address is the guest's, of a family that it has.
func (w *wire) address() netip.Addr {
	if w.link.IPv4.IsValid() {
		return w.link.IPv4
	}
	return w.link.IPv6
}

// receive receives sentinels, so that the kernel does not answer that the port is closed.
func receive(t *testing.T, n nstest.Network) net.PacketConn {
	t.Helper()
	var socket net.PacketConn
	err := netns.Do(n.World.File, func() (err error) {
		socket, err = net.ListenPacket("udp", fmt.Sprintf(":%d", frames.SentinelPort))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return socket
}

// oneProcessor keeps what the test sends in order: the kernel has a queue a processor.
func oneProcessor(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	var processors []int
	for i := range 1024 {
		if all.IsSet(i) {
			processors = append(processors, i)
		}
	}
	one.Set(processors[int(nextProcessor.Add(1))%len(processors)])
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.SchedSetaffinity(0, &all); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
}

// nextProcessor spreads the tests over the processors.
var nextProcessor atomic.Int32

// put sends a frame that is complete.
func (w *wire) put(f []byte) error {
	if w.virtio {
		f = virtioHeader{}.before(f)
	}
	_, err := w.port.Write(f)
	return err
}

// send sends frames and then a sentinel, and returns what came out before that: in the world, and in
// the namespace on other links than the taps.
func (w *wire) send(list ...[]byte) (world, pod []nstest.Sniffed) {
	w.t.Helper()
	w.sentinels++
	write := func(f []byte) {
		if err := w.put(f); err != nil {
			w.t.Fatal(err)
		}
	}
	sentinel := func() { write(w.link.Sentinel(w.address(), w.sentinels)) }
	for _, f := range list {
		write(f)
	}
	sentinel()
	mark := frames.SentinelData(w.sentinels)
	for _, s := range w.pod.Until(func(s nstest.Sniffed) bool { return s.Link == w.nic && s.Outgoing && bytes.Contains(s.Frame, mark) }, sentinel) {
		if s.Link != w.tap && s.Link != w.dhcp && (s.Link != w.nic || s.Outgoing) && !w.expected(s) {
			pod = append(pod, s)
		}
	}
	for _, s := range w.world.Until(func(s nstest.Sniffed) bool {
		return s.Link == w.gateway && !s.Outgoing && bytes.Contains(s.Frame, mark)
	}, sentinel) {
		if !s.Outgoing && !w.expected(s) {
			world = append(world, s)
		}
	}
	return world, pod
}

// expected is a sentinel, or what the namespace says of itself to its neighbours.
func (w *wire) expected(s nstest.Sniffed) bool {
	f := s.Frame
	if bytes.Contains(f, []byte("guestwire sentinel")) {
		return true
	}
	if !w.masquerade { // the namespace says nothing
		return false
	}
	if len(f) < 14+28 || s.Link == w.bridge && !s.Outgoing || !slices.Contains(w.own, cache.MAC(f[6:12])) {
		return false
	}
	var source netip.Addr
	switch binary.BigEndian.Uint16(f[12:]) {
	case netstate.EthernetARP:
		source = netip.AddrFrom4([4]byte(f[28:]))
	case netstate.EthernetIPv6:
		if len(f) < 14+49 || !(f[20] == 58 && slices.Contains([]byte{133, 135, 136}, f[54]) || f[20] == 0 && f[54] == 58 && f[62] == 143) {
			return false
		}
		source = netip.AddrFrom16([16]byte(f[22:]))
	default:
		return false
	}
	return source == nstest.Pod4 || source == nstest.Pod6 || source.IsUnspecified() || source == w.link.Gateway4 || source == w.link.Gateway6 ||
		slices.ContainsFunc(w.own, func(m cache.MAC) bool { return source == eui64.LinkLocal(m) })
}

// answered are the states of a neighbour that has answered (ip-neighbour(8)).
var answered = regexp.MustCompile(`\b(REACHABLE|STALE|DELAY|PROBE)\b`)

// state is what nothing that a guest sends may change.
func (w *wire) state() string {
	w.t.Helper()
	all := w.n.Pod.Exec("sh", "-c", "ip route show table all; ip -6 route show table all; bridge fdb; ip maddr; ip neigh")
	if !w.masquerade { // the namespace's stack receives nothing at all
		all += w.n.Pod.Exec("sh", "-c", "grep -E '^(Icmp|Udp|Tcp|UdpLite):' /proc/net/snmp; grep -E '^(Ip6In|Icmp6In|Udp6In)' /proc/net/snmp6")
	}
	var text strings.Builder
	for line := range strings.Lines(all) {
		// With time an entry goes from one of these states to the next.
		line = answered.ReplaceAllString(line, "answered")
		// The world's neighbour entry comes and goes, and carriers are noticed late.
		if !strings.Contains(line, w.router.String()) && !strings.Contains(line, "ff00::/8") {
			text.WriteString(strings.ReplaceAll(line, " linkdown", ""))
		}
	}
	return text.String()
}

// hostile sends all kinds, and returns the names of those that got anything out. Each frame of a kind is counted
// once, for the kind's reason.
func (w *wire) hostile(kinds []frames.Kind) (leaked []string) {
	w.t.Helper()
	total := dropped(w.t, w.n.Pod)
	for _, k := range kinds {
		before := w.dropped()
		if world, pod := w.send(k.Frames...); len(world)+len(pod) > 0 {
			leaked = append(leaked, k.Name)
		}
		want := ""
		if k.Reason != "" {
			want = fmt.Sprintf("%s %d", k.Reason, len(k.Frames))
			total[string(k.Reason)] += len(k.Frames)
		}
		if have := more(before, w.dropped()); have != want && !w.unguarded {
			w.t.Errorf("%s: dropped %q, want %q", k.Name, have, want)
		}
	}
	if have := more(total, dropped(w.t, w.n.Pod)); have != "" && !w.unguarded {
		w.t.Errorf("nft reports more drops than the kinds have: %s", have)
	}
	return leaked
}

// dropped is what Drops says. It is quick, and nft(8) is asked for the sum.
func (w *wire) dropped() map[string]int {
	w.t.Helper()
	return counted(w.t, wired.NIC{NIC: phase1.NIC{NetNS: w.n.Pod.File, Name: "eth0"}, Spec: infra.Spec{}})
}

// legitimate sends all kinds, and returns the names of those that did not arrive: unchanged in the network, or past the
// guest filter in the namespace, and from there translated if they are for others. What a busy machine loses is sent
// again.
func (w *wire) legitimate(kinds []frames.Kind) (lost []string) {
	w.t.Helper()
	for _, k := range kinds {
		before := w.dropped()
		err := w.arrives(k)
		for again := 0; err != nil && again < 3; again++ {
			err = w.arrives(k)
		}
		if err != nil {
			w.t.Errorf("%s: %s: %v", k.Name, k.Why, err)
			lost = append(lost, k.Name)
		}
		// What is for the gateway itself, or answers nothing, passes the guest filter and ends after it.
		have := more(before, w.dropped())
		if have != "" && !(w.masquerade && !k.Forwarded && behindFilter.MatchString(have)) {
			w.t.Errorf("%s: dropped %q, though legitimate", k.Name, have)
		}
	}
	return lost
}

// behindFilter are reasons of a masquerade's own rules.
var behindFilter = regexp.MustCompile(`^(no-connection|namespace-service) \d+$`)

func (w *wire) arrives(k frames.Kind) (err error) {
	w.t.Helper()
	if w.masquerade {
		before := w.dropped()
		defer func() {
			// What the tap's link takes itself comes to no other link.
			if have := more(before, w.dropped()); err == nil && have != "" && !behindFilter.MatchString(have) {
				err = errors.New("dropped: " + have)
			}
		}()
	}
	world, _ := w.send(k.Frames...)
	if !w.masquerade {
		for _, f := range k.Frames {
			if !slices.ContainsFunc(world, func(s nstest.Sniffed) bool { return bytes.Equal(s.Frame, f) }) {
				return errors.New("the frames did not come to the network")
			}
		}
		return nil
	}
	left := !k.Forwarded
	for _, s := range world {
		if !w.routed && !w.translated(s.Frame) {
			w.t.Errorf("%s: left as it is: %x", k.Name, s.Frame)
		}
		left = left || bytes.Contains(s.Frame, []byte(k.Marker))
	}
	if !left {
		return errors.New("it did not leave")
	}
	return nil
}

// translated says that a frame is the namespace's own, from the pod's addresses.
func (w *wire) translated(f []byte) bool {
	if len(f) < 14+40 || cache.MAC(f[6:12]) != w.own[0] {
		return false
	}
	switch binary.BigEndian.Uint16(f[12:]) {
	case netstate.EthernetIPv4:
		return netip.AddrFrom4([4]byte(f[26:])) == nstest.Pod4
	case netstate.EthernetIPv6:
		return netip.AddrFrom16([16]byte(f[22:])) == nstest.Pod6
	}
	return false
}

// settledState is the state once the kernel has taken notice of all carriers.
func (w *wire) settledState() string {
	w.t.Helper()
	state := w.state()
	nstest.Eventually(w.t, func() error {
		last := state
		time.Sleep(100 * time.Millisecond)
		state = w.state()
		return difference(last, state)
	})
	return state
}
