package phase1_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

var seed = flag.Uint64("seed", 0, "generated namespaces: only the one of this seed")

// withinPod is a masquerade whose guest has an address of the pod's network, and the pod's gateway.
var withinPod = infra.Masquerade{
	IPv4: netip.PrefixFrom(nstest.Pod4, 24).Masked(), Guest: []netip.Addr{netip.MustParseAddr("10.244.1.3")}, Gateway: []netip.Addr{nstest.Gateway4},
}

// within is a masquerade whose guest has an address of a network that most generated NICs have.
var within = infra.Masquerade{
	IPv4: netip.MustParsePrefix("10.20.0.0/24"), Guest: []netip.Addr{netip.MustParseAddr("10.20.0.200")}, Gateway: []netip.Addr{netip.MustParseAddr("10.20.0.1")},
}

// TestGenerated creates namespaces by chance: Setup and Teardown leave them as they were, down to the
// last byte of what ip, bridge, tc, nft and sysctl print.
func TestGenerated(t *testing.T) {
	nstest.Long(t)
	nstest.KernelDecides(t, "what Teardown gives back, by chance")
	t.Parallel()
	nstest.Need(t)
	nstest.NeedTaps(t)
	first, last := uint64(1), uint64(5)
	switch {
	case *seed > 0:
		first, last = *seed, *seed
	case *crash == "all":
		last = 200
	case *crash == "few":
		last = 1
	}
	given, refused, reordered := 0, 0, 0
	for s := first; s <= last; s++ {
		t.Run(fmt.Sprint("seed=", s), func(t *testing.T) {
			n, nic, lines := generated(t, s)
			for _, b := range append(slices.Clone(bindings), within) {
				before := steady(settled(t, n))
				switch err := giveAndTake(t, n, nic, b, before); {
				case isRefusal(err):
					refused++
				case err == errOrder:
					given++
					reordered++
				case err != nil:
					t.Errorf("go test ./phase1 -run Generated -seed %d: %s binding: %v\nof\n%s", s, b.Kind(), err, lines)
					return
				default:
					given++
				}
			}
		})
	}
	document(fmt.Sprintf("Generated namespaces, seeds %d to %d, each binding: %d times Setup and Teardown, %d times byte-equal, %d times but for the order of equal routes; %d times refused and left alone.\n\n",
		first, last, given, given-reordered, reordered, refused))
	if given == 0 {
		t.Error("all were refused")
	}
}

// giveAndTake sets up and takes down. A refusal must have changed nothing.
func giveAndTake(t *testing.T, n nstest.Network, nic string, b infra.Binding, before string) error {
	c := config(n, b)
	c.Name = nic
	_, err := c.Setup(t.Context())
	if isRefusal(err) {
		if changed := difference(before, steady(n.Pod.Dump())); changed != nil {
			return fmt.Errorf("refused (%w), and changed: %v", errors.New(err.Error()), changed)
		}
		return err
	}
	if err != nil {
		return fmt.Errorf("setup: %w", err)
	}
	if err := c.Check(t.Context()); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if _, err := c.Repair(t.Context()); err != nil {
		return fmt.Errorf("repair of what is whole: %w", err)
	}
	if !refusePlans(t, c) || c.Check(t.Context()) == nil {
		return errors.New("a plan is not refused")
	}
	if err := c.Teardown(t.Context()); err != nil {
		return fmt.Errorf("teardown: %w", err)
	}
	var after string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		switch after = steady(n.Pod.Dump()); {
		case after == before:
			return nil
		case equalsSorted(after) == equalsSorted(before):
			return errOrder
		}
	}
	return fmt.Errorf("after teardown: %w; in all:\n%s", difference(before, after), changes(before, after))
}

// changes are the lines that came and went.
func changes(before, after string) string {
	var b strings.Builder
	for _, way := range []struct{ mark, from, to string }{{"-", before, after}, {"+", after, before}} {
		for line := range strings.Lines(way.from) {
			if strings.Count(way.from, line) > strings.Count(way.to, line) {
				b.WriteString(way.mark + " " + line)
			}
		}
	}
	return b.String()
}

var errOrder = errors.New("the order of equal routes")

