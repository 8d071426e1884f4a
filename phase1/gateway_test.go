package phase1_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// The MACs of the gateway before and after its replacement.
var gatewayMAC, newGatewayMAC = cache.MAC{0x02, 0, 0, 0, 0x6a, 1}, cache.MAC{0x02, 0, 0, 0, 0x6a, 2}

// TestGateway: the IPv6 gateway gets another MAC under a running guest, whose default route is dead then. Check
// says so, Setup repairs it, the running Serve follows, and the guest's default route works again.
func TestGateway(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			n.World.IP("link set pod address " + gatewayMAC.String())
			before := settled(t, n)
			c := config(n, b)
			setup(t, c)
			check(t, c)
			g, _ := online(t, n, nstest.Beyond6)

			n.World.IP("link set pod address " + newGatewayMAC.String())
			short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if _, err := g.Ping(short, nstest.Beyond6); err == nil {
				t.Error("the guest's default route works although its next hop is gone: the test shows nothing")
			}
			preview, err := c.Plan(t.Context())
			if err != nil || preview.Record.IPv6.Router.MAC != newGatewayMAC || len(preview.Steps) == 0 {
				t.Errorf("plan: router %+v, %d steps, %v", preview.Record.IPv6.Router, len(preview.Steps), err)
			}
			n.Pod.IP("link set eth0-dhcp down") // Check says that, too
			var drift *phase1.DriftError
			if err := c.Check(t.Context()); !errors.As(err, &drift) {
				t.Fatal(err)
			}
			want := []cache.Finding{
				{Kind: "gateway", What: fmt.Sprintf("the IPv6 gateway %v has the MAC %v, the record's router is of %v", nstest.Gateway6, newGatewayMAC, gatewayMAC)},
				{Kind: "up", Link: "eth0-dhcp", What: "eth0-dhcp is down"},
			}
			if fmt.Sprint(drift.Differs) != fmt.Sprint(want) {
				t.Errorf("differs %q\nwant %q", drift.Differs, want)
			}
			if last := drift.Repair[len(drift.Repair)-1]; last.Kind != "record-write" || !strings.Contains(fmt.Sprint(drift.Repair), "tc filter") {
				t.Errorf("repair by %q, want filters for the new router and the record", drift.Repair)
			}

			setup(t, c)
			check(t, c)
			if r := record(t, n).IPv6.Router; r.MAC != newGatewayMAC || r.Address != eui64.LinkLocal(newGatewayMAC) {
				t.Errorf("router %+v", r)
			}
			nstest.Eventually(t, func() error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				for _, route := range g.Routes() {
					if route.Gateway == eui64.LinkLocal(gatewayMAC) {
						return fmt.Errorf("the guest still has the route %v", route)
					}
				}
				_, err := g.Ping(ctx, nstest.Beyond6)
				return err
			})
			end(t, g)
			teardown(t, n, c, before)
		})
	}
}

// TestGateway4: the IPv4 gateway outside of the guest's network gets another MAC. Check says so, and Setup repairs the
// record and the filters. The guest's own ARP requests for the gateway reach the gateway.
func TestGateway4(t *testing.T) {
	t.Parallel()
	gateway, standIn := netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("10.244.1.6")
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			t.Parallel()
			n := nstest.NewWorld(t)
			n.NeedTaps()
			n.World.IP("link add pod address " + gatewayMAC.String() + " type veth peer name eth0 netns " + n.Pod.Name)
			n.World.IP("link set pod up")
			n.World.IP(fmt.Sprintf("addr add %v/32 dev pod", gateway))
			n.World.IP("route add 10.244.1.7/32 dev pod")
			n.Pod.IP("link set eth0 up")
			n.Pod.IP("addr add 10.244.1.7/32 dev eth0")
			n.Pod.IP(fmt.Sprintf("route add %v dev eth0 scope link", gateway))
			n.Pod.IP(fmt.Sprintf("route add default via %v", gateway))
			before := settled(t, n)
			c := config(n, b)
			setup(t, c)
			check(t, c)
			want := func(mac cache.MAC) {
				t.Helper()
				r := record(t, n)
				if r.IPv4.StandIn != standIn || !slices.Contains(r.Neighbours, cache.Neighbour{Address: standIn, MAC: mac, Station: gateway}) {
					t.Errorf("stand-in %v, neighbours %v; want %v at %v", r.IPv4.StandIn, r.Neighbours, standIn, mac)
				}
			}
			want(gatewayMAC)
			n.World.IP("link set pod address " + newGatewayMAC.String())
			var drift *phase1.DriftError
			if err := c.Check(t.Context()); !errors.As(err, &drift) {
				t.Fatal(err)
			}
			text := fmt.Sprintf("the IPv4 gateway %v has the MAC %v, the record's stand-in is of %v", gateway, newGatewayMAC, gatewayMAC)
			if len(drift.Differs) != 1 || drift.Differs[0] != (cache.Finding{Kind: "gateway", What: text}) {
				t.Errorf("differs %q, want %q", drift.Differs, text)
			}
			setup(t, c)
			check(t, c)
			want(newGatewayMAC)
			g, _ := online(t, n, gateway, nstest.Beyond4)
			end(t, g)
			teardown(t, n, c, before)
		})
	}
}

