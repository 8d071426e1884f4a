package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

func TestMain(m *testing.M) { nstest.Main(m) }

var bindings = []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}, infra.Routed{}}

func eachBinding(t *testing.T, f func(t *testing.T, b infra.Binding)) { eachOf(t, bindings, f) }

func eachOf(t *testing.T, some []infra.Binding, f func(t *testing.T, b infra.Binding)) {
	for _, b := range some {
		t.Run(string(b.Kind()), func(t *testing.T) { f(t, b) })
	}
}

// eachMovable is eachBinding of those whose guest can move to another namespace.
func eachMovable(t *testing.T, f func(t *testing.T, b infra.Binding)) {
	for _, b := range bindings {
		if b.Kind() != cache.BindingRouted {
			t.Run(string(b.Kind()), func(t *testing.T) { f(t, b) })
		}
	}
}

// TestWiring looks at the wiring with ip, bridge, tc and nft.
func TestWiring(t *testing.T) {
	nstest.KernelDecides(t, "the holder is a dummy, and nft prints the rules as that kernel has them")
	t.Parallel()
	t.Run("bridge", func(t *testing.T) {
		n := nstest.NewNetwork(t)
		mac := linkField(t, n, "eth0", "address")
		setup(t, config(n, infra.Bridge{}))
		kind := "bridge"
		if hasDummy(t) {
			kind = "dummy"
		}
		for link, want := range map[string]string{
			"eth0":      "address=" + mac + " operstate=DOWN kind=" + kind + " mtu=1450",
			"eth0-nic":  "master=eth0-br mtu=1450",
			"eth0-tap":  "master=eth0-br mtu=1450 kind=tun",
			"eth0-br":   "kind=bridge mtu=1450",
			"eth0-dhcp": "kind=tun mtu=1450",
		} {
			for _, pair := range strings.Fields(want) {
				field, value, _ := strings.Cut(pair, "=")
				if got := linkField(t, n, link, field); got != value {
					t.Errorf("%s: %s is %q, want %q", link, field, got, value)
				}
			}
		}
		if linkField(t, n, "eth0-nic", "address") == mac {
			t.Error("the NIC still has the guest's MAC")
		}
		for _, address := range []string{"10.244.1.7/24", "fd00:244:1::7/64"} {
			if out := n.Pod.IP("addr show dev eth0"); !strings.Contains(out, address) {
				t.Errorf("eth0 has not %s:\n%s", address, out)
			}
		}
		for _, link := range []string{"eth0-nic", "eth0-br", "eth0-tap", "eth0-dhcp"} {
			if out := n.Pod.IP("addr show dev " + link); strings.Contains(out, "inet") {
				t.Errorf("%s has an address:\n%s", link, out)
			}
		}
		if out := n.Pod.Exec("nft", "list", "ruleset"); !strings.Contains(out, `iifname "eth0-nic" drop`) || !strings.Contains(out, "policy drop") {
			t.Errorf("nftables:\n%s", out)
		}
		if out := n.Pod.Exec("bridge", "-d", "link"); strings.Count(out, "learning off") != 2 {
			t.Errorf("bridge ports:\n%s", out)
		}
		filters(t, n, 5) // DHCPv4 by broadcast and unicast, DHCPv6, router solicitations, the gateway's link-local address
		owner(t, n)
	})
	t.Run("masquerade", func(t *testing.T) {
		n := nstest.NewNetwork(t)
		eth0 := n.Pod.IP("addr show dev eth0")
		setup(t, config(n, infra.Masquerade{}))
		if now, want := n.Pod.IP("addr show dev eth0"), strings.Replace(eth0, "group default", "group 1735786496", 1); now != want {
			t.Errorf("eth0 is\n%s\nwant\n%s", now, want)
		}
		out := n.Pod.IP("addr show dev eth0-tap")
		for _, address := range []string{"10.0.2.1/24", "fd10:0:2::1/120"} {
			if !strings.Contains(out, address) {
				t.Errorf("eth0-tap has not %s:\n%s", address, out)
			}
		}
		rules := n.Pod.Exec("nft", "list", "ruleset")
		for _, want := range []string{
			`iifname "eth0" ip daddr 10.244.1.7 jump to-guest-4`,
			`iifname "eth0" ip6 daddr fd00:244:1::7 jump to-guest-6`,
			`iifname "eth0-tap" oifname "eth0" tcp sport 1-32767 masquerade to :1-32767`,
			`iifname "eth0-tap" meta l4proto udp masquerade to :61000-65535`,
		} {
			if !strings.Contains(rules, want) {
				t.Errorf("nftables has not %s:\n%s", want, rules)
			}
		}
		filters(t, n, 4)
		owner(t, n)
	})
}

