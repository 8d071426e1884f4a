package phase1_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// lowered is the MTU of the guest; the NIC has 1450.
const lowered = 1300

// tooLong are the kinds that are longer than the MTU, and nothing else is wrong with them.
func tooLong(l frames.Link) []frames.Kind {
	l.MTU = lowered
	return slices.DeleteFunc(frames.Hostile(l), func(k frames.Kind) bool { return k.Reason != firewall.TooLong })
}

// TestMTU: what is longer than the guest's MTU does not pass from the guest or to it, and each frame is counted. What
// is shorter passes. It holds without the guard as well.
func TestMTU(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprintf("guard.off %v", off), func(t *testing.T) {
			eachBinding(t, func(t *testing.T, b infra.Binding) {
				n := nstest.NewNetwork(t)
				before := settled(t, n)
				c := config(n, b)
				c.MTU, c.Guard.Off = lowered, off
				setup(t, c)
				if r := record(t, n); r.MTU != lowered {
					t.Errorf("the record has the MTU %d, want %d", r.MTU, lowered)
				}
				for _, link := range []string{"eth0-tap", "eth0-dhcp"} {
					if mtu := linkField(t, n, link, "mtu"); mtu != fmt.Sprint(lowered) {
						t.Errorf("%s has the MTU %s, want %d", link, mtu, lowered)
					}
				}
				w := attach(t, n, true, true)
				long := tooLong(w.link)
				if len(long) == 0 {
					t.Fatal("no frames are longer than the MTU")
				}
				for _, name := range w.hostile(long) {
					t.Errorf("from the guest: %s passes", name)
				}
				fits := slices.DeleteFunc(frames.Legitimate(w.link), func(k frames.Kind) bool {
					return slices.ContainsFunc(k.Frames, func(f []byte) bool { return len(f) > 14+lowered })
				})
				w.legitimate(fits)
				if !w.masquerade {
					arriving := slices.DeleteFunc(tooLong(w.link.FromGateway()), func(k frames.Kind) bool { return len(k.Frames[0]) > 14+1450 })
					if len(arriving) == 0 {
						t.Error("no frames from the network are longer than the MTU")
					}
					for i, k := range arriving {
						had := w.dropped()
						if _, others := wantInOrder(t, w, k.Frames, nil, 1000+i); len(others) > 0 {
							t.Errorf("to the guest: %s passes", k.Name)
						}
						if have, want := more(had, w.dropped()), fmt.Sprintf("%s %d", k.Reason, len(k.Frames)); have != want {
							t.Errorf("to the guest: %s: dropped %q, want %q", k.Name, have, want)
						}
					}
				}
				check(t, c)
				// Under the running guest the MTU goes up and down.
				for _, mtu := range []int{0, lowered} {
					c.MTU = mtu
					setup(t, c)
					want := cmp.Or(mtu, 1450)
					if have := record(t, n).MTU; have != want || linkField(t, n, "eth0-tap", "mtu") != fmt.Sprint(want) {
						t.Errorf("Setup with the MTU %d: the record has %d, the tap %s", mtu, have, linkField(t, n, "eth0-tap", "mtu"))
					}
					check(t, c)
				}
				w.port.Close()
				teardown(t, n, c, before)
			})
		})
	}
}

// TestLongUDP: UDP that is longer than the NIC's MTU has no drop's reason. Under redirect the NIC counts it, under
// bridge nothing does. Under masquerade and routed it leaves in fragments.
func TestLongUDP(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		setup(t, config(n, b))
		w := attach(t, n, true, true)
		dropped := func() (n int) {
			nic := map[cache.Kind]string{cache.BindingBridge: "eth0-nic"}[b.Kind()]
			_, tx, _ := strings.Cut(w.n.Pod.IP("-s link show dev "+cmp.Or(nic, "eth0")), "TX:")
			_, tx, _ = strings.Cut(tx, "\n")
			fmt.Sscan(tx, new(int), new(int), new(int), &n)
			return n
		}
		before, want := dropped(), map[cache.Kind][2]int{cache.BindingRedirect: {0, 1}, cache.BindingMasquerade: {2, 0}, cache.BindingRouted: {2, 0}}[b.Kind()]
		world, _ := w.send(w.link.Packet(unix.IPPROTO_UDP, w.link.IPv4, w.link.Far4, frames.Datagram(5000, 5001, make([]byte, 1472))))
		if have := [2]int{len(world), dropped() - before}; have != want {
			t.Errorf("frames that leave, and drops of the NIC: %v, want %v", have, want)
		}
		if have := w.dropped(); have[string(firewall.TooLong)] != 0 {
			t.Errorf("dropped %v", have)
		}
	})
}

