package examples_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestDivertShown: plan and status print the entries of a list as they are typed, and to where each table diverts.
// Status and the exporter count what was diverted, also after another list, and drops and status name what a divert
// refuses.
func TestDivertShown(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	p := &trial{t: t, n: nstest.NewNetwork(t)}
	list := []string{"divert all 443/tcp :15443", "refuse link-local", "divert 192.0.2.7 80/tcp 127.0.0.1:8080", "allow all"}
	file := filepath.Join(t.TempDir(), "config.json")
	write := func(egress []string) {
		text, err := json.Marshal(map[string]any{"binding": map[string]any{"masquerade": map[string]any{}}, "owner": map[string]any{"uid": nstest.LauncherUID}, "egress": egress})
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(list)
	comments := "# binding: masquerade\n# egress: " + strings.Join(list, "\n# egress: ") + "\n"
	const targets = "diverts to 10.0.2.1:15443 (1 range of addresses); diverts to 127.0.0.1:8080 (1 range of addresses)"
	if out := p.agent(0, "plan", "-config", file); !strings.HasPrefix(out, comments) || !strings.Contains(out, targets) {
		t.Errorf("plan does not say\n%s%s\nbut\n%s", comments, targets, out)
	}
	if out := p.agent(0, "plan", "-config", file, "-full"); !strings.HasPrefix(out, comments) || !strings.Contains(out, "dnat ip to 127.0.0.1:8080\n") {
		t.Errorf("plan -full does not say\n%sbut\n%s", comments, out)
	}
	var lists struct{ Egress []string }
	if decode(t, p.agent(0, "plan", "-config", file, "-json"), &lists); !slices.Equal(lists.Egress, list) {
		t.Errorf("plan -json has egress %q", lists.Egress)
	}
	p.agent(0, "setup", "-config", file)
	port := p.guestTap()
	defer port.Close()
	link := p.link()
	to := netip.MustParseAddr("192.0.2.7")
	// Two are diverted. One is to a target by itself, and one is refused by the list.
	for _, frame := range [][]byte{
		link.Ask(unix.IPPROTO_TCP, link.IPv4, to, 80), link.Ask(unix.IPPROTO_TCP, link.IPv4, to, 443), link.Ask(unix.IPPROTO_TCP, link.IPv4, link.Gateway4, 15443),
		link.Ask(unix.IPPROTO_TCP, link.IPv4, netip.MustParseAddr("169.254.1.1"), 80),
	} {
		p.sends(port, frame)
	}
	if out := p.agent(8, "status"); !matches("egress divert 192.0.2.7 80/tcp 127.0.0.1:8080 egress allow all", out) || !matches("diverted 2 connections that egress diverts to the namespace", out) ||
		!matches("dropped 1 packet: egress, the guest opened a connection that egress or egressWithin refuses, or diverts to a target that cannot take it", out) ||
		!matches("dropped 1 packet: namespace-service", out) {
		t.Errorf("status says\n%s", out)
	}
	metric := regexp.MustCompile(`(?m)^guestwire_diverted_connections_total\{.*state="` + p.n.State + `".*\} 2$`)
	if out, _ := stdout(t, nstest.Program(t, "examples/guestwire-exporter")); !metric.MatchString(out) {
		t.Errorf("the exporter says\n%s", out)
	}
	// The entries after the eighth one are a number, except diverts.
	var long []string
	for _, n := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"} {
		long = append(long, "refuse 192.0.2."+n)
	}
	write(append(append(long, "divert all 443 :15443"), "allow 192.0.2.11", "refuse all"))
	p.agent(0, "setup", "-config", file)
	if out := p.agent(8, "status"); !matches("egress refuse 192.0.2.8 egress (2 more) egress divert all 443/tcp :15443 egress (1 more) egress refuse all", out) ||
		!matches("diverted 2 connections", out) {
		t.Errorf("status of a long list says\n%s", out)
	}
}