// TestTraffic gives the pod's network to a guest, and judges by who answers.
func TestTraffic(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		if b.Kind() == "bridge" || b.Kind() == "masquerade" {
			nstest.KernelDecides(t, "a dummy, and IPv6 forwarding")
		}
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		c := config(n, b)
		setup(t, c)
		r := record(t, n)
		launcher := n.Serve(t, nstest.LauncherUID)
		world := n.World.Sniff(t)
		g := boot(t, n, r)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		got, err := g.Configure(ctx, guest.Families{IPv4: true, IPv6: true})
		if err != nil {
			t.Fatalf("%v\n%s", err, launcher.Output.String())
		}
		if got.IPv4.Address.Addr() != r.IPv4.Address.Addr() || got.IPv6.Address != r.IPv6.Address {
			t.Errorf("guest has %v and %v, want %v and %v", got.IPv4.Address, got.IPv6.Address, r.IPv4.Address, r.IPv6.Address)
		}
		if _, bridge := b.(infra.Bridge); bridge && (got.IPv4.Address.Addr() != nstest.Pod4 || got.IPv6.Address != nstest.Pod6) {
			t.Errorf("guest has %v and %v, want the pod's", got.IPv4.Address, got.IPv6.Address)
		}
		if g.MTU() != 1450 {
			t.Errorf("guest's MTU is %d, want 1450", g.MTU())
		}
		if fmt.Sprint(got.IPv4.DNS, got.IPv4.Search) != "[192.0.2.53] [pod.example]" {
			t.Errorf("guest's DNS by DHCPv4 is %v %v", got.IPv4.DNS, got.IPv4.Search)
		}
		if !strings.Contains(fmt.Sprint(got.IPv6.DNS, got.IPv6.Search), "2001:db8::53") {
			t.Errorf("guest's DNS by DHCPv6 is %v %v", got.IPv6.DNS, got.IPv6.Search)
		}

		// The station that answers says its name. The namespace serves the same port.
		if err := g.ListenTCP(8000); err != nil {
			t.Fatal(err)
		}
		n.Pod.Listen("the namespace", ":8000")
		n.World.Listen("the world", ":9000")
		for _, address := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
			answer, err := n.World.Ask(netip.AddrPortFrom(address, 8000).String())
			if err != nil || !strings.HasPrefix(answer, "guest sees") {
				t.Errorf("world to %v: %q, %v; want the guest to answer", address, answer, err)
			}
			if gateway := nstest.Gateway(address); !strings.Contains(answer, gateway.String()) {
				t.Errorf("world to %v: %q, want the guest to see %v", address, answer, gateway)
			}
		}
		for _, address := range []netip.Addr{nstest.Gateway4, nstest.Gateway6, nstest.Beyond4, nstest.Beyond6} {
			if _, err := g.Ping(ctx, address); err != nil {
				t.Errorf("guest to %v: %v", address, err)
			}
			conn, err := g.DialTCP(ctx, netip.AddrPortFrom(address, 9000))
			if err != nil {
				t.Errorf("guest to %v: %v", address, err)
				continue
			}
			answer, err := nstest.Answer(conn)
			conn.Close()
			from := nstest.Pod4
			if address.Is6() {
				from = nstest.Pod6
			}
			if err != nil || !strings.HasPrefix(answer, "the world sees") || !strings.Contains(answer, from.String()) {
				t.Errorf("guest to %v: %q, %v; want the world to see %v", address, answer, err, from)
			}
		}
		if _, err := g.Renew4(ctx); err != nil {
			t.Errorf("renewal by unicast: %v", err)
		}
		if _, err := g.Rebind4(ctx); err != nil {
			t.Errorf("renewal by broadcast: %v", err)
		}
		if _, err := g.Renew6(ctx); err != nil {
			t.Errorf("DHCPv6 renewal: %v", err)
		}
		if _, err := g.DHCPv6(ctx, true); err != nil {
			t.Errorf("DHCPv6 rapid commit: %v", err)
		}
		// What the guest says to the responder, and the answers, stay in the namespace.
		if asked := len(forResponder(world)); asked > 0 {
			t.Errorf("%d frames for the responder, or of it, left by the NIC", asked)
		}

		status := readFile(t, fmt.Sprintf("/proc/%d/status", launcher.Process.Pid))
		for _, want := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", fmt.Sprintf("Uid:\t%d", nstest.LauncherUID)} {
			if !strings.Contains(status, want) {
				t.Errorf("the launcher has not %q:\n%s", want, status)
			}
		}
		check(t, c)
		launcher.Stop(t)
		end(t, g)
		teardown(t, n, c, before)
	})
}

