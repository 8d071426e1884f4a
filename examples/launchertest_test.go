package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestLauncherTest: the module of an importer, which "go test ./..." leaves out, passes its tests as root, as an
// ordinary user, and as the root of a user namespace.
func TestLauncherTest(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	const module = "launchertest"
	path := filepath.Join(nstest.Dir(t), "launcher.test")
	build := exec.Command("go", "test", "-c", "-o", path, ".")
	build.Dir = module
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	user := strings.Fields("setpriv --reuid 65534 --regid 65534 --clear-groups")
	for name, args := range map[string][]string{
		"root":                     nil,
		"ordinary user":            user,
		"root of a user namespace": append(slices.Clone(user), "unshare", "-Ur"),
	} {
		t.Run(name, func(t *testing.T) {
			if args != nil {
				nstest.NeedRoot(t, "the test needs another user")
			}
			args := append(slices.Clone(args), path, "-test.v", "-test.timeout=2m")
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Dir = module
			cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
				return strings.HasPrefix(v, "GUESTWIRE_SANDBOX=") || strings.HasPrefix(v, "TMPDIR=")
			}), "GUESTWIRE_REQUIRE=1")
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Count(string(out), "    --- PASS: TestLauncher/") != 4 {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}
