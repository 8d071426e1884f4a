package examples_test

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/phase1"
)

// TestMonitoring: alerts and dashboard name metrics and labels that are documented, and the page has each alert.
func TestMonitoring(t *testing.T) {
	labels := map[string][]string{}
	page := ""
	for _, row := range tables(t, reference+"metrics.md") {
		if row["metric"] != "" {
			labels[row["metric"]] = strings.Split(row["labels"], ", ")
		}
		page += row["alert"]
	}
	read := func(path string) string {
		text, err := os.ReadFile("monitoring/" + path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	rules, dashboard := read("rules.yaml"), read("dashboard.json")
	var parsed struct {
		Templating struct {
			List []struct{ Type, Definition string }
		}
		Panels []struct {
			Datasource struct{ Type string }
			Targets    []struct{ Expr string }
		}
	}
	fields := flowFields(t)
	if err := json.Unmarshal([]byte(dashboard), &parsed); err != nil || len(parsed.Panels) < 8 {
		t.Errorf("%d panels, %v", len(parsed.Panels), err)
	}
	texts := rules
	for _, p := range parsed.Panels {
		for _, target := range p.Targets {
			texts += "\n" + target.Expr
			if p.Datasource.Type != "loki" {
				continue
			}
			named := regexp.MustCompile(`(?:unwrap |by \(|{{\.|json \| )(\w+)`).FindAllStringSubmatch(target.Expr, -1)
			if len(named) < 2 {
				t.Errorf("%q names no field", target.Expr)
			}
			for _, m := range named {
				if !slices.Contains(fields, m[1]) {
					t.Errorf("%q: a flow has no field %s: %q", target.Expr, m[1], fields)
				}
			}
		}
	}
	variables := 0
	for _, v := range parsed.Templating.List {
		m := regexp.MustCompile(`^label_values\((guestwire_\w+)(?:\{.*\})?, (\w+)\)$`).FindStringSubmatch(v.Definition)
		if v.Type == "query" && (m == nil || m[2] != "instance" && !slices.Contains(labels[m[1]], m[2])) {
			t.Errorf("no such label of a variable: %q", v.Definition)
		}
		texts, variables = texts+"\n"+v.Definition, variables+len(m)/3
	}
	if variables != 3 {
		t.Errorf("%d variables", variables)
	}
	used := regexp.MustCompile(`\b(guestwire_\w+?)(?:_bucket|_count)?\b(?:\{([^}]*)\})?`).FindAllStringSubmatch(texts, -1)
	if len(used) < 15 {
		t.Errorf("%d uses of metrics", len(used))
	}
	for _, m := range used {
		known, ok := labels[m[1]]
		if !ok {
			t.Errorf("no metric %s in the page", m[1])
		}
		for _, label := range regexp.MustCompile(`(\w+)\s*[!=]?[=~]`).FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(append(known, "instance"), label[1]) { // which Prometheus adds
				t.Errorf("%s has no label %s: %q", m[1], label[1], known)
			}
		}
	}
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	for _, a := range alerts {
		if !strings.Contains(page, "`"+a[1]+"`") {
			t.Errorf("the page does not have the alert %s", a[1])
		}
	}
	if len(alerts) < 6 {
		t.Errorf("%d alerts", len(alerts))
	}
}

// flowFields are the fields of a line of guestwire-agent flows -json, as LogQL's json parser names them.
func flowFields(t *testing.T) (fields []string) {
	t.Helper()
	var add func(prefix string, v reflect.Type)
	add = func(prefix string, v reflect.Type) {
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct || v.PkgPath() != reflect.TypeFor[phase1.Flow]().PkgPath() {
			fields = append(fields, strings.TrimSuffix(prefix, "_"))
			return
		}
		for i := range v.NumField() {
			f := v.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" {
				t.Fatalf("%v has no name in JSON", f)
			}
			add(prefix+name+"_", f.Type)
		}
	}
	add("", reflect.TypeFor[phase1.Flow]())
	return fields
}