// TestAgain calls everything twice: the second time changes nothing.
func TestAgain(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		if b.Kind() == "bridge" {
			nstest.KernelDecides(t, "what that kernel answers is compared with what it was asked for")
		}
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		c := config(n, b)
		preview, err := c.Plan(t.Context())
		if err != nil || len(preview.Steps) == 0 {
			t.Fatalf("plan %v, %v; want steps", preview, err)
		}
		if err := difference(before, n.Pod.Dump()); err != nil {
			t.Errorf("the plan changed the namespace: %v", err)
		}
		setup(t, c)
		wired := settled(t, n)
		setup(t, c)
		asFound(t, n, wired)
		if preview, err := c.Plan(t.Context()); err != nil || len(preview.Steps) > 0 {
			t.Errorf("plan of a complete wiring: %v, %v; want no steps", preview, err)
		}
		teardown(t, n, c, before)
		teardown(t, n, c, before)
		if err := c.Check(t.Context()); !errors.Is(err, phase1.ErrNotWired) {
			t.Errorf("check after teardown: %v, want ErrNotWired", err)
		}
		c.State = filepath.Join(n.State, "never-made")
		unwire(t, c)
		c.Name = "eth9" // which is not there
		unwire(t, c)
		asFound(t, n, before)
	})
}

// TestRestore creates what a simple pod has not, and wants all of it back.
func TestRestore(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		if b.Kind() == "bridge" {
			nstest.KernelDecides(t, "a dummy has what the NIC had")
		}
		n := nstest.NewNetwork(t)
		for _, line := range []string{
			"link set eth0 alias the-pods-nic",
			"addr add 10.244.1.8/24 dev eth0 label eth0:second",
			"addr add 10.9.9.9/32 dev eth0 scope link",
			"addr add 10.77.0.7 peer 10.78.0.1/24 dev eth0",
			"addr add fd77::7 peer fd78::1/64 dev eth0 nodad",
			"addr add fd00:244:1::8/64 dev eth0 nodad noprefixroute",
			"addr add fd00:244:1::9/64 dev eth0 valid_lft 9000 preferred_lft 8000",
			"route add 169.254.1.1 dev eth0 scope link",
			"route add 172.16.0.0/12 via 169.254.1.1 dev eth0 onlink metric 77 mtu 1300 proto static src 10.244.1.8",
			"route add 203.0.113.0/24 nexthop via 10.244.1.1 dev eth0 weight 2 nexthop via 10.244.1.2 dev eth0",
			"route add blackhole 192.0.2.0/24",
			"route add 10.99.0.0/16 via 10.244.1.1 table 1000",
			"rule add from 10.244.1.8 lookup 1000 pref 100",
			"route add 2001:db8:77::/48 via fd00:244:1::2 dev eth0 metric 5 mtu 1400",
			"neigh add 10.244.1.66 lladdr 02:00:00:00:00:66 dev eth0 nud permanent",
			"neigh add fd00:244:1::66 lladdr 02:00:00:00:00:66 dev eth0 nud permanent",
		} {
			n.Pod.IP(line)
		}
		// The ptp plugin deletes the connected route.
		n.Pod.IP("route add 10.244.1.1 dev eth0 scope link")
		n.Pod.IP("route del 10.244.1.0/24 dev eth0 proto kernel src 10.244.1.7")
		before := stable(settled(t, n))
		c := config(n, b)
		setup(t, c)
		check(t, c)
		unwire(t, c)
		nstest.Eventually(t, func() error { return difference(before, stable(n.Pod.Dump())) })
	})
}

