package podnet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// meshBinding is a binding with what a user of a service mesh sets, and the link from which the guest's packets come.
type meshBinding struct {
	name    string
	binding infra.Binding
	guard   infra.Guard
	link    string
}

var meshBindings = []meshBinding{
	{name: "bridge", binding: infra.Bridge{}, link: "eth0-tap"},
	{name: "redirect", binding: infra.Redirect{}, link: "eth0-tap"},
	{name: "routed", binding: infra.Routed{
		Excluded: []infra.Ports{{First: meshTunnel}, {First: 15020, Last: meshHealth}, {First: 15090}},
		Sidecar:  &infra.Sidecar{Sources: []netip.Addr{addr("127.0.0.6"), addr("::6")}},
	}, link: "eth0-tap"},
	{name: "masquerade", binding: infra.Masquerade{
		Excluded: []infra.Ports{{First: 15000, Last: 15090}},
		Sidecar:  &infra.Sidecar{Sources: []netip.Addr{addr("127.0.0.6"), addr("::6")}},
	}, guard: infra.Guard{Open: []infra.Ports{{Protocol: "tcp", First: meshOut}}}, link: "eth0-tap"},
}

// TestMesh creates each mesh's rules and its proxy in the namespace of a pod, and measures which TCP connections the
// proxy gets: those of a process, and those of a guest under each binding. The result must be the mesh's row in
// docs/reference/networks.md.
func TestMesh(t *testing.T) {
	nstest.Need(t, "iptables-restore", "ip6tables-restore")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the proxy is another user's")
	checkMeshPage(t)
	heading := "| mesh | a process | bridge, redirect |"
	for _, b := range meshBindings[2:] {
		heading += " " + b.name + " |"
	}
	documented, err := os.ReadFile(overview)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(documented), "\n"+heading+"\n") {
		t.Errorf("%s lacks the heading\n%s", overview, heading)
	}
	for _, m := range meshes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			l := onNode(bridgePlugin)(t)
			if m.create != nil {
				m.create(l.Pod)
			}
			m.proxy.start(t, l.Pod)
			l.Pod.Listen(processName, fmt.Sprintf(":%d", Port))
			for _, s := range l.Stations {
				for _, a := range []netip.Addr{s.IPv4, s.IPv6} {
					s.Namespace.Listen(s.Name, netip.AddrPortFrom(a, stationPort).String())
				}
			}
			m.install(t, l.Pod, "eth0-tap")
			row := []string{m.name, l.measureMesh(t, m, Station{Namespace: l.Pod, IPv4: l.IPv4, IPv6: l.IPv6}.dial, processName, nil)}
			for i, b := range meshBindings {
				cell := ""
				t.Run(string(b.name), func(t *testing.T) { cell = l.checkMesh(t, m, b) })
				if i == 1 && cell == row[2] { // one column for bridge and redirect
					continue
				}
				row = append(row, cell)
			}
			if line := "| " + strings.Join(row, " | ") + " |"; !strings.Contains(string(documented), "\n"+line+"\n") {
				t.Errorf("%s lacks the row\n%s", overview, line)
			}
		})
	}
}

// checkMeshPage: docs/how-to/meshes.md names the bindings and guards with which TestMesh measures.
func checkMeshPage(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/how-to/meshes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range meshBindings[2:] { // under the others the guest escapes
		var spec infra.Spec
		_, text, ok := strings.Cut(string(page), fmt.Sprintf(`{"binding": {%q`, b.name))
		text = fmt.Sprintf(`{"binding": {%q`, b.name) + text
		if err := json.NewDecoder(strings.NewReader(text)).Decode(&spec); !ok || err != nil {
			t.Errorf("docs/how-to/meshes.md has no specification of %s: %v", b.name, err)
		} else if want := (infra.Spec{Binding: b.binding, Guard: b.guard}); !reflect.DeepEqual(spec, want) {
			t.Errorf("docs/how-to/meshes.md has\n%+v\nand %s is measured with\n%+v", spec, b.name, want)
		}
	}
	for line := range strings.Lines(ambientRules("eth0-tap", true)) {
		if !strings.Contains(ambientRules("eth0-tap", false), line) && !strings.Contains(string(page), "\n    iptables -t mangle "+line) {
			t.Errorf("docs/how-to/meshes.md lacks the rule %s", line)
		}
	}
	if annotation := "\n    istio.io/reroute-virtual-interfaces: " + meshBindings[2].link + "\n"; !strings.Contains(string(page), annotation) {
		t.Errorf("docs/how-to/meshes.md lacks %q", annotation)
	}
}

// checkMesh gives the pod's network to a guest, measures, and runs Teardown. The mesh's rules are created before Setup.
// They are created again while the guest runs, which must change nothing.
func (l *Instance) checkMesh(t *testing.T, m mesh, b meshBinding) string {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	m.install(t, l.Pod, b.link)
	before := l.Pod.Settled()
	w, refused := l.setup(ctx, t, b.binding, b.guard)
	if refused != nil {
		return "refused: " + refused.Reason
	}
	g := w.bootAnswering(ctx, t)
	sees := func(station, own netip.Addr) netip.Addr { return b.seen(m.proxy, station, own) }
	cell := l.measureMesh(t, m, g.DialTCP, "guest", sees)
	m.install(t, l.Pod, b.link)
	if again := l.measureMesh(t, m, g.DialTCP, "guest", sees); again != cell {
		t.Errorf("with rules that are created after Setup: %q; with rules that are created before: %q", again, cell)
	}
	w.end(ctx, t)
	l.checkRestored(t, w.config.State, before)
	return cell
}

