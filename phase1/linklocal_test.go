package phase1_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// hold is how long the guest filter waits after duplicate address detection of a link-local address. The guest itself
// waits longer (RFC 4862: RetransTimer, one second), so the address's owner can object.
const hold = 900 * time.Millisecond

// stablePrivacy returns link-local addresses such as RFC 7217 makes them.
func stablePrivacy(n int) (list []netip.Addr) {
	for i := range n {
		a := netip.MustParseAddr("fe80::5a3c:91d2:77e4:1b06").As16()
		a[9] += byte(i)
		a[15] ^= byte(i * 37)
		list = append(list, netip.AddrFrom16(a))
	}
	return list
}

// TestLinkLocal: the guest may use link-local addresses that it has announced by duplicate address detection, once
// their owners could have objected, and none of another station. There are places for so many, and time makes room.
func TestLinkLocal(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for _, c := range []struct {
		name    string
		options cache.Options
	}{
		{name: "served"},
		{name: "not served", options: cache.Options{NoResponder: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachBinding(t, func(t *testing.T, b infra.Binding) {
				if c.options.NoResponder && b.Kind() != "bridge" {
					return // the sets and rules are the same as of a guest that is served
				}
				for _, way := range linkLocalWays {
					alone := b.Kind() == cache.BindingMasquerade || b.Kind() == cache.BindingRouted
					if way.ofNeighbours && alone {
						continue // no other station is on the guest's link
					}
					t.Run(way.name, func(t *testing.T) {
						t.Parallel()
						n := nstest.NewNetwork(t)
						config := config(n, b)
						config.Options = c.options
						setup(t, config)
						way.judge(t, attach(t, n, true, true), config)
					})
				}
			})
		})
	}
}

// linkLocalWays are what guest and neighbours do.
var linkLocalWays = []struct {
	name         string
	ofNeighbours bool
	judge        func(*testing.T, *wire, wired.NIC)
}{
	{"learned", false, learnsMany},
	{"forged", false, learnsNoForged},
	{"unreceived", false, learnsNoUnreceived},
	{"seen in the network", true, learnsNoNeighbours},
	{"in use", true, keepsWhatItUses},
	{"in use after many", true, func(t *testing.T, w *wire, c wired.NIC) {
		family := map[cache.Kind]string{cache.BindingBridge: "bridge", cache.BindingRedirect: "netdev"}[c.Spec.Binding.Kind()]
		var elements []string
		for i := range 16 {
			elements = append(elements, fmt.Sprintf("fe80::%x:5a3c:91d2:77e4", 0x1000+i))
		}
		w.n.Pod.Exec("nft", "add element "+family+" guestwire-eth0 link-local-used { "+strings.Join(elements, ", ")+" }")
		keepsWhatItUses(t, w, c)
	}},
	{"defended", true, func(t *testing.T, w *wire, _ wired.NIC) {
		learnsNoDefended(t, w, func(n frames.Link, a netip.Addr) []byte { return n.FromLinkLocal(a)[3].Frames[0] })
	}},
	{"detected by another", true, func(t *testing.T, w *wire, _ wired.NIC) { learnsNoDefended(t, w, frames.Link.Detection) }},
}

