package depstest

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The rooms beside the library, each a module of its own.
const (
	examples   = module + "/examples"
	laboratory = module + "/internal/rig"
)

// TestRooms: what the rooms of docs/contributing/developing.md import of each other, their tests included.
func TestRooms(t *testing.T) {
	seen := map[string]int{}
	for _, p := range list(t, everything...) {
		room := "library"
		var closed []string
		switch {
		case within(p.ImportPath, laboratory):
			room = "laboratory"
		case within(p.ImportPath, examples):
			room, closed = "examples", []string{laboratory}
		default:
			closed = []string{laboratory, examples}
		}
		seen[room]++
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			for _, tree := range closed {
				if within(imported, tree) {
					t.Errorf("%s, a package of the %s, or its test imports %s", p.ImportPath, room, imported)
				}
			}
		}
		for _, imported := range p.Imports {
			if room == "examples" && within(imported, module+"/internal") {
				t.Errorf("%s imports %s, which its reader cannot", p.ImportPath, imported)
			}
		}
	}
	for _, room := range []string{"library", "examples", "laboratory"} {
		if seen[room] == 0 {
			t.Errorf("go list has seen nothing of the %s: does go.work name it?", room)
		}
	}
}

// TestTestsAlone: what an importer or an operator gets links nothing that is for tests. guestwiretest alone links
// internal/test.
func TestTestsAlone(t *testing.T) {
	linked := 0
	for _, p := range list(t, everything...) {
		if within(p.ImportPath, laboratory) || within(p.ImportPath, module+"/internal/test") {
			continue
		}
		for _, dep := range p.Deps {
			for _, tree := range []string{module + "/guestwiretest", module + "/internal/test", "gvisor.dev", "testing"} {
				if !within(dep, tree) {
					continue
				}
				if p.ImportPath == module+"/guestwiretest" {
					linked++
				} else {
					t.Errorf("%s links %s: importers pay only for what they import", p.ImportPath, dep)
				}
			}
		}
	}
	if linked == 0 {
		t.Error("guestwiretest links no guest: has go list seen it?")
	}
}

// programOfTest is a call of nstest.Program with a folder.
var programOfTest = regexp.MustCompile(`nstest\.Program\(\w+, "([a-z/-]+[a-z])"\)`)

// TestProgramsAreBuilt: make builds the programs that the tests call. With GUESTWIRE_BIN they build none themselves, as
// Debian's kernels run without a Go.
func TestProgramsAreBuilt(t *testing.T) {
	text, err := os.ReadFile("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var built []string
	for line := range strings.Lines(string(text)) {
		if name, programs, is := strings.Cut(line, " := "); is && strings.HasSuffix(name, "PROGRAMS") {
			built = append(built, strings.Fields(programs)...)
		}
	}
	calls := 0
	err = filepath.WalkDir("../../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, call := range programOfTest.FindAllStringSubmatch(string(text), -1) {
			calls++
			if program := "bin/" + filepath.Base(call[1]); !slices.Contains(built, program) {
				t.Errorf("%s calls %s: add %s to LAB_PROGRAMS of the Makefile, and its rule", path, call[1], program)
			}
		}
		return err
	})
	if err != nil || calls == 0 {
		t.Errorf("%d calls of programs: %v", calls, err)
	}
}

// given are the modules that a module gets which imports phase1 and phase2.
var given = []string{
	"github.com/coreos/go-iptables",
	"github.com/fsnotify/fsnotify",
	"github.com/google/nftables",
	module,
	"github.com/insomniacslk/dhcp",
	"github.com/mdlayher/netlink",
	"github.com/mdlayher/socket",
	"github.com/pierrec/lz4/v4",
	"github.com/u-root/uio",
	"github.com/vishvananda/netlink",
	"github.com/vishvananda/netns",
	"golang.org/x/net",
	"golang.org/x/sync",
	"golang.org/x/sys",
	"libvirt.org/go/libvirtxml",
}

// forTests are the others of the library's go.mod: the guest's DHCP client sends by mdlayher/packet, the tests of dhcp
// and internal/frame take frames apart by mdlayher/ndp and gVisor's headers, and the tests of insomniacslk/dhcp compare
// with go-cmp.
var forTests = []string{"github.com/google/btree", "github.com/google/go-cmp", "github.com/josharian/native", "github.com/mdlayher/ndp", "github.com/mdlayher/packet", "golang.org/x/text", "golang.org/x/time", "gvisor.dev/gvisor"}

// TestImporter: a module that imports phase1 and phase2 gets what is in the list given, and the library's go.mod
// requires that and what is for tests.
func TestImporter(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod":  "module example.org/importer\n\ngo 1.25.0\n\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + root + "\n",
		"go.sum":  string(sums),
		"main.go": "package main\n\nimport (\n\t_ \"" + module + "/phase1\"\n\t_ \"" + module + "/phase2\"\n)\n\nfunc main() {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	call := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		var complaints strings.Builder
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %s: %v: %s", strings.Join(args, " "), err, complaints.String())
		}
		return string(out)
	}
	linked := strings.Fields(call("list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "."))
	slices.Sort(linked)
	if linked = slices.Compact(linked); !slices.Equal(linked, given) {
		t.Errorf("an importer gets\n%s\nwant\n%s", strings.Join(linked, "\n"), strings.Join(given, "\n"))
	}

	var mod struct{ Require []struct{ Path string } }
	if err := json.Unmarshal([]byte(call("mod", "edit", "-json", filepath.Join(root, "go.mod"))), &mod); err != nil {
		t.Fatal(err)
	}
	required := []string{module}
	for _, r := range mod.Require {
		required = append(required, r.Path)
	}
	want := slices.Concat(given, forTests)
	slices.Sort(required)
	slices.Sort(want)
	if !slices.Equal(required, want) {
		t.Errorf("go.mod requires\n%s\nwant\n%s", strings.Join(required, "\n"), strings.Join(want, "\n"))
	}
}
