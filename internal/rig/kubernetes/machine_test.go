package kubernetes

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// machine is what a cluster could change of the machine.
type machine struct {
	sysctls map[string]string
	mounts  string
}

// counters are files below /proc/sys that can be written and that change by themselves.
var counters = map[string]bool{
	"/proc/sys/kernel/ns_last_pid":    true,
	"/proc/sys/kernel/random/boot_id": true,
}

func lookAtMachine(t testing.TB) machine {
	t.Helper()
	m := machine{sysctls: map[string]string{}}
	err := filepath.WalkDir("/proc/sys", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || counters[path] {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Mode()&0o200 == 0 {
			return err
		}
		if text, err := os.ReadFile(path); err == nil { // some can only be written, or read with more rights
			m.sysctls[path] = string(text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	m.mounts = string(text)
	return m
}

// unchanged fails the test if the machine is not as it was, or if it has cgroups of a node.
func (m machine) unchanged(t testing.TB) {
	t.Helper()
	now := lookAtMachine(t)
	if len(m.sysctls) < 100 {
		t.Errorf("%d sysctls were read", len(m.sysctls))
	}
	for path, value := range m.sysctls {
		if now.sysctls[path] != value {
			t.Errorf("%s was %q, and is %q", path, value, now.sysctls[path])
		}
	}
	if err := nstest.Difference(m.mounts, now.mounts); err != nil {
		t.Error("mounts: ", err)
	}
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, fmt.Sprintf("guestwire-node-%d-", os.Getpid())) {
			t.Errorf("left behind: %s", path)
		}
		return nil // others come and go
	})
	if err != nil {
		t.Error(err)
	}
}