// learnsMany announces addresses one after another, as VMs do in turn.
func learnsMany(t *testing.T, w *wire, c wired.NIC) {
	all := stablePrivacy(6)
	for _, a := range all {
		w.noneLeaks(w.link.FromLinkLocal(a)) // not announced yet
	}
	for _, some := range [][]netip.Addr{all[:4], all[4:5]} { // a kernel that tries four, and another one
		for _, a := range some {
			w.held(a)
		}
		for _, a := range some {
			w.learned(a)
		}
	}
	for _, a := range all[:5] {
		w.legitimate(w.link.FromLinkLocal(a))
		w.legitimate([]frames.Kind{{Name: "second detection of " + a.String(), Frames: [][]byte{w.link.Detection(a)}}})
	}
	w.fill(all[4], "1h", "1h")
	w.noneLeaks(append(w.link.FromLinkLocal(all[5]), w.detection(all[5])))
	check(t, c) // after addresses were learned
	setup(t, c)
	for _, a := range all[:5] {
		if lost := w.legitimate(w.link.FromLinkLocal(a)); len(lost) > 0 {
			t.Errorf("after another Setup: %q", lost)
		}
	}
	// A table that is made anew keeps what the old one has learned.
	w.n.Pod.Exec("nft", "flush", "chain", "netdev", "guestwire-eth0", "listener")
	setup(t, c)
	c.Guard.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")}
	setup(t, c)
	for _, a := range all[:5] {
		w.learned(a)
		if lost := w.legitimate(w.link.FromLinkLocal(a)); len(lost) > 0 {
			t.Errorf("after the table was made anew: %q", lost)
		}
	}
	w.noneLeaks(append(w.link.FromLinkLocal(all[5]), w.detection(all[5])))

	// Whatever has filled the places, time makes room; and an address that is in use keeps its place.
	w.fill(all[4], "2m", "2s")
	w.learnedInTime(all[5])
	w.learned(all[4])
	if out := w.n.Pod.Exec("nft", "get", "element", "netdev", "guestwire-eth0", "link-local-more", "{ "+all[4].String()+" }"); !regexp.MustCompile(` expires (1h|5\dm)`).MatchString(out) {
		t.Errorf("the use of %v did not make its life longer:\n%s", all[4], out)
	}
}

// fill takes the places that time frees: one by an address, the others by further ones. Lives is what is left of the
// life of each.
func (w *wire) fill(kept netip.Addr, keptLives, lives string) {
	w.t.Helper()
	places := 256
	if w.masquerade {
		places = 16
	}
	const set = "set netdev guestwire-eth0 link-local-more"
	element := func(a, lives string) string { return a + " timeout 1h expires " + lives }
	elements := []string{element(kept.String(), keptLives)}
	for i := range places - 1 {
		elements = append(elements, element(fmt.Sprintf("fe80::%x:5a3c:91d2:77e4", 0x1000+i), lives))
	}
	w.n.Pod.Exec("nft", "flush "+set+"; add element"+strings.TrimPrefix(set, "set")+" { "+strings.Join(elements, ", ")+" }")
}

// learnedInTime announces an address again and again, until there is a place for it.
func (w *wire) learnedInTime(a netip.Addr) {
	w.t.Helper()
	nstest.Eventually(w.t, func() error {
		w.send(w.link.Detection(a))
		time.Sleep(hold)
		return w.arrives(w.link.FromLinkLocal(a)[0])
	})
}

// learnsNoForged announces addresses that no stable-privacy generator makes: such are others'.
func learnsNoForged(t *testing.T, w *wire, _ wired.NIC) {
	kinds := w.link.FromLinkLocal(eui64.LinkLocal(w.link.Gateway)) // where the responder answers for it, it takes the detection
	for _, a := range []netip.Addr{
		eui64.LinkLocal(cache.MAC{0x02, 0x00, 0x5e, 0x00, 0x53, 0x66}),
		eui64.LinkLocal(cache.MAC{w.link.MAC[0], w.link.MAC[1], w.link.MAC[2], w.link.MAC[3], w.link.MAC[4], w.link.MAC[5] ^ 1}),
		netip.MustParseAddr("fe80::"),
		netip.MustParseAddr("fe80::1"),
		netip.MustParseAddr("fe80::a:b"),
		netip.MustParseAddr("fe80::bad:66"),
		netip.MustParseAddr("fe80:0:0:1:5a3c:91d2:77e4:1b06"), // not in fe80::/64
		netip.MustParseAddr("febf::5a3c:91d2:77e4:1b06"),
		netip.MustParseAddr("fec0::5a3c:91d2:77e4:1b06"),
		w.link.Gateway6,
		netip.MustParseAddr("fd00:244:1::5a3c:91d2:77e4:1b06"),
		netip.MustParseAddr("2001:db8::5a3c:91d2:77e4:1b06"),
	} {
		kinds = append(append(kinds, w.detection(a)), w.link.FromLinkLocal(a)...)
	}
	w.noneLeaks(kinds)
	w.held(stablePrivacy(1)[0])
	w.learned(stablePrivacy(1)[0])
	w.noneLeaks(kinds)
}

