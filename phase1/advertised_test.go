package phase1_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/ndp"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// advertise sends one advertisement each of the routers fe80::1:0 and following to the pod, again and again until the
// pod's IPv6 routes and addresses have all of the words.
func advertise(t *testing.T, n nstest.Network, routers int, ra *ndp.RouterAdvertisement, learned ...string) {
	t.Helper()
	nstest.Eventually(t, func() error {
		for i := range routers {
			n.World.Send(t, "pod", advertisementOf(t, i, ra))
		}
		text := n.Pod.IP("-6 route show") + n.Pod.IP("-6 addr show")
		for _, word := range learned {
			if !strings.Contains(text, word) {
				return fmt.Errorf("the pod has not learned %q:\n%s", word, text)
			}
		}
		return nil
	})
}

// advertisementOf is a frame of the router fe80::1:INDEX.
func advertisementOf(t *testing.T, index int, ra *ndp.RouterAdvertisement) []byte {
	t.Helper()
	source, all := netip.MustParseAddr(fmt.Sprintf("fe80::1:%x", index)), netip.MustParseAddr("ff02::1")
	message, err := ndp.MarshalMessageChecksum(ra, source, all)
	if err != nil {
		t.Fatal(err)
	}
	frame := []byte{0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, byte(index >> 8), byte(index), 0x86, 0xdd, 0x60, 0, 0, 0, byte(len(message) >> 8), byte(len(message)), 58, 255}
	return append(append(append(frame, source.AsSlice()...), all.AsSlice()...), message...)
}

// gateway is an advertisement of a default router.
func gateway(options ...ndp.Option) *ndp.RouterAdvertisement {
	return &ndp.RouterAdvertisement{CurrentHopLimit: 64, RouterLifetime: 30 * time.Minute, Options: options}
}

// prefix is the option by which a host makes an address of 2001:db8:7::/64.
func prefix(valid time.Duration) *ndp.PrefixInformation {
	return &ndp.PrefixInformation{
		PrefixLength: 64, OnLink: true, AutonomousAddressConfiguration: true,
		ValidLifetime: valid, PreferredLifetime: valid, Prefix: netip.MustParseAddr("2001:db8:7::"),
	}
}

// advertise sends advertisements to a generated namespace, which accepts them or not.
func (d *dice) advertise(t *testing.T, n nstest.Network) {
	t.Helper()
	if d.mtu == "1000" || slices.Contains(d.lines, "link set "+d.nic+" down") {
		return // no IPv6, or no carrier
	}
	n.World.Settle("pod")
	own := rand.New(rand.NewPCG(d.seed, 1)) // so that each seed generates the rest as before
	for i := range own.IntN(3) {
		ra := gateway()
		if own.IntN(3) == 0 {
			ra.RouterLifetime = 0
		}
		ra.CurrentHopLimit = []uint8{0, 64, 255}[own.IntN(3)]
		ra.RouterSelectionPreference = []ndp.Preference{ndp.Low, ndp.Medium, ndp.High}[own.IntN(3)]
		if own.IntN(2) == 0 {
			p := prefix(25 * time.Hour)
			p.OnLink, p.AutonomousAddressConfiguration = own.IntN(4) > 0, own.IntN(4) > 0
			ra.Options = append(ra.Options, p)
		}
		if own.IntN(4) == 0 {
			ra.Options = append(ra.Options, ndp.NewMTU(1280))
		}
		d.lines = append(d.lines, fmt.Sprintf("# advertisement %+v", *ra))
		n.World.Send(t, "pod", advertisementOf(t, i, ra))
	}
}

func addNet1(n nstest.Network) {
	n.World.IP("link add pod3 type veth peer name net1 netns " + n.Pod.Name)
	n.World.IP("link set pod3 up")
	n.Pod.IP("addr add fd00:250::7/64 dev net1 nodad")
	n.Pod.IP("link set net1 up")
}

