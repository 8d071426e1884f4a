package examples_test

import (
	"cmp"
	"encoding"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// object is a struct of the configuration, and where it is.
type object struct {
	path string
	of   reflect.Type
}

// fieldsOf returns the sections of the configuration: a table for each object in it, and the forms of its texts.
func fieldsOf(t *testing.T) string {
	t.Helper()
	in := map[string]docs{"infra": readDocs(t, "../infra"), "cache": readDocs(t, "../cache")}
	all := []object{{"", reflect.TypeFor[infra.Spec]()}}
	texts := map[string]reflect.Type{}
	seen, paths := map[reflect.Type]bool{}, map[reflect.Type]string{}
	var b strings.Builder
	for i := 0; i < len(all); i++ {
		o := all[i]
		if seen[o.of] {
			continue
		}
		seen[o.of] = true
		doc := in[packageOf(o.of)]
		intro := inJSON(o, "", doc[o.of.Name()])
		if _, isBinding := reflect.Zero(o.of).Interface().(infra.Binding); isBinding { // its page has what it needs and refuses
			kind := strings.TrimPrefix(o.path, "binding.")
			intro = strings.Replace(firstSentence.FindString(intro), kind, "["+kind+"](../bindings/"+kind+".md)", 1)
			if kind == "auto" {
				intro = firstSentence.FindString(inJSON(o, "", doc[o.of.Name()])) + " [More](../how-to/choose-a-binding.md#auto)."
			}
		}
		fmt.Fprintf(&b, "## %s\n\n%s\n", cmp.Or(o.path, "The configuration"), wrapped(intro))
		if o.of.NumField() == 0 {
			b.WriteString("\nIt has no fields.\n\n")
			continue
		}
		b.WriteString("\n| field | type | left out | meaning |\n| --- | --- | --- | --- |\n")
		for i := 0; i < o.of.NumField(); i++ {
			f := o.of.Field(i)
			names, text := "`"+jsonName(f)+"`", doc[o.of.Name()+"."+f.Name]
			for i+1 < o.of.NumField() { // a comment for two fields
				next := o.of.Field(i + 1)
				if doc[o.of.Name()+"."+next.Name] != "" || !strings.HasPrefix(text, f.Name+" and "+next.Name+" ") {
					break
				}
				names, i = names+", `"+jsonName(next)+"`", i+1
			}
			if text == "" {
				t.Errorf("%v.%s has no comment", o.of, f.Name)
			}
			path := strings.TrimPrefix(o.path+"."+jsonName(f), ".")
			kind, inner := typeText(f.Type, path, texts, paths)
			all = append(all, inner...)
			meaning, leftOut := withoutZero(inJSON(o, f.Name, text))
			if first := doc[o.of.Name()+"."+f.Name+" first"]; first != "" && packageOf(o.of) == "infra" { // the comment has the rest
				meaning, _ = withoutZero(inJSON(o, f.Name, first))
				meaning += " [More](../" + doc[o.of.Name()+"."+f.Name+" file"] + ")."
			}
			if page := morePages[o.of.Name()+"."+f.Name]; page != "" {
				meaning = firstSentence.FindString(meaning) + "[More](../" + page + ")."
			}
			meaning = regexp.MustCompile("^`"+jsonName(f)+"` (?:(?:is|are) |([^a]))").ReplaceAllString(meaning, "$1") // not "`a` and `b`"
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", names, kind, cmp.Or(leftOut, zeroOf(f.Type)), meaning)
		}
		b.WriteString("\n")
	}
	b.WriteString("## Texts\n\n| type | form |\n| --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		doc := in[packageOf(texts[name])][texts[name].Name()]
		if doc == "" {
			doc = map[string]string{"address": "An IPv4 or IPv6 address, as `10.0.2.1` and `fd10:0:2::1`.",
				"prefix": "An address and the length of the network, as `10.0.2.0/24`."}[name]
		}
		if page := map[string]string{"Egress": "egress", "Name": "names"}[name]; page != "" {
			fmt.Fprintf(&b, "| %s | %s[%s](../how-to/%[3]s.md) has its form. |\n", name, inJSON(object{of: reflect.TypeFor[struct{}]()}, "", firstSentence.FindString(doc))+" ", page)
			continue
		}
		if values := valuesOf(t, texts[name]); len(values) > 0 {
			doc += " One of " + strings.Join(values, ", ") + "."
		}
		fmt.Fprintf(&b, "| %s | %s |\n", name, inJSON(object{of: reflect.TypeFor[struct{}]()}, "", doc))
	}
	return b.String()
}

// morePages have the rest of what a field's comment says.
var morePages = map[string]string{
	"Owner.SELinux":   "how-to/confine.md#selinux",
	"Passt.VhostUser": "bindings/passt.md#how-it-is-wired",
	"Spec.Egress":     "how-to/egress.md",
	"Spec.Flows":      "how-to/flows.md",
	"Spec.Names":      "how-to/names.md",
}

// firstSentence is the first one of a comment.
var firstSentence = regexp.MustCompile(`^.*?\.(?: |$)`)

func packageOf(t reflect.Type) string { return filepath.Base(t.PkgPath()) }

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// typeText returns the type of a field, and the objects in it. Texts get the types with a form of their own.
// Paths are where the objects are described.
func typeText(of reflect.Type, path string, texts map[string]reflect.Type, paths map[reflect.Type]string) (string, []object) {
	if of == reflect.TypeFor[infra.Binding]() {
		var inner []object
		for _, kind := range bindingKinds() {
			b, _ := infra.NewBinding(kind)
			inner = append(inner, object{path + "." + string(kind), reflect.TypeOf(b)})
		}
		return "object with one member, a [kind](#bindingbridge)", inner
	}
	if reflect.PointerTo(of).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		name := map[string]string{"Addr": "address", "Prefix": "prefix", "Ports": "ports", "Data": "data"}[of.Name()]
		name = cmp.Or(name, of.Name())
		texts[name] = of
		return name, nil
	}
	switch of.Kind() {
	case reflect.Pointer:
		return typeText(of.Elem(), path, texts, paths)
	case reflect.Struct:
		if paths[of] == "" {
			paths[of] = path
		}
		return fmt.Sprintf("[object](#%s)", strings.ToLower(strings.ReplaceAll(paths[of], ".", ""))), []object{{path, of}}
	case reflect.Slice:
		name, inner := typeText(of.Elem(), path, texts, paths)
		return "list of " + name, inner
	case reflect.Map:
		name, inner := typeText(of.Elem(), path, texts, paths)
		return "object: number to " + name, inner
	case reflect.String:
		return "text", nil
	case reflect.Bool:
		return "boolean", nil
	}
	return "number", nil
}

// valuesOf returns those that a type of words can have.
func valuesOf(t *testing.T, of reflect.Type) []string {
	t.Helper()
	source, err := os.ReadFile("../cache/binding.go")
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	for _, m := range regexp.MustCompile(`(?m)^\t\w+ +`+of.Name()+` += "(.*)"$`).FindAllStringSubmatch(string(source), -1) {
		values = append(values, "`"+m[1]+"`")
	}
	return values
}

// zeroOf is what a field has in JSON that is left out.
func zeroOf(of reflect.Type) string {
	switch {
	case of.Kind() == reflect.Bool:
		return "`false`"
	case of.Kind() >= reflect.Int && of.Kind() <= reflect.Uint64:
		return "`0`"
	}
	return "none"
}

func bindingKinds() (kinds []cache.Kind) {
	_, err := infra.NewBinding("")
	for _, m := range regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(err.Error(), -1) { // want "bridge", "redirect", ...
		kinds = append(kinds, cache.Kind(m[1]))
	}
	return kinds
}
