package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestGatewayFollowed: a gateway that the guest knows by an address in its place gets another MAC. The namespace would
// ask again, and so does the guest: it is back without a Setup, and the namespace's tables are as they were.
func TestGatewayFollowed(t *testing.T) {
	t.Parallel()
	beyond := map[string]netip.Addr{"global": nstest.Beyond6, "no link-local address": nstest.Beyond6, "next hop of IPv4": nstest.Beyond4, "stand-in": nstest.Beyond4}
	for name, prepare := range map[string]func(n nstest.Network){
		"global": func(nstest.Network) {},
		"no link-local address": func(n nstest.Network) {
			n.Pod.IP("link set eth0 addrgenmode none")
			n.Pod.IP("-6 addr flush dev eth0 scope link")
		},
		"next hop of IPv4": func(n nstest.Network) { // RFC 8950
			hop, _, _ := strings.Cut(strings.Fields(n.World.IP("-br -6 addr show scope link dev pod"))[2], "/")
			n.Pod.IP("-4 route replace default via inet6 " + hop + " dev eth0")
		},
		"stand-in": func(n nstest.Network) {
			n.Pod.IP("addr flush dev eth0 scope global")
			n.World.IP("addr add 169.254.1.1/32 dev pod")
			n.Pod.IP("addr add 10.244.1.7/32 dev eth0")
			n.Pod.IP("route add 169.254.1.1 dev eth0 scope link")
			n.Pod.IP("route add default via 169.254.1.1")
		},
	} {
		for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
			t.Run(name+"/"+string(b.Kind()), func(t *testing.T) {
				if name == "global" && b.Kind() == cache.BindingBridge || name == "stand-in" && b.Kind() == cache.BindingRedirect {
					nstest.KernelDecides(t, "a copy of what a tap sends")
				}
				t.Parallel()
				n := nstest.NewNetwork(t)
				n.World.IP("link set pod address " + gatewayMAC.String())
				prepare(n)
				before := settled(t, n)
				c := config(n, b)
				setup(t, c)
				check(t, c)
				g, _ := online(t, n, beyond[name])
				run := func(line string) string {
					t.Helper()
					program, args, _ := strings.Cut(line, " ")
					text, err := g.Run(program, strings.Fields(args)...)
					if err != nil {
						t.Fatal(err)
					}
					return text
				}
				// A guest that finds out after seconds, and not after half a minute.
				for _, v := range []string{"ipv4", "ipv6"} {
					for name, value := range map[string]int{"base_reachable_time_ms": 500, "delay_first_probe_time": 1, "gc_stale_time": 1, "retrans_time_ms": 200} {
						run(fmt.Sprintf("sysctl -qw net.%s.neigh.eth0.%s=%d", v, name, value))
					}
				}
				if name == "stand-in" { // a guest that does not ask for classless routes
					run("ip route flush dev eth0")
					run("ip addr flush dev eth0")
					run("ip addr add 10.244.1.7/31 dev eth0")
					run("ip route add default via 10.244.1.6")
				}
				ping := func() error {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					_, err := g.Ping(ctx, beyond[name])
					return err
				}
				if err := ping(); err != nil {
					t.Fatal(err)
				}
				for _, mac := range []string{newGatewayMAC.String(), gatewayMAC.String()} {
					n.World.IP("link set pod address " + mac)
					nstest.Eventually(t, ping)
					if shown := run("ip neigh"); !strings.Contains(shown, mac) {
						t.Errorf("the guest's neighbours:\n%swant %s", shown, mac)
					}
				}
				check(t, c)
				end(t, g)
				teardown(t, n, c, before)
			})
		}
	}
}

// TestPermanentReplaced: another program gives a permanent neighbour of the NIC another MAC. Check says so, and Setup
// gives it to the guest.
func TestPermanentReplaced(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			replace := func(mac cache.MAC) {
				for _, a := range []netip.Addr{nstest.Gateway4, nstest.Gateway6} {
					n.Pod.IP(fmt.Sprintf("neigh replace %v lladdr %v dev eth0 nud permanent", a, mac))
				}
			}
			replace(gatewayMAC)
			before := settled(t, n)
			c := config(n, b)
			setup(t, c)
			check(t, c)
			for _, mac := range []cache.MAC{newGatewayMAC, gatewayMAC} {
				n.World.IP("link set pod address " + mac.String())
				replace(mac)
				var drift *phase1.DriftError
				if err := c.Check(t.Context()); !errors.As(err, &drift) || !strings.Contains(err.Error(), fmt.Sprintf("the permanent neighbour %v has the MAC %v, the record has the MAC of Setup", nstest.Gateway6, mac)) {
					t.Errorf("check: %v", err)
				}
				setup(t, c)
				check(t, c)
				g, launcher := online(t, n, nstest.Beyond4, nstest.Beyond6)
				end(t, g)
				launcher.Stop(t)
			}
			teardown(t, n, c, before)
		})
	}
}
