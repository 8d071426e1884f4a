package nstest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

// TestKernelDecides: under another kernel tests in which it decides run, with their subtests, and no others.
func TestKernelDecides(t *testing.T) {
	before := Kernels
	defer func() { Kernels = before }()
	Kernels = true
	var ran []string
	inside := func(t *testing.T) {
		New(t, "kernel")
		ran = append(ran, t.Name())
	}
	t.Run("all", func(t *testing.T) {
		KernelDecides(t, "the moon is full")
		t.Run("sub", inside)
	})
	t.Run("part", func(t *testing.T) {
		t.Run("one", func(t *testing.T) {
			KernelDecides(t, "it rains")
			inside(t)
		})
		t.Run("other", inside)
	})
	if want := []string{"TestKernelDecides/all/sub", "TestKernelDecides/part/one"}; !slices.Equal(ran, want) {
		t.Errorf("%q ran, want %q", ran, want)
	}
}

// TestNamespacesLeft leaves a namespace, and then takes it away.
func TestNamespacesLeft(t *testing.T) {
	Need(t)
	Run(t, "ip", "netns", "add", "left")
	left := namespacesLeft()
	Run(t, "ip", "netns", "del", "left")
	if !slices.Contains(left, "network namespace: left") {
		t.Errorf("left are %q, want the namespace among them", left)
	}
	if left := namespacesLeft(); len(left) > 0 {
		t.Errorf("left are %q, want nothing", left)
	}
}

// TestLinksLeft has a directory as sysfs has it, with a link of guestwire's and two others.
func TestLinksLeft(t *testing.T) {
	dir := t.TempDir()
	for link, alias := range map[string]string{"eth0": "", "eth1": "uplink", "eth0-tap": "guestwire eth0"} {
		if err := os.Mkdir(filepath.Join(dir, link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, link, "ifalias"), []byte(alias), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if left := linksLeft(dir); !slices.Equal(left, []string{"link: eth0-tap"}) {
		t.Errorf("left are %q, want eth0-tap", left)
	}
}

// TestLeftOut starts a run of its own that leaves tests out.
func TestLeftOut(t *testing.T) {
	const child = "GUESTWIRE_LEAVE_OUT"
	if os.Getenv(child) != "" {
		for range 2 {
			t.Run("", func(t *testing.T) { LeaveOut(t, "the moon is full") })
		}
		t.Run("", func(t *testing.T) { LeaveOut(t, "it rains") })
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestLeftOut$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if want := "nstest: tests left out: 3 (1: it rains; 2: the moon is full)\n"; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, %s; want the line %s", err, out, want)
	}
}
