package wiring_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/netstate"
)

// TestOwnSource: the namespace's own packets leave with the NIC's address that the kernel would choose.
func TestOwnSource(t *testing.T) {
	const from4, from6 = "ip saddr 169.254.75.1 ", "ip6 saddr fd00:a9fe:4b01::1 "
	deprecated := withAddress(address("2001:db8:5::3/64"), func(a *netstate.Address) { a.PreferredSeconds = 0 })
	for _, test := range []struct {
		name      string
		addresses []netstate.Address
		routes    []netstate.Route
		want      []string
	}{
		{"two networks",
			[]netstate.Address{address("10.0.0.2/24"), address("192.168.5.2/24"), address("2001:db8:5::3/64"), address("fd00:1::2/64"), linkLocal()},
			[]netstate.Route{via("0.0.0.0/0", "10.0.0.1"), connected("10.0.0.2/24"), connected("192.168.5.2/24"),
				via("::/0", "2001:db8:5::1"), connected6("2001:db8:5::/64"), connected6("fd00:1::/64"), connected6("fe80::/64")},
			[]string{from4 + "ip daddr 192.168.5.0/24 snat ip to 192.168.5.2", from4 + "snat ip to 10.0.0.2",
				from6 + "ip6 daddr fc00::/7 snat ip6 to fd00:1::2", from6 + "snat ip6 to 2001:db8:5::3"}},
		{"the gateway in the second network",
			[]netstate.Address{address("192.168.5.2/24"), address("10.0.0.2/24"), address("2001:db8:6::2/64"), address("2001:db8:5::3/64")},
			[]netstate.Route{via("0.0.0.0/0", "10.0.0.1"), connected("10.0.0.2/24"), connected("192.168.5.2/24"),
				via("::/0", "2001:db8:5::1"), connected6("2001:db8:5::/64"), connected6("2001:db8:6::/64")},
			[]string{from4 + "ip daddr 192.168.5.0/24 snat ip to 192.168.5.2", from4 + "snat ip to 10.0.0.2",
				from6 + "ip6 daddr 2001:db8:5::/64 snat ip6 to 2001:db8:5::3", from6 + "snat ip6 to 2001:db8:6::2"}},
		{"sources of routes",
			[]netstate.Address{address("10.0.0.2/24"), address("10.0.0.3/24")},
			[]netstate.Route{withRoute(via("0.0.0.0/0", "10.0.0.1"), func(r *netstate.Route) { r.PrefSrc = ip("10.0.0.3") }), connected("10.0.0.2/24")},
			[]string{from4 + "ip daddr 10.0.0.0/24 snat ip to 10.0.0.2", from4 + "snat ip to 10.0.0.3"}},
		{"an address of the scope link first",
			[]netstate.Address{withAddress(address("169.254.7.7/32"), func(a *netstate.Address) { a.Scope = netstate.ScopeLink }), address("10.0.0.2/32")},
			[]netstate.Route{via("0.0.0.0/0", "169.254.1.1"), onLink("169.254.1.1/32"), onLink("192.168.5.0/24")},
			[]string{from4 + "ip daddr 169.254.1.1 snat ip to 169.254.7.7", from4 + "ip daddr 192.168.5.0/24 snat ip to 169.254.7.7", from4 + "snat ip to 10.0.0.2"}},
		{"a deprecated address, and a unique local one first",
			[]netstate.Address{deprecated, address("fd00:1::2/64"), address("2001:db8:5::4/64")},
			[]netstate.Route{via("::/0", "fe80::1"), connected6("2001:db8:5::/64"), connected6("fd00:1::/64")},
			[]string{from6 + "ip6 daddr fc00::/7 snat ip6 to fd00:1::2", from6 + "snat ip6 to 2001:db8:5::4"}},
	} {
		found := netstate.Snapshot{Links: []netstate.Link{lo(), veth()}, Addresses: test.addresses, Routes: test.routes,
			Sysctls: map[string]string{forwarding6: "0", "net/ipv6/conf/eth0/accept_ra": "1"}}
		plan, err := tryPlan(found, routed())
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		var snat, set []string
		for line := range strings.Lines(plan.String()) {
			line = strings.TrimSuffix(line, "\n")
			if i := strings.Index(line, "saddr 169.254.75.1 "); i < 0 && !strings.Contains(line, "saddr fd00:a9fe:4b01::1 ") {
				continue
			}
			_, line, _ = strings.Cut(line, "meta nfproto ipv")
			line = line[2:]
			if strings.Contains(line, " snat ") {
				snat = append(snat, line)
			} else if strings.Contains(line, "addr set ") {
				set = append(set, strings.NewReplacer("ip saddr set ", "snat ip to ", "ip6 saddr set ", "snat ip6 to ").Replace(line))
			}
		}
		if !slices.Equal(snat, test.want) || !slices.Equal(set, test.want) {
			t.Errorf("%s: rules\n%s\nfor connections and\n%s\nfor other packets, want\n%s", test.name, strings.Join(snat, "\n"), strings.Join(set, "\n"), strings.Join(test.want, "\n"))
		}
	}
}
