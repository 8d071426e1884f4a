package podnet

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/routeget"
)

var (
	update   = flag.Bool("update", false, "print the rows of docs/results/networks.md instead of comparing with them")
	networks = flag.String("networks", "few", "create a few of the networks, or all")
)

// few are the networks that TestMatrix creates unless all are wanted: one of each kind of link, and of each way in
// which a pod has its routes, addresses, neighbours and ports. The third line needs Debian's kernel.
var few = []string{
	"bridge, ipMasq, hairpinMode", "bridge, IPv6 alone", "bridge, portmap", "bridge, portmap by nftables, current", "bridge, firewall", "bridge, dhcp",
	"ptp", "macvlan", "macvtap", "host-device", "tun",
	"ipvlan L2", "vlan", "WireGuard", "host-device, a network card", "bond",
	"Calico, VXLAN", "flannel, VXLAN", "AWS VPC CNI", "Terway exclusive ENI", "Azure", "Docker's bridge", "two NICs, the second with sbr",
	"OVN-Kubernetes", "OpenShift SDN",
}

// selected reports whether TestMatrix creates the network. Under Debian's kernel it creates what other kernels cannot.
func selected(n Network) bool {
	if *networks == "all" {
		return true
	}
	return (*update || slices.Contains(few, n.Name)) && (n.Kind != "" || !nstest.Emulated)
}

func TestMain(m *testing.M) { nstest.Main(m) }

var bindings = []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}}

// TestMatrix creates each network and measures which stations a process in the namespace reaches, and which reach
// the process. Then each binding gives the network to a guest. The guest must reach the same stations and be
// reached by the same ones, with the same addresses. The result must be the network's row in docs/results/networks.md.
func TestMatrix(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	documented := document(t)
	// A kernel with SCTP answers packets of the raw sockets by ABORT too. Whether the module is loaded must not depend
	// on what ran before.
	nstest.HasSCTP()
	if *update {
		fmt.Printf("doc: 000 %s\ndoc: 001 %s\n", heading, strings.Repeat("| --- ", strings.Count(heading, "|")-1)+"|")
	}
	for i, n := range Networks {
		if !selected(n) {
			continue
		}
		t.Run(n.Name, func(t *testing.T) {
			if n.Kind != "" {
				nstest.KernelDecides(t, "not every kernel has these links")
			}
			// Before any row is measured: with the kind ipip the kernel adds the link tunl0 to all namespaces.
			if n.Kind != "" && !hasKind(t, n.Kind) {
				nstest.LeaveOut(t, "this machine has no links of the kind "+n.Kind+": the row is measured under the stock kernel")
			}
			t.Parallel()
			row := measure(t, n).String()
			switch {
			case *update:
				fmt.Printf("doc: %03d %s\n", i+2, row)
			case documented[n.Name] != row:
				t.Errorf("docs/results/networks.md says\n%s\nand it is\n%s\n(make networks)", documented[n.Name], row)
			}
		})
	}
}

// TestTracked: the networks are as in TestMatrix if the pod tracks its connections before Setup and after Teardown, as
// Docker's rules for its DNS server have it. So Setup and Teardown do not count on a kernel that knows no older
// exchanges.
func TestTracked(t *testing.T) {
	nstest.Need(t, "nft")
	nstest.NeedTaps(t)
	documented := document(t)
	nstest.HasSCTP()
	for _, n := range Networks {
		if n.Kind != "" || !slices.Contains([]string{"bridge, ipMasq, hairpinMode", "flannel, VXLAN", "Azure"}, n.Name) {
			continue
		}
		t.Run(n.Name, func(t *testing.T) {
			t.Parallel()
			create := n.Create
			n.Create = func(t testing.TB) *Instance {
				l := create(t)
				for family, server := range map[string]string{"ip": "127.0.0.11", "ip6": "::1"} {
					l.Pod.Exec("nft", fmt.Sprintf(`table %s docker {
						chain prerouting { type nat hook prerouting priority -100; }
						chain output { type nat hook output priority -100; %[1]s daddr %s udp dport 53 dnat to :5353; }
						chain postrouting { type nat hook postrouting priority 100; }
					}`, family, server))
				}
				return l
			}
			if row := measure(t, n).String(); documented[n.Name] != row {
				t.Errorf("docs/results/networks.md says\n%s\nand with tracked connections it is\n%s", documented[n.Name], row)
			}
		})
	}
}

// heading is the heading of the table in docs/results/networks.md.
var heading = func() string {
	h := "| network | a process reaches, and is reached by |"
	for _, b := range bindings {
		h += fmt.Sprintf(" %s |", b.Kind())
	}
	return h + " the guest gets |"
}()

