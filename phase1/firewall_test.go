package phase1_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// everyOption is a masquerade with all that it has.
var everyOption = infra.Masquerade{
	Ports:          []infra.Ports{{First: 80}, {Protocol: "udp", First: 5000, Last: 5100}, {First: 8080, Last: 8081, Guest: 9090}, {Protocol: "sctp", First: 7}},
	Excluded:       []infra.Ports{{First: 15000, Last: 15100}},
	Loopback:       true,
	MaxConnections: 100,
}

// everyLimit has limits of all kinds, some of them at the ends of the accepted range.
var everyLimit = cache.Limits{
	FromGuest: cache.Limit{BitsPerSecond: 100_000_000_000, PacketsPerSecond: 10_000_000, BurstBytes: 1<<32 - 1, BurstPackets: 1<<32 - 1},
	ToGuest:   cache.Shape{BitsPerSecond: 8000},
}

// TestFirewallText: what nft makes of the text in the plan is what Setup puts into the kernel.
func TestFirewallText(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	loose := infra.Guard{
		MACs:     []cache.MAC{{2, 0, 0, 0, 0, 9}},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/20"), netip.MustParsePrefix("fe80::/64")},
	}
	opened := loose
	opened.Open = []infra.Ports{{First: 53, Protocol: "udp"}}
	wire := infra.Guard{EtherTypes: []infra.EtherType{0x8863, 0x8864}, VLANs: []uint16{0, 4, 5, 100}}
	for name, c := range map[string]struct {
		binding infra.Binding
		guard   infra.Guard
		found   []string // what is changed before
		options cache.Options
		mtu     int
		limits  cache.Limits
		kernel  bool // each match and statement is in one of these rows
	}{
		"bridge":                 {binding: infra.Bridge{}},
		"bridge, loosened":       {binding: infra.Bridge{}, guard: loose, kernel: true},
		"bridge, off":            {binding: infra.Bridge{}, guard: infra.Guard{Off: true}},
		"bridge, not served":     {binding: infra.Bridge{}, options: cache.Options{NoResponder: true}, kernel: true},
		"redirect":               {binding: infra.Redirect{}},
		"redirect, leased":       {binding: infra.Redirect{}, found: []string{"addr add fd00:244:1::77/128 dev eth0 valid_lft 9000 preferred_lft 9000"}, kernel: true},
		"redirect, off":          {binding: infra.Redirect{}, guard: infra.Guard{Off: true}},
		"redirect, not served":   {binding: infra.Redirect{}, options: cache.Options{NoResponder: true}},
		"a wire":                 {binding: infra.Bridge{}, found: []string{"addr flush dev eth0", "-6 route flush dev eth0"}},
		"bridge, other frames":   {binding: infra.Bridge{}, guard: wire},
		"redirect, other frames": {binding: infra.Redirect{}, guard: wire},
		"a wire of other frames": {binding: infra.Redirect{}, guard: wire, found: []string{"addr flush dev eth0", "-6 route flush dev eth0"}, kernel: true},
		"masquerade":             {binding: infra.Masquerade{}},
		"masquerade, everything": {binding: everyOption, guard: opened, kernel: true},
		"masquerade, sidecar": {binding: infra.Masquerade{Sidecar: &infra.Sidecar{
			Sources: []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}}}, kernel: true},
		"bridge, limits":                     {binding: infra.Bridge{}, limits: everyLimit, kernel: true},
		"bridge, limits, off":                {binding: infra.Bridge{}, limits: everyLimit, guard: infra.Guard{Off: true}},
		"redirect, limits, MTU":              {binding: infra.Redirect{}, limits: everyLimit, mtu: lowered, kernel: true},
		"masquerade, limits":                 {binding: infra.Masquerade{}, limits: everyLimit},
		"masquerade, limits by iptables-nft": {binding: infra.Masquerade{Firewall: cache.FirewallIPTablesNFT}, limits: everyLimit, kernel: true},
		"bridge, MTU":                        {binding: infra.Bridge{}, mtu: lowered},
		"redirect, MTU, off":                 {binding: infra.Redirect{}, mtu: lowered, guard: infra.Guard{Off: true}},
		"masquerade, MTU":                    {binding: infra.Masquerade{}, mtu: lowered},
		"masquerade, off":                    {binding: infra.Masquerade{Ports: []infra.Ports{}}, guard: infra.Guard{Off: true}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.kernel {
				nstest.KernelDecides(t, "rules as that kernel has them")
			}
			n := nstest.NewNetwork(t)
			for _, change := range c.found {
				n.Pod.IP(change)
			}
			config := config(n, c.binding)
			config.Guard, config.Options, config.MTU, config.Limits = c.guard, c.options, c.mtu, c.limits
			preview, err := config.Plan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			setup(t, config)

			other := byText(t)
			for _, table := range loadTexts(t, other, preview.Steps) {
				words := strings.Fields(table) // table FAMILY NAME {
				list := []string{"nft", "-s", "-t", "list", "table", words[1], words[2]}
				if err := difference(nstest.SetTypes(other.Exec(list...)), n.Pod.Exec(list...)); err != nil {
					t.Errorf("%s: %v", words[1], err)
				}
			}
			check(t, config)
		})
	}
}

