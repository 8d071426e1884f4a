package servers

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
)

func address(s string) netip.Addr { return netip.MustParseAddr(s) }
func pfx(s string) netip.Prefix   { return netip.MustParsePrefix(s) }

// pod is a guest with a default route in both families.
func pod() cache.Record {
	return cache.Record{
		Name: "eth0", Binding: cache.BindingBridge, MAC: cache.MAC{2, 0, 0, 0, 0, 7},
		IPv4: &cache.IPv4{Address: pfx("10.244.1.7/24"), Routes: []cache.Route{{Destination: pfx("0.0.0.0/0"), Gateway: address("10.244.1.1")}}},
		IPv6: &cache.IPv6{Address: address("fd00::7"), Others: []netip.Addr{address("fd00::8")}, OnLink: []netip.Prefix{pfx("fd00::/64")},
			Router: &cache.Router{Address: address("fe80::1"), Default: true}},
	}
}

// second is a guest's second NIC, whose network has no gateway.
func second() cache.Record {
	r := pod()
	r.IPv4.Routes = []cache.Route{{Destination: pfx("10.9.0.0/16"), Gateway: address("10.244.1.1")}}
	r.IPv6.Router.Default, r.IPv6.Router.Routes = false, []netip.Prefix{pfx("fd09::/48")}
	return r
}

func with(r cache.Record, edit func(*cache.Record)) cache.Record {
	edit(&r)
	return r
}

// configured has the routes of the record in the form of a guest without DHCP.
func configured(r cache.Record) cache.Static {
	var s cache.Static
	if v := r.IPv4; v != nil {
		s.Addresses = append(s.Addresses, cache.StaticAddress{Address: v.Address})
		for _, route := range v.Routes {
			s.Routes = append(s.Routes, cache.StaticRoute{Destination: route.Destination, Gateway: route.Gateway})
		}
	}
	if v := r.IPv6; v != nil {
		for _, a := range v.Addresses() {
			s.Addresses = append(s.Addresses, cache.StaticAddress{Address: netip.PrefixFrom(a, 64)})
		}
		if v.Router != nil {
			for _, p := range v.Router.Routes {
				s.Routes = append(s.Routes, cache.StaticRoute{Destination: p})
			}
			if v.Router.Default {
				s.Routes = append(s.Routes, cache.StaticRoute{Destination: pfx("::/0")})
			}
		}
	}
	return s
}

// TestReachable: the same servers for a guest with a lease and for one that is configured without DHCP.
func TestReachable(t *testing.T) {
	kind := func(k cache.Kind) func(*cache.Record) { return func(r *cache.Record) { r.Binding = k } }
	for _, c := range []struct {
		name   string
		record cache.Record
		given  string
		want   string
		why    string // what the reason of each other one has
	}{
		{"by the default route", pod(), "10.96.0.10 10.96.0.10 8.8.8.8 fd00:96::a", "10.96.0.10 8.8.8.8 fd00:96::a", ""},
		{"mapped", pod(), "::ffff:10.96.0.10 10.96.0.10", "10.96.0.10", ""},
		{"nobody's", pod(), "0.0.0.0 :: 224.0.0.251 ff02::fb 255.255.255.255 ::ffff:0.0.0.0 10.244.1.255", "", "no server has this address"},
		{"a resolver on loopback", with(pod(), func(r *cache.Record) { r.Resolver, r.IPv4.Server = address("127.0.0.11"), address("10.244.1.1") }), "127.0.0.53 127.0.0.11 ::ffff:127.0.0.11", "10.244.1.1", "the guest itself"},
		{"the guest's", pod(), "127.0.0.53 ::1 ::ffff:127.0.0.1 10.244.1.7 fd00::7 fd00::8 fe80::ff:fe00:7", "", "the guest itself"},
		{"on the link", pod(), "10.244.1.53 fd00::53 fe80::53 fe80::54%eth0", "10.244.1.53 fd00::53 fe80::53 fe80::54", ""},
		{"on another link", pod(), "fe80::53%net1 fd00::53%net1", "", "not on the guest's link"},
		{"on the network's link", with(pod(), kind(cache.BindingMasquerade)), "fe80::53%eth0 fe80::1", "fe80::1", "not on the guest's link"},
		{"on the pod's link", with(pod(), kind(cache.BindingRouted)), "fe80::53 fe80::1%eth0", "fe80::1", "not on the guest's link"},
		{"a second NIC", second(), "10.96.0.10 fd00:96::a", "", "no route of the guest by eth0 leads to it"},
		{"a second NIC that leads there", second(), "10.244.1.53 10.9.1.1 fd00::53 fd09::53 fe80::53", "10.244.1.53 10.9.1.1 fd00::53 fd09::53 fe80::53", ""},
		{"IPv4 alone", with(pod(), func(r *cache.Record) { r.IPv6 = nil }), "10.96.0.10 fd00:96::a", "10.96.0.10", "the guest has no IPv6 address"},
		{"IPv4 alone, link-local", with(pod(), func(r *cache.Record) { r.IPv6 = nil }), "fe80::53", "", "not on the guest's link"},
		{"IPv6 alone", with(pod(), func(r *cache.Record) { r.IPv4 = nil }), "10.96.0.10 fd00:96::a", "fd00:96::a", "the guest has no IPv4 address"},
		{"no router", with(pod(), func(r *cache.Record) { r.IPv6.Router, r.Binding = nil, cache.BindingRouted }), "fe80::1 fd00::53", "fd00::53", "not on"},
	} {
		var given []netip.Addr
		for _, s := range strings.Fields(c.given) {
			given = append(given, address(s))
		}
		for form, n := range map[string]NIC{"leased": Leased(&c.record), "configured": Configured(&c.record, configured(c.record))} {
			have, left := n.Reachable(given)
			var texts []string
			for _, a := range have {
				texts = append(texts, a.String())
			}
			if strings.Join(texts, " ") != c.want {
				t.Errorf("%s, %s: %v without %v, want %s", c.name, form, texts, left, c.want)
			}
			for _, l := range left {
				if c.why == "" || !strings.Contains(l.Why, c.why) {
					t.Errorf("%s, %s: %s: %s, want %q", c.name, form, l.What, l.Why, c.why)
				}
			}
		}
	}
	if have, left := Leased(&cache.Record{}).Reachable([]netip.Addr{{}}); len(have) != 0 || len(left) != 1 {
		t.Errorf("no address: %v, %v", have, left)
	}
}

