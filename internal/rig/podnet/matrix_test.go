package podnet

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/guest"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/nstest"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/phase1"
)

var update = flag.Bool("update", false, "print the rows of docs/networks.md instead of comparing with them")

func TestMain(m *testing.M) { nstest.Main(m, selection) }

var bindings = []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}}

// TestMatrix lays each network and measures which stations a process in the namespace reaches, and which reach
// the process. Then each binding gives the network to a guest. The guest must reach the same stations and be
// reached by the same ones, with the same addresses. The result must be the network's row in docs/networks.md.
func TestMatrix(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	documented := document(t)
	if *update {
		fmt.Printf("doc: 000 %s\ndoc: 001 %s\n", heading, strings.Repeat("| --- ", strings.Count(heading, "|")-1)+"|")
	}
	for i, n := range Networks {
		t.Run(n.Name, func(t *testing.T) {
			t.Parallel()
			if n.Kind != "" && !hasKind(t, n.Kind) {
				nstest.LeaveOut(t, "this kernel has no links of the kind "+n.Kind+": the row is measured under the stock kernel")
			}
			row := measure(t, n).String()
			switch {
			case *update:
				fmt.Printf("doc: %03d %s\n", i+2, row)
			case documented[n.Name] != row:
				t.Errorf("docs/networks.md says\n%s\nand it is\n%s\n(make networks)", documented[n.Name], row)
			}
		})
	}
}

// heading is the heading of the table in docs/networks.md.
var heading = func() string {
	h := "| network | a process reaches, and is reached by |"
	for _, b := range bindings {
		h += fmt.Sprintf(" %[1]s, IPv4 | %[1]s, IPv6 |", b.Kind())
	}
	return h + " the guest is told |"
}()

// table is the file that make networks writes.
const table = "../../../docs/networks.md"

// document returns the table's rows by network. Each network must have a row, and each row a network.
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
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | "); ok && strings.HasPrefix(line, "| ") {
			if _, twice := rows[name]; twice {
				t.Errorf("%s has two rows for %s", table, name)
			}
			rows[name] = strings.TrimSpace(line)
		}
	}
	if *update {
		return rows
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
	n := nstest.New(t, "kind")
	n.IP("link add parent type veth peer name other")
	add := "ip link add link parent name child type " + kind
	if kind == "vlan" {
		add += " id 2"
	}
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
	cells   []string // two per binding
	told    string
}

func (r row) String() string {
	return "| " + strings.Join(slices.Concat([]string{r.network, r.reaches}, r.cells, []string{r.told}), " | ") + " |"
}

// question is a TCP connection from one station to another, or from or to the pod.
type question struct {
	from, to string // a station's name, or the pod's
	at       netip.AddrPort
}

// pod is the pod's name in a question, and processName the name with which a process in the pod answers. A guest
// answers with its own name.
const pod, processName = "pod", "a process"

// stationPort is the TCP port at which stations answer.
const stationPort = 9000

// questions returns all questions between the pod and the stations.
func (l *Laid) questions() []question {
	var all []question
	for _, s := range l.Stations {
		for _, pair := range [][2]netip.Addr{{s.IPv4, l.IPv4}, {s.IPv6, l.IPv6}} {
			if pair[0].IsValid() && pair[1].IsValid() {
				all = append(all, question{pod, s.Name, netip.AddrPortFrom(pair[0], stationPort)},
					question{s.Name, pod, netip.AddrPortFrom(pair[1], Port)})
			}
		}
		for _, m := range l.Mapped {
			if s.address(m.Addr()).IsValid() {
				all = append(all, question{s.Name, pod, m})
			}
		}
	}
	return all
}

// address returns the station's address of the family of like.
func (s Station) address(like netip.Addr) netip.Addr {
	if like.Is4() {
		return s.IPv4
	}
	return s.IPv6
}

// dialer opens a TCP connection from the pod.
type dialer func(ctx context.Context, to netip.AddrPort) (net.Conn, error)

// answers are the answers to questions: who answered, and the address it saw, such as "gateway sees 10.22.0.10".
// An empty answer means that no connection was possible.
type answers map[question]string

