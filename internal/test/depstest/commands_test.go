package depstest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// offered ends a text where a value follows that is a word of a command line, or the value of a flag.
var offered = regexp.MustCompile(`(?:^|[ (;"\x60\n])(?:-(?:state|netns|dir|nic) |--(?:device|sysctl) |(?:guestwire-(?:agent|launcher|exporter) [a-z]+ -|` +
	`sysctl -w|ovs-vsctl|runcon|conntrack -|ethtool|fuser|rm|mkdir|mknod|chmod|chown|chcon|ls -|kill|umount|nsenter|modprobe|tc|nft|bridge link|ip|systemctl|kubectl) (?:[^();,:]|:\S)*)$`)

// constants are the values in commands that no one but this repository chooses.
var constants = map[string]string{
	"phase1/owner.go device":                    "/dev/net/tun or /dev/vhost-net",
	"phase1/owner.go module":                    "the kernel module of one of these",
	"internal/tap/tap.go Device":                "/dev/net/tun",
	"internal/tap/device.go path":               "one of the two; the package is below infra",
	"examples/guestwire-agent/doctor.go device": "/dev/net/tun",
}

// stepTexts are the files whose commands TestCommandsOfSteps tries, with a value in each field.
var stepTexts = []string{"internal/netstate/optext.go", "internal/firewall/shared.go"}

// TestCommandsAreQuoted: in each text that offers a command line, a value is a number, a constant, or a word that
// infra.ShellWord has made. A process of the pod may have chosen a path or the name of a link.
func TestCommandsAreQuoted(t *testing.T) {
	found, seen := 0, map[string]bool{}
	for _, room := range []string{"phase1", "phase2", "infra", "cache", "dhcp", "domain", "guestconfig", "internal", "examples"} {
		err := filepath.WalkDir("../../../"+room, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (strings.HasSuffix(path, "internal/rig") || strings.HasSuffix(path, "internal/test")):
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			path = strings.TrimPrefix(path, "../../../")
			if slices.Contains(stepTexts, path) {
				return nil
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, "../../../"+path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				for _, v := range valuesInTexts(n) {
					if !offered.MatchString(v.before) {
						continue
					}
					found++
					at := path + " " + exprText(v.value)
					if _, is := constants[at]; is {
						seen[at] = true
					} else if !isWord(v.value) {
						t.Errorf("%v: after %q comes %s as it is, want infra.ShellWord", set.Position(v.value.Pos()), v.before, exprText(v.value))
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for at := range constants {
		if !seen[at] {
			t.Errorf("%s is in no command: leave it out of the list", at)
		}
	}
	if found < len(constants)+20 {
		t.Errorf("%d values in commands: the test does not find them", found)
	}
}

// valueIn is a value of a text that is made by a format or by +, with the text before it.
type valueIn struct {
	before string
	value  ast.Expr
}

func valuesInTexts(n ast.Node) (list []valueIn) {
	switch n := n.(type) {
	case *ast.CallExpr:
		for i, arg := range n.Args {
			format, ok := literal(arg)
			if !ok || !strings.Contains(format, "%") {
				continue
			}
			next := i + 1
			for _, at := range verbs.FindAllStringSubmatchIndex(format, -1) {
				verb := format[at[0]:at[1]]
				if verb == "%%" {
					continue
				}
				if at[2] >= 0 {
					next, _ = strconv.Atoi(format[at[2]:at[3]])
					next += i
				}
				if next < len(n.Args) && strings.ContainsAny(verb[len(verb)-1:], "svq") {
					list = append(list, valueIn{format[:at[0]], n.Args[next]})
				}
				next++
			}
			break
		}
	case *ast.BinaryExpr:
		if left, ok := lastLiteral(n.X); ok && n.Op == token.ADD {
			if _, ok := literal(n.Y); !ok {
				list = append(list, valueIn{left, n.Y})
			}
		}
	}
	return list
}

var verbs = regexp.MustCompile(`%[-+# 0]*[0-9]*(?:\.[0-9]+)?(?:\[([0-9]+)\])?[a-zA-Z%]`)

// literal is a text of literals alone.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.BinaryExpr:
		x, okX := literal(e.X)
		y, okY := literal(e.Y)
		return x + y, okX && okY && e.Op == token.ADD
	}
	return "", false
}

// lastLiteral is the text with which a sum of texts ends, its values left out.
func lastLiteral(e ast.Expr) (string, bool) {
	if text, ok := literal(e); ok {
		return text, true
	}
	sum, is := e.(*ast.BinaryExpr)
	if !is || sum.Op != token.ADD {
		return "", false
	}
	before, _ := lastLiteral(sum.X)
	after, ok := literal(sum.Y)
	return before + after, ok
}

// isWord reports whether the value can be a word of a command as it is.
func isWord(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CallExpr:
		return strings.TrimPrefix(exprText(e.Fun), "infra.") == "ShellWord"
	case *ast.BasicLit:
		return true
	}
	return false
}

func exprText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return exprText(e.X) + "." + e.Sel.Name
	case *ast.CallExpr:
		return exprText(e.Fun) + "()"
	case *ast.IndexExpr:
		return exprText(e.X) + "[]"
	}
	return "?"
}
