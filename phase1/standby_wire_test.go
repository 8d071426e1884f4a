package phase1_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// silence is longer than the kernel waits before it reports a multicast group, detects an address, or asks for a router
// for the first time.
const silence = 3 * time.Second

// TestStandbyIsSilent captures the wire of a target from before Setup until Activate. A VMM has the tap open and writes
// frames, the responder serves, the network floods the guest: nothing comes out, and nothing of the flood reaches the
// guest later.
func TestStandbyIsSilent(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		binding infra.Binding
		guard   infra.Guard
	}{
		"masquerade":          {binding: infra.Masquerade{}},
		"bridge":              {binding: infra.Bridge{}},
		"bridge, guard off":   {binding: infra.Bridge{}, guard: infra.Guard{Off: true}},
		"bridge, own MAC":     {binding: infra.Bridge{MAC: movedMAC}},
		"redirect":            {binding: infra.Redirect{}},
		"redirect, guard off": {binding: infra.Redirect{}, guard: infra.Guard{Off: true}},
		"redirect, own MAC":   {binding: infra.Redirect{MAC: movedMAC}},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "masquerade" {
				nstest.KernelDecides(t, "IPv6 forwards in the whole namespace, which the kernel reports to the network")
			}
			t.Parallel()
			newSilentWire(t, c.binding, c.guard).test()
		})
	}
}

// silentWire is a pod, and what its network receives.
type silentWire struct {
	*testing.T
	nstest.Network
	c      wired.NIC
	world  *nstest.Sniffer
	link   int // the world's end of the NIC
	inject func(frames ...[]byte) error
	r      cache.Record
	vmm    *os.File
}

func newSilentWire(t *testing.T, b infra.Binding, guard infra.Guard) *silentWire {
	t.Helper()
	n := nstest.NewNetwork(t)
	n.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.router_solicitations=0") // the namespace's own
	// A namespace can have these from its node. The kernel then announces its addresses when a link gets a MAC, or
	// comes up.
	for _, which := range []string{"all", "default", "eth0"} {
		n.Pod.Exec("sysctl", "-qw", "net.ipv4.conf."+which+".arp_notify=1", "net.ipv6.conf."+which+".ndisc_notify=1")
	}
	settled(t, n)
	w := &silentWire{T: t, Network: n, c: config(n, b)}
	w.c.Guard, w.c.Standby = guard, true
	err := netns.Do(n.World.File, func() error {
		l, err := net.InterfaceByName("pod")
		if err == nil {
			w.link = l.Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	mac := linkField(t, n, "eth0", "address")
	if b == (infra.Bridge{MAC: movedMAC}) || b == (infra.Redirect{MAC: movedMAC}) {
		mac = movedMAC.String()
	}
	for _, a := range []netip.Addr{nstest.Pod4, nstest.Pod6} { // the network asks for nothing
		n.World.IP("neigh replace " + a.String() + " lladdr " + mac + " dev pod nud permanent")
	}
	if b.Kind() == cache.BindingMasquerade { // Linux 6.1 asks for the namespace's gateway when it looks up a route (rt6_probe)
		n.Pod.IP("neigh replace " + nstest.Gateway6.String() + " lladdr " + strings.Fields(n.World.IP("-br link show dev pod"))[2] + " dev eth0 nud permanent")
	}
	w.inject = n.World.Injector(t, w.link)
	w.world = n.World.Sniff(t)
	for len(w.receives(silence)) > 0 { // the namespace still reports the groups of its own addresses
	}
	return w
}

// receives returns what the network receives from the pod within the time.
func (w *silentWire) receives(limit time.Duration) (frames [][]byte) {
	w.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if seen, ok := w.world.Next(); ok && seen.Link == w.link && !seen.Outgoing {
			frames = append(frames, seen.Frame)
		}
	}
	return frames
}

func (w *silentWire) wantSilence(when string) {
	w.Helper()
	for _, f := range w.receives(silence) {
		w.Errorf("%s the network receives %x", when, f)
	}
}

// flood sends to the guest what a network sends, all with the word.
func (w *silentWire) flood(word string) {
	w.Helper()
	err := netns.Do(w.World.File, func() error {
		for _, a := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 7777)))
			if err != nil {
				return err
			}
			for range 50 {
				if _, err := conn.Write([]byte(word)); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
					return err
				}
			}
			conn.Close()
		}
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	for range 50 {
		if err := w.inject(append(arpFrame(cache.MAC{2, 0, 0, 0, 0, 0x99}, netip.MustParseAddr("10.244.1.99"), netip.MustParseAddr("10.244.1.98")), word...)); err != nil {
			w.Fatal(err)
		}
	}
}