// equalsSorted puts routes that are equal but for the link, next hops of an IPv6 route, or broadcast addresses that
// several addresses name, into one order: the kernel lists them as they came.
func equalsSorted(dump string) string {
	lines := strings.SplitAfter(dump, "\n")
	key := func(line string) string {
		return device.ReplaceAllString(nextHop6.ReplaceAllString(line, "nexthop"), "$1")
	}
	for start := 0; start < len(lines); {
		end := start + 1
		for end < len(lines) && key(lines[end]) == key(lines[start]) {
			end++
		}
		slices.Sort(lines[start:end])
		start = end
	}
	return strings.Join(lines, "")
}

var nextHop6 = regexp.MustCompile(`(?s)^\s+nexthop via \S*:.*`)

var device = regexp.MustCompile(` dev \S+|^(broadcast .* table local proto kernel .*) src \S+`)

// steady takes out what cannot be given back as well: the mark of an address that the kernel made by
// the mode stable-privacy, which only the kernel can make; whether a router's multicast address is
// in the filter of a link that is down, which depends on whether the kernel had noticed its carrier;
// and the number of the last frame that an hsr sent.
func steady(dump string) string { return notGiven.ReplaceAllString(stable(dump), "") }

var notGiven = regexp.MustCompile(` stable-privacy| sequence \d+|(?m:^33:33:00:00:00:02 dev \S+ self permanent\n)`)

func isRefusal(err error) bool {
	var refused *infra.RefusedError
	return errors.As(err, &refused) || errors.Is(err, infra.ErrCollision)
}

// dice chooses what a namespace has.
type dice struct {
	*rand.Rand
	seed  uint64
	nic   string
	mtu   string
	lines []string
}

func (d *dice) one(words ...string) string { return words[d.IntN(len(words))] }

// perhaps is an empty word half the time.
func (d *dice) perhaps(words ...string) string {
	if d.IntN(2) == 0 {
		return ""
	}
	return d.one(words...)
}

func (d *dice) add(format string, args ...any) {
	d.lines = append(d.lines, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
}

// generated is a namespace by chance, its NIC, and the lines for ip(8) that made it. Some of them
// the kernel will not have: that is chance as well.
func generated(t *testing.T, seed uint64) (nstest.Network, string, string) {
	t.Helper()
	n := nstest.NewWorld(t)
	d := &dice{Rand: rand.New(rand.NewPCG(seed, 0)), seed: seed}
	d.nic = d.one("eth0", "net1", "pod16477688c0e1", "a.b-c_d", "ens1f0np0")
	d.mtu = d.one("1280", "1400", "1450", "1500", "9000", "65535", "1000")
	n.World.IP(fmt.Sprintf("link add pod mtu %s type veth peer name %s netns %s", d.mtu, d.nic, n.Pod.Name))
	n.World.IP("link set pod up")
	if d.IntN(2) == 0 {
		n.World.IP("link add beside type veth peer name other0 netns " + n.Pod.Name)
		n.World.IP("link set beside up")
	}
	n.World.IP("addr add 10.20.0.1/24 dev pod")
	if d.mtu != "1000" { // IPv6 needs more
		n.World.IP("addr add fd00:20::1/64 dev pod nodad")
	}
	d.links()
	d.addresses()
	d.routes()
	d.rules()
	if seed%2 == 0 { // a gateway that the responder follows
		d.add("addr add fd00:20::77/64 dev %s nodad", d.nic)
		d.add("addr add fe80::77/64 dev %s nodad", d.nic) // without one the kernel does not ask for it
		d.add("route add default via fd00:20::1 dev %s metric 1", d.nic)
	}
	for range d.IntN(3) {
		d.add("neigh add 10.20.0.%d lladdr 02:00:00:00:00:%02x dev %s nud permanent %s", 60+d.IntN(40), d.IntN(256), d.nic, d.perhaps("router", "extern_learn"))
		d.add("neigh add fd00:20::%x lladdr 02:00:00:00:00:%02x dev %s nud permanent %s", 60+d.IntN(40), d.IntN(256), d.nic, d.perhaps("router", "extern_learn"))
	}
	if d.IntN(10) == 0 {
		d.add("link set %s down", d.nic)
	}
	// The lines of a batch are of one family.
	for lines := d.lines; len(lines) > 0; {
		family := ""
		if strings.HasPrefix(lines[0], "-6 ") {
			family = "-6"
		}
		end := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "-6 ") != (family == "-6") })
		if end < 0 {
			end = len(lines)
		}
		file := filepath.Join(t.TempDir(), "lines")
		writeFile(t, file, strings.ReplaceAll(strings.Join(lines[:end], "\n")+"\n", "-6 ", ""))
		n.Pod.Exec("sh", "-c", "ip "+family+" -force -batch "+file+" 2>&1 || true")
		lines = lines[end:]
	}
	for _, line := range d.sysctls() {
		n.Pod.Exec("sysctl", "-qw", line)
	}
	d.advertise(t, n)
	return n, d.nic, strings.Join(d.lines, "\n")
}

