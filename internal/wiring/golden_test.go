package wiring_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/guestfilter"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/wiring"
)

// TestGolden compares with testdata what a plan prints, what its tables are made of, its record, and the way back from
// the wired namespace. A case that is called as its binding is shown whole. The others are shown by what differs from
// the nearest of these and of bases. A case of unshown has no file: the others must have each of its lines, apart from
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
		text := shortTables(plan.String()) + "\n" + descriptions(plan) + shortLists(string(record)) + "\n" + netstate.Text(undo)
		all = append(all, shown{c.name, string(plan.Record.Binding), text})
	}
	var files []string
	have := map[string]bool{}
	for _, c := range all {
		if slices.Contains(unshown, c.name) {
			continue
		}
		for _, line := range comparable(c.text) {
			have[line] = true
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
		for _, line := range comparable(c.text) {
			if slices.Contains(unshown, c.name) && !have[line] {
				t.Errorf("%s is the only case with %s\nTake it out of unshown.", c.name, line)
			}
		}
	}
}

// comparable are the lines of a case as others can have them: without values, and a line for each chain.
func comparable(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if names, ok := strings.CutPrefix(line, chainsHead); ok {
			lines = append(lines, strings.Fields(names)...)
		} else {
			lines = append(lines, value.ReplaceAllString(strings.TrimRight(line, ",\n"), "N"))
		}
	}
	return lines
}

// value is what a line of two cases may differ in.
var value = regexp.MustCompile(`0x[0-9a-f]+|[0-9a-f]*:[0-9a-f:]+(/[0-9]+)?|[0-9]+(\.[0-9]+)*(/[0-9]+)?`)

// shortTables shows of a table that a plan creates its name and those of its chains: the goldens of guestfilter and
// router show the rules.
func shortTables(plan string) string {
	return tableMade.ReplaceAllStringFunc(plan, func(made string) string {
		parts := tableMade.FindStringSubmatch(made)
		text := strings.TrimSpace(parts[1]+" "+parts[2]) + "\n" + chainsHead
		for _, chain := range chainMade.FindAllStringSubmatch(made, -1) {
			text += " " + chain[1]
		}
		return text + "\n"
	})
}

const chainsHead = "\tchains"

var (
	tableMade = regexp.MustCompile(`(?s)(\S+ \S+) <<'EOF'\n(table [^{]*)?.*?\nEOF\n`)
	chainMade = regexp.MustCompile(`(?m)^(?:\tchain |:)(\S+)`)
)

// shortLists puts each object of a record's lists, and each list of short values, into a line.
func shortLists(record string) string {
	return innermost.ReplaceAllStringFunc(record, func(text string) string {
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			if lines[i] = strings.TrimSpace(line); len(line) > 100 {
				return text
			}
		}
		return strings.Join(lines, " ")
	})
}

var innermost = regexp.MustCompile(`\{\n[^{}\[\]]*\}|\[\n[^{}\[\]]*\]`)

// descriptions are the fields of what the plan's tables are made of that are not zero, one a line. The filters of
// Asked are those of the plan's text, by their preference.
func descriptions(p *wiring.Plan) (text string) {
	for _, d := range p.Described() {
		asked := ""
		if g, ok := d.(guestfilter.Guest); ok {
			for _, f := range g.Asked {
				asked += fmt.Sprintf(" %d", f.Priority)
			}
			g.Asked = nil
			d = g
		}
		_, values := inputs.Changed(reflect.Zero(reflect.TypeOf(d)).Interface(), d)
		if asked != "" {
			values = append(values, "Asked"+asked)
		}
		text += fmt.Sprintf("%T\n\t%s\n\n", d, strings.Join(values, "\n\t"))
	}
	return text
}

// inputs are the fields of the descriptions, one by one.
var inputs = golden.Inputs{Groups: []reflect.Type{reflect.TypeFor[guestfilter.Guest](), reflect.TypeFor[router.Masquerade](), reflect.TypeFor[router.Routed](),
	reflect.TypeFor[router.Router](), reflect.TypeFor[infra.Guard](), reflect.TypeFor[infra.Masquerade](), reflect.TypeFor[cache.Limit]()}}

// TestGoldenChanges: what a later Setup changes when its Spec differs, in place. Rules that the tables have already are
// three dots.
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
		had := map[string]bool{}
		for _, table := range newPlan(t, flannel(), c.from).Tables() {
			for line := range strings.Lines(table.String()) {
				had[withoutComment(line)] = strings.HasPrefix(line, "\t\t")
			}
		}
		ops := mustSteps(t, newPlan(t, flannel(), c.to), k)
		text.WriteString("== " + c.name + "\n")
		same := false
		for line := range strings.Lines(netstate.Text(ops)) {
			has := had[withoutComment(line)]
			switch {
			case !has:
				text.WriteString(line)
			case !same:
				text.WriteString("\t\t...\n")
			}
			same = has
		}
		for _, step := range netstate.Steps(ops) {
			text.WriteString("# " + step.String() + "\n")
		}
	}
	golden.Compare(t, "changes", text.String())
}

func withoutComment(line string) string {
	rule, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " # ")
	return rule
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

// TestTablesAreShown: the goldens of guestfilter and router have each rule and each set of the plans' tables, apart
// from values and from names of links. Chains of drops are those of firewall.Table.Counted, which has its own test.
func TestTablesAreShown(t *testing.T) {
	plain := func(line string) string {
		line = protocol.ReplaceAllString(nameOfLink.ReplaceAllString(strings.TrimSpace(line), "LINK"), "PROTOCOL")
		return someBytes.ReplaceAllString(value.ReplaceAllString(elements.ReplaceAllString(line, ""), "N"), "@nh ")
	}
	shown := map[string]bool{}
	for _, pattern := range []string{"../guestfilter/testdata/*", "../router/testdata/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || paths == nil {
			t.Fatal(paths, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				shown[plain(placeOfRule.ReplaceAllString(line, ""))] = true
			}
		}
	}
	for _, c := range cases {
		families := map[firewall.Family]bool{}
		for _, table := range newPlan(t, c.found, c.spec).Tables() {
			if families[table.Family] {
				t.Errorf("%s: two tables of the family %v", c.name, table.Family)
			}
			families[table.Family] = true
			table.Chains = slices.DeleteFunc(slices.Clone(table.Chains), func(c firewall.Chain) bool {
				_, drops := firewall.ReasonOf(c.Name)
				return drops || strings.HasPrefix(c.Name, "up-")
			})
			for line := range strings.Lines(table.String()) {
				if line = plain(line); !shown[line] && !strings.HasPrefix(line, "chain ") && !strings.HasPrefix(line, "table ") {
					t.Errorf("%s: no golden of guestfilter and router has %s", c.name, line)
					shown[line] = true
				}
			}
		}
	}
}

var (
	nameOfLink  = regexp.MustCompile(`"?\b(eth0|net1|vm1|enp0s31f6|gw[0-9a-f]+)(-[a-z]+)?\b"?`)
	protocol    = regexp.MustCompile(`\b(tcp|udp|sctp)\b`)
	someBytes   = regexp.MustCompile(`(@nh,N,N (& N == )?N )+`)
	elements    = regexp.MustCompile(` elements = .*?;`)
	placeOfRule = regexp.MustCompile(`^([+-][0-9]+\t|\+)`)
)
