// Package monitoring_test judges the alerts and the dashboard of examples/monitoring by promtool, and what exporter
// prints.
package monitoring_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// TestDashboard: each query has a result, with the labels of its legend, from the series of a node that has each fault;
// and has none where its variables select another node or pod.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(dir + "/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Datasource struct{ Type string }
			Targets    []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	type query struct {
		Expr     string   `json:"expr"`
		EvalTime string   `json:"eval_time"`
		Samples  []sample `json:"exp_samples"`
	}
	var queries []query
	count := 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			if p.Datasource.Type != "prometheus" {
				continue // of the log of flows: TestMonitoring of examples
			}
			count++
			ofNode, ofGone := strings.Contains(target.Expr, "guestwire_cni_"), strings.Contains(target.Expr, "guestwire_namespace_found")
			for _, c := range []struct {
				node, namespace, pod string
				found                bool
			}{
				{".*", ".*", ".*", true},
				{"(n|m)", "vms", "(vm1|vm2)", !ofGone},
				{"n", "vms", "vm2", ofNode},
				{"n", "other", ".*", ofNode},
				{"m", ".*", ".*", false},
			} {
				expr := strings.NewReplacer("$node", c.node, "$namespace", c.namespace, "$pod", c.pod).Replace(target.Expr)
				absent := []sample{{Labels: "{}", Value: 1}}
				if c.found {
					absent = nil
				}
				queries = append(queries, query{"absent((" + expr + ") > 0)", "28m", absent})
				for _, m := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) { // a vector has no labels
					queries = append(queries, query{"absent((" + expr + ") > 0 unless on(" + m[1] + ") vector(0))", "28m", absent})
				}
			}
		}
	}
	type series struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	var recorded []series
	for _, m := range regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? (\S+)$`).FindAllStringSubmatch(faultyNode(t), -1) {
		values := m[3] + "x30"
		switch {
		case strings.HasPrefix(m[1], "guestwire_dropped_"):
			values = "_x25 " + m[3] + "x5" // begins with its first packet
		case regexp.MustCompile(`_(total|count|sum|bucket)$`).MatchString(m[1]):
			values = m[3] + "+6x30"
		}
		recorded = append(recorded, series{m[1] + "{" + strings.TrimSuffix(`instance="n",`+m[2], ",") + "}", values})
	}
	tests, err := json.Marshal(map[string]any{"evaluation_interval": "1m", "tests": []any{map[string]any{
		"interval": "1m", "input_series": recorded, "promql_expr_test": queries,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "queries.yaml") // YAML is a superset of JSON
	if err := os.WriteFile(file, tests, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "test", "rules", file)
	if count < 10 || len(recorded) < 25 {
		t.Errorf("%d queries of %d series", count, len(recorded))
	}
}

// sample is one that promtool expects.
type sample struct {
	Labels string  `json:"labels"`
	Value  float64 `json:"value"`
}

// faultyNode returns what the exporter prints of a node with two NICs. The CNI plugin has wired the first one, of the
// pod vms/vm1: it differs, has a VMM and no responder, and has dropped a packet. The other one has no pod, and its
// namespace is gone.
func faultyNode(t *testing.T) string {
	n, gone := nstest.NewNetwork(t), nstest.NewNetwork(t)
	n.NeedTaps()
	journals, state := filepath.Join(nstest.Dir(t), "journals"), filepath.Join(nstest.Dir(t), "state")
	cni := exec.Command(nstest.Program(t, "examples/guestwire"))
	cni.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=sandbox1", "CNI_NETNS=" + n.Pod.Path(), "CNI_IFNAME=eth0", "CNI_PATH=/",
		"CNI_ARGS=K8S_POD_UID=7d5a;K8S_POD_NAMESPACE=vms;K8S_POD_NAME=vm1"}
	cni.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "type": "guestwire", "prevResult": {"cniVersion": "1.0.0"}, "dir": %q, "state": %q,
		"spec": {"owner": {"root": true}, "binding": {"routed": {}}, "egress": ["divert all 443 :15443", "refuse all"]}}`, journals, state))
	if out, err := cni.CombinedOutput(); err != nil {
		t.Fatalf("ADD: %v\n%s", err, out)
	}
	spec := infra.Spec{Binding: infra.Redirect{}, Owner: infra.Owner{Root: true}, State: gone.State}
	if _, err := (phase1.NIC{NetNS: gone.Pod.File, Name: "eth0", Dir: journals}).Setup(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	gone.Pod.End()
	n.Pod.IP("link set eth0-tap mtu 1400")
	port := nstest.OpenTap(t, n.Pod.File, "eth0-tap")
	defer port.Close()
	var text []byte
	nstest.Eventually(t, func() error {
		_, err := port.Write(append(bytes.Repeat([]byte{2}, 12), make([]byte, 48)...)) // of another MAC
		if err == nil {
			text, err = exec.Command(nstest.Program(t, "examples/guestwire-exporter"), "-dir", journals).Output()
		}
		if err == nil && !strings.Contains(string(text), `reason="mac-spoof"`) {
			err = fmt.Errorf("no mac-spoof in\n%s", text)
		}
		return err
	})
	return string(text)
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
