package depstest

import (
	"go/types"
	"os/exec"
	"strings"
	"testing"
)

// public are the packages for importers.
var public = []string{"/phase1", "/phase2", "/infra", "/dhcp", "/cache", "/guestconfig", "/domain", "/domain/qemu", "/domain/cloudhypervisor", "/domain/firecracker", "/domain/passt", "/guestwiretest"}

// TestPublicSize: the public packages stay as small as this. Before a limit grows, see what an importer could do
// without.
func TestPublicSize(t *testing.T) {
	names, lines := 0, 0
	for _, p := range typesOf(t, public...) {
		for _, name := range p.Scope().Names() {
			if p.Scope().Lookup(name).Exported() {
				names++
			}
		}
		text, err := exec.Command("go", "doc", "-all", p.Path()).Output()
		if err != nil {
			t.Fatal(err)
		}
		n := strings.Count(string(text), "\n")
		if most := map[string]int{"phase1": 350, "infra": 400}[p.Name()]; most > 0 && n > most {
			t.Errorf("go doc -all %s has %d lines, want at most %d", p.Path(), n, most)
		}
		lines += n
	}
	if names > 150 || lines > 1900 {
		t.Errorf("%d exported names and %d lines of go doc -all, want at most 150 and 1900", names, lines)
	}
	t.Logf("%d exported names, %d lines of go doc -all", names, lines)
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
