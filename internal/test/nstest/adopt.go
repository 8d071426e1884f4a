package nstest

import (
	"fmt"
	"os"
	"testing"
)

// Adopt returns a network namespace that exists already, such as /proc/self/ns/net, for as long as the test.
func Adopt(t testing.TB, name, path string) *Namespace {
	t.Helper()
	counter.Lock()
	count++
	n := &Namespace{Name: fmt.Sprintf("%s%d", name, count), t: t}
	counter.Unlock()
	if err := os.WriteFile(n.Path(), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	Run(t, "mount", "--bind", path, n.Path())
	var err error
	if n.File, err = os.Open(n.Path()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.End)
	return n
}
