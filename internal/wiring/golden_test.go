package wiring_test

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/golden"
)

// TestGolden compares with testdata what a plan prints, its record, and the way back from the wired
// namespace. A case that is called as its binding is shown whole. The others are shown by their differences to the
// nearest of these and of bases. A case of unshown has no file: the others must have each of its lines, apart from
// numbers.
func TestGolden(t *testing.T) {
	type shown struct{ name, binding, text string }
	var all []shown
	for _, c := range slices.Concat(cases, directCases) {
		plan, err := tryPlan(c.found, c.spec)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		record, err := cache.Encode(plan.Record)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		undo := mustUndo(t, plan, wire(t, plan, c.found))
		all = append(all, shown{c.name, string(plan.Record.Binding), plan.String() + "\n" + string(record) + "\n" + netstate.Text(undo)})
	}
	var files []string
	have := map[string]bool{}
	for _, c := range all {
		if slices.Contains(unshown, c.name) {
			continue
		}
		for line := range strings.Lines(c.text) {
			have[value.ReplaceAllString(strings.TrimRight(line, ",\n"), "N")] = true
		}
		text := ""
		for _, base := range all {
			first := base.name == c.binding
			if base.binding != c.binding || !first && (!slices.Contains(bases, base.name) || slices.Contains(bases, c.name)) {
				continue
			}
			variant := "# " + base.name + ".txt, but:\n" + golden.Variant(base.text, c.text)
			if text == "" || strings.Count(variant, "\n") < strings.Count(text, "\n") {
				text = variant
			}
		}
		if c.name == c.binding {
			text = c.text
		}
		files = append(files, c.name+".txt")
		t.Run(c.name, func(t *testing.T) { golden.Compare(t, c.name+".txt", text) })
	}
	golden.Only(t, ".txt", files...)
	for _, c := range all {
		for line := range strings.Lines(c.text) {
			if slices.Contains(unshown, c.name) && !have[value.ReplaceAllString(strings.TrimRight(line, ",\n"), "N")] {
				t.Errorf("%s is the only case with %sTake it out of unshown.", c.name, line)
			}
		}
	}
}

// value is what a line of two cases may differ in.
var value = regexp.MustCompile(`0x[0-9a-f]+|[0-9a-f]*:[0-9a-f:]+(/[0-9]+)?|[0-9]+(\.[0-9]+)*(/[0-9]+)?`)

// TestGoldenChanges: what a later Setup changes when its Spec differs, in place.
func TestGoldenChanges(t *testing.T) {
	forwarding := func(ports ...infra.Ports) asked {
		return withSpec(masquerade(), func(s *asked) { s.Binding = infra.Masquerade{Ports: ports} })
	}
	egress := func(entries ...string) asked {
		return withSpec(masquerade(), func(s *asked) { s.Egress = egressOf(entries...) })
	}
	var text strings.Builder
	for _, c := range []struct {
		name     string
		from, to asked
	}{
		{"limits", redirect(), withSpec(redirect(), limited)},
		{"no limits", withSpec(redirect(), limited), redirect()},
		{"an address", redirect(), withSpec(redirect(), func(s *asked) { s.Guard.Prefixes = []netip.Prefix{pfx("10.9.0.0/28")} })},
		{"a MAC", bridge(), withSpec(bridge(), func(s *asked) { s.Guard.MACs = []cache.MAC{mac(9)} })},
		{"a port", forwarding(infra.Ports{First: 80}), forwarding(infra.Ports{First: 80}, infra.Ports{First: 443})},
		{"a port that becomes another", forwarding(infra.Ports{First: 80}), forwarding(infra.Ports{First: 80, Guest: 8080})},
		{"another port", forwarding(infra.Ports{First: 80, Guest: 8080}), forwarding(infra.Ports{First: 80, Last: 82, Guest: 9090})},
		{"a list within", egress("allow 10.0.0.0/8 443", "refuse all"), withSpec(egress("allow 10.0.0.0/8 443", "refuse all"), func(s *asked) { s.EgressWithin = egressOf("refuse 10.9.0.0/16", "allow all") })},
		{"another destination", egress("allow 10.0.0.0/8 443", "refuse all"), egress("allow 10.0.0.0/8 443", "allow 192.0.2.1 53/udp", "refuse all")},
	} {
		k := wire(t, newPlan(t, flannel(), c.from), flannel())
		ops := mustSteps(t, newPlan(t, flannel(), c.to), k)
		text.WriteString("== " + c.name + "\n" + netstate.Text(ops))
		for _, step := range netstate.Steps(ops) {
			text.WriteString("# " + step.String() + "\n")
		}
	}
	golden.Compare(t, "changes", text.String())
}

// TestGoldenSummaries: what a plan says of its tables, each line once, under the first case that has it. The number of
// rules is that of the operation's text, and not in testdata: a new rule would change most lines.
func TestGoldenSummaries(t *testing.T) {
	var text strings.Builder
	seen := map[string]bool{}
	for _, c := range slices.Concat(cases, directCases) {
		steps, err := newPlan(t, c.found, c.spec).Steps(c.found)
		if err != nil {
			t.Fatal(err)
		}
		named := false
		for _, op := range steps {
			summary := netstate.Step(op).Summary
			if summary == "" {
				continue
			}
			said := rulesSaid.FindStringSubmatch(summary)
			if rules := len(ruleLine.FindAllString(op.String(), -1)); said == nil || said[1] != strconv.Itoa(rules) {
				t.Errorf("%s: %d rules, and the summary is %s", c.name, rules, summary)
			}
			summary = rulesSaid.ReplaceAllString(summary, ", N rules:")
			if seen[summary] {
				continue
			}
			if !named {
				text.WriteString(c.name + "\n")
			}
			named, seen[summary] = true, true
			text.WriteString("\t" + summary + "\n")
		}
	}
	golden.Compare(t, "summaries", text.String())
}

var (
	rulesSaid = regexp.MustCompile(`, ([0-9]+) rules?:`)
	ruleLine  = regexp.MustCompile(`(?m)^(\t\t[^t]|\t\tt[^y]|-A )`) // no head of a base chain, "type filter"
)