// TestAdvertised: what router advertisements have made is there after Teardown, or Bridge refuses, and changes nothing.
// The kernel keeps an advertised route apart from others to the same destination with the same metric, and would join
// what Teardown adds; and it alone can make temporary addresses.
func TestAdvertised(t *testing.T) {
	t.Parallel()
	alone := func(n nstest.Network) { n.Pod.IP("-6 route del default") }
	for _, c := range []struct {
		name    string
		create  func(nstest.Network)
		routers int
		ra      *ndp.RouterAdvertisement
		learned string
		refused string // by bridge
	}{
		{"one router", alone, 1, gateway(prefix(time.Hour)), "2001:db8:7:", ""},
		{"a static route", func(nstest.Network) {}, 1, gateway(), "", "apart"},
		{"two routers", alone, 2, gateway(), "", "apart"},
		{"many routers", func(nstest.Network) {}, 300, gateway(), "", "apart"},
		{"another NIC's route", func(n nstest.Network) {
			alone(n)
			addNet1(n)
			n.Pod.IP("-6 route add default via fd00:250::1 dev net1 metric 1024")
		}, 1, gateway(), "", "apart"},
		{"a temporary address", func(n nstest.Network) {
			alone(n)
			n.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.use_tempaddr=2")
		}, 1, gateway(prefix(time.Hour)), "scope global temporary", "temporary address"},
		{"a smaller MTU", alone, 1, gateway(ndp.NewMTU(1400)), "mtu 1400", "net.ipv6.conf.eth0.mtu"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			c.create(n)
			learned := []string{c.learned}
			for i := range c.routers {
				learned = append(learned, fmt.Sprintf("default via fe80::1:%x dev eth0 proto ra", i))
			}
			advertise(t, n, c.routers, c.ra, learned...)
			before := stable(settled(t, n) + n.Pod.Exec("sysctl", "net.ipv6.conf.eth0.mtu", "net.ipv6.conf.eth0.hop_limit"))
			asBefore := func() error {
				return difference(before, stable(n.Pod.Dump()+n.Pod.Exec("sysctl", "net.ipv6.conf.eth0.mtu", "net.ipv6.conf.eth0.hop_limit")))
			}
			var refused *infra.RefusedError
			if _, err := config(n, infra.Bridge{}).Setup(t.Context()); errors.As(err, &refused) != (c.refused != "") ||
				refused != nil && (refused.Instead != cache.BindingRedirect || !strings.Contains(err.Error(), c.refused)) {
				t.Errorf("error %v, want a RefusedError that names redirect and %q", err, c.refused)
			}
			if refused != nil {
				if err := asBefore(); err != nil {
					t.Error(err)
				}
			}
			if err := config(n, infra.Bridge{}).Teardown(t.Context()); err != nil {
				t.Fatal(err)
			}
			nstest.Eventually(t, asBefore)

			cfg := config(n, infra.Auto{})
			record, err := cfg.Setup(t.Context())
			if err != nil || record.Binding != cache.BindingRedirect {
				t.Errorf("auto became %s: %v", record.Binding, err)
			}
			if err := cfg.Check(t.Context()); err != nil {
				t.Error(err)
			}
			if err := cfg.Teardown(t.Context()); err != nil {
				t.Fatal(err)
			}
			nstest.Eventually(t, asBefore)
		})
	}
}

// TestAdvertisedJoins: while a bridge has the NIC, whose default route was advertised, another NIC gets one with the
// same metric. Teardown ends, leaves that route as it is, and the kernel learns the NIC's again.
func TestAdvertisedJoins(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	addNet1(n)
	n.Pod.IP("-6 route del default")
	const learned = "default via fe80::1:0 dev eth0 proto ra metric 1024"
	advertise(t, n, 1, gateway(), learned)
	settled(t, n)
	c := config(n, infra.Bridge{})
	setup(t, c)
	n.Pod.IP("-6 route add default via fd00:250::1 dev net1 metric 1024")
	if err := c.Teardown(t.Context()); err != nil {
		t.Fatal(err)
	}
	const other = "default via fd00:250::1 dev net1 metric 1024"
	if have := n.Pod.IP("-6 route show default"); !strings.Contains(have, other) || strings.Contains(have, "nexthop") {
		t.Errorf("the other NIC's route has changed:\n%s", have)
	}
	advertise(t, n, 1, gateway(), learned, other)
}

// TestExpiredMeanwhile: addresses and routes whose lifetime ends while the NIC is wired do not come back, and what is
// left of the others' lifetimes is less.
func TestExpiredMeanwhile(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			n.Pod.IP("link add clock type bridge")
			n.Pod.IP("link set clock up")
			n.Pod.IP("-6 route del default")
			const valid = " valid_lft 4 preferred_lft 4"
			n.Pod.IP("addr add 2001:db8:9::9/64 dev eth0 nodad" + valid)
			n.Pod.IP("addr add 2001:db8:8::9/64 dev eth0 nodad valid_lft 1000 preferred_lft 1000")
			n.Pod.IP("addr add 10.9.0.9/24 dev eth0" + valid)
			n.Pod.IP("-6 route add default via fe80::1 dev eth0 proto ra expires 4")
			n.Pod.IP("-6 route add 2001:db8:f::/64 via fe80::1 dev eth0 src 2001:db8:9::9")
			n.Pod.IP("route add 203.0.113.0/24 via 10.244.1.1 dev eth0 src 10.9.0.9")
			c := config(n, b)
			setup(t, c)
			n.Pod.IP("addr add 2001:db8:99::9/64 dev clock nodad valid_lft 6 preferred_lft 6") // the kernel removes IPv4 addresses up to a second late
			nstest.Eventually(t, func() error {
				if out := n.Pod.IP("-6 addr show dev clock"); strings.Contains(out, "2001:db8:99::9") {
					return errors.New("the time is not over")
				}
				return nil
			})
			if err := c.Teardown(t.Context()); err != nil {
				t.Fatal(err)
			}
			have := n.Pod.IP("addr show dev eth0") + n.Pod.IP("route show") + n.Pod.IP("-6 route show")
			for _, gone := range []string{"2001:db8:9::", "10.9.0.9", "proto ra", "203.0.113.0", "valid_lft 1000sec"} {
				if strings.Contains(have, gone) {
					t.Errorf("%s is there:\n%s", gone, have)
				}
			}
			for _, there := range []string{"2001:db8:8::9/64", "10.244.1.7/24", "fd00:244:1::7/64"} {
				if !strings.Contains(have, there) {
					t.Errorf("%s is gone:\n%s", there, have)
				}
			}
		})
	}
}

