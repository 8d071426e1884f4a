// Package monitoring_test judges the alerts and the dashboard of examples/monitoring by promtool, and what exporter
// prints.
package monitoring_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

func TestMain(m *testing.M) { nstest.Main(m) }

const dir = "../../../examples/monitoring"

// promtool calls promtool with the text as standard input.
func promtool(t *testing.T, text string, args ...string) {
	t.Helper()
	path := unpacked.Path("prometheus/usr/bin/promtool")
	if _, err := os.Stat(path); err != nil {
		nstest.Skip(t, "no promtool: make install")
	}
	cmd := exec.Command(path, args...)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %q: %v\n%s", args, err, out)
	}
}

// TestAlerts: each alert fires as its test says, and none of a healthy NIC.
func TestAlerts(t *testing.T) {
	promtool(t, "", "check", "rules", dir+"/rules.yaml")
	promtool(t, "", "test", "rules", dir+"/rules_test.yaml")
	rules, err := os.ReadFile(dir + "/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(dir + "/rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(rules)) {
		if _, name, is := strings.Cut(strings.TrimSpace(line), "alert: "); is && strings.Count(string(tests), "alertname: "+name) < 2 {
			t.Errorf("the alert %s is not tested with and without its fault", name)
		}
	}
}

// TestDashboard: Prometheus can read each query.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(dir + "/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	rules := "groups:\n  - name: dashboard\n    rules:\n"
	count := 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			rules += fmt.Sprintf("      - {record: \"query:%d\", expr: %q}\n", count, target.Expr)
			count++
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "check", "rules", file)
	if count < 10 {
		t.Errorf("%d queries", count)
	}
}

// TestExposition: what exporter prints of a wired NIC is in order.
func TestExposition(t *testing.T) {
	n := nstest.NewNetwork(t)
	nic := phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}
	spec := infra.Spec{Binding: infra.Redirect{}, Owner: infra.Owner{Root: true}, State: n.State}
	if _, err := nic.Setup(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(nstest.Program(t, "examples/guestwire-exporter")).Output()
	if err != nil || !strings.Contains(string(out), "guestwire_wired_nics 1") {
		t.Fatalf("%v\n%s", err, out)
	}
	promtool(t, string(out), "check", "metrics")
}
