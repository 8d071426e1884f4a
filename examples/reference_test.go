package examples_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/examples/metrics"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

const reference = "../docs/reference/"

// TestReference: the parts of the reference that say what the code says are made from it.
func TestReference(t *testing.T) {
	golden.Parts(t, reference+"configuration.md", "examples", map[string]string{"fields": fieldsOf(t)})
	golden.Parts(t, reference+"commands.md", "examples", map[string]string{"verbs": verbsTable(t)})
	golden.Parts(t, reference+"exit-codes.md", "examples", map[string]string{"exit codes": exitCodes(t), "CNI": codesOfCNI(t)})
	golden.Parts(t, reference+"metrics.md", "examples", map[string]string{"metrics": metricsTable(t)})
	golden.Parts(t, reference+"drop-reasons.md", "examples", map[string]string{"reasons": reasonsTable(t)})
}

// TestReferenceCNI: the page about the CNI plugin has the members of the entry, the annotations and the bindings'
// words.
func TestReferenceCNI(t *testing.T) {
	var entry struct{ Properties map[string]any }
	if err := json.Unmarshal([]byte(help(t, "examples/guestwire", "-schema")), &entry); err != nil {
		t.Fatal(err)
	}
	for _, others := range []string{"cniVersion", "name", "type", "capabilities", "args", "runtimeConfig", "prevResult"} {
		delete(entry.Properties, others) // CNI's own
	}
	want := map[string][]string{
		"member":     slices.Collect(maps.Keys(entry.Properties)),
		"annotation": {podsandbox.NICPrefix + "NAME", podsandbox.DevicesKey, podsandbox.ContainerKey},
		"call":       {"ADD", "CHECK", "DEL", "GC", "STATUS"},
	}
	have := map[string][]string{}
	for _, row := range tables(t, reference+"cni.md") {
		for column := range want {
			if name := strings.Trim(row[column], "`"); name != "" {
				have[column] = append(have[column], name)
			}
		}
		if row["annotation"] == "`"+podsandbox.NICPrefix+"NAME`" {
			for _, kind := range bindingKinds() {
				if !strings.Contains(row["value"], "`"+string(kind)+"`") {
					t.Errorf("the page lacks the word %s", kind)
				}
			}
		}
	}
	for column, names := range want {
		slices.Sort(names)
		slices.Sort(have[column])
		if !slices.Equal(names, have[column]) {
			t.Errorf("%ss %q, want %q", column, have[column], names)
		}
	}
}

// docs are the doc comments of a package's types, fields and constants: "Spec", "Spec.Guest".
type docs map[string]string

func readDocs(t *testing.T, dir string) docs {
	t.Helper()
	paths, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(paths) == 0 {
		t.Fatal(len(paths), err)
	}
	d := docs{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			general, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				typ, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				d[typ.Name.Name] = oneParagraph(cmp.Or(typ.Doc.Text(), general.Doc.Text()))
				if s, ok := typ.Type.(*ast.StructType); ok {
					for _, f := range s.Fields.List {
						for _, name := range f.Names {
							text, field := cmp.Or(f.Doc.Text(), f.Comment.Text()), typ.Name.Name+"."+name.Name
							d[field] = oneParagraph(text)
							if first, _, more := strings.Cut(text, "\n\n"); more {
								d[field+" first"], d[field+" file"] = oneParagraph(first), path
							}
						}
					}
				}
			}
		}
	}
	return d
}

// oneParagraph returns a comment's text in one line: its code between backticks, and the rows of its tables.
func oneParagraph(comment string) string {
	var words []string
	var code []string // lines in a row
	end := func() {
		isTable := len(code) > 1
		for _, line := range code {
			isTable = isTable && tableRow.MatchString(line)
		}
		for i, line := range code {
			if row := tableRow.FindStringSubmatch(line); isTable {
				code[i] = "`" + row[1] + "`: " + row[2]
			}
		}
		switch {
		case isTable:
			words = append(words, strings.Join(code, "; ")+".")
		case code != nil:
			words = append(words, "`"+strings.Join(code, " ")+"`")
		}
		code = nil
	}
	for line := range strings.Lines(comment) {
		if text, ok := strings.CutPrefix(line, "\t"); ok {
			code = append(code, strings.TrimSpace(text))
			continue
		}
		end()
		words = append(words, strings.Fields(line)...)
	}
	end()
	return strings.ReplaceAll(strings.Join(words, " "), "|", `\|`)
}

// tableRow is a word of a table, and what it means.
var tableRow = regexp.MustCompile(`^(\S+)  +(.*)$`)

