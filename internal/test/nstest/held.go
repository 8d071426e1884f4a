package nstest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// holds says what this process has open, and in how many namespaces its threads are.
func holds() (files, goroutines, namespaces int, err error) {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, 0, 0, err
	}
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		return 0, 0, 0, err
	}
	seen := map[string]bool{}
	for _, thread := range threads {
		if ns, err := os.Readlink(thread); err == nil { // else it has ended
			seen[ns] = true
		}
	}
	return len(open), runtime.NumGoroutine(), len(seen), nil
}

// NothingHeld wants what f took to be given back: descriptors, goroutines, threads in a namespace.
func NothingHeld(t testing.TB, f func()) {
	t.Helper()
	files, goroutines, _, err := holds()
	if err != nil {
		t.Fatal(err)
	}
	f()
	Eventually(t, func() error {
		nowFiles, nowGoroutines, namespaces, err := holds()
		if err == nil && (nowFiles > files || nowGoroutines > goroutines || namespaces > 1) {
			err = fmt.Errorf("%d open files, %d goroutines, threads in %d namespaces; there were %d, %d, 1",
				nowFiles, nowGoroutines, namespaces, files, goroutines)
		}
		return err
	})
}
