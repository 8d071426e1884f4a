package phase1_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func (c *comparison) covered(r cache.Record, a asked, pod reply) bool {
	return slices.ContainsFunc(r.Losses, func(l cache.Finding) bool { return c.covers(l, r, a, pod) })
}

// covers reports whether the loss is about the question, which the namespace got an answer to.
func (c *comparison) covers(l cache.Finding, r cache.Record, a asked, pod reply) bool {
	out := a.by == "pod"
	words := strings.Fields(l.What)
	last := words[len(words)-1]
	switch l.Kind {
	case "family":
		return (l.What == "IPv4") == a.to.Is4()
	case "route", "next-hop":
		p, err := netip.ParsePrefix(last)
		return out && err == nil && p.Contains(a.to)
	case "gateway":
		v4 := strings.Contains(l.Why, "IPv4")
		return out && a.to.Is4() == v4
	case "policy-rule":
		return out || r.Binding == cache.BindingMasquerade // whose guest is one of the destinations
	case "address":
		lost, err := netip.ParseAddr(l.What)
		return err == nil && (a.to == lost || a.from == lost || pod.source == lost)
	case "other-link":
		return out && pod.by == "store"
	}
	return false
}

// generate makes the pod's namespace, and waits until it is in use.
func (c *comparison) generate() {
	t := c.t
	c.n = nstest.Network{Pod: nstest.New(t, "pod"), World: c.bridge, State: nstest.Dir(t)}
	pod := c.n.Pod
	end := fmt.Sprintf("pod%d", c.seed)
	c.bridge.IP(fmt.Sprintf("link add %s type veth peer name eth0 netns %s", end, pod.Name))
	c.bridge.IP("link set " + end + " addrgenmode none master br0 up")
	pod.IP("link set eth0 address " + macOf(7) + " up")
	store := c.stations["store"]
	store.IP("link add eth0 type veth peer name net1 netns " + pod.Name)
	for _, line := range append([]string{"link set eth0 up", "addr add 10.30.0.1/24 dev eth0", "addr add fd00:30::1/64 dev eth0 nodad",
		"route add 10.0.0.0/8 via 10.30.0.7 dev eth0", "route add fd00::/16 via fd00:30::7 dev eth0"}, destinationLines()...) {
		store.Exec("sh", "-c", "ip "+line+" 2>/dev/null || true")
	}
	t.Cleanup(func() {
		store.Exec("sh", "-c", "ip link del eth0 2>/dev/null || true")
		c.bridge.Exec("sh", "-c", "ip link del "+end+" 2>/dev/null || true")
	})
	c.ownAddresses()
	c.otherLinks()
	for range 1 + c.IntN(6) {
		c.route4()
	}
	for range 1 + c.IntN(5) {
		c.route6()
	}
	if c.IntN(3) == 0 {
		c.policy()
	}
	for _, line := range c.settings() {
		pod.Exec("sysctl", "-qw", line)
		c.lines = append(c.lines, "# sysctl -w "+line)
	}
	file := filepath.Join(t.TempDir(), "lines")
	writeFile(t, file, strings.Join(c.lines, "\n")+"\n")
	pod.Exec("sh", "-c", "ip -force -batch "+file+" 2>&1 || true")
	pod.Settle("eth0")
}

// ownAddresses gives the pod the addresses of one kind of network, and further ones.
func (c *comparison) ownAddresses() {
	give := func(link, text string, more ...string) {
		prefix := netip.MustParsePrefix(text)
		c.add("addr add %s dev %s %s", text, link, strings.Join(more, " "))
		c.own = append(c.own, prefix.Addr())
	}
	unnumbered4 := c.IntN(10) == 0
	if unnumbered4 {
		give("lo", "10.99.0.7/32")
	} else if c.IntN(8) > 0 {
		give("eth0", "10.20.0.7/"+c.one("24", "24", "24", "32", "25"), c.perhaps("noprefixroute", "scope link", "metric 50", ""))
		if c.IntN(4) == 0 {
			give("eth0", "10.20.0.8/"+c.one("24", "32")) // secondary
		}
		if c.IntN(4) == 0 {
			give("eth0", "10.21.0.7/"+c.one("24", "32"))
		}
		if c.IntN(6) == 0 {
			give("lo", "10.99.0.8/32")
		}
	}
	if c.IntN(10) == 0 {
		give("lo", "fd00:99::7/128")
	} else if c.IntN(6) > 0 {
		give("eth0", "fd00:20::7/"+c.one("64", "64", "128"), "nodad", c.perhaps("noprefixroute", "metric 50", "valid_lft 90000 preferred_lft 0"))
		if c.IntN(3) == 0 {
			give("eth0", "fd00:21::7/"+c.one("64", "128"), "nodad", c.perhaps("valid_lft 90000 preferred_lft 0"))
		}
		if c.IntN(6) == 0 {
			give("lo", "fd00:99::8/128")
		}
	}
}

// otherLinks are the link to the store, and one to nowhere.
func (c *comparison) otherLinks() {
	if c.IntN(3) == 0 {
		c.add("addr add 10.30.0.7/24 dev net1")
		c.add("addr add fd00:30::7/64 dev net1 nodad")
		c.add("link set net1 up")
	}
	if c.IntN(5) == 0 {
		c.add("link add vpn0 type dummy")
		c.add("addr add 10.66.0.7/24 dev vpn0")
		c.add("link set vpn0 up")
	}
}

