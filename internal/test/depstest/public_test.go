package depstest

import (
	"go/token"
	"go/types"
	"strings"
	"testing"
)

// TestPublicTypes: what a public package exports names no type of an internal package, which an importer could not write.
func TestPublicTypes(t *testing.T) {
	for _, p := range typesOf(t, "/phase1", "/phase2", "/infra", "/dhcp", "/cache", "/guestconfig", "/domain", "/domain/qemu", "/domain/cloudhypervisor", "/domain/firecracker", "/domain/passt", "/guestwiretest") {
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				for _, internal := range internalTypes(o) {
					t.Errorf("%s.%s names %s, a type of an internal package", p.Path(), name, internal)
				}
			}
		}
	}
}

// internalTypes are the types of internal packages that users of an exported object meet: in its type, in exported fields
// and methods, and through unexported types of its package.
func internalTypes(o types.Object) (found []string) {
	seen := map[types.Type]bool{}
	var look func(types.Type)
	look = func(u types.Type) {
		if u == nil || seen[u] {
			return
		}
		seen[u] = true
		switch u := u.(type) {
		case *types.Named:
			of := u.Obj().Pkg()
			if of != nil && strings.Contains(of.Path(), "/internal/") {
				found = append(found, u.String())
				return
			}
			for arg := range u.TypeArgs().Types() {
				look(arg)
			}
			// Exported types have a turn of their own.
			if of != o.Pkg() || u.Obj().Exported() && u != o.Type() {
				return
			}
			for m := range u.Methods() {
				if m.Exported() {
					look(m.Type())
				}
			}
			look(u.Underlying())
		case *types.Struct:
			for f := range u.Fields() {
				if f.Exported() || f.Embedded() {
					look(f.Type())
				}
			}
		case *types.Interface:
			for m := range u.Methods() {
				if m.Exported() {
					look(m.Type())
				}
			}
		case *types.Signature:
			look(u.Params())
			look(u.Results())
		case *types.Tuple:
			for v := range u.Variables() {
				look(v.Type())
			}
		case *types.Map:
			look(u.Key())
			look(u.Elem())
		case *types.Alias:
			look(types.Unalias(u))
		case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
			look(u.Elem())
		}
	}
	look(o.Type())
	return found
}

// TestInternalTypes: the search finds what it is for.
func TestInternalTypes(t *testing.T) {
	outer, inner := types.NewPackage("example.com/p", "p"), types.NewPackage("example.com/internal/x", "x")
	hidden := types.NewNamed(types.NewTypeName(token.NoPos, inner, "T", nil), types.Typ[types.Int], nil)
	field := func(name string, embedded bool, of types.Type) *types.Var {
		return types.NewField(token.NoPos, outer, name, of, embedded)
	}
	structure := func(fields ...*types.Var) types.Type { return types.NewStruct(fields, nil) }
	function := func(in types.Type) types.Type {
		return types.NewSignatureType(nil, nil, nil, types.NewTuple(types.NewVar(token.NoPos, outer, "", in)), nil, false)
	}
	own := func(of types.Type) types.Type {
		return types.NewNamed(types.NewTypeName(token.NoPos, outer, "own", nil), of, nil)
	}
	withMethod := types.NewNamed(types.NewTypeName(token.NoPos, outer, "own", nil), types.Typ[types.Int], nil)
	withMethod.AddMethod(types.NewFunc(token.NoPos, outer, "M", function(hidden).(*types.Signature)))
	for name, c := range map[string]struct {
		of   types.Type
		want int
	}{
		"exported field":               {structure(field("A", false, hidden)), 1},
		"unexported field":             {structure(field("a", false, hidden)), 0},
		"unexported struct, embedded":  {structure(field("own", true, own(structure(field("A", false, hidden))))), 1},
		"parameter":                    {function(types.NewPointer(types.NewSlice(hidden))), 1},
		"method of an unexported type": {function(withMethod), 1},
		"map":                          {types.NewMap(types.Typ[types.Int], hidden), 1},
		"unexported type":              {function(own(structure(field("a", false, hidden)))), 0},
	} {
		if found := internalTypes(types.NewVar(token.NoPos, outer, "V", c.of)); len(found) != c.want {
			t.Errorf("%s: %q, want %d", name, found, c.want)
		}
	}
}
