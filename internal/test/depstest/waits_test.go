package depstest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/golden"
)

// copied are packages whose tests go along when a reader copies the program: they link nothing of internal/test.
var copied = map[string]bool{"examples/kubevirt": true, "examples/launchertest": true}

// TestWaitsEnd: each package whose tests wait for a goroutine or a process has the TestMain of internal/test/leak,
// which ends a test that waits for ever.
func TestWaitsEnd(t *testing.T) {
	waits := regexp.MustCompile(`<-|\.Wait\(\)|\.Await\(`)
	bounded := regexp.MustCompile(`\b(nstest|leak)\.(Main|Run)\(|^package (nstest|leak)\b`)
	waiting, ends := map[string]bool{}, map[string]bool{}
	err := golden.Walk("../../..", func(path string) error {
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		pkg := filepath.Dir(strings.TrimPrefix(path, "../../../"))
		waiting[pkg] = waiting[pkg] || waits.Match(text)
		ends[pkg] = ends[pkg] || bounded.Match(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	own := "internal/test/depstest" // the words above
	for pkg := range waiting {
		if waiting[pkg] && !ends[pkg] && !copied[pkg] && pkg != own {
			t.Errorf("the tests of %s wait, and its TestMain is not that of nstest or leak", pkg)
		}
	}
	if !ends["phase1"] {
		t.Error("no TestMain is found: is this the place where they are?")
	}
}