// TestShapes are NICs that are not like the usual one.
func TestShapes(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	t.Run("no addresses", func(t *testing.T) {
		n := nstest.NewNetwork(t)
		// Or the kernel makes a link-local address at any change of the carrier.
		n.Pod.IP("link set eth0 addrgenmode none")
		n.Pod.IP("addr flush dev eth0")
		before := settled(t, n)
		c := config(n, infra.Bridge{})
		setup(t, c)
		if r := record(t, n); r.ResponderTap != "" || r.IPv4 != nil || r.IPv6 != nil || len(r.Warnings) == 0 {
			t.Errorf("record %+v, want a wire without a responder, and a warning", r)
		}
		teardown(t, n, c, before)
		var refused *infra.RefusedError
		if _, err := config(n, infra.Masquerade{}).Setup(t.Context()); !errors.As(err, &refused) {
			t.Errorf("masquerade: %v, want a RefusedError", err)
		}
	})
	for _, family := range []string{"-4", "-6"} {
		t.Run("only IPv"+family[1:], func(t *testing.T) {
			eachOf(t, []infra.Binding{infra.Redirect{}, infra.Masquerade{}}, func(t *testing.T, b infra.Binding) {
				n := nstest.NewNetwork(t)
				other := map[string]string{"-4": "-6", "-6": "-4"}[family]
				n.Pod.IP(other + " addr flush dev eth0")
				before := settled(t, n)
				c := config(n, b)
				setup(t, c)
				r := record(t, n)
				if (r.IPv4 != nil) != (family == "-4") || (r.IPv6 != nil) != (family == "-6") {
					t.Errorf("record has IPv4 %v and IPv6 %v", r.IPv4, r.IPv6)
				}
				g, launcher := online(t, n, map[string]netip.Addr{"-4": nstest.Beyond4, "-6": nstest.Beyond6}[family])
				launcher.Stop(t)
				end(t, g)
				teardown(t, n, c, before)
			})
		})
	}
	t.Run("jumbo, queues, long name", func(t *testing.T) {
		eachBinding(t, func(t *testing.T, b infra.Binding) {
			if b.Kind() == "bridge" {
				nstest.KernelDecides(t, "a dummy's sysctls and MTU")
			}
			n := nstest.NewNetwork(t)
			n.World.IP("link set pod mtu 65535")
			n.Pod.IP("link set eth0 down")
			n.Pod.IP("link set eth0 name pod16477688c0e1 mtu 65535")
			n.Pod.IP("link set pod16477688c0e1 up")
			before := settled(t, n)
			c := config(n, b)
			c.Name, c.Queues = "pod16477688c0e1", 4
			setup(t, c)
			names := netstate.NamesFor(c.Name, c.Tap)
			if got := linkField(t, n, names.Tap, "mtu"); got != "65521" {
				t.Errorf("the tap's MTU is %s, want 65521", got)
			}
			if out := n.Pod.ExecWithSys("ip", "tuntap", "list"); !strings.Contains(out, names.Tap+": tap multi_queue vnet_hdr persist") {
				t.Errorf("taps:\n%s", out)
			}
			teardown(t, n, c, before)
		})
	})
	t.Run("IPv6 off for new links", func(t *testing.T) {
		eachBinding(t, func(t *testing.T, b infra.Binding) {
			if b.Kind() == "bridge" {
				nstest.KernelDecides(t, "a dummy's sysctls and MTU")
			}
			n := nstest.NewNetwork(t)
			n.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
			before := settled(t, n)
			c := config(n, b)
			setup(t, c)
			check(t, c)
			teardown(t, n, c, before)
		})
	})
}