var (
	zeroClause = regexp.MustCompile(`(?:^|; |\. )(?:[Zz]ero|[Ee]mpty|[Nn]il|[Nn]one|0)(?:: | is (?:refused))(.*?)(\. |; |\.?$)`)
	goName     = regexp.MustCompile(`\b(?:([A-Za-z]\w*)\.)?([A-Z]\w*)\b`)
	goPath     = regexp.MustCompile(`\b(?:Spec\.)?([A-Z]\w*(?:\.[A-Z]\w*)+)\b`)
	goLink     = regexp.MustCompile(`\[\*?([\w.]+)\]`)
	acronym    = regexp.MustCompile(`^[A-Z]+(v[46])?s?$`)
)

// withoutZero returns a field's meaning without the clause that says what its zero value means, and that clause.
func withoutZero(text string) (meaning, zero string) {
	at := zeroClause.FindStringSubmatchIndex(text)
	if at == nil {
		return text, ""
	}
	zero = text[at[2]:at[3]]
	if strings.HasSuffix(text[:at[2]], "is refused") {
		zero = "refused"
	}
	end := text[at[4]:at[5]]
	if end == "" && at[0] > 0 && text[at[0]] == '.' {
		end = "."
	}
	return text[:at[0]] + end + text[at[5]:], zero
}

// inJSON returns the comment of a field with the names that JSON has for the fields and bindings of Go. A name such as
// MAC stands for the thing, unless the comment begins with it.
func inJSON(o object, field, text string) string {
	text = goLink.ReplaceAllString(text, "$1")
	if f, ok := o.of.FieldByName(field); ok && acronym.MatchString(field) && strings.HasPrefix(text, field+" ") {
		text = "`" + jsonName(f) + "`" + strings.TrimPrefix(text, field)
		if second := regexp.MustCompile("^(`\\w+` and )(\\w+)").FindStringSubmatch(text); second != nil {
			if f, ok := o.of.FieldByName(second[2]); ok {
				text = second[1] + "`" + jsonName(f) + "`" + strings.TrimPrefix(text, second[0])
			}
		}
	}
	bindings := map[string]string{}
	for _, kind := range bindingKinds() {
		b, _ := infra.NewBinding(kind)
		bindings[reflect.TypeOf(b).Name()] = string(kind)
	}
	text = goPath.ReplaceAllStringFunc(text, func(path string) string {
		return cmp.Or(pathInJSON(strings.TrimPrefix(path, "Spec.")), path)
	})
	constants := map[string]int{"DefaultMaxConnections": infra.DefaultMaxConnections}
	return goName.ReplaceAllStringFunc(text, func(word string) string {
		m := goName.FindStringSubmatch(word)
		if f, ok := o.of.FieldByName(m[2]); ok && m[1] == "" && !acronym.MatchString(m[2]) {
			return "`" + jsonName(f) + "`"
		}
		if number, ok := constants[m[2]]; ok {
			return strconv.Itoa(number)
		}
		if f, ok := reflect.TypeFor[infra.Spec]().FieldByName(m[2]); ok && m[1] == "Spec" {
			return "`" + jsonName(f) + "`"
		}
		if kind := bindings[m[1]]; kind != "" {
			return "`" + kind + "." + strings.ToLower(m[2][:1]) + m[2][1:] + "`"
		}
		if kind := bindings[m[2]]; kind != "" && m[1] == "" {
			return kind
		}
		return word
	})
}

// pathInJSON returns the path of a field in a field of the Spec, such as DNS.Search; empty: there is none.
func pathInJSON(path string) string {
	of, names := reflect.TypeFor[infra.Spec](), []string{}
	for name := range strings.SplitSeq(path, ".") {
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct {
			return ""
		}
		f, ok := of.FieldByName(name)
		if !ok {
			return ""
		}
		of, names = f.Type, append(names, jsonName(f))
	}
	return "`" + strings.Join(names, ".") + "`"
}