// ask asks all questions at the same time. A question with a known answer is repeated until this answer comes.
func (l *Laid) ask(t *testing.T, fromPod dialer, known answers) answers {
	t.Helper()
	var mu sync.Mutex
	got, errs := answers{}, map[question]error{}
	var asking sync.WaitGroup
	for _, q := range l.questions() {
		dial := fromPod
		if i := slices.IndexFunc(l.Stations, func(s Station) bool { return s.Name == q.from }); i >= 0 {
			dial = l.Stations[i].dial
		}
		asking.Go(func() {
			patience := 3 * time.Second
			if nstest.Emulated {
				patience = 10 * time.Second
			}
			switch {
			case known != nil && known[q] == "":
				patience = time.Second
			case known != nil:
				patience = 20 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			answer, err := converse(ctx, dial, q.at)
			for ctx.Err() == nil && (known == nil && err != nil || known != nil && answer != known[q]) {
				time.Sleep(50 * time.Millisecond)
				answer, err = converse(ctx, dial, q.at)
			}
			mu.Lock()
			defer mu.Unlock()
			got[q], errs[q] = answer, err
		})
	}
	asking.Wait()
	for q := range got {
		if known != nil && got[q] != known[q] {
			t.Errorf("%s to %s (%v): %q, %v; want %q", q.from, q.to, q.at, got[q], errs[q], known[q])
		}
	}
	return got
}

// converse connects, reads the answer, and checks that some segments are echoed.
func converse(ctx context.Context, dial dialer, to netip.AddrPort) (string, error) {
	once, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	c, err := dial(once, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	var line []byte
	for !bytes.HasSuffix(line, []byte("\n")) {
		b := make([]byte, 1)
		if _, err := c.Read(b); err != nil {
			return "", err
		}
		line = append(line, b...)
	}
	answer, err := withoutPort(string(line))
	if err != nil {
		return "", err
	}
	sent := bytes.Repeat([]byte("guestwire "), 2000)
	writing := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		writing <- err
	}()
	back := make([]byte, len(sent))
	_, err = io.ReadFull(c, back)
	if err := errors.Join(err, <-writing); err != nil {
		return "", fmt.Errorf("%s, and does not send back what it got: %w", answer, err)
	}
	if !bytes.Equal(back, sent) {
		return "", fmt.Errorf("%s, and sends other bytes back than it got", answer)
	}
	return answer, nil
}

// withoutPort turns a line "NAME sees ADDRESS:PORT", with or without further words, into the form of answers.
func withoutPort(line string) (string, error) {
	who, saw, _ := strings.Cut(line, " sees ")
	saw, _, _ = strings.Cut(strings.TrimSpace(saw), " ")
	peer, err := netip.ParseAddrPort(saw)
	if err != nil {
		return "", fmt.Errorf("answer %q: %w", line, err)
	}
	return fmt.Sprintf("%s sees %v", who, peer.Addr().Unmap()), nil
}

// dial opens a TCP connection from the station's address.
func (s Station) dial(ctx context.Context, to netip.AddrPort) (c net.Conn, err error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.address(to.Addr()), 0))}
	err = netns.Do(s.Namespace.File, func() (err error) {
		c, err = d.DialContext(ctx, "tcp", to.String())
		return err
	})
	return c, err
}

// allAnswers returns the answers if all stations reach each other and the pod. They are expected of a guest in a
// namespace without addresses, where no process can be asked first.
func (l *Laid) allAnswers() answers {
	a := answers{}
	for _, q := range l.questions() {
		for _, s := range l.Stations {
			switch s.Name {
			case q.to:
				own := l.IPv6
				if q.at.Addr().Is4() {
					own = l.IPv4
				}
				a[q] = s.Name + " sees " + own.String()
			case q.from:
				a[q] = processName + " sees " + s.address(q.at.Addr()).String()
			}
		}
	}
	return a
}

// answeredBy returns the answers that are expected when who answers in the place of the process.
func (a answers) answeredBy(who string) answers {
	b := maps.Clone(a)
	for q, answer := range b {
		if saw, ok := strings.CutPrefix(answer, processName+" sees "); ok {
			b[q] = who + " sees " + saw
		}
	}
	return b
}