// byText is a namespace whose tables come from texts.
func byText(t *testing.T) *nstest.Namespace {
	t.Helper()
	other := nstest.New(t, "text")
	other.IP("tuntap add eth0-tap mode tap")
	other.IP("tuntap add eth0-dhcp mode tap")
	other.IP("link add eth0 type bridge")     // whatever it is
	other.IP("link add eth0-nic type bridge") // before Linux 6.16 a chain needs its link
	return other
}

// loadTexts loads the texts of steps for nft, and returns them, by family.
func loadTexts(t *testing.T, ns *nstest.Namespace, steps []infra.Step) (texts []string) {
	t.Helper()
	for _, step := range steps {
		if text, is := strings.CutPrefix(step.Command, "nft -f - <<'EOF'\n"); is {
			texts = append(texts, strings.TrimSuffix(text, "EOF"))
		}
	}
	slices.Sort(texts)
	for _, text := range texts {
		path := filepath.Join(t.TempDir(), "table")
		writeFile(t, path, text)
		ns.Exec("nft", "-f", path)
	}
	return texts
}

// TestChanges: what differs in a later Setup changes in place. nft makes the same of the text in the plan, and after
// Teardown a first Setup makes the same. A chain that does not differ keeps its rules, with what they have counted.
func TestChanges(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	list := []string{"nft", "-s", "list", "ruleset"}
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		if b.Kind() == cache.BindingBridge || b.Kind() == cache.BindingMasquerade {
			nstest.KernelDecides(t, "changes of that kernel's tables: of the families bridge, netdev and inet")
		}
		n := nstest.NewNetwork(t)
		c := config(n, b)
		other := byText(t)
		var changes []func()
		change := func(f func()) { changes = append(changes, f) }
		change(func() {
			c.Limits = cache.Limits{FromGuest: cache.Limit{PacketsPerSecond: 1000}, ToGuest: cache.Shape{BitsPerSecond: 8_000_000}}
		})
		change(func() { c.Limits.FromGuest = cache.Limit{PacketsPerSecond: 2000, BitsPerSecond: 80_000_000} })
		change(func() { c.Guard.MACs = []cache.MAC{{2, 0, 0, 0, 0, 9}} })
		change(func() {
			c.Guard.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/28"), netip.MustParsePrefix("fd00:9::/64")}
		})
		change(func() { c.Limits, c.Guard = cache.Limits{}, infra.Guard{} })
		change(func() { c.MTU = lowered })
		if m, is := b.(infra.Masquerade); is {
			for _, ports := range [][]infra.Ports{
				{}, {{First: 80}}, {{First: 80}, {First: 81, Guest: 8081}}, {{First: 90, Last: 92, Guest: 8090}, {Protocol: "udp", First: 53, Guest: 5353}}, nil,
			} {
				change(func() { m.Ports = ports; c.Binding = m })
			}
		}
		preview, err := c.Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		setup(t, c)
		loadTexts(t, other, preview.Steps)
		for i, change := range changes {
			change()
			if preview, err = c.Plan(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, step := range preview.Steps {
				if strings.HasPrefix(step.Kind, "table-") != (step.Kind == "table-change") {
					t.Errorf("change %d: %s", i+1, step)
				}
			}
			kept := func() string { return n.Pod.Exec("nft", "-a", "list", "chain", "netdev", "guestwire-eth0", "listener") }
			before := kept()
			setup(t, c)
			if after := kept(); after != before { // also the number of each rule
				t.Errorf("change %d: a chain was\n%s\nand is\n%s", i+1, before, after)
			}
			check(t, c)
			loadTexts(t, other, preview.Steps)
			have := sortedBlocks(n.Pod.Exec(list...))
			if err := difference(sortedBlocks(other.Exec(list...)), have); err != nil {
				t.Errorf("change %d, by its text: %v", i+1, err)
			}
			unwire(t, c)
			setup(t, c)
			if err := difference(sortedBlocks(n.Pod.Exec(list...)), have); err != nil {
				t.Errorf("change %d, by a first Setup: %v", i+1, err)
			}
		}
	})
}

// sortedBlocks are the sets, maps and chains of nft's list, with the names of their tables, in alphabetical order, and
// without the addresses that packets have put into sets.
func sortedBlocks(ruleset string) string {
	var blocks []string
	for table := range strings.SplitSeq(learned.ReplaceAllString(nstest.SetTypes(ruleset), ""), "\n}\n") {
		name, _, _ := strings.Cut(table, "\n")
		for _, block := range aBlock.FindAllString(table, -1) {
			blocks = append(blocks, name+"\n"+block)
		}
	}
	slices.Sort(blocks)
	return strings.Join(blocks, "\n")
}

