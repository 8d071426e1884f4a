package depstest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// byPath are the functions that make, change or remove a file by its path, or a socket. Between two of them who can
// write to a directory of the path decides where it leads.
var byPath = map[string][]string{
	"os":                    {"Chmod", "Chown", "Chtimes", "CopyFS", "Create", "CreateTemp", "Lchown", "Link", "Mkdir", "MkdirAll", "MkdirTemp", "OpenFile", "Remove", "RemoveAll", "Rename", "Symlink", "Truncate", "WriteFile"},
	"net":                   {"Listen", "ListenPacket", "ListenUnix", "ListenUnixgram"},
	"syscall":               {"Bind", "Chmod", "Chown", "Creat", "Fchmodat", "Fchownat", "Lchown", "Link", "Mkdir", "Mkdirat", "Mkfifo", "Mknod", "Mknodat", "Mount", "Open", "Openat", "Rename", "Renameat", "Rmdir", "Symlink", "Truncate", "Unlink", "Unlinkat"},
	"golang.org/x/sys/unix": {"Bind", "Chmod", "Chown", "Creat", "Fchmodat", "Fchownat", "Lchown", "Link", "Linkat", "Mkdir", "Mkdirat", "Mkfifo", "Mkfifoat", "Mknod", "Mknodat", "Mount", "Open", "Openat", "Openat2", "Rename", "Renameat", "Renameat2", "Rmdir", "Symlink", "Symlinkat", "Truncate", "Unlink", "Unlinkat"},
}

// byPathAllowed are the calls of examples that stay, and why. A name without a function stands for a program.
var byPathAllowed = map[string]string{
	"directory/directory.go net.ListenUnix":     "the path leads through the directory's descriptor",
	"directory/directory.go net.ListenUnixgram": "the path leads through the directory's descriptor",
	"guestwire-agent/doctor.go unix.Open":       "/dev/net/tun, which it has looked at",
	"guestwire-launcher":                        "it has no rights that its user does not have",
}

// reads reports whether a call opens a file to read it, its path alone (O_PATH), a device by its name in the source, or
// a port of TCP.
func reads(call *ast.CallExpr) bool {
	if len(call.Args) == 0 {
		return false
	}
	if name, is := call.Args[0].(*ast.BasicLit); is && (strings.HasPrefix(name.Value, `"/dev/`) || name.Value == `"tcp"`) {
		return true
	}
	flags := map[string]bool{}
	for _, argument := range call.Args {
		ast.Inspect(argument, func(n ast.Node) bool {
			if flag, is := n.(*ast.SelectorExpr); is && strings.HasPrefix(flag.Sel.Name, "O_") {
				flags[flag.Sel.Name] = true
			}
			return true
		})
	}
	for _, writes := range []string{"O_WRONLY", "O_RDWR", "O_CREATE", "O_CREAT", "O_APPEND", "O_TRUNC"} {
		if flags[writes] {
			return false
		}
	}
	return flags["O_RDONLY"] || flags["O_PATH"]
}

// readsByName reports whether a call reads what the path of an open directory leads to by now: os.ReadFile, or a
// function whose name begins with read, of filepath.Join(dir.Name(), ...).
func readsByName(call *ast.CallExpr) bool {
	text := func(e ast.Expr) string {
		if selector, is := e.(*ast.SelectorExpr); is {
			if of, is := selector.X.(*ast.Ident); is {
				return of.Name + "." + selector.Sel.Name
			}
		}
		if name, is := e.(*ast.Ident); is {
			return name.Name
		}
		return ""
	}
	if callee := text(call.Fun); !strings.HasPrefix(callee, "os.") && !strings.HasPrefix(callee, "read") {
		return false
	}
	for _, argument := range call.Args {
		join, is := argument.(*ast.CallExpr)
		if !is || text(join.Fun) != "filepath.Join" || len(join.Args) == 0 {
			continue
		}
		if of, is := join.Args[0].(*ast.CallExpr); is && strings.HasSuffix(text(of.Fun), "ir.Name") {
			return true
		}
	}
	return false
}

// TestByPath: the programs of examples, which run as root, make files and sockets by the descriptor of a directory
// (examples/directory), and read what lies in it by the descriptor, too.
func TestByPath(t *testing.T) {
	root, err := filepath.Abs("../../../examples")
	if err != nil {
		t.Fatal(err)
	}
	used, files := map[string]bool{}, 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		within, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		imports := map[string]string{}
		for _, i := range file.Imports {
			of, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			name := of[strings.LastIndexByte(of, '/')+1:]
			if i.Name != nil {
				name = i.Name.Name
			}
			imports[name] = of
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if is && readsByName(call) {
				t.Errorf("%s: reads by the path of a directory that is open: use its Root", set.Position(n.Pos()))
			}
			if is && reads(call) {
				return false
			}
			selector, is := n.(*ast.SelectorExpr)
			if !is {
				return true
			}
			of, is := selector.X.(*ast.Ident)
			if !is || !slices.Contains(byPath[imports[of.Name]], selector.Sel.Name) {
				return true
			}
			name := within + " " + of.Name + "." + selector.Sel.Name
			if program, _, _ := strings.Cut(within, "/"); byPathAllowed[program] != "" {
				name = program
			}
			used[name] = true
			if byPathAllowed[name] == "" {
				t.Errorf("%s: %s.%s goes by path: open the directory by examples/directory, and use its Root", set.Position(n.Pos()), of.Name, selector.Sel.Name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for call := range byPathAllowed {
		if !used[call] {
			t.Errorf("%s is allowed, and not there", call)
		}
	}
	if files < 50 {
		t.Errorf("%d files: has the test seen the examples?", files)
	}
}

// TestUnits: no unit of a package runs a shell as root, whose redirection follows links.
func TestUnits(t *testing.T) {
	units, err := filepath.Glob("../../rig/release/units/*.service")
	if err != nil || len(units) == 0 {
		t.Fatal(units, err)
	}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if key, command, _ := strings.Cut(line, "="); strings.HasPrefix(key, "Exec") && !strings.HasPrefix(command, "/usr/bin/guestwire-") {
				t.Errorf("%s: %s", filepath.Base(unit), line)
			}
		}
	}
}