// TestConfigured: what only a guest without DHCP can have.
func TestConfigured(t *testing.T) {
	r := cache.Record{Name: "eth0", Binding: cache.BindingBridge}
	n := Configured(&r, cache.Static{
		Addresses: []cache.StaticAddress{{Address: pfx("10.0.0.7/24"), NoPrefixRoute: true}, {Address: pfx("10.1.1.7/32"), Peer: pfx("10.1.1.8/29")}},
		Routes:    []cache.StaticRoute{{Destination: pfx("10.2.0.0/16"), Type: "blackhole"}, {Destination: pfx("10.3.0.0/16"), Table: 100}},
	})
	have, left := n.Reachable([]netip.Addr{address("10.0.0.53"), address("10.1.1.9"), address("10.2.0.53"), address("10.3.0.53")})
	if !slices.Equal(have, []netip.Addr{address("10.1.1.9"), address("10.3.0.53")}) || len(left) != 2 {
		t.Errorf("%v without %v", have, left)
	}
}

func TestSearch(t *testing.T) {
	long := strings.Repeat("a.", 126) + "b" // 253 octets
	for _, c := range []struct {
		name   string
		search []string
		want   []string
		left   int
	}{
		{"none", nil, nil, 0},
		{"the root", []string{".", "", " "}, nil, 0},
		{"trailing dots", []string{"cluster.local.", "a.b.."}, []string{"cluster.local", "a.b"}, 0},
		{"upper case, once", []string{"Example.COM", "example.com"}, []string{"Example.COM"}, 0},
		{"numeric labels", []string{"10.in-addr.arpa", "1.2"}, []string{"10.in-addr.arpa", "1.2"}, 0},
		{"underscores", []string{"_tcp.a_b.example"}, []string{"_tcp.a_b.example"}, 0},
		{"empty label", []string{"a..b", ".a", "ok"}, []string{"ok"}, 2},
		{"hyphens", []string{"-a.b", "a-.b", "a.-", "a-b.c--d"}, []string{"a-b.c--d"}, 3},
		{"label of 63 and 64", []string{strings.Repeat("x", 63) + ".y", strings.Repeat("x", 64) + ".y"}, []string{strings.Repeat("x", 63) + ".y"}, 1},
		{"name of 253 and 254", []string{long, long + "c"}, []string{long}, 1},
		{"other characters", []string{"a b", "ä.example", "$(reboot)", "a\x00b", "*.x", "evil\n[Route]"}, nil, 6},
	} {
		have, left := Search(&cache.Options{}, c.search)
		if !slices.Equal(have, c.want) || len(left) != c.left {
			t.Errorf("%s: %q without %q, want %q without %d", c.name, have, left, c.want, c.left)
		}
	}
}

// TestAlone: a guest behind masquerade reaches no server in its own network but the gateway, unless the network has
// other stations.
func TestAlone(t *testing.T) {
	given := []netip.Addr{address("10.0.2.10"), address("10.0.2.1"), address("10.0.2.2"), address("10.0.3.1"), address("fd10::10"), address("fd10::1"), address("fd11::1")}
	const outside = "10.0.2.1 10.0.3.1 fd10::1 fd11::1"
	for _, c := range []struct {
		name    string
		binding cache.Kind
		shared  bool
		want    string
	}{
		{"masquerade", cache.BindingMasquerade, false, outside},
		{"masquerade in a network with stations", cache.BindingMasquerade, true, "10.0.2.10 " + outside},
		{"another binding", cache.BindingBridge, false, "10.0.2.10 10.0.2.1 10.0.3.1 fd10::10 fd10::1 fd11::1"},
	} {
		r := with(pod(), func(r *cache.Record) {
			r.Binding = c.binding
			r.IPv4.Address, r.IPv4.Server, r.IPv4.Shared = pfx("10.0.2.2/24"), address("10.0.2.1"), c.shared
			r.IPv6 = &cache.IPv6{Address: address("fd10::2"), Gateway: address("fd10::1"), OnLink: []netip.Prefix{pfx("fd10::/120")}, Router: r.IPv6.Router}
		})
		for form, nic := range map[string]NIC{"leased": Leased(&r), "configured": Configured(&r, configured(r))} {
			have, left := nic.Reachable(given)
			var texts []string
			for _, a := range have {
				texts = append(texts, a.String())
			}
			if strings.Join(texts, " ") != c.want || len(left) != len(given)-len(have) {
				t.Errorf("%s, %s: %s, left %v", c.name, form, texts, left)
			}
		}
	}
}