// table is the file that make networks writes; overview has the rows of meshes and of rules.
const (
	table    = "../../../docs/results/networks.md"
	overview = "../../../docs/reference/networks.md"
)

// document returns the table's rows by network: networks with the same row share one. Each network must have a row, and
// each row a network.
func document(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := bytes.Cut(text, []byte("\n<!-- make networks"))
	if !ok {
		t.Fatalf("%s has no place for the table", table)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(text)) {
		names, rest, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if !ok || !strings.HasPrefix(line, "| ") {
			continue
		}
		for name := range strings.SplitSeq(names, "; ") {
			if _, twice := rows[name]; twice {
				t.Errorf("%s has two rows for %s", table, name)
			}
			rows[name] = strings.TrimSpace("| " + name + " | " + rest)
		}
	}
	if *update {
		return rows
	}
	for _, n := range Networks {
		if rows[n.Name] == "" {
			t.Errorf("%s has no row for %s", table, n.Name)
		}
	}
	for _, name := range few {
		if _, ok := rows[name]; !ok {
			t.Errorf("%q of the list few is no network of %s", name, table)
		}
	}
	if rows["network"] != heading {
		t.Errorf("%s has the heading\n%s\nwant\n%s\n(make networks)", table, rows["network"], heading)
	}
	for name := range rows {
		if name != "network" && name != "---" && !slices.ContainsFunc(Networks, func(n Network) bool { return n.Name == name }) {
			t.Errorf("%s has a row for %s, which is no network", table, name)
		}
	}
	return rows
}

// hasKind reports whether the kernel has the link kind. It creates such a link in a temporary namespace.
func hasKind(t *testing.T, kind string) bool {
	t.Helper()
	if kind == kindCards {
		return len(cards()) == 2
	}
	n := nstest.New(t, "kind")
	n.IP("link add parent type veth peer name other")
	add := "ip link add link parent name child type " + kind + map[string]string{"vlan": " id 2", "ipip": " remote 192.0.2.1"}[kind]
	out, err := exec.Command("ip", append([]string{"netns", "exec", n.Name}, strings.Fields(add)...)...).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "Unknown device type") {
		t.Fatalf("%s: %v\n%s", add, err, out)
	}
	return err == nil
}

// row is the measured row of a network.
type row struct {
	network string
	reaches string
	cells   []string // two per binding: of IPv4, and of IPv6
	leased  string
}

// String returns the row with a cell a binding. A family that the network does not have is named once.
func (r row) String() string {
	words := []string{r.network, r.reaches}
	for i := 0; i < len(r.cells); i += 2 {
		v4, v6 := r.cells[i], r.cells[i+1]
		switch {
		case v6 == noIPv6 || v4 == v6:
			words = append(words, v4)
		case v4 == noIPv4:
			words = append(words, v6)
		default:
			words = append(words, v4+"; IPv6 "+v6)
		}
	}
	for i, no := range []string{noIPv4, noIPv6} {
		if r.cells[i] == no {
			words[1] += "; " + no
		}
	}
	return "| " + strings.Join(append(words, r.leased), " | ") + " |"
}

// What a cell says of a family that the network does not have.
const noIPv4, noIPv6 = "no IPv4", "no IPv6"

// ready returns the network with its stations and a process in the pod, which listen until the test ends.
func (l *Instance) ready(t *testing.T) *network {
	t.Helper()
	n := &network{Instance: l, hosts: map[string]host{}, kept: map[question]net.Conn{}}
	t.Cleanup(func() {
		n.closeKept()
	})
	if _, err := fmt.Sscan(l.Pod.Exec("cat", "/sys/class/net/"+l.NIC+"/mtu"), &n.mtu); err != nil {
		t.Fatal(err)
	}
	own := host{Station{pod, l.Pod, l.IPv4, l.IPv6}, l.NIC, l.NIC}
	n.hosts[pod] = own
	answerErrorsAtOnce(l.Pod)
	for _, s := range l.Stations {
		h := host{s, l.linkTo(s, s.IPv4), l.linkTo(s, s.IPv6)}
		n.hosts[s.Name] = h
		answerErrorsAtOnce(s.Namespace)
		h.listen(t, s.Name, stationPort)
		if isOutside(s) {
			further := host{Station: s}
			if s.IPv4.IsValid() {
				further.IPv4 = Narrow4
			}
			if s.IPv6.IsValid() {
				further.IPv6 = Narrow6
			}
			further.listen(t, s.Name, stationPort)
		}
	}
	if l.Wire {
		l.Pod.Listen(processName, fmt.Sprintf(":%d", Port))
	} else {
		own.listen(t, processName, Port)
	}
	return n
}