func (d *dice) links() {
	if d.IntN(2) == 0 {
		d.add("link set %s address 02:%02x:%02x:00:00:%02x", d.nic, d.IntN(256), d.IntN(256), d.IntN(256))
	}
	if d.IntN(2) == 0 {
		d.add("link set %s alias the-pods-%d", d.nic, d.IntN(100))
	}
	if d.IntN(3) == 0 {
		d.add("link set %s addrgenmode %s", d.nic, d.one("none", "eui64", "random"))
	}
	if d.IntN(4) == 0 {
		d.add("link set %s %s", d.nic, d.one("group 7", "txqueuelen 77", "allmulticast on", "promisc on", "multicast off"))
	}
	d.add("link set %s mtu %s up", d.nic, d.mtu)
	d.add("addr add 10.30.0.7/24 dev other0")
	d.add("addr add fd00:30::7/64 dev other0")
	d.add("link set other0 up")
	if d.IntN(3) == 0 {
		d.add("link add br-other type bridge")
		d.add("link set br-other up alias somebodys group %d", d.IntN(5))
		d.add("tuntap add dev other-tap mode tap user 7")
		d.add("link set other-tap master br-other")
	}
}

func (d *dice) addresses() {
	lifetimes := []string{"valid_lft 90000 preferred_lft 80000", "valid_lft 90000 preferred_lft 0"}
	for i := range d.IntN(5) {
		bits := d.one("24", "24", "24", "32", "16", "25")
		d.add("addr add 10.2%d.0.%d/%s dev %s %s %s %s %s %s %s", d.IntN(2), 7+i, bits, d.nic,
			d.perhaps("broadcast +", "broadcast 10.20.0.255", "broadcast 10.20.0.77"), d.perhaps("label "+d.nic[:min(10, len(d.nic))]+":x"),
			d.perhaps("scope link", "scope host", "scope global"), d.perhaps("metric 50", "metric 200"), d.perhaps("noprefixroute"), d.perhaps(lifetimes...))
	}
	if d.IntN(3) == 0 {
		d.add("addr add 10.40.0.1 peer 10.40.0.%d/%s dev %s", 2+d.IntN(9), d.one("32", "24"), d.nic)
	}
	for i := range d.IntN(4) {
		d.add("addr add fd00:2%d::%x/%s dev %s %s %s %s %s", d.IntN(2), 7+i, d.one("64", "64", "128", "120"), d.nic,
			d.perhaps("nodad", "home", "mngtmpaddr"), d.perhaps("metric 50", "metric 2000"), d.perhaps("noprefixroute"), d.perhaps(lifetimes...))
	}
	if d.IntN(4) == 0 {
		d.add("addr add fd00:40::1 peer fd00:40::2/128 dev %s", d.nic)
	}
}

