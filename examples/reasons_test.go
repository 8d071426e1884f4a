package examples_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/examples/guestwire/calls"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestTroubleshootingReasons wants the fields that loosen the filter, by the document, to help.
func TestTroubleshootingReasons(t *testing.T) {
	rows := tables(t, reference+"drop-reasons.md")
	other := netip.MustParseAddr("10.9.0.7")
	for _, c := range []struct {
		reason, field, before, after string
		frame                        func(l frames.Link) []byte
	}{
		{"mac-spoof", "guard.macs", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"macs": ["` + stranger.String() + `"]}`, func(l frames.Link) []byte {
			l.MAC = stranger
			return l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5001)
		}},
		{"ip-spoof", "guard.prefixes", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"prefixes": ["10.9.0.0/24"]}`, func(l frames.Link) []byte {
			return l.Ask(unix.IPPROTO_UDP, other, l.Far4, 5001)
		}},
		{"vlan-tag", "guard.vlans", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"vlans": [5]}`, func(l frames.Link) []byte {
			return slices.Insert(l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5001), 12, 0x81, 0x00, 0, 5)
		}},
		{"ethertype", "guard.etherTypes", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"etherTypes": ["0x8863"]}`, func(l frames.Link) []byte {
			return slices.Concat(l.Gateway[:], l.MAC[:], []byte{0x88, 0x63}, make([]byte, 46))
		}},
		{"namespace-service", "guard.open", `"binding": {"masquerade": {}}`, `"binding": {"masquerade": {}}, "guard": {"open": ["22"]}`, func(l frames.Link) []byte {
			return l.Ask(unix.IPPROTO_TCP, l.IPv4, l.Gateway4, 22)
		}},
		{"egress", "divert", `"binding": {"masquerade": {}}, "egress": ["divert 198.51.100.7 127.0.0.1:8080", "allow all"]`, `"binding": {"masquerade": {}}, "egress": ["divert 198.51.100.7 tcp 127.0.0.1:8080", "allow all"]`, func(l frames.Link) []byte {
			return l.Ping(l.IPv4, netip.MustParseAddr("198.51.100.7"), 1)
		}},
		{"rate-limit", "limits", `"binding": {"bridge": {}}, "limits": {"fromGuest": {"packetsPerSecond": 1}}`, `"binding": {"bridge": {}}`, func(l frames.Link) []byte {
			return l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5001)
		}},
		{"connection-limit", "maxConnections", `"binding": {"masquerade": {"maxConnections": 1}}`, `"binding": {"masquerade": {"maxConnections": 100}}`, func(l frames.Link) []byte {
			connections++
			return l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5000+connections)
		}},
		{"neighbour-limit", "guard.maxNeighbours", `"binding": {"masquerade": {}}, "guard": {"maxNeighbours": 1}`, `"binding": {"masquerade": {}}, "guard": {"maxNeighbours": 100}`, func(l frames.Link) []byte {
			connections++
			return l.Ask(unix.IPPROTO_UDP, l.IPv4, netip.AddrFrom4([4]byte{10, 244, 1, byte(100 + connections%100)}), 5000+connections)
		}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			p := &trial{t: t, n: nstest.NewNetwork(t)}
			p.config(0, "{"+c.before+"}")
			port := p.guestTap()
			defer port.Close()
			follow, line := exec.CommandContext(t.Context(), nstest.Program(t, "examples/guestwire-agent"), "drops", "-netns", p.n.Pod.Path(), "-nic", "eth0"), " "+c.reason+" "
			if c.reason == "rate-limit" {
				follow.Args, line = append(follow.Args, "-json"), `","reason":"`+c.reason+`","text":"`
			}
			var followed, said nstest.Output
			follow.Stdout, follow.Stderr = &followed, &said
			follow.Cancel = func() error { return follow.Process.Signal(unix.SIGTERM) }
			if err := follow.Start(); err != nil {
				t.Fatal(err)
			}
			nstest.Eventually(t, func() error {
				p.sends(port, c.frame(p.link()))
				if !strings.Contains(followed.String(), line) {
					return fmt.Errorf("guestwire-agent drops says\n%s", followed.String())
				}
				return nil
			})
			if err := follow.Process.Signal(unix.SIGTERM); err != nil {
				t.Error(err)
			}
			if err := follow.Wait(); err != nil || !strings.Contains(said.String(), "follows what is dropped") {
				t.Errorf("guestwire-agent drops: %v, %s", err, said.String())
			}
			if out := p.agent(8, "status"); !matches("dropped ... packet...: "+c.reason, out) {
				t.Errorf("status says\n%s", out)
			}
			if out := p.agent(8, "status"); c.reason == "rate-limit" && !strings.Contains(out, "from the guest: 1 packet a second") {
				t.Errorf("status says\n%s", out)
			}
			i := slices.IndexFunc(rows, func(row map[string]string) bool { return row["reason"] == c.reason })
			if i < 0 || !strings.Contains(rows[i]["what to do"], c.field) {
				t.Errorf("the document does not name %s for %s", c.field, c.reason)
			}
			p.config(0, "{"+c.after+"}")
			dropped := func() string { return regexp.MustCompile(`\d+ packets?: ` + c.reason).FindString(p.agent(8, "status")) }
			before := dropped()
			for range 3 {
				p.sends(port, c.frame(p.link()))
			}
			if after := dropped(); after != before {
				t.Errorf("with %s, status says %s, and said %s", c.field, after, before)
			}
		})
	}
}

// connections numbers the guest's connections.
var connections uint16

// TestMetricsAreDocumented wants the metrics of the document to be those that the exporter prints.
func TestMetricsAreDocumented(t *testing.T) {
	p := &trial{t: t, n: nstest.NewNetwork(t)}
	config := filepath.Join(t.TempDir(), "egress.json")
	if err := os.WriteFile(config, []byte(`{"binding": {"routed": {}}, "egress": ["divert all 443 :15443", "refuse all"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.agent(0, "setup", "-config", config)
	port := p.guestTap()
	defer port.Close()
	p.sends(port, append(slices.Repeat([]byte{2}, 12), make([]byte, 48)...)) // of another MAC
	if err := calls.Count(t.Context(), phase1.DefaultDir, "ADD", 0, time.Second); err != nil {
		t.Fatal(err)
	}
	metrics := map[string]string{}
	for _, row := range tables(t, reference+"metrics.md") {
		if name := row["metric"]; name != "" && !slices.Contains(metricsOfNode, name) {
			metrics[row["metric"]] = row["meaning"]
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, nstest.Program(t, "examples/guestwire-exporter")).Output()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, meaning, _ := strings.Cut(strings.TrimSpace(rest), " ")
			have[name] = meaning
		}
	}
	if !maps.Equal(have, metrics) {
		t.Errorf("the document has\n%v\nand the exporter\n%v", metrics, have)
	}
}
