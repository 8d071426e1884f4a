package phase1_test

import (
	"cmp"
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
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

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
	refusePlans(t, c)
	if err := c.Teardown(t.Context()); err != nil {
		t.Error(err)
	}
}

// refusePlans gives the NIC's journal a Spec of which no planner makes a plan. Teardown must not notice. It reports
// whether there is a journal.
func refusePlans(t *testing.T, c wired.NIC) bool {
	t.Helper()
	if c.NetNS == nil {
		return false
	}
	path := filepath.Join(cmp.Or(c.Dir, phase1.DefaultDir), nameOf(t, c.NetNS), c.Name+".journal")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	var journal, spec map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(text, &journal)
	}
	if err == nil {
		err = json.Unmarshal(journal["spec"], &spec)
	}
	if err != nil {
		t.Fatal(err)
	}
	spec["mtu"] = json.RawMessage("1") // less than any guest's
	if journal["spec"], err = json.Marshal(spec); err == nil {
		text, err = json.Marshal(journal)
	}
	if err = errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	return true
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
	return nameOf(t, n.Pod.File)
}

func nameOf(t *testing.T, ns *os.File) string {
	t.Helper()
	identity, err := netns.Identify(ns)
	if err == nil {
		err = netns.Do(ns, identity.AddCookie)
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

func sorted(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}