func (d *dice) routes() {
	d.add("route add 169.254.1.1 dev %s scope link %s", d.nic, d.perhaps("src 10.20.0.7"))
	for range d.IntN(10) {
		destination := d.one("default", fmt.Sprintf("172.%d.0.0/16", 16+d.IntN(9)), fmt.Sprintf("192.0.2.%d", d.IntN(256)), "10.20.0.0/24", "10.20.0.0/16")
		more := strings.Join([]string{d.perhaps("table 100", "table 1000", "table 100000"), d.perhaps("proto static", "proto bird", "proto ra", "proto dhcp"),
			d.perhaps("metric 5", "metric 77", "metric 4000"), d.perhaps("mtu 1300", "mtu lock 1200", "advmss 1000", "initcwnd 20", "rto_min 5ms"), d.perhaps("src 10.20.0.7", "src 10.20.0.8"), d.perhaps("tos 0x10")}, " ")
		switch d.IntN(6) {
		case 0:
			d.add("route add %s via 10.20.0.%d dev %s %s", destination, 1+d.IntN(3), d.nic, more)
		case 1:
			d.add("route add %s via 169.254.1.1 dev %s onlink %s", destination, d.nic, more)
		case 2:
			d.add("route add %s dev %s scope %s %s", destination, d.nic, d.one("link", "global"), more)
		case 3:
			d.add("route add %s %s %s", d.one("blackhole", "unreachable", "prohibit", "throw"), destination, more)
		case 4:
			d.add("route add %s %s nexthop via 10.20.0.1 dev %s weight 2 nexthop via %s", destination, more, d.nic, d.one("10.20.0.2 dev "+d.nic, "169.254.1.1 dev "+d.nic+" onlink", "10.30.0.1 dev other0"))
		case 5:
			d.add("route add %s %s dev %s %s", d.one("local", "local", "broadcast", "multicast"), destination, d.nic, more)
		}
	}
	for range d.IntN(6) {
		destination := d.one("default", fmt.Sprintf("2001:db8:%x::/48", d.IntN(9)), fmt.Sprintf("2001:db8::%x", d.IntN(256)), "fd00:20::/64")
		more := strings.Join([]string{d.perhaps("table 100", "table 1000"), d.perhaps("proto static", "proto bird", "proto ra"),
			d.perhaps("metric 5", "metric 77", "metric 4000"), d.perhaps("mtu 1280", "advmss 1000", "hoplimit 7"), d.perhaps("expires 50000"), d.perhaps("pref high", "pref low")}, " ")
		switch d.IntN(5) {
		case 0:
			d.add("-6 route add %s via fd00:20::%x dev %s %s %s", destination, 1+d.IntN(3), d.nic, more, d.perhaps("src fd00:20::7", "src fd00:21::7"))
		case 1:
			d.add("-6 route add %s via fe80::1 dev %s %s %s", destination, d.nic, d.perhaps("onlink"), more)
		case 2:
			d.add("-6 route add %s %s dev %s %s", destination, d.perhaps("from fd00:20::/64", "from fd00:20::7", "from 2001:db8:eeee::/48"), d.nic, more)
		case 3:
			d.add("-6 route add %s %s %s", d.one("blackhole", "unreachable", "prohibit", "throw"), destination, more)
		case 4:
			d.add("-6 route add %s %s nexthop via fe80::1 dev %s weight 2 nexthop via %s", destination, more, d.nic, d.one("fe80::2 dev "+d.nic, "fd00:30::1 dev other0"))
		}
	}
	if d.IntN(4) == 0 {
		d.add("-6 route add local 2001:db8:aaaa::/64 dev %s %s", d.nic, d.perhaps("table 100"))
	}
}

func (d *dice) rules() {
	for range d.IntN(4) {
		d.add("%s rule add %s pref %d", d.perhaps("-6"), d.one("from all lookup 1000", "to 172.16.0.0/14 lookup 100", "tos 0x10 lookup 100", "iif "+d.nic+" lookup 100", "oif "+d.nic+" lookup 100",
			"fwmark 0x10/0xff lookup 1000", "from all lookup main suppress_prefixlength 0", "from all blackhole", "uidrange 1-5 lookup 100"), 40000+d.IntN(1000))
	}
}

func (d *dice) sysctls() []string {
	var lines []string
	nic := strings.ReplaceAll(d.nic, ".", "/")
	for _, choice := range [][]string{
		{"net.ipv4.ip_forward=1", ""}, {"net.ipv6.conf.all.forwarding=1", ""}, {"net.ipv6.conf.default.disable_ipv6=1", "", ""},
		{"net.ipv4.conf." + nic + ".rp_filter=2", "net.ipv4.conf." + nic + ".rp_filter=1", ""}, {"net.ipv4.conf." + nic + ".arp_ignore=1", ""},
		{"net.ipv4.conf." + nic + ".forwarding=1", "net.ipv4.conf." + nic + ".forwarding=0", ""}, {"net.ipv4.conf." + nic + ".route_localnet=1", ""},
		{"net.ipv4.conf." + nic + ".proxy_arp=1", ""},
	} {
		if line := d.one(choice...); line != "" {
			lines = append(lines, line)
		}
	}
	if ra := d.one("", "0", "2"); ra != "" && d.mtu != "1000" {
		lines = append(lines, "net.ipv6.conf."+nic+".accept_ra="+ra)
	}
	return lines
}
