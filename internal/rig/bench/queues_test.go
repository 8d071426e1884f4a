package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestQueues: what belongs to a queue's flows comes at that queue, also through redirect, whose frames the kernel forwards
// before its own stack sees them.
func TestQueues(t *testing.T) {
	nstest.Need(t, "ip")
	nstest.NeedTaps(t)
	removeWorld(t)
	var out bytes.Buffer
	if err := measureQueues(t.Context(), &out, queued{sets: 1, rounds: 1, turn: 2 * time.Millisecond}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"frames a millisecond", "gain to one queue", "TCP, to the guest, queues: 4", "target >= 0.95"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