// learnsNoUnreceived announces addresses so that their owners could not object.
func learnsNoUnreceived(t *testing.T, w *wire, _ wired.NIC) {
	all := stablePrivacy(30)
	forms := len(w.link.Unreceived(all[0]))
	for i := range forms {
		w.send(w.link.Unreceived(all[i+1])[i].Frames...) // may pass, but must not teach the filter an address
	}
	w.held(all[0])
	w.learned(all[0])
	for i := range forms {
		if leaked := w.leaks(w.link.FromLinkLocal(all[i+1])); len(leaked) > 0 {
			t.Errorf("after %s: leaked: %q", w.link.Unreceived(all[i+1])[i].Name, leaked)
		}
	}
	w.learned(all[0])
}

// learnsNoNeighbours announces addresses that the network had shown to be others'.
func learnsNoNeighbours(t *testing.T, w *wire, _ wired.NIC) {
	neighbour := w.link.FromGateway()
	neighbour.MAC = cache.MAC{0x02, 0x00, 0x5e, 0x00, 0x53, 0x66}
	var kinds []frames.Kind
	free := stablePrivacy(7)[6]
	w.held(free)
	w.learned(free)
	for i, a := range stablePrivacy(6) {
		shown := neighbour.FromLinkLocal(a)[min(i, 4)] // reports, solicitation, advertisements
		list := shown.Frames
		if i == 5 {
			list = [][]byte{neighbour.Detection(a)}
		}
		w.network(list...)
		leaked := w.leaks(append([]frames.Kind{w.detection(a)}, w.link.FromLinkLocal(a)...))
		if len(leaked) > 0 {
			t.Errorf("after the network's %s: leaked: %q", shown.Name, leaked)
		}
		kinds = append(kinds, w.link.FromLinkLocal(a)...)
	}
	w.learned(free)
	w.noneLeaks(kinds)
}

// learnsNoDefended announces an address whose owner objects, by an advertisement or by a detection of its own (RFC 4862
// section 5.4.3). The guest may then learn one address, and not two.
func learnsNoDefended(t *testing.T, w *wire, objects func(neighbour frames.Link, a netip.Addr) []byte) {
	neighbour := w.link.FromGateway()
	neighbour.MAC = cache.MAC{0x02, 0x00, 0x5e, 0x00, 0x53, 0x66}
	all := stablePrivacy(2)
	if world, pod := w.send(w.link.Detection(all[0])); len(world)+len(pod) == 0 {
		t.Errorf("the detection of %v did not come out", all[0])
	}
	w.network(objects(neighbour, all[0]))
	w.held(all[1])
	w.learned(all[1])
	w.noneLeaks(w.link.FromLinkLocal(all[0]))
}

