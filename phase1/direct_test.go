package phase1_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// direct is config without what these bindings cannot have.
func direct(n nstest.Network, b infra.Binding) wired.NIC {
	c := config(n, b)
	c.DNS = nil
	return c
}

func sysctl(n nstest.Network, name string) string {
	return strings.Join(strings.Fields(n.Pod.Exec("sysctl", "-n", name)), " ")
}

// drifted wants Check to say the words, and Setup to repair it.
func drifted(t *testing.T, c wired.NIC, words string) {
	t.Helper()
	var drift *phase1.DriftError
	if err := c.Check(t.Context()); !errors.As(err, &drift) || !strings.Contains(err.Error(), words) {
		t.Errorf("%v, want a DriftError with %q", err, words)
	}
	setup(t, c)
	check(t, c)
}

// TestMacvtap brings a macvtap up, with ears for all groups, and takes it down again.
func TestMacvtap(t *testing.T) {
	t.Parallel()
	n := nstest.NewMacvtap(t)
	n.Pod.IP("link set eth0 up") // a link that has been up once keeps its queueing discipline
	n.Pod.IP("link set eth0 down")
	n.Pod.IP("addr add fd68::17/64 dev eth0 nodad")
	n.Pod.IP("addr add 10.68.0.17/24 dev eth0")
	before := settled(t, n)
	c := direct(n, infra.Macvtap{})
	c.Queues = 2
	setup(t, c)
	if link := n.Pod.IP("link show dev eth0"); !strings.Contains(link, "ALLMULTI") || !strings.Contains(link, ",UP") {
		t.Errorf("eth0 is not up and does not receive all groups: %s", link)
	}
	r := record(t, n)
	if r.Tap != "eth0" || r.MAC.String() != linkField(t, n, "eth0", "address") || r.MTU != 1450 || r.Queues != 2 || len(r.Warnings) != 2 {
		t.Errorf("record %+v", r)
	}
	check(t, c)
	n.Pod.IP("link set eth0 down")
	drifted(t, c, "eth0 is down")
	other := c
	other.Binding = infra.Masquerade{}
	if _, err := other.Setup(t.Context()); !errors.Is(err, infra.ErrWired) {
		t.Errorf("another binding: %v, want ErrWired", err)
	}
	teardown(t, n, c, before)
}

// TestPasst opens what passt needs, for two NICs, and closes it with the last one.
func TestPasst(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	nstest.NeedRoot(t, "ping_group_range takes only groups of the user namespace")
	n := nstest.NewVeth(t)
	n.Pod.IP("link add net1 type veth peer name away")
	n.Pod.IP("addr add 192.0.2.7/24 dev net1")
	n.Pod.IP("link set net1 up")
	n.Pod.IP("link set away up")
	refused := direct(n, infra.Passt{})
	refused.Name = "net1"
	var r *infra.RefusedError
	if _, err := refused.Setup(t.Context()); !errors.As(err, &r) || !strings.Contains(err.Error(), "a default route by net1") {
		t.Errorf("without a default route: %v, want *infra.RefusedError", err)
	}
	n.Pod.IP("route add default via 192.0.2.1 dev net1 metric 9") // the way out
	before := settled(t, n)
	const portStart, pingGroups = "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"
	first := direct(n, infra.Passt{Ports: []infra.Ports{{First: 80, Guest: 8000}, {Protocol: "udp", First: 5000, Last: 5010}}})
	second := direct(n, infra.Passt{Ports: []infra.Ports{{First: 443}}})
	second.Name = "net1"
	first.Owner, second.Owner = infra.Owner{Root: true}, infra.Owner{Root: true}
	setup(t, first)
	setup(t, second)
	if start, groups := sysctl(n, portStart), sysctl(n, pingGroups); start != "0" || groups != "0 2147483647" {
		t.Errorf("%s is %s, %s is %s", portStart, start, pingGroups, groups)
	}
	want := []cache.Forward{{Protocol: "tcp", First: 80, Last: 80, Guest: 8000}, {Protocol: "udp", First: 5000, Last: 5010, Guest: 5000}}
	if r := record(t, n); r.Passt == nil || !reflect.DeepEqual(r.Passt.Forwards, want) || r.Tap != "" || r.MTU != 1450 {
		t.Errorf("record %+v, want the forwards %+v", r, want)
	}
	check(t, first)
	check(t, second)
	n.Pod.Exec("sysctl", "-qw", portStart+"=1000", pingGroups+"=5 6")
	drifted(t, first, "sysctl net/ipv4/ip_unprivileged_port_start is 1000, not 0")
	check(t, second)
	other := first
	other.Binding = infra.Passt{}
	if _, err := other.Setup(t.Context()); !errors.Is(err, infra.ErrWired) || !strings.Contains(err.Error(), "80:8000/tcp") {
		t.Errorf("other ports: %v, want ErrWired and those that there are", err)
	}
	unwire(t, first)
	check(t, second)
	teardown(t, n, second, before)
}