func (c *comparison) route4() {
	destination := c.one("default", "default", "0.0.0.0/1", "128.0.0.0/1", "198.51.100.0/24", "198.51.100.128/25", "192.0.2.0/24", "192.0.2.9", "203.0.113.0/24", "172.16.0.0/12", "100.64.0.0/10")
	var more string
	if c.IntN(3) == 0 {
		more = strings.Join([]string{c.perhaps("metric 5", "metric 77"), c.perhaps("mtu 1300", "mtu lock 1200", "advmss 1000"),
			c.perhaps("src 10.20.0.7", "src 10.20.0.8", "src 10.21.0.7"), c.one("", "", "tos 0x10"), c.one("", "", "table 100")}, " ")
	}
	router := 1 + c.IntN(3)
	switch c.IntN(14) {
	case 0, 1, 2, 3, 4:
		c.add("route add %s via 10.20.0.%d dev eth0 %s %s", destination, router, c.one("", "onlink"), more)
	case 5:
		c.add("route add 169.254.1.1 dev eth0 scope link")
		c.add("route add %s via 169.254.1.1 dev eth0 %s", destination, more)
	case 6:
		c.add("neigh add 169.254.1.7 lladdr %s dev eth0 nud permanent", macOf(router))
		c.add("route add %s via 169.254.1.7 dev eth0 onlink %s", destination, more)
	case 7:
		c.add("route add %s dev eth0 %s %s", destination, c.one("scope link", "scope global"), more)
	case 8:
		c.add("route add %s %s nexthop via 10.20.0.1 dev eth0 nexthop via %s", destination, more, c.one("10.20.0.2 dev eth0", "10.20.0.3 dev eth0 onlink", "10.30.0.1 dev net1"))
	case 9, 10:
		c.add("-4 route add %s via inet6 fe80::%d dev eth0 %s", destination, router, more)
	case 11:
		c.add("route add %s %s %s", c.one("blackhole", "unreachable", "prohibit", "throw"), destination, more)
	case 12:
		c.add("route add %s via 10.30.0.1 dev net1 %s", destination, more)
	case 13:
		c.add("route add %s dev vpn0 %s", destination, more)
	}
}

func (c *comparison) route6() {
	destination := c.one("default", "default", "2000::/4", "2001:db8::/34", "2001:db8:1::/48", "2001:db8:2::/48", "2001:db8:3::9")
	var more string
	if c.IntN(3) == 0 {
		more = strings.Join([]string{c.perhaps("metric 5", "metric 77"), c.perhaps("mtu 1300", "pref high"),
			c.perhaps("src fd00:20::7", "src fd00:21::7"), c.one("", "", "table 100")}, " ")
	}
	from := ""
	if c.IntN(6) == 0 {
		from = c.one("from fd00:20::7", "from fd00:21::/64", "from fd00:20::/64")
	}
	router := 1 + c.IntN(3)
	switch c.IntN(11) {
	case 0, 1, 2:
		c.add("-6 route add %s %s via fd00:20::%d dev eth0 %s", destination, from, router, more)
	case 3, 4, 5:
		c.add("-6 route add %s %s via fe80::%d dev eth0 %s", destination, from, router, more)
	case 6:
		c.add("-6 route add %s dev eth0 %s", destination, more)
	case 7:
		c.add("-6 route add %s %s nexthop via fe80::1 dev eth0 nexthop via %s", destination, more, c.one("fe80::2 dev eth0", "fd00:30::1 dev net1"))
	case 8:
		c.add("-6 route add %s %s %s", c.one("blackhole", "unreachable", "prohibit", "throw"), destination, more)
	case 9:
		c.add("-6 route add %s via fd00:30::1 dev net1 %s", destination, more)
	case 10:
		c.add("-6 neigh add fe80::77 lladdr %s dev eth0 nud permanent", macOf(router))
		c.add("-6 route add %s %s via fe80::77 dev eth0 onlink %s", destination, from, more)
	}
}

// policy makes rules.
func (c *comparison) policy() {
	c.add("route add default via 10.20.0.%d dev eth0 table 100", 1+c.IntN(3))
	c.add("-6 route add default via fe80::%d dev eth0 table 100", 1+c.IntN(3))
	c.add("rule add pref %d %s", 1000+39000*c.IntN(2), c.one("from all lookup 100", "from 10.20.0.7 lookup 100", "from 10.21.0.7 lookup 100", "to 198.51.100.0/24 lookup 100",
		"fwmark 0x10 lookup 100", "iif eth0 lookup 100", "tos 0x10 lookup 100", "from all lookup main suppress_prefixlength 0", "to 192.0.2.0/24 prohibit", "ipproto tcp dport 9000 lookup 100"))
	c.add("-6 rule add pref %d %s", 1000+39000*c.IntN(2), c.one("from all lookup 100", "from fd00:20::7 lookup 100", "from fd00:21::7 lookup 100", "to 2001:db8:1::/48 lookup 100", "fwmark 0x10 lookup 100", "ipproto tcp dport 9000 lookup 100"))
}

func (c *comparison) settings() []string {
	lines := []string{"net.ipv4.conf.all.rp_filter=0", "net.ipv6.conf.all.accept_ra=0", "net.ipv6.conf.eth0.accept_ra=0"}
	if c.IntN(3) == 0 {
		lines = append(lines, c.one("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.conf.eth0.rp_filter=2", "net.ipv4.conf.all.arp_announce=2", "net.ipv4.conf.eth0.arp_ignore=1"))
	}
	return lines
}