// TestGatewaySilent: a gateway that does not answer keeps its MAC in the record. One that did not answer the first
// Setup gets into the record when it does. A neighbour entry with a MAC that no station can have, which any station of
// the link can make by its answer, counts as no answer.
func TestGatewaySilent(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for name, neighbour := range map[string]string{
		"none":      "neigh flush dev eth0",
		"group":     fmt.Sprintf("neigh replace %v lladdr 33:33:00:00:00:01 dev eth0 nud stale", nstest.Gateway6),
		"broadcast": fmt.Sprintf("neigh replace %v lladdr ff:ff:ff:ff:ff:ff dev eth0 nud reachable", nstest.Gateway6),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			c := config(n, infra.Redirect{})
			n.World.IP("link set pod arp off")
			n.Pod.IP("neigh flush dev eth0")
			n.Pod.IP(neighbour)
			before := settled(t, n)
			setup(t, c)
			if r := record(t, n); r.IPv6.Router != nil {
				t.Fatalf("router %+v of a gateway that does not answer", r.IPv6.Router)
			}
			check(t, c)
			n.World.IP("link set pod arp on")
			drifted(t, c, "the IPv6 gateway fd00:244:1::1 has the MAC "+linkMAC(n.World, "pod")+", the record has no router")
			found := record(t, n)
			if found.IPv6.Router == nil {
				t.Fatal("no router")
			}
			n.World.IP("link set pod arp off")
			setup(t, c)
			check(t, c)
			if r := record(t, n).IPv6.Router; r == nil || r.MAC != found.IPv6.Router.MAC {
				t.Errorf("router %+v, want %+v", r, found.IPv6.Router)
			}
			n.Pod.IP("link set eth0 down")
			if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "eth0 is down") {
				t.Errorf("%v, want that eth0 is down", err)
			}
			setup(t, c)
			teardown(t, n, c, before)
		})
	}
}

// TestGatewayDetecting: the gateway at the other end of the NIC still detects duplicates of its address, as the bridge
// of a node's first pod does, and answers nobody. Here that never ends by itself. The guest gets its IPv6 default route
// all the same, and it works when the gateway has its address.
func TestGatewayDetecting(t *testing.T) {
	t.Parallel()
	for _, link := range []string{"cni0", "pod"} { // a bridge, and the veth itself
		t.Run(link, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			gatewayAt(n, link)
			n.World.Exec("sysctl", "-qw", "net.ipv6.conf."+link+".accept_dad=1", "net.ipv6.conf."+link+".dad_transmits=10000")
			address := fmt.Sprintf("%v/64 dev %s", nstest.Gateway6, link)
			n.World.IP("addr add " + address)
			before := settled(t, n)
			c := config(n, infra.Redirect{})
			setup(t, c)
			if shown := n.World.IP("addr show tentative dev " + link); !strings.Contains(shown, nstest.Gateway6.String()) {
				t.Fatalf("the gateway has its address, so the test shows nothing:\n%s", shown)
			}
			if r := record(t, n).IPv6.Router; r == nil || r.MAC.String() != linkMAC(n.World, link) || !r.Default {
				t.Fatalf("router %+v, want %s", r, linkMAC(n.World, link))
			}
			n.World.IP("addr del " + address)
			n.World.IP("addr add " + address + " nodad")
			g, _ := online(t, n, nstest.Beyond6, nstest.Beyond4)
			end(t, g)
			check(t, c)
			teardown(t, n, c, before)
		})
	}
}

// TestGatewayDuplicate: the node's bridge has lost the gateway's address to another station, which becomes the guest's
// router.
func TestGatewayDuplicate(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	gatewayAt(n, "cni0")
	router := nstest.New(t, "router")
	n.World.IP("link add port type veth peer name lan netns " + router.Name)
	n.World.IP("link set port master cni0 up")
	router.IP("link set lan up")
	address := nstest.Gateway6.String() + "/64 dev "
	router.IP("addr add " + address + "lan nodad")
	n.World.Exec("sysctl", "-qw", "net.ipv6.conf.cni0.accept_dad=1", "net.ipv6.conf.cni0.dad_transmits=10")
	n.World.IP("addr add " + address + "cni0")
	nstest.Eventually(t, func() error {
		if shown := n.World.IP("addr show dadfailed dev cni0"); !strings.Contains(shown, nstest.Gateway6.String()) {
			return errors.New("the bridge still has the address")
		}
		return nil
	})
	before := settled(t, n)
	c := config(n, infra.Redirect{})
	setup(t, c)
	if r := record(t, n).IPv6.Router; r == nil || r.MAC.String() != linkMAC(router, "lan") {
		t.Errorf("router %+v, want %s", r, linkMAC(router, "lan"))
	}
	teardown(t, n, c, before)
}

