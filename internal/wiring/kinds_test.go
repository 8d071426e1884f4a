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

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

var ofAddress = netstate.Neighbour{Address: netip.MustParseAddr("10.0.0.1")}

// everyStep has each type of operation.
var everyStep = []netstate.Op{
	netstate.TapAdd{}, netstate.TapReset{}, netstate.LinkAdd{}, netstate.LinkSet{}, netstate.LinkDel{}, netstate.GroupDel{}, netstate.BridgeSet{}, netstate.BridgePortSet{},
	netstate.ConfSet{}, netstate.SysctlSet{}, netstate.AddressAdd{}, netstate.AddressDel{}, netstate.RouteAdd{}, netstate.RouteDel{},
	netstate.NeighbourAdd{}, netstate.NeighbourDel{}, netstate.NeighbourAdd{Neighbour: ofAddress}, netstate.NeighbourDel{Neighbour: ofAddress},
	netstate.IngressAdd{}, netstate.IngressDel{}, netstate.ShapeSet{}, netstate.FilterAdd{}, netstate.FilterDel{}, netstate.TableSet{}, netstate.TableChange{}, netstate.TableDel{}, netstate.ConnectionsDel{},
}

// TestStepKinds: each type of operation has the kind that infra.Step lists, and each kind is one's.
func TestStepKinds(t *testing.T) {
	types, kinds := map[string]bool{}, map[string]bool{}
	documented := documentedKinds(t, "infra/step.go", "Step", "Kind")
	for _, op := range everyStep {
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
	for _, op := range []netstate.Op{netstate.LinkAdd{Name: "eth0-br"}, netstate.LinkSet{Have: netstate.Link{Name: "eth0-br"}}, netstate.FilterAdd{Link: "eth0-br"}} {
		if have := netstate.Step(op).Link; have != "eth0-br" {
			t.Errorf("%v is on the link %q", op, have)
		}
	}
}

// TestCommandsOfSteps: a shell sees each name of an operation as a word of its command, whatever the name is, and each
// line of a table as it is. It executes nothing of them.
func TestCommandsOfSteps(t *testing.T) {
	isNone := map[string]bool{ // no name: words of this repository, and what the command does not have
		"LinkAdd.Kind": true, "ConfSet.Name": true, "TapAdd.Tap.Owner.SELinux": true, "TapReset.Context": true, "AddressDel.Address.Label": true,
		"LinkSet.Have.Kind": true, "LinkSet.Have.Alias": true, "LinkSet.Have.Mode": true, "LinkSet.Have.PCI": true, "LinkSet.Have.Shape.Other": true,
		"LinkSet.Want.Kind": true, "LinkSet.Want.Mode": true, "LinkSet.Want.PCI": true, "LinkSet.Want.Shape.Other": true, "ShapeSet.Shape.Other": true, "FilterAdd.Filter.Foreign": true, "FilterDel.Filter.Foreign": true, "TableDel.Family": true,
	}
	for _, op := range everyStep {
		v := reflect.New(reflect.TypeOf(op)).Elem()
		v.Set(reflect.ValueOf(op))
		var names []string
		if o, is := op.(netstate.TableSet); is {
			o.Table = firewall.Table{Family: firewall.Inet, Name: "guestwire-eth0", Chains: []firewall.Chain{{
				Name: "forward", Rules: []firewall.Rule{{Matches: []firewall.Match{firewall.InInterface{Name: nstest.Hostile}}, Verdict: firewall.Drop{}}},
			}}}
			v.Set(reflect.ValueOf(o))
		} else if _, is := op.(netstate.TableChange); !is {
			name(v, v.Type().Name(), isNone, &names)
		}
		if o, is := v.Interface().(netstate.LinkSet); is {
			o.Want.Master = 1
			v.Set(reflect.ValueOf(o))
		}
		command := v.Interface().(netstate.Op).String()
		seen := nstest.Shells(t, command, "ip", "bridge", "tc", "nft", "sysctl", "ethtool", "runcon", "conntrack")
		for _, name := range names {
			if !strings.Contains(seen, name) {
				t.Errorf("%T: a shell sees no %s in %s:\n%s", op, name, command, seen)
			}
		}
		if _, table, is := strings.Cut(command, " <<'EOF'\n"); is && !strings.HasSuffix(seen, strings.TrimSuffix(table, "EOF")) {
			t.Errorf("%T: the program reads\n%s\nof\n%s", op, seen, command)
		}
	}
}

// name gives each string of the value a name of its own.
func name(v reflect.Value, path string, isNone map[string]bool, names *[]string) {
	switch {
	case isNone[path]:
	case v.Kind() == reflect.String:
		*names = append(*names, nstest.Hostile+path)
		v.SetString(nstest.Hostile + path)
	case path == "RouteAdd.Hops" || path == "RouteDel.Hops":
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		name(v.Index(0), path+"[0]", isNone, names)
	case path == "RouteAdd.Route.Hops" || path == "RouteDel.Route.Hops":
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case v.Kind() == reflect.Struct && v.Type().PkgPath() != "net/netip":
		for i := range v.NumField() {
			name(v.Field(i), path+"."+v.Type().Field(i).Name, isNone, names)
		}
	}
}

// documentedKinds are the kinds in the table that the documentation of a type's field has. Each has a meaning.
func documentedKinds(t *testing.T, path, name, of string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../"+path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	ast.Inspect(file.Scope.Lookup(name).Decl.(ast.Node), func(n ast.Node) bool {
		field, ok := n.(*ast.Field)
		if !ok || field.Names[0].Name != of {
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