var (
	aBlock  = regexp.MustCompile(`(?ms)^\t\w+ \S+ \{$.*?^\t\}$`)
	learned = regexp.MustCompile(`\t+elements = \{ fe80::.*\n`)
)

// TestBaseChains: docs/how-to/own-firewall-rules.md has the base chains that nft lists.
func TestBaseChains(t *testing.T) {
	t.Parallel()
	const page = "../docs/how-to/own-firewall-rules.md"
	text := string(readFile(t, page))
	base := regexp.MustCompile(`type \w+ hook (\w+)(?: device "(\S+)")? priority (-?\d+);`)
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			setup(t, config(n, b))
			family, chains := "", map[string][]string{}
			for line := range strings.Lines(n.Pod.Exec("nft", "-y", "list", "chains")) {
				if words := strings.Fields(line); words[0] == "table" {
					family = words[1]
				}
				if m := base.FindStringSubmatch(line); m != nil {
					chain := m[1] + " " + m[3]
					if m[2] != "" {
						chain = m[1] + " of " + m[2] + " " + m[3]
					}
					chains[family] = append(chains[family], chain)
				}
			}
			var cells []string
			for _, family := range slices.Sorted(maps.Keys(chains)) {
				slices.Sort(chains[family])
				cells = append(cells, family+": "+strings.Join(slices.Compact(chains[family]), ", "))
			}
			if row := fmt.Sprintf("| %s | %s |", b.Kind(), strings.Join(cells, "; ")); !strings.Contains(text, "\n"+row+"\n") {
				t.Errorf("%s lacks the row\n%s", page, row)
			}
		})
	}
}

// TestForwardOtherPorts: a second Setup changes what is forwarded, and not who the guest is.
func TestForwardOtherPorts(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Masquerade{Ports: []infra.Ports{{First: 80}}})
	setup(t, c)
	c.Binding = infra.Masquerade{Ports: []infra.Ports{{First: 81}}, Loopback: true}
	c.Guard.Open = []infra.Ports{{First: 53}}
	setup(t, c)
	check(t, c)
	rules := n.Pod.Exec("nft", "list", "ruleset")
	if strings.Contains(rules, "dport 80 ") || !strings.Contains(rules, "tcp dport 81 dnat") || !strings.Contains(rules, "dport 53 goto accepted") {
		t.Errorf("rules:\n%s", rules)
	}
	if out := n.Pod.Exec("sysctl", "-n", "net.ipv4.conf.eth0-tap.route_localnet"); strings.TrimSpace(out) != "1" {
		t.Errorf("route_localnet is %s", out)
	}
	c.Binding = infra.Masquerade{}
	setup(t, c)
	check(t, c)
	c.Binding = infra.Masquerade{IPv4: netip.MustParsePrefix("10.7.0.0/24")}
	if _, err := c.Setup(t.Context()); !errors.Is(err, infra.ErrWired) {
		t.Errorf("another network: %v, want ErrWired", err)
	}
	teardown(t, n, c, before)
}

// mapped listens as programs do that know IPv6 sockets only, Java's among them: at ::ffff:10.244.1.7.
func mapped(t *testing.T, n nstest.Network, port int) {
	t.Helper()
	var fd int
	err := netns.Do(n.Pod.File, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.Bind(fd, &unix.SockaddrInet6{Port: port, Addr: nstest.Pod4.As16()}), unix.Listen(fd, 1))
	})
	t.Cleanup(func() { unix.Close(fd) })
	if err != nil {
		t.Fatal(err)
	}
}

// TestServedPorts warns of services that the guest takes the connections of.
func TestServedPorts(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	n.Pod.Listen("namespace", "0.0.0.0:10250")
	n.Pod.Listen("namespace", "127.0.0.1:10251")
	n.Pod.Listen("namespace", "[::]:15001")
	mapped(t, n, 15002)
	warnings := func(b infra.Masquerade) string {
		t.Helper()
		preview, err := config(n, b).Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(preview.Record.Warnings, "\n")
	}
	if w := warnings(infra.Masquerade{}); !strings.Contains(w, "tcp port 10250") || strings.Contains(w, "10251") || !strings.Contains(w, "15001") || !strings.Contains(w, "15002 at 10.244.1.7") {
		t.Errorf("warnings %q", w)
	}
	if w := warnings(infra.Masquerade{Loopback: true, Excluded: []infra.Ports{{First: 10250}}}); strings.Contains(w, "10250") || !strings.Contains(w, "10251") {
		t.Errorf("warnings %q", w)
	}
	if w := warnings(infra.Masquerade{Ports: []infra.Ports{{First: 80}}}); w != "" {
		t.Errorf("warnings %q", w)
	}
}