// summary lists the stations that the pod reaches and that reach the pod, by name; for each family if they
// differ.
func (l *Laid) summary(a answers) string {
	sum := func(v4 bool) string {
		var parts []string
		for _, s := range l.Stations {
			to, from := false, false
			known := false
			for q, answer := range a {
				if q.at.Addr().Is4() != v4 {
					continue
				}
				known = known || q.to == s.Name
				to = to || q.to == s.Name && answer != ""
				from = from || q.from == s.Name && answer != ""
			}
			mapped := slices.ContainsFunc(l.Mapped, func(m netip.AddrPort) bool { return a[question{s.Name, pod, m}] != "" })
			direct := slices.ContainsFunc([]netip.Addr{l.IPv4, l.IPv6}, func(p netip.Addr) bool {
				return p.IsValid() && p.Is4() == v4 && a[question{s.Name, pod, netip.AddrPortFrom(p, Port)}] != ""
			})
			switch {
			case !known:
			case to && from && mapped && !direct:
				parts = append(parts, s.Name+" (in by the mapped port)")
			case to && from:
				parts = append(parts, s.Name)
			case to:
				parts = append(parts, s.Name+" (out only)")
			case from:
				parts = append(parts, s.Name+" (in only)")
			default:
				parts = append(parts, "not "+s.Name)
			}
		}
		return strings.Join(parts, ", ")
	}
	v4, v6 := sum(true), sum(false)
	switch {
	case v4 == v6 || !l.IPv6.IsValid():
		return v4
	case !l.IPv4.IsValid():
		return v6
	}
	return "IPv4: " + v4 + "; IPv6: " + v6
}

// askProcess asks all stations from a process in the namespace, and a process there from all stations. The
// process keeps listening.
func (l *Laid) askProcess(t *testing.T) answers {
	t.Helper()
	for _, s := range l.Stations {
		for _, a := range []netip.Addr{s.IPv4, s.IPv6} {
			if a.IsValid() {
				s.Namespace.Listen(s.Name, netip.AddrPortFrom(a, stationPort).String())
			}
		}
	}
	l.Pod.Listen(processName, fmt.Sprintf(":%d", Port))
	if l.Wire {
		return l.allAnswers()
	}
	// The source addresses are those of the NIC, as the namespace may have others.
	got := l.ask(t, Station{pod, l.Pod, l.IPv4, l.IPv6}.dial, nil)
	for _, a := range []netip.Addr{l.IPv4, l.IPv6} {
		reached := func(q question) bool { return q.to == pod && q.at.Addr().Is4() == a.Is4() && got[q] != "" }
		if a.IsValid() && !slices.ContainsFunc(l.questions(), reached) {
			t.Fatalf("no station reaches a process in the namespace at %v: the test's network is wrong", a)
		}
	}
	return got
}

// measure lays a network and measures each binding.
func measure(t *testing.T, n Network) row {
	l := n.Lay(t)
	if l.Check != nil {
		l.Check(t)
	}
	// Otherwise the listeners would take the kernel's own solicitations for the guest's.
	l.Pod.Exec("sysctl", "-qw", "net.ipv6.conf."+l.NIC+".router_solicitations=0")
	baseline := l.askProcess(t)
	r := row{network: n.Name, reaches: l.summary(baseline)}
	before := l.Pod.Settled()
	works := map[string]bool{}
	refused := map[string]*infra.RefusedError{}
	for _, b := range bindings {
		ok := t.Run(b.Kind(), func(t *testing.T) {
			told, err := l.checkBinding(t, b, baseline, before)
			refused[b.Kind()] = err
			if r.told == "" && b.Kind() != cache.BindingMasquerade {
				r.told = told
			}
		})
		works[b.Kind()] = ok && refused[b.Kind()] == nil
		if !ok {
			t.Errorf("%s does not work", b.Kind())
		}
	}
	for _, b := range bindings {
		for _, f := range []struct {
			name    string
			address netip.Addr
		}{{"IPv4", l.IPv4}, {"IPv6", l.IPv6}} {
			cell := "does not work"
			switch err := refused[b.Kind()]; {
			case !f.address.IsValid():
				cell = "no " + f.name
			case err != nil && works[err.Instead]:
				cell = fmt.Sprintf("refused: %s (%s works)", err.Reason, err.Instead)
			case err != nil:
				t.Errorf("%v; %q does not work", err, err.Instead)
			case works[b.Kind()]:
				cell = "works"
			}
			r.cells = append(r.cells, cell)
		}
	}
	if l.Delete != nil {
		l.Delete(t)
	}
	return r
}

