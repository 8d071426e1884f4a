package wiring_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/netstate"
)

// TestStepKinds: each type of operation has the kind that infra.Step lists, and each kind is one's.
func TestStepKinds(t *testing.T) {
	withAddress := netstate.Neighbour{Address: netip.MustParseAddr("10.0.0.1")}
	types, kinds := map[string]bool{}, map[string]bool{}
	documented := documentedKinds(t, "infra/step.go", "Step")
	for _, op := range []netstate.Op{
		netstate.TapAdd{}, netstate.TapReset{}, netstate.LinkAdd{}, netstate.LinkSet{}, netstate.LinkDel{}, netstate.GroupDel{}, netstate.BridgeSet{}, netstate.BridgePortSet{},
		netstate.ConfSet{}, netstate.SysctlSet{}, netstate.AddressAdd{}, netstate.AddressDel{}, netstate.RouteAdd{}, netstate.RouteDel{},
		netstate.NeighbourAdd{}, netstate.NeighbourDel{}, netstate.NeighbourAdd{Neighbour: withAddress}, netstate.NeighbourDel{Neighbour: withAddress},
		netstate.IngressAdd{}, netstate.IngressDel{}, netstate.FilterAdd{}, netstate.FilterDel{}, netstate.TableSet{}, netstate.TableChange{}, netstate.TableDel{}, netstate.ConnectionsDel{},
	} {
		step := netstate.Step(op)
		types[reflect.TypeOf(op).Name()], kinds[step.Kind] = true, true
		if !slices.Contains(documented, step.Kind) {
			t.Errorf("%T has the kind %q, which infra.Step does not list", op, step.Kind)
		}
		if step.Command != op.String() {
			t.Errorf("%T: command %q, want %q", op, step.Command, op)
		}
		if strings.Contains(step.String(), "\n") {
			t.Errorf("%T is printed in several lines: %s", op, step)
		}
	}
	for _, kind := range documented {
		if !kinds[kind] && kind != "record-write" {
			t.Errorf("no operation has the kind %s, which infra.Step lists", kind)
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), "../netstate/op.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "kind" && !types[f.Recv.List[0].Type.(*ast.Ident).Name] {
			t.Errorf("%s is not tested here", f.Recv.List[0].Type)
		}
	}
	on := true
	for _, op := range []netstate.Op{netstate.LinkAdd{Name: "eth0-br"}, netstate.LinkSet{Link: "eth0-br", Up: &on}, netstate.FilterAdd{Link: "eth0-br"}} {
		if have := netstate.Step(op).Link; have != "eth0-br" {
			t.Errorf("%v is on the link %q", op, have)
		}
	}
}

// documentedKinds are the kinds in the table that the documentation of a type of infra has. Each has a meaning.
func documentedKinds(t *testing.T, path, name string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../"+path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	ast.Inspect(file.Scope.Lookup(name).Decl.(ast.Node), func(n ast.Node) bool {
		field, ok := n.(*ast.Field)
		if !ok || field.Names[0].Name != "Kind" {
			return true
		}
		for line := range strings.Lines(field.Doc.Text()) {
			row, ok := strings.CutPrefix(line, "\t")
			if !ok {
				continue
			}
			kind, meaning, _ := strings.Cut(strings.TrimSpace(row), " ")
			if meaning == "" || slices.Contains(kinds, kind) {
				t.Errorf("%s lists %s without a meaning, or twice", name, kind)
			}
			kinds = append(kinds, kind)
		}
		return false
	})
	if len(kinds) < 10 {
		t.Fatalf("%s lists the kinds %q: has the test found all?", name, kinds)
	}
	return kinds
}
