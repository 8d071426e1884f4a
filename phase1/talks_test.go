package phase1_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// setting is a value of a sysctl, whose path is below /proc/sys/net.
type setting struct{ path, value string }

func (s setting) String() string { return s.path + "=" + s.value }

// write sets them in the order of the list. What the kernel does not take is left out.
func write(n *nstest.Namespace, list []setting) {
	for _, s := range list {
		_ = netns.Do(n.File, func() error { return os.WriteFile("/proc/sys/net/"+s.path, []byte(s.value+"\n"), 0) })
	}
}

// station is somebody whose traffic is compared before and after Setup: the pod, and then its guest.
type station struct {
	*nstest.Namespace
	name string
}

// talk is a question that is asked in both families, in one direction.
type talk struct {
	way, protocol string
	size          int
	to            string
}

// talks are asked in three turns: with the first, each side has to find the other.
var talks = []talk{
	{"in", "tcp", 1, "pod"}, {"in", "udp", 1, "pod"}, {"in", "udp", 4000, "pod"},
	{"out", "tcp", 1, "gateway"}, {"out", "tcp", 1, "beyond"}, {"out", "udp", 1, "beyond"}, {"out", "udp", 4000, "beyond"},
	{"own", "tcp", 1, "gateway"}, {"own", "udp", 1, "beyond"}, // the namespace's processes
}

// heard is a talk of one family: "in udp 4000 IPv4".
func (k talk) heard(family int) string {
	return fmt.Sprintf("%s %s %d IPv%d %s", k.way, k.protocol, k.size, 4+2*family, k.to)
}

// talksOf returns which talks the station's network answers in time, of those that are asked for.
func talksOf(t *testing.T, n nstest.Network, at station, asked func(string) bool, patience time.Duration) map[string]bool {
	t.Helper()
	addresses := map[string][2]netip.Addr{"pod": {nstest.Pod4, nstest.Pod6}, "gateway": {nstest.Gateway4, nstest.Gateway6}, "beyond": {nstest.Beyond4, nstest.Beyond6}}
	ports := map[string]uint16{"tcp": 8000, "udp": 8001}
	got := map[string]bool{}
	for way, from := range map[string]*nstest.Namespace{"in": n.World, "out": at.Namespace, "own": n.Pod} {
		pending := map[string]func() (*nstest.Question, error){}
		for _, k := range talks {
			for family := range 2 {
				if k.way == way && asked(k.heard(family)) {
					pending[k.heard(family)] = func() (*nstest.Question, error) {
						return from.Question(k.protocol, netip.Addr{}, netip.AddrPortFrom(addresses[k.to][family], ports[k.protocol]), k.size)
					}
				}
			}
		}
		want := "world:"
		if way == "in" {
			want = at.name + ":"
		}
		// A datagram may be lost, as when a link has just come up: it is asked again. A busy machine gets more time in each
		// round.
		wait := 1500 * time.Millisecond
		for end := time.Now().Add(patience); len(pending) > 0 && time.Now().Before(end); wait *= 2 {
			// The pod forgets first: its probes would teach the world its MAC again. What the pod sends between the two
			// makes it know a world that does not know the pod, and then it asks for no address: each round forgets.
			n.Pod.IP("neigh flush dev eth0")
			n.World.IP("neigh flush dev pod")
			questions := map[string]*nstest.Question{}
			for heard, ask := range pending {
				if q, err := ask(); err == nil {
					questions[heard] = q
				}
			}
			round := time.Now().Add(min(patience, wait))
			for heard, q := range questions {
				if answer, err := q.Answer(max(0, time.Until(round))); err == nil && strings.HasPrefix(answer, want) {
					got[heard] = true
					delete(pending, heard)
				}
				q.Close()
			}
			time.Sleep(time.Millisecond)
		}
	}
	return got
}

// serveAt has the station answer at the addresses, until the returned function is called.
func serveAt(t *testing.T, at station, addresses ...netip.Addr) (stop func()) {
	t.Helper()
	var stops []func()
	for protocol, port := range map[string]uint16{"tcp": 8000, "udp": 8001} {
		for _, a := range addresses {
			if stop, err := at.TryServe(at.name, protocol, netip.AddrPortFrom(a, port)); err == nil { // else it has not the address
				stops = append(stops, stop)
			}
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// routes reports whether the namespace is the guest's router.
func routes(kind cache.Kind) bool {
	return kind == cache.BindingMasquerade || kind == cache.BindingRouted
}

// guestOf puts a guest behind the wired NIC, which answers.
func guestOf(t *testing.T, n nstest.Network) station {
	t.Helper()
	r := record(t, n)
	g := station{name: "guest"}
	if routes(r.Binding) {
		g.Namespace = recordsGuest(t, n, r, r.MTU)
	} else {
		g.Namespace = n.Guest(t, r)
		for _, line := range []string{
			"link set eth0 mtu 1450 up", "addr add 10.244.1.7/24 dev eth0", "addr add fd00:244:1::7/64 dev eth0 nodad",
			"route add default via 10.244.1.1", "route add default via fd00:244:1::1",
		} {
			g.IP(line)
		}
	}
	g.Settle("eth0")
	var addresses []netip.Addr
	if !routes(r.Binding) {
		addresses = []netip.Addr{nstest.Pod4, nstest.Pod6}
	} else {
		if r.IPv4 != nil {
			addresses = append(addresses, r.IPv4.Address.Addr())
		}
		if r.IPv6 != nil {
			addresses = append(addresses, r.IPv6.Address)
		}
	}
	t.Cleanup(serveAt(t, g, addresses...))
	return g
}