// keepsWhatItUses has the network claim the addresses from which the guest sends, in each way: the one of its MAC, and
// one that was learned. Otherwise one frame of a neighbour, or of a host beyond the router, would silence the guest,
// and a guest could not defend its address against another one's detection.
func keepsWhatItUses(t *testing.T, w *wire, _ wired.NIC) {
	neighbour := w.link.FromGateway()
	neighbour.MAC = cache.MAC{0x02, 0x00, 0x5e, 0x00, 0x53, 0x66}
	all := stablePrivacy(3)
	w.held(all[0])
	w.learned(all[0])
	for _, own := range []netip.Addr{all[0], eui64.LinkLocal(w.link.MAC)} {
		claims := [][]byte{neighbour.Detection(own)}
		for _, k := range neighbour.FromLinkLocal(own)[:5] {
			claims = append(claims, k.Frames...)
		}
		for _, f := range claims {
			w.network(f)
			if lost := w.legitimate(w.link.FromLinkLocal(own)); len(lost) > 0 {
				t.Errorf("after %x from the network: lost from %v: %q", f, own, lost)
			}
		}
	}
	// A neighbour that asks for the guest's address shows its own.
	const target = 14 + 40 + 8
	asks := slices.Clone(neighbour.FromLinkLocal(all[2])[2].Frames[0])
	copy(asks[target:], all[0].AsSlice())
	w.network(asks)
	w.noneLeaks(append(w.link.FromLinkLocal(all[2]), w.detection(all[2])))
	// What comes from beyond the router says nothing of a neighbour.
	far := slices.Clone(neighbour.FromLinkLocal(all[1])[3].Frames[0])
	const source, hopLimit = 14 + 8, 14 + 7
	copy(far[source:], w.link.Far6.AsSlice())
	far[hopLimit] = 63
	w.network(far)
	w.held(all[1])
	w.learned(all[1])
}

// detection is a detection that is dropped.
func (w *wire) detection(a netip.Addr) frames.Kind {
	return frames.Kind{Name: "duplicate address detection of " + a.String(), Version: 6, Frames: [][]byte{w.link.Detection(a)}, Reason: "neighbour-spoof"}
}

// held announces an address: the detection comes out, and nothing from the address in the same instant.
func (w *wire) held(a netip.Addr) {
	w.t.Helper()
	detection, early := w.link.Detection(a), [][]byte(nil)
	for _, k := range w.link.FromLinkLocal(a) {
		early = append(early, k.Frames...)
	}
	began := time.Now()
	world, pod := w.send(append([][]byte{detection}, early...)...)
	took := time.Since(began)
	came := false
	for _, s := range append(world, pod...) {
		came = came || bytes.Equal(s.Frame, detection)
		if took < hold && slices.ContainsFunc(early, func(f []byte) bool { return bytes.Equal(f, s.Frame) }) {
			w.t.Errorf("%v after the detection of %v: came out: %x", took, a, s.Frame)
		}
	}
	if !came && !w.masquerade { // where it ends at the tap, and learned shows that it has passed
		w.t.Errorf("the detection of %v did not come out", a)
	}
}

// learned waits until frames from the address come out.
func (w *wire) learned(a netip.Addr) {
	w.t.Helper()
	began := time.Now()
	kinds := w.link.FromLinkLocal(a)
	for {
		err := w.arrives(kinds[0])
		if err == nil {
			return
		}
		if time.Since(began) > 10*hold {
			w.t.Fatalf("%v after the detection of %v: %s: %v", time.Since(began), a, kinds[0].Name, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// leaks sends kinds, and returns the names of those that got anything out.
func (w *wire) leaks(kinds []frames.Kind) (leaked []string) {
	w.t.Helper()
	w.send() // past what the network sent
	return w.hostile(kinds)
}

func (w *wire) noneLeaks(kinds []frames.Kind) {
	w.t.Helper()
	for _, name := range w.leaks(kinds) {
		w.t.Errorf("leaked: %s", name)
	}
}

// network sends frames from the network, and waits until they have come to the guest.
func (w *wire) network(list ...[]byte) {
	w.t.Helper()
	w.sentinels++
	if missing, _ := wantInOrder(w.t, w, list, list, w.sentinels); len(missing) > 0 {
		w.t.Errorf("did not come to the guest: %x", missing)
	}
}

// TestManyRouters: a neighbour can advertise itself as many routers before Setup.
func TestManyRouters(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			for i := range 130 {
				n.Pod.IP(fmt.Sprintf("-6 route add default via fe80::1:%x dev eth0 metric %d", i+1, 3000+i))
			}
			before := settled(t, n)
			c := config(n, b)
			setup(t, c)
			teardown(t, n, c, before)
		})
	}
}