// TestSegments has a guest that ignores the MTU which it got. TCP in both directions keeps to it nevertheless,
// with segments that the kernel cuts late (GSO).
func TestSegments(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		if _, ok := b.(infra.Masquerade); ok {
			c.Binding = infra.Masquerade{Ports: []infra.Ports{{First: 8000}}}
		}
		c.MTU = lowered
		setup(t, c)
		guest, addresses := kernelGuest(t, n, record(t, n), 1450)
		for i, beyond := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
			most := lowered - 40 - 20*i
			outer := []netip.Addr{nstest.Pod4, nstest.Pod6}[i]
			for _, way := range []struct {
				from, to     *nstest.Namespace
				listen, dial netip.AddrPort
			}{
				{guest, n.World, netip.AddrPortFrom(beyond, 9000), netip.AddrPortFrom(beyond, 9000)},
				{n.World, guest, netip.AddrPortFrom(addresses[i], 8000), netip.AddrPortFrom(outer, 8000)},
			} {
				way.to.Serve("far", "tcp", way.listen)
				q, err := way.from.Question("tcp", netip.Addr{}, way.dial, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := q.Answer(patience); err != nil {
					t.Fatalf("to %v: %v", way.dial, err)
				}
				if err := q.Echo(1<<20, time.Minute); err != nil {
					t.Errorf("to %v: %v", way.dial, err)
				}
				for _, end := range []*nstest.Namespace{way.from, way.to} {
					if size, out := segmentSize(end, way.dial); size == 0 || size > most {
						t.Errorf("to %v: segments of %d octets, want at most %d:\n%s", way.dial, size, most, out)
					}
				}
				q.Close()
			}
		}
	})
}

// segmentSize is how large a segment is that the namespace sends by its connection with the family and port of an
// address.
func segmentSize(n *nstest.Namespace, to netip.AddrPort) (size int, out string) {
	family := map[bool]string{true: "-4", false: "-6"}[to.Addr().Is4()]
	out = n.Exec("ss", family, "-Htin", "state", "established", fmt.Sprintf("( sport = :%d or dport = :%[1]d )", to.Port()))
	_, after, _ := strings.Cut(out, " mss:")
	fmt.Sscan(after, &size)
	return size, out
}

// recordsGuest puts a namespace with the record's addresses in the guest's place, with the MTU.
func recordsGuest(t *testing.T, n nstest.Network, r cache.Record, mtu int) *nstest.Namespace {
	t.Helper()
	guest := n.Guest(t, r)
	guest.IP(fmt.Sprintf("link set eth0 mtu %d up", mtu))
	if r.IPv4 != nil {
		guest.IP(fmt.Sprintf("addr add %v dev eth0", r.IPv4.Address))
		guest.IP(fmt.Sprintf("route add default via %v dev eth0 onlink", r.IPv4.Gateway()))
	}
	if r.IPv6 != nil { // the router is the next hop to all others
		guest.IP(fmt.Sprintf("addr add %v/128 dev eth0 nodad", r.IPv6.Address))
		guest.IP(fmt.Sprintf("route add default via %v dev eth0 onlink", r.IPv6.Router.Address))
	}
	return guest
}

// kernelGuest is recordsGuest beside a responder, and the guest's addresses.
func kernelGuest(t *testing.T, n nstest.Network, r cache.Record, mtu int) (*nstest.Namespace, [2]netip.Addr) {
	t.Helper()
	guest := recordsGuest(t, n, r, mtu)
	n.Serve(t, nstest.LauncherUID)
	guest.Settle("eth0")
	return guest, [2]netip.Addr{r.IPv4.Address.Addr(), r.IPv6.Address}
}
