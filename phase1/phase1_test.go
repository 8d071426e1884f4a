package phase1_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func config(n nstest.Network, b infra.Binding) wired.NIC {
	return wired.NIC{NIC: phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}, Spec: infra.Spec{
		Binding: b, State: n.State,
		Owner: nstest.Owner(),
		DNS:   &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")}, Search: []string{"pod.example"}},
	}}
}

// check wants Check to find no difference.
func check(t *testing.T, c wired.NIC) {
	t.Helper()
	if err := c.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// unwire wants Teardown to succeed; teardown looks at what is left, too.
func unwire(t *testing.T, c wired.NIC) {
	t.Helper()
	if err := c.Teardown(t.Context()); err != nil {
		t.Error(err)
	}
}

// secondNIC gives the pod a NIC net1 with these addresses. The network's end is called pod2.
func secondNIC(n nstest.Network, addresses ...string) {
	n.World.IP("link add pod2 type veth peer name net1 netns " + n.Pod.Name)
	n.World.IP("link set pod2 up")
	for _, a := range addresses {
		n.Pod.IP("addr add " + a + " dev net1")
	}
	n.Pod.IP("link set net1 up")
}

// configOfSecondNIC is config for that NIC.
func configOfSecondNIC(n nstest.Network, b infra.Binding) wired.NIC {
	c := config(n, b)
	c.Name = "net1"
	return c
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// sameFile wants the file to have the text.
func sameFile(t *testing.T, path, want string) {
	t.Helper()
	if have, err := os.ReadFile(path); err != nil || string(have) != want {
		t.Errorf("%s became %q, %v; want %q", path, have, err, want)
	}
}

// empty wants nothing in the directory.
func empty(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%s has %v, %v; want nothing", dir, left, err)
	}
}

// filesAreGone wants no file of the namespace in the state directory and in the node's.
func filesAreGone(t *testing.T, n nstest.Network) {
	t.Helper()
	empty(t, n.State)
	if left := journals(t, n); len(left) > 0 {
		t.Errorf("the journal directory has %v; want nothing of this namespace", left)
	}
}

// openPort opens a tap of the pod, until the test ends.
func openPort(t *testing.T, n nstest.Network, name string) (port *os.File) {
	t.Helper()
	port = nstest.OpenTap(t, n.Pod.File, name)
	t.Cleanup(func() { port.Close() })
	return port
}

// linkIndex is the index of a link in the namespace.
func linkIndex(t *testing.T, ns *nstest.Namespace, name string) (index int) {
	t.Helper()
	in(t, ns, func() error {
		link, err := net.InterfaceByName(name)
		if err == nil {
			index = link.Index
		}
		return err
	})
	return index
}

// listen accepts TCP in the namespace, until the test ends.
func listen(t *testing.T, ns *nstest.Namespace, at netip.AddrPort) (l net.Listener) {
	t.Helper()
	in(t, ns, func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	t.Cleanup(func() { l.Close() })
	return l
}

// dial connects from the namespace, until the test ends.
func dial(t *testing.T, ns *nstest.Namespace, network string, to netip.AddrPort) (c net.Conn) {
	t.Helper()
	in(t, ns, func() (err error) {
		c, err = net.DialTimeout(network, to.String(), patience)
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// setupAlone is phase1.Setup without the record.
func setupAlone(ctx context.Context, c wired.NIC) error {
	_, err := c.Setup(ctx)
	return err
}

func setup(t *testing.T, c wired.NIC) {
	t.Helper()
	if _, err := c.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// teardown takes the wiring down, and compares with what there was before it.
func teardown(t *testing.T, n nstest.Network, c wired.NIC, before string) {
	t.Helper()
	unwire(t, c)
	asFound(t, n, before)
	filesAreGone(t, n)
}

// journals are the namespace's journals, and what else is in their directory.
func journals(t *testing.T, n nstest.Network) []string {
	t.Helper()
	return journalsIn(t, phase1.DefaultDir, n)
}

// journalsIn is journals for another directory of the node.
func journalsIn(t *testing.T, dir string, n nstest.Network) []string {
	t.Helper()
	dir = filepath.Join(dir, namespaceName(t, n))
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	left := []string{}
	for _, e := range entries {
		left = append(left, filepath.Join(dir, e.Name()))
	}
	if len(left) == 0 {
		left = append(left, dir)
	}
	return left
}

// namespaceName is the name that List and the record have for the pod's namespace.
func namespaceName(t *testing.T, n nstest.Network) string {
	t.Helper()
	identity, err := netns.Identify(n.Pod.File)
	if err == nil {
		err = netns.Do(n.Pod.File, identity.AddCookie)
	}
	if err != nil {
		t.Fatal(err)
	}
	return identity.Name()
}

// asFound waits for the namespace to look as before: carrier and link-local addresses settle late.
func asFound(t *testing.T, n nstest.Network, before string) {
	t.Helper()
	nstest.Eventually(t, func() error { return difference(before, n.Pod.Dump()) })
}

// settled is the dump once it does not change by itself any more.
func settled(t *testing.T, n nstest.Network) string {
	t.Helper()
	return n.Pod.Settled()
}

var difference, stable = nstest.Difference, nstest.Stable

// boot attaches the embedded guest to the tap. A test that takes the wiring down closes the guest first.
func boot(t *testing.T, n nstest.Network, r cache.Record) *guest.Guest {
	t.Helper()
	g := plugIn(t, n, r)
	t.Cleanup(func() {
		if err := g.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return g
}

// plugIn is boot of a guest that the caller closes.
func plugIn(t *testing.T, n nstest.Network, r cache.Record) *guest.Guest {
	t.Helper()
	g, err := guest.Start(guest.Config{Port: openPort(t, n, r.Tap), MAC: r.MAC, Name: "guest"})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// end closes the guest, and so its tap.
func end(t *testing.T, g *guest.Guest) {
	t.Helper()
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

func record(t *testing.T, n nstest.Network) cache.Record {
	t.Helper()
	return nstest.Record(t, n.State, "eth0")
}

// online boots a guest beside a launcher, and wants it to reach the addresses.
func online(t *testing.T, n nstest.Network, addresses ...netip.Addr) (*guest.Guest, *nstest.Process) {
	t.Helper()
	launcher := n.Serve(t, nstest.LauncherUID)
	g := boot(t, n, record(t, n))
	reaches(t, g, launcher, addresses...)
	return g, launcher
}

// reaches wants the guest to get addresses of the families, and to reach the addresses.
func reaches(t *testing.T, g *guest.Guest, launcher *nstest.Process, addresses ...netip.Addr) {
	t.Helper()
	var f guest.Families
	for _, a := range addresses {
		f.IPv4, f.IPv6 = f.IPv4 || a.Is4(), f.IPv6 || a.Is6()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := g.Configure(ctx, f); err != nil {
		t.Fatalf("%v\n%s", err, launcher.Output.String())
	}
	for _, a := range addresses {
		if _, err := g.Ping(ctx, a); err != nil {
			t.Errorf("guest to %v: %v", a, err)
		}
	}
}

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

// filters counts what leads to the responder, and what leads back.
func filters(t *testing.T, n nstest.Network, want int) {
	t.Helper()
	toPort := n.Pod.Exec("tc", "filter", "show", "dev", "eth0-tap", "ingress")
	if got := strings.Count(toPort, "Egress Redirect to device eth0-dhcp"); got != want {
		t.Errorf("%d filters lead to the responder, want %d:\n%s", got, want, toPort)
	}
	toGuest := n.Pod.Exec("tc", "filter", "show", "dev", "eth0-dhcp", "ingress")
	if got := strings.Count(toGuest, "Egress Redirect to device eth0-tap"); got != 1 {
		t.Errorf("%d filters lead to the guest, want 1:\n%s", got, toGuest)
	}
}

func owner(t *testing.T, n nstest.Network) {
	t.Helper()
	out := n.Pod.ExecWithSys("ip", "tuntap", "list")
	group := fmt.Sprintf(" group %d", nstest.LauncherUID)
	if nstest.LauncherUID == 0 { // which ip(8) does not print
		group = ""
	}
	if !strings.Contains(out, fmt.Sprintf("eth0-tap: tap vnet_hdr persist user %d%s", nstest.LauncherUID, group)) ||
		!strings.Contains(out, fmt.Sprintf("eth0-dhcp: tap persist user %d", nstest.LauncherUID)) {
		t.Errorf("taps:\n%s", out)
	}
}

// hasDummy asks ip(8).
func hasDummy(t *testing.T) bool {
	t.Helper()
	ns := nstest.New(t, "dummy")
	return exec.Command("ip", "-n", ns.Name, "link", "add", "probe", "type", "dummy").Run() == nil
}

// linkField is a member of a link's object in ip -d -j, wherever it stands.
func linkField(t *testing.T, n nstest.Network, link, field string) string {
	t.Helper()
	var links []map[string]any
	if err := json.Unmarshal([]byte(n.Pod.IP("-d -j link show dev "+link)), &links); err != nil || len(links) != 1 {
		t.Fatalf("%s: %v", link, err)
	}
	value, ok := links[0][field]
	if info, isInfo := links[0]["linkinfo"].(map[string]any); !ok && isInfo {
		value = info["info_"+field]
	}
	return fmt.Sprint(value)
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

// forResponder are the frames of DHCP, router solicitations and advertisements that the world has received.
func forResponder(world *nstest.Sniffer) (list [][]byte) {
	for {
		seen, ok := world.Next()
		if !ok {
			return list
		}
		f := seen.Frame
		if seen.Outgoing || len(f) < 14+40+8 {
			continue
		}
		ipv4, ipv6 := f[12] == 8 && f[13] == 0, f[12] == 0x86 && f[13] == 0xdd
		dhcp := ipv4 && f[23] == unix.IPPROTO_UDP && (f[35] == 67 || f[35] == 68) && f[34] == 0
		dhcp6 := ipv6 && f[20] == unix.IPPROTO_UDP && f[54] == 546>>8 && (f[55] == 546&0xff || f[55] == 547&0xff)
		if router := ipv6 && f[20] == unix.IPPROTO_ICMPV6 && (f[54] == 133 || f[54] == 134); dhcp || dhcp6 || router {
			list = append(list, f)
		}
	}
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

func sorted(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}

// TestBadInput wants a clear error, and the namespace and the state directory as they were.
func TestBadInput(t *testing.T) {
	nstest.Need(t)
	nstest.NeedRoot(t, "the test needs two users")
	n := nstest.NewNetwork(t)
	n.Pod.IP("route add 10.0.2.0/25 via 10.244.1.1")
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	foreign := filepath.Join(t.TempDir(), "foreign")
	if err := errors.Join(os.Mkdir(foreign, 0o755), os.Chown(foreign, nstest.LauncherUID, 0)); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(t.TempDir(), "shared")
	if err := errors.Join(os.Mkdir(shared, 0o755), os.Chmod(shared, 0o777)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o666)); err != nil {
		t.Fatal(err)
	}
	before := settled(t, n)
	field := func(name string) func(error) bool {
		return func(err error) bool {
			var f *cache.FieldError
			return errors.As(err, &f) && f.Field == name
		}
	}
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	for _, test := range []struct {
		name   string
		change func(*wired.NIC)
		want   func(error) bool
		text   string // part of the error: what to do
	}{
		{"no such NIC", func(c *wired.NIC) { c.Name = "eth7" }, is(fs.ErrNotExist), "the namespace has lo, eth0"},
		{"no NIC", func(c *wired.NIC) { c.Name = "" }, field("nic"), "want 1 to 15"},
		{"dots as name", func(c *wired.NIC) { c.Name = ".." }, field("nic"), `".."`},
		{"long name", func(c *wired.NIC) { c.Name = "eth0123456789abc" }, field("nic"), "at most 15"},
		{"path as name", func(c *wired.NIC) { c.Name = "../x" }, field("nic"), "no network interface's name"},
		{"loopback", func(c *wired.NIC) { c.Name = "lo" }, field("nic"), "loopback"},
		{"a pointer", func(c *wired.NIC) { c.Binding = &infra.Bridge{} }, field("binding"), "by value"},
		{"no user", func(c *wired.NIC) { c.Owner.UID = 1<<32 - 1 }, field("owner"), "no user's"},
		{"no binding", func(c *wired.NIC) { c.Binding = nil }, field("binding"), "bridge"},
		{"no namespace", func(c *wired.NIC) { c.NetNS = nil }, field("netns"), "/run/netns"},
		{"own namespace", func(c *wired.NIC) { c.NetNS = own }, is(phase1.ErrOwnNamespace), "name the pod's"},
		{"state in nothing", func(c *wired.NIC) { c.State = "/nonexistent/a/b" }, is(fs.ErrNotExist), "mkdir -p /nonexistent/a"},
		{"state of another", func(c *wired.NIC) { c.State = foreign }, is(fs.ErrPermission), "serves nothing else, chown root " + foreign + ")"},
		{"state of all", func(c *wired.NIC) { c.State = shared }, is(fs.ErrPermission), "serves nothing else, chmod 0755 " + shared + ")"},
		{"state in a file's place", func(c *wired.NIC) { c.State = file }, is(unix.ENOTDIR), "state directory: " + file + ": not a directory: name another one"},
		{"journals in a file's place", func(c *wired.NIC) { c.Dir = file }, is(unix.ENOTDIR), "journal directory: " + file + ": not a directory: name another one"},
		{"journals in nothing", func(c *wired.NIC) { c.Dir = "/nonexistent/a/b" }, is(fs.ErrNotExist), "journal directory: /nonexistent/a is not there: make it first (mkdir -p /nonexistent/a)"},
		{"journals below a file", func(c *wired.NIC) { c.Dir = file + "/node" }, is(unix.ENOTDIR), file + ": not a directory: name another one"},
		{"too many queues", func(c *wired.NIC) { c.Queues = 257 }, field("queues"), "1 to 256"},
		{"collision", func(c *wired.NIC) { c.Binding = infra.Masquerade{} }, is(infra.ErrCollision), "choose another network"},
		{"small", func(c *wired.NIC) {
			c.Binding = infra.Masquerade{IPv4: netip.MustParsePrefix("10.1.0.0/31")}
		}, field("binding.masquerade.ipv4"), "at least a /30"},
		{"small IPv6", func(c *wired.NIC) {
			c.Binding = infra.Masquerade{IPv4: netip.MustParsePrefix("10.1.0.0/24"), IPv6: netip.MustParsePrefix("fd01::/127")}
		}, field("binding.masquerade.ipv6"), "at least a /126"},
		{"bad option", func(c *wired.NIC) { c.Options.Hostname = "a\nb" }, field("options.hostname"), "control"},
		{"bad device", func(c *wired.NIC) { c.Device.PCIAddress = "1:2" }, field("device.pciAddress"), "0000:03:10.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := config(n, infra.Bridge{})
			test.change(&c)
			_, err := c.Setup(t.Context())
			if err == nil || !test.want(err) {
				t.Fatalf("error %v is of another type", err)
			}
			if !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %q does not say %q", err, test.text)
			}
			if err := difference(before, n.Pod.Dump()); err != nil {
				t.Errorf("the namespace was changed: %v", err)
			}
			if left, _ := os.ReadDir(n.State); len(left) > 0 {
				t.Errorf("the state directory has %v", left)
			}
		})
	}

	t.Run("user without tun", func(t *testing.T) {
		if err := os.Chmod("/dev/net/tun", 0o600); err != nil { // the sandbox's
			t.Fatal(err)
		}
		defer os.Chmod("/dev/net/tun", 0o666)
		_, err := config(n, infra.Bridge{}).Setup(t.Context())
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "/dev/net/tun") {
			t.Errorf("error %v, want fs.ErrPermission for /dev/net/tun", err)
		}
	})
	t.Run("wired by another", func(t *testing.T) {
		setup(t, config(n, infra.Bridge{}))
		c := config(n, infra.Bridge{})
		c.State = t.TempDir()
		if _, err := c.Setup(t.Context()); !errors.Is(err, infra.ErrWired) || !errors.Is(err, fs.ErrExist) {
			t.Errorf("error %v, want ErrWired", err)
		}
		var bad *cache.FieldError
		if err := c.Teardown(t.Context()); !errors.As(err, &bad) || bad.Field != "state" || !strings.Contains(bad.Reason, n.State) {
			t.Errorf("teardown with another state directory: error %v, want a FieldError that names %s", err, n.State)
		}
		c = config(n, nil)
		if _, err := c.Setup(t.Context()); err == nil || !strings.Contains(err.Error(), "binding: missing") {
			t.Errorf("no binding: error %v", err)
		}
		c = config(n, infra.Masquerade{})
		if _, err := c.Setup(t.Context()); !errors.Is(err, infra.ErrWired) {
			t.Errorf("another binding: error %v, want ErrWired", err)
		}
		teardown(t, n, config(n, infra.Bridge{}), before)
	})
	t.Run("names in use", func(t *testing.T) {
		n.Pod.IP("link add eth0-tap type bridge")
		defer n.Pod.IP("link del eth0-tap")
		before := settled(t, n)
		if _, err := config(n, infra.Bridge{}).Setup(t.Context()); !errors.Is(err, infra.ErrWired) {
			t.Errorf("error %v, want ErrWired", err)
		}
		if err := difference(before, n.Pod.Dump()); err != nil {
			t.Errorf("the namespace was changed: %v", err)
		}
	})
	t.Run("waiting ends with the context", func(t *testing.T) {
		identity, err := netns.Identify(n.Pod.File)
		if err != nil {
			t.Fatal(err)
		}
		lock, err := os.Create(fmt.Sprintf("/run/guestwire.lock/%d", identity.Inode))
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		flock(t, lock)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		c := config(n, infra.Bridge{})
		for verb, call := range map[string]func(context.Context) error{"setup": func(ctx context.Context) error { return setupAlone(ctx, c) }, "check": c.Check, "teardown": c.Teardown,
			"hold": func(ctx context.Context) error { _, _, err := c.Hold(ctx); return err }} {
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: error %v, want the context's", verb, err)
			}
		}
	})
}
