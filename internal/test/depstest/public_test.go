package depstest

import (
	"go/types"
	"strings"
	"testing"
)

// public are the packages for importers.
var public = []string{"/phase1", "/phase1/launch", "/phase1/pins", "/phase2", "/phase2/names", "/phase2/vmm", "/infra", "/dhcp", "/cache", "/guestconfig", "/domain", "/domain/qemu", "/domain/cloudhypervisor", "/domain/crosvm", "/domain/firecracker", "/domain/passt", "/guestwiretest"}

// TestPublicTypes: what a public package exports names no type that an importer cannot write: no type of an internal
// package, and no struct without a name.
func TestPublicTypes(t *testing.T) {
	for _, p := range typesOf(t, public...) {
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				for _, nameless := range namelessTypes(o) {
					t.Errorf("%s.%s has %s, a type that an importer cannot name", p.Path(), name, nameless)
				}
			}
		}
	}
}

// namelessTypes are the types of internal packages, and the structs without a name, that users of an exported object
// meet: in its type, in exported fields and methods, and through unexported types of its package.
func namelessTypes(o types.Object) (found []string) {
	seen := map[types.Type]bool{}
	var look func(types.Type)
	fields := func(s *types.Struct) {
		for f := range s.Fields() {
			if f.Exported() || f.Embedded() {
				look(f.Type())
			}
		}
	}
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
			if s, ok := u.Underlying().(*types.Struct); ok {
				fields(s)
			} else {
				look(u.Underlying())
			}
		case *types.Struct:
			if u.NumFields() > 0 { // struct{} is a value of channels and sets
				found = append(found, u.String())
			}
			fields(u)
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