// checkBinding gives the pod's network to a guest, asks the same questions again, and runs Teardown. It returns
// the notes on what the guest is told, or why Setup refused the binding.
func (l *Laid) checkBinding(t *testing.T, b infra.Binding, baseline answers, before string) (told string, refused *infra.RefusedError) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := nstest.Network{Pod: l.Pod, State: nstest.Dir(t)}
	c := phase1.Config{NetNS: l.Pod.File, Spec: infra.Spec{
		NIC: l.NIC, Binding: b, State: n.State,
		Owner: nstest.Owner(),
	}}
	_, err := phase1.Setup(ctx, c)
	if errors.As(err, &refused) {
		l.checkRestored(t, n.State, before)
		return "", refused
	}
	if err != nil {
		t.Fatal(err)
	}
	record := readRecord(t, n.State, l.NIC)
	launcher := n.Serve(t, nstest.LauncherUID)
	defer func() {
		if t.Failed() {
			t.Logf("record %+v\n%s", record, launcher.Output.String())
		}
	}()
	outside := l.sniff(t)
	g := startGuest(t, l.Pod, record)
	if _, err := g.Configure(ctx, guest.Families{IPv4: l.IPv4.IsValid(), IPv6: l.IPv6.IsValid()}); err != nil {
		t.Errorf("the guest is not configured: %v", err)
	}
	if g.MTU() != record.MTU && l.IPv4.IsValid() {
		t.Errorf("the guest's MTU is %d, want %d", g.MTU(), record.MTU)
	}
	if err := g.ListenTCP(Port); err != nil {
		t.Fatal(err)
	}
	l.ask(t, g.DialTCP, baseline.answeredBy("guest"))
	for _, s := range outside {
		if !l.Wire { // a station answers the guest's DHCP there
			s.checkQuiet(t, record.MAC)
		}
	}
	if l.Check != nil && keepsNIC(b) {
		l.Check(t)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	launcher.Stop(t)
	if err := phase1.Teardown(ctx, c); err != nil {
		t.Error(err)
	}
	l.checkRestored(t, n.State, before)
	if l.Check != nil {
		l.Check(t)
	}
	return specialNotes(record), nil
}

// keepsNIC reports whether CNI CHECK passes while the NIC is wired by the binding.
func keepsNIC(b infra.Binding) bool { return b.Kind() != cache.BindingBridge }

// checkRestored waits until the namespace is as before. The order of routes to fe80::/64 by several NICs may
// differ.
func (l *Laid) checkRestored(t *testing.T, state, before string) {
	t.Helper()
	same := func(dump string) string { return dump }
	if strings.Count(l.Pod.IP("-br link show up"), "\n") > 2 { // more than lo and one NIC
		same = func(dump string) string { return strings.Join(slices.Sorted(strings.Lines(dump)), "") }
	}
	nstest.Eventually(t, func() error { return nstest.Difference(same(before), same(l.Pod.Dump())) })
	if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
		t.Errorf("state directory has %v, %v; want nothing", left, err)
	}
}

// specialNotes lists what the record tells the guest besides an address and a gateway. A link-local address that
// is made of a MAC differs in each run, so it is not printed.
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
		if b := n.Address.As16(); !n.Address.IsLinkLocalUnicast() || n.Address.Is4() || b[11] != 0xff { // not derived from a MAC
			parts = append(parts, fmt.Sprintf("who %v is", n.Address))
		}
	}
	return strings.Join(parts, ", ")
}

// startGuest attaches the embedded guest to the tap.
func startGuest(t *testing.T, pod *nstest.Namespace, r cache.Record) *guest.Guest {
	t.Helper()
	var port *os.File
	err := netns.Do(pod.File, func() (err error) {
		port, err = tap.Open(r.Tap)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	g, err := guest.Start(guest.Config{Port: port, MAC: r.MAC, Name: "guest"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func readRecord(t *testing.T, state, nic string) cache.Record {
	t.Helper()
	dir, err := os.OpenRoot(state)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	r, err := cache.Read(dir, nic)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