// linkTo returns the station's link to the pod if both reach each other without a gateway, else nothing.
func (l *Instance) linkTo(s Station, a netip.Addr) string {
	own := l.IPv6
	if a.Is4() {
		own = l.IPv4
	}
	if l.Wire || !a.IsValid() || !own.IsValid() {
		return ""
	}
	route := func(n *nstest.Namespace, from, to netip.Addr) string {
		words := strings.Fields(n.IP(fmt.Sprintf("route get %v from %v", to, from)))
		i := slices.Index(words, "dev")
		if i < 0 || slices.Contains(words, "via") {
			return ""
		}
		return words[i+1]
	}
	if route(l.Pod, own, a) != l.NIC {
		return ""
	}
	return route(s.Namespace, a, own)
}

// closeKept closes the sockets that keptSocket has returned.
func (l *network) closeKept() {
	for _, c := range l.kept {
		c.Close()
	}
	clear(l.kept)
}

// answerErrorsAtOnce has the kernel send ICMP errors without a limit.
func answerErrorsAtOnce(n *nstest.Namespace) {
	n.Exec("sysctl", "-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0")
}

// forget has the kernels forget the MTUs of paths.
func (l *network) forget() {
	namespaces := []*nstest.Namespace{l.Pod}
	for _, s := range l.Stations {
		if isOutside(s) {
			namespaces = append(namespaces, s.Namespace)
		}
	}
	for _, n := range namespaces {
		n.IP("-4 route flush cache")
		n.IP("-6 route flush cache")
	}
}

// askProcess asks all stations from a process in the namespace, and a process there from all stations.
func (l *network) askProcess(t *testing.T, protocols ...protocol) answers {
	t.Helper()
	if l.Wire {
		without := func(p protocol) bool { return p == standing || p == pathMTU }
		return l.allAnswers(slices.DeleteFunc(slices.Clone(protocols), without)...)
	}
	// The source addresses are those of the NIC, as the namespace may have others.
	got := l.ask(t, l.hosts[pod], l.questions(protocols...), nil)
	// A switch in user space loses packets while it learns as many flows at once. So what gets no answer is asked once
	// more, among fewer questions.
	var again []question
	for q, answer := range got {
		if answer == "" && q.protocol != tcp && got[l.byTCP(q)] != "" {
			again = append(again, q)
		}
	}
	maps.Copy(got, l.ask(t, l.hosts[pod], again, nil))
	for _, a := range []netip.Addr{l.IPv4, l.IPv6} {
		reached := func(q question) bool { return q.to == pod && q.at.Addr().Is4() == a.Is4() && got[q] != "" }
		if a.IsValid() && !slices.ContainsFunc(l.questions(tcp), reached) {
			t.Fatalf("no station reaches a process in the namespace at %v: the test's network is wrong", a)
		}
	}
	return got
}

// measure creates a network and measures each binding.
func measure(t *testing.T, n Network) row {
	l := n.Create(t).ready(t)
	if calls := n.Origin == RealProgram || n.Origin == RealPlugin; calls && l.Delete == nil {
		t.Errorf("made by %q, and no CNI plugin was called", n.Origin)
	}
	if l.Check != nil {
		l.Check(t)
	}
	baseline := l.askProcess(t, protocols...)
	r := row{network: n.Name, reaches: l.summary(baseline)}
	before := l.Pod.Settled()
	works := map[string]bool{}
	refused := map[string]*infra.RefusedError{}
	noted := false
	for _, b := range bindings {
		ok := t.Run(string(b.Kind()), func(t *testing.T) {
			leased, err := l.checkBinding(t, b, baseline, before)
			refused[string(b.Kind())] = err
			if err == nil && !noted && b.Kind() != cache.BindingMasquerade { // masquerade gives each guest the same
				r.leased, noted = leased, true
			}
		})
		works[string(b.Kind())] = ok && refused[string(b.Kind())] == nil
		if !ok {
			t.Errorf("%s does not work", b.Kind())
			if err := l.changed(before); err != nil {
				t.Fatalf("so the namespace is not as before, and the other bindings are not measured:\n%v", err)
			}
		}
	}
	for _, b := range bindings {
		for _, f := range []struct {
			no      string
			address netip.Addr
		}{{noIPv4, l.IPv4}, {noIPv6, l.IPv6}} {
			cell := "does not work"
			switch err := refused[string(b.Kind())]; {
			case !f.address.IsValid():
				cell = f.no
			case err != nil && (works[string(err.Instead)] || err.Instead == cache.BindingMacvtap): // rig/guests has that one
				cell = fmt.Sprintf("refused: %s (%s works)", err.Reason, err.Instead)
			case err != nil:
				t.Errorf("%v; %q does not work", err, err.Instead)
			case works[string(b.Kind())]:
				cell = "works" + baseline.lost(b.Kind(), f.address.Is4())
			}
			r.cells = append(r.cells, cell)
		}
	}
	routed, other := routeget.Judge(t, l.Pod, rand.New(rand.NewPCG(7, 7)), 80)
	if addressed := l.Pod.IP("addr show scope global") != ""; addressed && routed == 0 || other > routed/4 {
		t.Errorf("%d packets have a route, and %d have another one by a rule that no Snapshot holds", routed, other)
	}
	if l.Delete != nil {
		l.Delete(t)
	}
	return r
}