// TestSlirp: nothing is wired but the sysctls of passt, and yet all verbs know the NIC.
func TestSlirp(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	nstest.NeedRoot(t, "ping_group_range takes only groups of the user namespace")
	n := nstest.NewVeth(t)
	before := settled(t, n)
	c := direct(n, infra.Slirp{Ports: []infra.Ports{{First: 80, Guest: 8000}}})
	c.DNS, c.Owner = &cache.DNS{Search: []string{"pod.example"}}, infra.Owner{Root: true}
	preview, err := c.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	setup(t, c)
	r := record(t, n)
	want := cache.Slirp{
		IPv4: netip.MustParsePrefix("10.0.2.0/24"), IPv6: netip.MustParsePrefix("fd10:0:2::/64"),
		Forwards: []cache.Forward{{Protocol: "tcp", First: 80, Last: 80, Guest: 8000}},
	}
	if r.Slirp == nil || !reflect.DeepEqual(*r.Slirp, want) || r.Tap != "" || r.MTU != 1500 || len(r.DNS.Search) != 1 || !slices.Equal(r.Warnings, preview.Record.Warnings) {
		t.Errorf("record %+v, want %+v", r, want)
	}
	report, err := c.Status(t.Context())
	if err != nil || report.Binding != cache.BindingSlirp || report.Drift != nil || !reflect.DeepEqual(report.Record, r) {
		t.Errorf("status %+v, %v", report, err)
	}
	wirings, err := phase1.List(t.Context(), c.Dir)
	isThis := func(w phase1.Wiring) bool {
		return w.Namespace == r.Namespace && w.NIC == "eth0" && w.Binding == cache.BindingSlirp
	}
	if err != nil || !slices.ContainsFunc(wirings, isThis) {
		t.Errorf("list %+v, %v", wirings, err)
	}
	check(t, c)
	n.Pod.Exec("sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=1000")
	drifted(t, c, "sysctl net/ipv4/ip_unprivileged_port_start is 1000, not 0")
	other := c
	other.Binding = infra.Slirp{IPv4: netip.MustParsePrefix("10.0.3.0/24")}
	if _, err := other.Setup(t.Context()); !errors.Is(err, infra.ErrWired) {
		t.Errorf("another network: %v, want ErrWired", err)
	}
	teardown(t, n, c, before)
}

// TestFunction leaves a record for libvirt and changes nothing. The NIC goes when the guest gets its
// function. The address comes from the configuration: a veth is no PCI device.
func TestFunction(t *testing.T) {
	t.Parallel()
	n := nstest.NewVeth(t)
	before := settled(t, n)
	var refused *infra.RefusedError
	if _, err := direct(n, infra.SRIOV{}).Setup(t.Context()); !errors.As(err, &refused) || !strings.Contains(err.Error(), "no PCI device") {
		t.Errorf("%v, want that eth0 is no PCI device", err)
	}
	c := direct(n, infra.SRIOV{PCI: "0000:03:10.1", VLAN: 42})
	setup(t, c)
	asFound(t, n, before)
	r := record(t, n)
	if want := (cache.SRIOV{PCIAddress: "0000:03:10.1", VLAN: 42}); r.SRIOV == nil || *r.SRIOV != want || r.MAC.String() != linkField(t, n, "eth0", "address") || r.Tap != "" {
		t.Errorf("record %+v", r)
	}
	check(t, c)
	n.Pod.IP("link del eth0")
	gone := settled(t, n)
	check(t, c)
	setup(t, c)
	teardown(t, n, c, gone)

	bound := c
	bound.Binding = infra.SRIOV{PCI: "0000:03:10.1", MAC: r.MAC, Managed: true}
	setup(t, bound)
	check(t, bound)
	teardown(t, n, bound, gone)
}

// TestCard reads the address of a real PCI device, a card of the emulated machine.
func TestCard(t *testing.T) {
	nstest.KernelDecides(t, "the machine has a card to give away")
	mac := os.Getenv("GUESTWIRE_CARD")
	if mac == "" {
		nstest.LeaveOut(t, "there is no network card to give away: the stock kernel's machine has one")
	}
	n := nstest.NewVeth(t)
	var links []struct{ IfName, Address string }
	if err := json.Unmarshal([]byte(nstest.Run(t, "ip", "-j", "link")), &links); err != nil {
		t.Fatal(err)
	}
	name := ""
	for _, l := range links {
		if l.Address == mac {
			name = l.IfName
		}
	}
	device, err := os.Readlink("/sys/class/net/" + name + "/device")
	if err != nil {
		t.Fatalf("the card %s among %v: %v", mac, links, err)
	}
	nstest.Run(t, "ip", "link", "set", name, "name", "net1", "netns", n.Pod.Name)
	t.Cleanup(func() { n.Pod.IP("link set net1 name " + name + " netns 1") })
	before := settled(t, n)
	c := direct(n, infra.SRIOV{})
	c.Name = "net1"
	setup(t, c)
	r := nstest.Record(t, n.State, "net1")
	if r.SRIOV == nil || r.SRIOV.PCIAddress != filepath.Base(device) || r.MAC.String() != mac {
		t.Errorf("record %+v, want %s", r, filepath.Base(device))
	}
	if len(r.Warnings) != 2 || !strings.Contains(r.Warnings[1], "vfio-pci") {
		t.Errorf("warnings %q, want one of the driver", r.Warnings)
	}
	check(t, c)
	teardown(t, n, c, before)
}