// TestAdvertisedChoice: a station of the link takes part in what auto chooses, and the plan says by which routes. A
// named binding stays as it is.
func TestAdvertisedChoice(t *testing.T) {
	t.Parallel()
	specific := func(third byte) *ndp.RouteInformation {
		return &ndp.RouteInformation{PrefixLength: 48, RouteLifetime: time.Hour, Prefix: netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, third})}
	}
	for _, c := range []struct {
		name    string
		routers int
		ra      *ndp.RouterAdvertisement
		learned []string
		want    cache.Kind
	}{
		{"no router", 0, nil, nil, cache.BindingRedirect},
		{"a default router", 1, gateway(), []string{"default via fe80::1:0 dev eth0"}, cache.BindingRedirect},
		{"more-specific routes", 1, &ndp.RouterAdvertisement{CurrentHopLimit: 64, Options: []ndp.Option{specific(8), specific(9)}},
			[]string{"2001:db8:8::/48 via fe80::1:0 dev eth0", "2001:db8:9::/48 via fe80::1:0 dev eth0"}, cache.BindingRouted},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			n.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.accept_ra_rt_info_max_plen=64")
			if c.ra != nil {
				advertise(t, n, c.routers, c.ra, c.learned...)
			}
			preview, err := config(n, infra.Auto{}).Plan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if preview.Record.Binding != c.want || len(preview.Advertised) != len(c.learned) {
				t.Errorf("auto becomes %s by %q, want %s by %q:\n%s", preview.Record.Binding, preview.Advertised, c.want, c.learned, preview)
			}
			for _, route := range c.learned {
				if route = strings.Replace(route, "default", "::/0", 1); !strings.Contains(preview.String(), "\n# advertised: "+route) {
					t.Errorf("the plan does not name %s:\n%s", route, preview)
				}
			}
			preview, err = config(n, infra.Redirect{}).Plan(t.Context())
			if err != nil || preview.Record.Binding != cache.BindingRedirect || len(preview.Advertised) > 0 {
				t.Errorf("redirect: %v\n%s", err, preview)
			}
		})
	}
}

// TestAdvertisedPreference: of two routers the guest gets the one that the namespace takes, with its preference.
func TestAdvertisedPreference(t *testing.T) {
	t.Parallel()
	for name, preferences := range map[string][2]ndp.Preference{"low, high": {ndp.Low, ndp.High}, "medium, low": {ndp.Medium, ndp.Low}, "low, medium": {ndp.Low, ndp.Medium}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			n.Pod.IP("-6 route del default")
			for i, p := range preferences {
				ra := gateway(&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: []byte{2, 0, 0, 0, 0, byte(i)}})
				ra.RouterSelectionPreference = p
				nstest.Eventually(t, func() error {
					n.World.Send(t, "pod", advertisementOf(t, i, ra))
					if text := n.Pod.IP("-6 route show default"); !strings.Contains(text, fmt.Sprintf("via fe80::1:%d ", i)) {
						return errors.New(text)
					}
					return nil
				})
			}
			preview, err := config(n, infra.Redirect{}).Plan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			r := preview.Record.IPv6.Router
			_, rest, _ := strings.Cut(n.Pod.IP("-6 route get 2001:db8:9::9"), " via ")
			via, _, _ := strings.Cut(rest, " ")
			want := map[ndp.Preference]int{ndp.Low: -1, ndp.Medium: 0, ndp.High: 1}
			if r == nil || r.Address.String() != via || r.Preference != max(want[preferences[0]], want[preferences[1]]) {
				t.Errorf("router %+v, the namespace sends via %s:\n%s", r, via, n.Pod.IP("-6 route show default"))
			}
		})
	}
}
