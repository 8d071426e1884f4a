package phase1_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/routeget"
)

// TestRouteGet: in generated namespaces, package fib says where packets go as the kernel does.
func TestRouteGet(t *testing.T) {
	nstest.KernelDecides(t, "where packets go")
	t.Parallel()
	nstest.Need(t)
	first, last := uint64(1), uint64(12)
	switch {
	case *seed > 0:
		first, last = *seed, *seed
	case *crash == "all":
		last = 500
	case *crash == "few":
		last = 3
	}
	routed, other := 0, 0
	for s := first; s <= last; s++ {
		t.Run(fmt.Sprint("seed=", s), func(t *testing.T) {
			n, nic, lines := generated(t, s)
			lines += rulesBeforeMain(n, nic, rand.New(rand.NewPCG(s, 2)))
			r, o := routeget.Judge(t, n.Pod, rand.New(rand.NewPCG(s, 1)), 60)
			routed, other = routed+r, other+o
			if t.Failed() {
				t.Logf("go test ./phase1 -run RouteGet -seed %d: of\n%s\n%s", s, lines, n.Pod.Exec("sh", "-c", "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all"))
			}
		})
	}
	for name, lines := range map[string][]string{
		"by source": {
			"-6 route add 2001:db8:1::/48 via fd00:244:1::2 dev eth0", "-6 route add 2001:db8:1::/48 from fd00:244:1::/64 via fd00:244:1::3 dev eth0 metric 4000",
			"-6 route add 2001:db8:1::/48 from fd00:244:1::7 via fd00:244:1::4 dev eth0 metric 5000", "-6 route add 2001:db8::/32 from fd00:244:9::/64 via fd00:244:1::5 dev eth0",
		},
		"a default route by source": {"-6 route add default from fd00:244:9::/64 via fd00:244:1::5 dev eth0 metric 5"},
		"the source of the route in force": {
			"addr add 10.244.1.8/24 dev eth0", "route del default",
			"route add default via 10.244.1.1 dev eth0 src 10.244.1.8 metric 100", "route add default via 10.244.1.1 dev eth0 src 10.244.1.7 metric 200",
			"addr add fd00:244:1::8/64 dev eth0 nodad", "addr add fd00:244:1::9/64 dev eth0 nodad", "-6 route del default",
			"-6 route add default via fd00:244:1::1 dev eth0 src fd00:244:1::8 metric 100", "-6 route add default via fd00:244:1::1 dev eth0 src fd00:244:1::7 metric 200",
		},
		"suppress_prefixlength and a route that refuses": {
			"rule add pref 100 lookup main suppress_prefixlength 0", "rule add pref 200 lookup 200", "route replace unreachable default",
			"route add default via 10.244.1.1 dev eth0 table 200", "-6 rule add pref 100 lookup main suppress_prefixlength 0", "-6 rule add pref 200 lookup 200",
			"-6 route del default", "-6 route add prohibit default metric 10", "-6 route add default via fd00:244:1::1 dev eth0 table 200",
		},
		"marks beside the mask": {
			"rule add pref 90 fwmark 0x30/0xf lookup 201", "rule add pref 100 fwmark 0x13/0x1 lookup 200",
			"route add default via 10.244.1.2 dev eth0 table 200", "route add 172.16.0.0/12 via 10.244.1.3 dev eth0 table 201",
		},
		"the source of a route around an address without one": {
			"addr add fd00:244:2::8/64 dev eth0 nodad noprefixroute", "-6 route add fd00:244::/32 dev eth0 src fd00:244:1::7",
			"addr add 2001:db8:5::3/64 dev eth0 nodad", "-6 route del default", "-6 route add default via fe80::1 dev eth0 src 2001:db8:5::3",
			"-6 rule add pref 40000 to fd00:244:2::/64 lookup 200", "-6 rule add pref 40000 to fd02::/16 lookup 200", // asked about, and without a table
		},
		"the gateway in a later address's network": {
			"addr add fd00:244:3::8/64 dev eth0 nodad", "-6 route add 2001:db8:6::/48 via fd00:244:1::1 dev eth0",
			"addr add 10.244.3.8/24 dev eth0", "route del default", "route add default via 10.244.3.1 dev eth0", "route add 172.16.0.0/16 dev eth0",
		},
		"two halves before the default route": {
			"addr add 10.244.3.8/24 dev eth0", "route del default", "route add default via 10.244.3.1 dev eth0",
			"link add vpn0 type bridge", "addr add 10.8.0.2/24 dev vpn0", "link set vpn0 up", "route add 0.0.0.0/1 via 10.8.0.1 dev vpn0", "route add 128.0.0.0/1 via 10.8.0.1 dev vpn0",
		},
		"rules that are inverted": {
			"rule add pref 100 not from 192.168.0.0/16 to 172.16.0.0/12 lookup 200", "rule add pref 101 not from 10.244.0.0/16 lookup 201",
			"route add default via 10.244.1.2 dev eth0 table 200", "route add default via 10.244.1.3 dev eth0 table 201",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := nstest.NewNetwork(t)
			for _, line := range lines {
				n.Pod.IP(line)
			}
			r, o := routeget.Judge(t, n.Pod, rand.New(rand.NewPCG(1, 1)), 60)
			routed, other = routed+r, other+o
		})
	}
	t.Logf("%d packets have a route; %d have another one by a rule that no Snapshot holds", routed, other)
	if *seed == 0 && (routed == 0 || other > routed/4) { // one namespace may have a few such packets
		t.Errorf("%d packets have a route, and %d have another one by a rule that no Snapshot holds", routed, other)
	}
}

// rulesBeforeMain adds policy rules by chance. A generated namespace has those that come after main.
func rulesBeforeMain(n nstest.Network, nic string, r *rand.Rand) (lines string) {
	one := func(words ...string) string { return words[r.IntN(len(words))] }
	for range r.IntN(6) {
		family, from, to := "-4", []string{"10.20.0.0/24", "10.20.0.7", "10.30.0.0/16"}, []string{"172.16.0.0/14", "192.0.2.0/24", "10.20.0.0/24"}
		if r.IntN(2) == 0 {
			family, from, to = "-6", []string{"fd00:20::/64", "fd00:20::7", "fd00:30::/64"}, []string{"2001:db8::/32", "fd00:20::/64", "2001:db8:3::/48"}
		}
		line := fmt.Sprintf("ip %s rule add pref %d %s lookup %s %s || true\n", family, 100+r.IntN(5000),
			one("from all", "from "+one(from...), "to "+one(to...), "from "+one(from...)+" to "+one(to...), "tos 0x10", "fwmark 0x10/0x18", "fwmark 0x33/0xf", "iif "+nic, "iif lo", "not from "+one(from...), "not to "+one(to...)),
			one("100", "1000", "100000", "main", "default"), one("", "", "suppress_prefixlength 0", "suppress_prefixlength 16"))
		n.Pod.Exec("sh", "-c", line)
		lines += "\n" + line
	}
	n.Pod.Exec("sh", "-c", "ip route add default via 10.20.0.9 dev "+nic+" onlink table 253 || true") // not while the NIC is down
	return lines
}
