package depstest

import (
	"go/types"
	"strings"
	"testing"
)

// public are the packages for importers.
var public = []string{"/phase1", "/phase1/launch", "/phase1/pins", "/phase2", "/phase2/names", "/infra", "/dhcp", "/cache", "/guestconfig", "/domain", "/domain/qemu", "/domain/cloudhypervisor", "/domain/crosvm", "/domain/firecracker", "/domain/passt", "/guestwiretest"}

// TestPublicSize: the public packages stay as small as this. Before a limit grows, see what an importer could do
// without. Lines of comments have no limit.
func TestPublicSize(t *testing.T) {
	const mostNames, mostMethods = 166, 124
	names, methods := 0, 0
	for _, p := range typesOf(t, public...) {
		for _, name := range p.Scope().Names() {
			o := p.Scope().Lookup(name)
			if !o.Exported() {
				continue
			}
			names++
			if named, ok := o.Type().(*types.Named); ok && o == named.Obj() {
				for m := range named.Methods() {
					if m.Exported() {
						methods++
					}
				}
			}
		}
	}
	if names > mostNames || methods > mostMethods {
		t.Errorf("%d exported names and %d methods of exported types, want at most %d and %d", names, methods, mostNames, mostMethods)
	}
	t.Logf("%d exported names, %d methods", names, methods)
}

// TestPublicTypes: what a public package exports names no type of an internal package, which an importer could not
// write.
func TestPublicTypes(t *testing.T) {
	for _, p := range typesOf(t, public...) {
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				for _, internal := range internalTypes(o) {
					t.Errorf("%s.%s names %s, a type of an internal package", p.Path(), name, internal)
				}
			}
		}
	}
}

// internalTypes are the types of internal packages that users of an exported object meet: in its type, in exported
// fields and methods, and through unexported types of its package.
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