// gatewayAt moves the gateway's IPv4 address from the other end of the NIC to a link of the world. A link that is not
// there becomes a bridge, whose port is the other end. The pod does not know the gateway.
func gatewayAt(n nstest.Network, link string) {
	n.World.IP("addr flush dev pod scope global")
	if link != "pod" {
		n.World.IP("link add " + link + " address " + gatewayMAC.String() + " type bridge")
		n.World.IP("link set pod master " + link)
		n.World.IP("link set " + link + " up")
	}
	n.World.IP(fmt.Sprintf("addr add %v/24 dev %s", nstest.Gateway4, link))
	n.Pod.IP("neigh flush dev eth0")
}

// TestGatewayCancelled: the end of the context ends the wait for the gateway.
func TestGatewayCancelled(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	n.World.IP("link set pod arp off")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.Check(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the context's end", err)
	}
}

// TestGatewayOfNeighbour: a neighbour that answers for the gateway, and faster, does not become the guest's router as
// long as the gateway answers, too, be it a later question.
func TestGatewayOfNeighbour(t *testing.T) {
	t.Parallel()
	for name, unanswered := range map[string]int{"faster": 0, "alone at first": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			c := config(n, infra.Redirect{})
			before := settled(t, n)
			setup(t, c)
			r := record(t, n)
			was, guest := r.IPv6.Router, r.IPv6.Address
			answer := func(mac cache.MAC) []byte {
				return frame.AppendICMPv6(nil, r.MAC, mac, guest, nstest.Gateway6, frame.Advertisement(frame.Solicited|frame.Override, nstest.Gateway6, mac))
			}
			ofNeighbour, ofGateway := answer(cache.MAC{0x02, 0, 0, 0, 0xba, 0xd0}), answer(was.MAC)
			n.World.IP("link set pod arp off") // the answers are those of the test
			inject, sniffer := n.World.Injector(t, linkIndex(t, n.World, "pod")), n.World.Sniff(t)
			end, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				for asked := 0; ; {
					s, ok := sniffer.Next()
					select {
					case <-end:
						ended <- nil
						return
					default:
					}
					if ask := frame.AppendSolicitation(nil, r.MAC, guest, nstest.Gateway6); !ok || s.Outgoing || !bytes.Equal(s.Frame, ask) {
						continue
					}
					answers := [][]byte{ofNeighbour, ofNeighbour, ofNeighbour, ofGateway}
					if asked++; asked%(unanswered+1) > 0 {
						answers = answers[:3]
					}
					if err := inject(answers...); err != nil {
						ended <- err
						return
					}
				}
			}()
			for range 5 {
				check(t, c)
				setup(t, c)
				if r := record(t, n).IPv6.Router; r.MAC != was.MAC {
					t.Errorf("router %+v, want %+v", r, was)
				}
			}
			close(end)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			n.World.IP("link set pod arp on")
			teardown(t, n, c, before)
		})
	}
}

// linkMAC is what ip(8) shows.
func linkMAC(n *nstest.Namespace, link string) string {
	_, rest, _ := strings.Cut(n.IP("link show dev "+link), "link/ether ")
	mac, _, _ := strings.Cut(rest, " ")
	return mac
}

// TestGatewayOfAnotherFamily: the next hop of IPv4 is an IPv6 address, and the NIC has no other IPv6. The guest's next
// hop has the MAC of that station, and later calls ask for it too.
func TestGatewayOfAnotherFamily(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			n.Pod.IP("-6 addr flush dev eth0 scope global")
			hop, _, _ := strings.Cut(strings.Fields(n.World.IP("-br -6 addr show scope link dev pod"))[2], "/")
			n.Pod.IP("-4 route replace default via inet6 " + hop + " dev eth0")
			before := settled(t, n)
			c := config(n, b)
			setup(t, c)
			want := strings.Fields(n.World.IP("-br link show dev pod"))[2]
			r := record(t, n)
			isHop := func(o cache.Neighbour) bool { return o.Address == r.IPv4.Gateway() && o.MAC.String() == want }
			isLost := func(l cache.Finding) bool { return l.Kind != "server" } // of the configuration's IPv6
			if r.IPv6 != nil || slices.ContainsFunc(r.Losses, isLost) || !slices.ContainsFunc(r.Neighbours, isHop) {
				t.Errorf("IPv6 %v, losses %v, gateway %v, neighbours %v; want a neighbour of the MAC %s", r.IPv6, r.Losses, r.IPv4.Gateway(), r.Neighbours, want)
			}
			check(t, c)
			setup(t, c)
			teardown(t, n, c, before)
		})
	}
}
