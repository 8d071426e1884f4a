package main

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestThroughput: each way carries TCP and UDP of the guest in both directions.
func TestThroughput(t *testing.T) {
	nstest.Need(t, "ip", "nsenter", "setpriv")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "passt has a user of its own")
	if _, err := exec.LookPath("passt"); err != nil {
		nstest.Skip(t, "no passt: make install")
	}
	if _, err := os.Stat(unpacked.Path("podman/usr/bin/slirp4netns")); err != nil {
		nstest.Skip(t, "no slirp4netns: make install")
	}
	removeWorld(t)
	var out bytes.Buffer
	if err := printThroughput(t.Context(), &out, throughput{rounds: 1, warm: 100 * time.Millisecond, counted: 150 * time.Millisecond}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"redirect", "masquerade", "routed", "passt", "slirp4netns", "TCP to the guest", "UDP from the guest"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestSpread: the median and the quartiles of unsorted values, and ratios by round.
func TestSpread(t *testing.T) {
	if got, want := spreadOf([]float64{5, 1, 4, 2, 3}), (spread{2, 3, 4}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := spreadOf([]float64{2, 1}), (spread{1.25, 1.5, 1.75}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := ratios([]float64{20, 400, 90}, []float64{10, 100, 0}), []float64{2, 4}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