// arpFrame is a broadcast ARP request.
func arpFrame(mac cache.MAC, source, target netip.Addr) []byte {
	from, to := source.As4(), target.As4()
	f := append([]byte{255, 255, 255, 255, 255, 255}, mac[:]...)
	f = append(f, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	f = append(append(f, mac[:]...), from[:]...)
	return append(append(f, make([]byte, 6)...), to[:]...)
}

// says writes frames as the guest: ARP, which asks for its gateway, and a broadcast packet.
func (w *silentWire) says() error {
	own := w.r.IPv4.Address.Addr()
	packet := make([]byte, 20+8+18)
	copy(packet, []byte{0x45, 0, 0, byte(len(packet)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP})
	from := own.As4()
	copy(packet[12:], from[:])
	copy(packet[16:], []byte{255, 255, 255, 255})
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	binary.BigEndian.PutUint16(packet[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(packet[20:], 7777)
	binary.BigEndian.PutUint16(packet[22:], 7777)
	binary.BigEndian.PutUint16(packet[24:], 8+18)
	broadcast := append(append([]byte{255, 255, 255, 255, 255, 255}, w.r.MAC[:]...), 8, 0)
	for _, f := range [][]byte{arpFrame(w.r.MAC, own, w.r.IPv4.Gateway()), append(broadcast, packet...)} {
		if _, err := w.vmm.Write(f); err != nil {
			return err
		}
	}
	return nil
}

// guestReceives reads what has come to the guest until a frame with the word comes, which again sends once more.
func (w *silentWire) guestReceives(word string, again func()) (frames [][]byte) {
	w.Helper()
	buffer := make([]byte, 1<<16)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if err := w.vmm.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			w.Fatal(err)
		}
		size, err := w.vmm.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			again()
			continue
		}
		if err != nil {
			w.Fatal(err)
		}
		if bytes.Contains(buffer[:size], []byte(word)) {
			return frames
		}
		frames = append(frames, bytes.Clone(buffer[:size]))
	}
	w.Fatalf("no frame with %q comes to the guest", word)
	return nil
}

func (w *silentWire) test() {
	setup(w.T, w.c)
	w.r = record(w.T, w.Network)
	w.wantSilence("at Setup")
	setup(w.T, w.c)
	check(w.T, w.c)

	launcher := w.Serve(w.T, nstest.LauncherUID)
	err := netns.Do(w.Pod.File, func() (err error) {
		w.vmm, err = tap.Open(w.r.Tap)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	defer w.vmm.Close()
	w.wantEIO()
	w.flood("the flood")
	w.wantSilence("with a VMM")
	w.wantEIO()

	if _, err := w.c.Activate(w.Context(), phase1.Other{Gone: true}); err != nil {
		w.Fatal(err)
	}
	wantNoFlood := func(when string) {
		w.Helper()
		for _, f := range w.guestReceives("a new one", func() { w.flood("a new one") }) {
			if bytes.Contains(f, []byte("the flood")) {
				w.Errorf("%s the guest receives %x", when, f)
			}
		}
	}
	wantNoFlood("after Activate")
	if err := w.says(); err != nil {
		w.Errorf("the guest that is active: %v", err)
	}
	if received := w.receives(silence); w.r.Binding != cache.BindingMasquerade && len(received) == 0 {
		w.Error("the network receives nothing of an active guest, so the test tests nothing")
	}

	if _, err := w.c.Deactivate(w.Context()); err != nil {
		w.Fatal(err)
	}
	w.receives(silence) // what is still on its way
	w.wantEIO()
	w.flood("the flood")
	w.wantSilence("after Deactivate")
	if err := w.c.Teardown(w.Context()); !errors.Is(err, phase1.ErrInUse) {
		w.Errorf("Teardown on standby, with a VMM: %v, want ErrInUse", err)
	}
	check(w.T, w.c)
	if _, err := w.c.Activate(w.Context(), phase1.Other{Gone: true}); err != nil {
		w.Fatal(err)
	}
	wantNoFlood("after the second Activate")
	w.vmm.Close()
	launcher.Stop(w.T)
}

// wantEIO wants each frame of the guest to be refused.
func (w *silentWire) wantEIO() {
	w.Helper()
	for range 20 {
		if err := w.says(); !errors.Is(err, unix.EIO) {
			w.Fatalf("a frame of the guest on standby: %v, want %v", err, unix.EIO)
		}
	}
}
