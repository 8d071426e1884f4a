package golden_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/golden"
)

// failures notes them.
type failures struct {
	testing.TB
	all []string
}

func (f *failures) Helper() {}
func (f *failures) Errorf(format string, args ...any) {
	f.all = append(f.all, fmt.Sprintf(format, args...))
}
func (f *failures) Fatal(args ...any) { f.all = append(f.all, fmt.Sprint(args...)) }

func TestGolden(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("testdata/a.txt", []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		call func(f *failures)
		want string
	}{
		{func(f *failures) { golden.Compare(f, "a.txt", "text") }, ""},
		{func(f *failures) { golden.Compare(f, "a.txt", "other") }, "testdata/a.txt"},
		{func(f *failures) { golden.Compare(f, "b.txt", "text") }, "no such file"},
		{func(f *failures) { golden.Only(f, ".txt", "a.txt", "b.txt") }, ""},
		{func(f *failures) { golden.Only(f, ".txt", "b.txt") }, "testdata/a.txt belongs to no case"},
	} {
		f := &failures{TB: t}
		c.call(f)
		if all := strings.Join(f.all, "\n"); (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
			t.Errorf("failures %q, want %q", all, c.want)
		}
	}
}