// seen is the address that the guest sees when the station connects to the pod's address own, by docs/how-to/meshes.md.
func (b meshBinding) seen(p proxy, station, own netip.Addr) netip.Addr {
	gateways := map[string][2]string{"routed": {"169.254.75.1", "fd00:a9fe:4b01::1"}, "masquerade": {"10.0.2.1", "fd10:0:2::1"}}
	gateway, routes := gateways[b.name]
	switch {
	case !routes, p.transparent:
		return station
	case b.name == "masquerade" && p.mark != 0: // the proxy connects from an address of the kernel's choice
		return own
	case own.Is4():
		return addr(gateway[0])
	}
	return addr(gateway[1])
}

// measureMesh connects between the pod and all stations in both directions, and to the proxy's own ports. It returns
// a cell of the table. sees is the address that the pod must see when a station connects; nil: any.
func (l *Instance) measureMesh(t *testing.T, m mesh, fromPod dialer, who string, sees func(station, own netip.Addr) netip.Addr) string {
	t.Helper()
	type ask struct {
		dial dialer
		to   netip.AddrPort
		say  string // first line; empty: none
		want string // how the answer begins: "gateway sees 10.22.0.10"
	}
	var questions [4][]ask // by kind
	const out, in, tunnel, health = 0, 1, 2, 3
	names := [...]string{"out", "in", "in by HBONE", "health"}
	for _, s := range l.Stations {
		dial := s.dial
		for _, pair := range [][2]netip.Addr{{s.IPv4, l.IPv4}, {s.IPv6, l.IPv6}} {
			station, own := pair[0], pair[1]
			answer := func(who string, sees netip.Addr) string {
				return strings.TrimSuffix(fmt.Sprintf("%s sees %v", who, netip.AddrPortFrom(sees, 0)), "0")
			}
			questions[out] = append(questions[out], ask{fromPod, netip.AddrPortFrom(station, stationPort), "", answer(s.Name, own)})
			at, inside := netip.AddrPortFrom(own, Port), who+" sees "
			if sees != nil {
				inside = answer(who, sees(station, own))
			}
			questions[in] = append(questions[in], ask{dial, at, "", inside})
			if m.proxy.mark == 0 {
				questions[health] = append(questions[health], ask{dial, netip.AddrPortFrom(own, meshHealth), "", "the proxy sees "})
			} else {
				questions[tunnel] = append(questions[tunnel], ask{dial, netip.AddrPortFrom(own, meshTunnel), at.String(), inside})
			}
		}
	}
	var mu sync.Mutex
	got := map[string]map[string]bool{} // what became of the questions, by kind
	var asking sync.WaitGroup
	for kind := range questions {
		got[names[kind]] = map[string]bool{}
	}
	for kind, list := range questions {
		for _, q := range list {
			asking.Go(func() {
				result, detail := "fails", ""
				for range 2 { // a first packet may wait for ARP longer than a busy machine's patience
					line, err := meshConverse(t.Context(), q.dial, q.to, q.say)
					if err != nil {
						detail = err.Error()
						continue
					}
					detail = line
					switch line, through := strings.CutSuffix(line, byProxy); {
					case !strings.HasPrefix(line, q.want):
						result = "with another address"
					case kind == health || through:
						result = "works"
					default:
						result = "past"
					}
					break
				}
				mu.Lock()
				defer mu.Unlock()
				got[names[kind]][result] = true
				t.Logf("%s %v: %s (%s)", names[kind], q.to, result, detail)
			})
		}
	}
	asking.Wait()
	var cell []string
	for kind, list := range questions {
		var results []string
		for result := range got[names[kind]] {
			results = append(results, result)
		}
		slices.Sort(results)
		if got[names[kind]]["fails"] { // what some got is chance: a proxy's connection that met no rule yet
			results = []string{"fails"}
		}
		if text := strings.Join(results, " or "); len(list) > 0 && text != "works" {
			cell = append(cell, names[kind]+" "+text)
		}
	}
	if len(cell) == 0 {
		return "works"
	}
	return strings.Join(cell, ", ")
}

// meshConverse connects, says a line, reads a line, and checks that the other side sends back what it gets.
func meshConverse(ctx context.Context, dial dialer, to netip.AddrPort, say string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := dial(ctx, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if say != "" {
		if _, err := fmt.Fprintln(c, say); err != nil {
			return "", err
		}
	}
	line, err := readLine(c)
	if err != nil {
		return "", err
	}
	const text = "guestwire"
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	back := make([]byte, len(text))
	if _, err := io.ReadFull(c, back); err != nil || string(back) != text {
		return "", fmt.Errorf("%s, and sends back %q, %w", line, back, err)
	}
	return strings.TrimSpace(line), nil
}
