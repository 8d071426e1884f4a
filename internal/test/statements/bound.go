package statements

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// Bound runs another test of the calling test's package in processes of its own, with no objects of each kind, with a
// number of them and with twice as many. What it executes in the packages, and what it allocates, must not grow with
// the square of the number. The other test learns the kind and the number by Asked.
func Bound(t *testing.T, test string, kinds []string, objects int, packages ...string) {
	program := filepath.Join(t.TempDir(), "bound.test")
	if out, err := exec.Command("go", "test", "-c", "-covermode=count", "-coverpkg="+strings.Join(packages, ","), "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, kind := range kinds {
		t.Run(strings.ReplaceAll(kind, " ", "-"), func(t *testing.T) {
			t.Parallel()
			var counts [3]Counts
			var allocated [3]int
			for i := range counts {
				profile, note := filepath.Join(t.TempDir(), "profile"), filepath.Join(t.TempDir(), "allocated")
				work := exec.Command(program, "-test.run=^"+test+"$", "-test.coverprofile="+profile)
				// Garbage is a third of the work.
				work.Env = append(os.Environ(), "GOGC=1000", askedKind+"="+kind, askedObjects+"="+strconv.Itoa(i*objects), askedNote+"="+note)
				if out, err := work.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				text, err := os.ReadFile(note)
				if allocated[i], _ = strconv.Atoi(string(text)); allocated[i] == 0 {
					t.Fatalf("%s asks for nothing: %v", test, err)
				}
				counts[i] = Read(t, profile)
			}
			t.Logf("%d, %d and %d statements for 0, %d and %d", counts[0].Sum(), counts[1].Sum(), counts[2].Sum(), objects, 2*objects)
			if once, twice := allocated[1]-allocated[0], allocated[2]-allocated[0]; twice > 3*once {
				t.Errorf("%d octets are allocated for %d objects, and %d for %d", once, objects, twice, 2*objects)
			}
			for _, square := range Squares(counts[0], counts[1], counts[2], objects) {
				t.Error(square)
			}
		})
	}
}

const (
	askedKind    = "GUESTWIRE_BOUND_KIND"
	askedObjects = "GUESTWIRE_BOUND_OBJECTS"
	askedNote    = "GUESTWIRE_BOUND_NOTE"
)

// Asked returns what Bound asks of the test that it runs. A test that runs by itself gets the kind that it names, and
// no objects. What the test allocates until its end counts.
func Asked(t *testing.T, alone string) (kind string, objects int) {
	kind = os.Getenv(askedKind)
	if kind == "" {
		return alone, 0
	}
	objects, err := strconv.Atoi(os.Getenv(askedObjects))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		if err := os.WriteFile(os.Getenv(askedNote), fmt.Append(nil, memory.TotalAlloc), 0o600); err != nil {
			t.Error(err)
		}
	})
	return kind, objects
}