// wrapped returns a text in lines of at most 120 columns.
func wrapped(text string) string {
	var lines []string
	for word := range strings.FieldsSeq(text) {
		if last := len(lines) - 1; last >= 0 && len(lines[last])+1+len(word) <= 120 {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return strings.Join(lines, "\n")
}

func help(t *testing.T, folder string, args ...string) string {
	t.Helper()
	out, status := run(t, nstest.Program(t, folder), args...)
	if status != 0 || out == "" {
		t.Fatalf("%s %q: status %d, %q", folder, args, status, out)
	}
	return out
}

// element is one of XML, which a page has as code.
var element = regexp.MustCompile(`<\w+>`)

// verbsTable has what each program's help says of its verbs in a line, and how to read the rest.
func verbsTable(t *testing.T) string {
	t.Helper()
	text := "| program, verb | what it does |\n| --- | --- |\n"
	for _, name := range withVerbs {
		verbs := regexp.MustCompile(`(?m)^  ([a-z]+)(?: VERB)?  +([a-z].*)$`).FindAllStringSubmatch(help(t, "examples/"+name, "-help"), -1)
		if name == "guestwire-exporter" {
			text += "| `" + name + "` | print the metrics of the node's wired NICs, or replace a file with them |\n"
			continue
		}
		if len(verbs) < 5 {
			t.Fatalf("%s has the verbs %q", name, verbs)
		}
		for _, verb := range verbs {
			if slices.Contains([]string{"completion", "man", "version", "help"}, verb[1]) {
				continue
			}
			if help(t, "examples/"+name, "help", verb[1]) == "" {
				t.Errorf("%s help %s prints nothing", name, verb[1])
			}
			text += "| `" + name + " " + verb[1] + "` | " + element.ReplaceAllString(verb[2], "`$0`") + " |\n"
		}
	}
	return text
}

// exitCodes returns those that the programs' help names.
func exitCodes(t *testing.T) string {
	t.Helper()
	var order []string
	programs := map[string][]string{} // by code and meaning
	for _, name := range withVerbs {
		said := inOneLine(help(t, "examples/"+name, "-help"))
		_, list, ok := strings.Cut(said, "The exit code is ")
		list, _, ended := strings.Cut(list+" ", ". ")
		if !ok || !ended {
			t.Fatalf("the help of %s names no exit codes:\n%s", name, said)
		}
		number := regexp.MustCompile(`(?:^|, )(\d+): `)
		codes, meanings := number.FindAllStringSubmatch(list, -1), number.Split(list, -1)
		for i, code := range codes {
			row := fmt.Sprintf("%s | %s", code[1], meanings[i+1])
			if programs[row] == nil {
				order = append(order, row)
			}
			programs[row] = append(programs[row], name)
		}
	}
	text := "| code | meaning | programs |\n| --- | --- | --- |\n"
	for _, row := range order {
		text += fmt.Sprintf("| %s | %s |\n", row, strings.Join(programs[row], ", "))
	}
	return text
}

// codesOfCNI returns the plugin's own error codes.
func codesOfCNI(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile("guestwire/errors.go")
	if err != nil {
		t.Fatal(err)
	}
	text := "| code | meaning |\n| --- | --- |\n"
	codes := regexp.MustCompile(`(?m)^\tcode\w+ +uint = (\d+) +// (.*)$`).FindAllStringSubmatch(string(source), -1)
	for _, code := range codes {
		text += fmt.Sprintf("| %s | %s |\n", code[1], code[2])
	}
	if len(codes) < 4 {
		t.Errorf("found the codes %q", codes)
	}
	return text
}

// metricsOfNode are those that guestwire-node alone serves.
var metricsOfNode = []string{"guestwire_repairs_total", "guestwire_named_nics", "guestwire_dns_proxies"}

// metricsTable returns the metrics of the NICs, and those of guestwire-node.
func metricsTable(t *testing.T) string {
	t.Helper()
	var descs []string
	of := make(chan *prometheus.Desc)
	go func() {
		metrics.NICs{}.Describe(of)
		close(of)
	}()
	for d := range of {
		descs = append(descs, d.String())
	}
	text := "| metric | labels | meaning |\n| --- | --- | --- |\n"
	described := regexp.MustCompile(`fqName: "(.*?)", help: "(.*?)",.* variableLabels: {(.*?)}`)
	for _, d := range descs {
		m := described.FindStringSubmatch(d)
		if m == nil {
			t.Fatal(d)
		}
		text += fmt.Sprintf("| %s | %s | %s |\n", m[1], strings.ReplaceAll(m[3], ",", ", "), m[2])
	}
	source, err := os.ReadFile("guestwire-node/metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	own := regexp.MustCompile(`Name: "(guestwire_\w+)",\s+Help: "(.*)"}, func`).FindAllSubmatch(source, -1)
	if len(own) != len(metricsOfNode) {
		t.Fatalf("guestwire-node/metrics.go has the metrics %q", own)
	}
	for _, m := range own {
		text += fmt.Sprintf("| %s |  | %s |\n", m[1], m[2])
	}
	return text
}

// reasonsTable returns the reasons, each with what the document says to do.
func reasonsTable(t *testing.T) string {
	t.Helper()
	todo := map[string]string{}
	for _, row := range tables(t, reference+"drop-reasons.md") {
		todo[row["reason"]] = row["what to do"]
	}
	text := "| reason | packets | expected | what to do |\n| --- | --- | --- | --- |\n"
	for _, r := range firewall.Reasons {
		if todo[string(r.Reason)] == "" {
			t.Errorf("drop-reasons.md does not say what to do about %s", r.Reason)
		}
		if r.Reason.Expected() && !strings.HasPrefix(todo[string(r.Reason)], "Nothing") {
			t.Errorf("%s is expected, and drop-reasons.md has something to do: %s", r.Reason, todo[string(r.Reason)])
		}
		expected := ""
		if r.Reason.Expected() {
			expected = "yes"
		}
		text += fmt.Sprintf("| %s | %s | %s | %s |\n", r.Reason, r.Meaning, expected, todo[string(r.Reason)])
	}
	return text
}
