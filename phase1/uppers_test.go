package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// twoPortsOfBridge are two links of the pod to a bridge of the world, br0.
const twoPortsOfBridge = `world link add br0 type bridge
world link set br0 address 02:00:00:00:00:fe up
world link add w0 type veth peer name port0 netns POD
world link add w1 type veth peer name port1 netns POD
world link set w0 master br0 up
world link set w1 master br0 up
`

// upper is the network of a pod whose NIC lies on other links.
type upper struct {
	name   string
	lines  string // WHO and a line of ip(8)
	world  string // the link with the gateway's addresses
	routes string // what follows a route of the pod
	// refused are words of each refusal. The other bindings carry the network.
	refused map[cache.Kind]string
	// fails is a link of the world that goes down under the guest.
	fails string
}

var uppers = []upper{
	{name: "bond", world: "br0", lines: twoPortsOfBridge + "pod link add eth0 type bond mode active-backup miimon 100\npod link set port0 master eth0\npod link set port1 master eth0", fails: "w0"},
	{name: "bond with the MAC of its active port", world: "br0", lines: twoPortsOfBridge + "pod link add eth0 type bond mode active-backup miimon 100 fail_over_mac active\npod link set port0 master eth0\npod link set port1 master eth0", fails: "w0",
		refused: map[cache.Kind]string{"bridge": "(fail_over_mac active)|masquerade would work", "redirect": "(fail_over_mac active)|masquerade would work", "routed": "(fail_over_mac active)|masquerade would work"}},
	{name: "NIC in a VRF", world: "w0", routes: " table 10", lines: "world link add w0 type veth peer name eth0 netns POD\npod link add red type vrf table 10\npod link set red up\npod link set eth0 master red",
		refused: map[cache.Kind]string{"bridge": "VRF red|redirect would work", "routed": "VRF red|redirect would work", "masquerade": "VRF red|redirect would work"}},
	{name: "macsec", world: "m0", lines: `world link add w0 address 02:00:00:00:01:01 type veth peer name port0 address 02:00:00:00:01:02 netns POD
world link set w0 up
pod link set port0 up
world link add link w0 name m0 type macsec port 1 encrypt on
pod link add link port0 name eth0 type macsec port 1 encrypt on
world macsec add m0 tx sa 0 pn 1 on key 01 00112233445566778899aabbccddeeff
pod macsec add eth0 tx sa 0 pn 1 on key 02 ffeeddccbbaa99887766554433221100
world macsec add m0 rx port 1 address 02:00:00:00:01:02
world macsec add m0 rx port 1 address 02:00:00:00:01:02 sa 0 pn 1 on key 02 ffeeddccbbaa99887766554433221100
pod macsec add eth0 rx port 1 address 02:00:00:00:01:01
pod macsec add eth0 rx port 1 address 02:00:00:00:01:01 sa 0 pn 1 on key 01 00112233445566778899aabbccddeeff`},
}

// build creates the network, or leaves the test out where the kernel lacks a kind.
func (u upper) build(t *testing.T, n nstest.Network) {
	t.Helper()
	lines := u.lines + strings.NewReplacer("LINK", u.world).Replace(`
world link set LINK up
world addr add 10.244.1.1/24 dev LINK
world addr add fd00:244:1::1/64 dev LINK nodad
pod link set eth0 up
pod addr add 10.244.1.7/24 dev eth0
pod addr add fd00:244:1::7/64 dev eth0 nodad
pod route add default via 10.244.1.1 dev eth0`+u.routes+`
pod route add default via fd00:244:1::1 dev eth0`+u.routes)
	for line := range strings.SplitSeq(strings.ReplaceAll(lines, "POD", n.Pod.Name), "\n") {
		who, line, _ := strings.Cut(line, " ")
		if err := try(map[string]*nstest.Namespace{"pod": n.Pod, "world": n.World}[who], line); lacksFeature(err) {
			nstest.LeaveOut(t, "this kernel lacks the links of "+u.name)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	n.World.Settle(u.world)
	n.Pod.Settle("eth0")
}

// TestUppers: a NIC that lies on other links of the pod is carried by a binding, or refused with a way out that is
// carried. A guest at a bond keeps its network when the bond's active port fails: so Check finds nothing, and Setup
// succeeds again.
func TestUppers(t *testing.T) {
	t.Parallel()
	for _, u := range uppers {
		t.Run(u.name, func(t *testing.T) {
			nstest.KernelDecides(t, "not every kernel has these links")
			n := nstest.NewWorld(t)
			n.NeedTaps()
			u.build(t, n)
			before := settled(t, n)
			eachBinding(t, func(t *testing.T, b infra.Binding) {
				asFound(t, n, before)
				c := config(n, b)
				if words := u.refused[b.Kind()]; words != "" {
					_, err := c.Setup(t.Context())
					var refused *infra.RefusedError
					if !errors.As(err, &refused) || u.refused[refused.Instead] != "" {
						t.Errorf("%v, want a refusal with a binding that works", err)
					}
					for word := range strings.SplitSeq(words, "|") {
						if !strings.Contains(fmt.Sprint(err), word) {
							t.Errorf("%v, want %q in it", err, word)
						}
					}
					asFound(t, n, before)
					return
				}
				setup(t, c)
				check(t, c)
				g, launcher := online(t, n, nstest.Gateway4, nstest.Gateway6, nstest.Beyond4, nstest.Beyond6)
				if b.Kind() != cache.BindingMasquerade {
					n.World.Exec("ping", "-qc1", "-w30", nstest.Pod4.String())
				}
				end(t, g)
				launcher.Stop(t)
				teardown(t, n, c, before)
			})
			if u.fails != "" {
				t.Run("failover", func(t *testing.T) { u.failOver(t, n) })
			}
		})
	}
}

// failOver takes the active port, port0, from a bond under a guest. Teardown gives the rest back, and the port returns.
func (u upper) failOver(t *testing.T, n nstest.Network) {
	counted := regexp.MustCompile(`link_failure_count \d+`)
	asIs := func() string { return counted.ReplaceAllString(stable(n.Pod.Dump()), "") }
	var b infra.Binding = infra.Redirect{}
	if u.refused["redirect"] != "" {
		b = infra.Masquerade{}
	}
	before := asIs()
	c := config(n, b)
	setup(t, c)
	g, launcher := online(t, n, nstest.Gateway4, nstest.Gateway6)
	n.World.IP("link set " + u.fails + " down")
	nstest.Eventually(t, func() error {
		if active := strings.TrimSpace(n.Pod.Exec("cat", "/sys/class/net/eth0/bonding/active_slave")); active != "port1" {
			return fmt.Errorf("the active port is %q", active)
		}
		return nil
	})
	check(t, c)
	setup(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, a := range []netip.Addr{nstest.Gateway4, nstest.Gateway6} {
		if _, err := g.Ping(ctx, a); err != nil {
			t.Errorf("after the failover, guest to %v: %v", a, err)
		}
	}
	end(t, g)
	launcher.Stop(t)
	unwire(t, c)
	n.World.IP("link set " + u.fails + " up")
	nstest.Eventually(t, func() error { return try(n.Pod, "link set eth0 type bond active_slave port0") }) // refused while the port is down
	nstest.Eventually(t, func() error { return difference(before, asIs()) })
	filesAreGone(t, n)
}