// checkBinding gives the pod's network to a guest, asks the same questions again, and runs Teardown. It returns
// the notes on what the guest gets, or why Setup refused the binding.
func (l *network) checkBinding(t *testing.T, b infra.Binding, baseline answers, before string) (leased string, refused *infra.RefusedError) {
	const patience = 10 * time.Minute
	leak.Allow(patience)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	older := baseline.over(standing)
	maps.DeleteFunc(older, func(_ question, answer string) bool { return answer == "" })
	l.ask(t, l.hosts[pod], slices.Collect(maps.Keys(older)), older)
	w, refused := l.setup(ctx, t, b, infra.Guard{})
	if refused != nil {
		l.checkRestored(t, w.config.State, before)
		return "", refused
	}
	record := w.record
	defer func() {
		if t.Failed() {
			t.Logf("record %+v\n%s", record, w.launcher.Output.String())
		}
	}()
	g := w.boot(ctx, t)
	if g.MTU() != record.MTU && l.IPv4.IsValid() {
		t.Errorf("the guest's MTU is %d, want %d", g.MTU(), record.MTU)
	}
	h := hostOf(t, g)
	h.listen(t, h.Name, Port)
	l.forget()
	expected := baseline.ofGuest(b.Kind())
	l.ask(t, h, slices.Collect(maps.Keys(expected)), expected)
	if l.Check != nil && keepsNIC(b) {
		l.Check(t)
	}
	w.end(ctx, t)
	l.checkRestored(t, w.config.State, before)
	if l.Check != nil {
		l.Check(t)
	}
	// The sockets of before Setup are answered by the process again.
	l.ask(t, host{}, slices.Collect(maps.Keys(older)), older)
	return specialNotes(record), nil
}

// keepsNIC reports whether CNI CHECK passes while the NIC is wired by the binding.
func keepsNIC(b infra.Binding) bool { return b.Kind() != cache.BindingBridge }

// checkRestored waits until the namespace is as before.
func (l *Instance) checkRestored(t *testing.T, state, before string) {
	t.Helper()
	nstest.Eventually(t, func() error { return l.changed(before) })
	if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
		t.Errorf("state directory has %v, %v; want nothing", left, err)
	}
}

// changed returns how the namespace differs from the dump of before. The order of routes to fe80::/64 by several NICs
// may differ.
func (l *Instance) changed(before string) error {
	same := func(dump string) string { return dump }
	if strings.Count(l.Pod.IP("-br link show up"), "\n") > 2 { // more than lo and one NIC
		same = func(dump string) string { return strings.Join(slices.Sorted(strings.Lines(dump)), "") }
	}
	return nstest.Difference(same(before), same(l.Pod.Dump()))
}

// specialNotes lists what the record has for the guest in addition to an address and a gateway. A link-local address
// that is made of a MAC differs in each run, so it is not printed.
func specialNotes(r cache.Record) string {
	var parts []string
	if r.MTU != 1500 {
		parts = append(parts, fmt.Sprintf("MTU %d", r.MTU))
	}
	if r.IPv4 != nil {
		if r.IPv4.Address.Bits() == 32 {
			parts = append(parts, "/32")
		}
		for _, route := range r.IPv4.Routes {
			if !route.Default() {
				parts = append(parts, strings.TrimSuffix(fmt.Sprintf("%v via %v", route.Destination, route.Gateway), " via invalid IP"))
			}
		}
	}
	if r.IPv6 != nil && r.IPv6.Router != nil {
		for _, route := range r.IPv6.Router.Routes {
			parts = append(parts, fmt.Sprintf("%v by the router", route))
		}
	}
	for _, n := range r.Neighbours {
		if r.IPv4 != nil && n.Address == r.IPv4.StandIn {
			continue // no station
		}
		if b := n.Address.As16(); !n.Address.IsLinkLocalUnicast() || n.Address.Is4() || b[11] != 0xff { // not derived from a MAC
			parts = append(parts, fmt.Sprintf("who %v is", n.Address))
		}
	}
	return strings.Join(parts, ", ")
}
