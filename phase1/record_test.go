package phase1_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestCheckRecord: a record that says something else than the wiring is drift, as the launcher believes it; so is one
// that cannot be read. Setup writes it anew.
func TestCheckRecord(t *testing.T) {
	n := nstest.NewNetwork(t)
	c := config(n, infra.Bridge{})
	setup(t, c)
	path := filepath.Join(n.State, "eth0.json")
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := cache.Decode(written)
	if err != nil {
		t.Fatal(err)
	}
	other.MTU--
	valid, err := cache.Encode(other)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"record eth0.json is not as it was written": string(valid),
		"eth0.json: ": "{}",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		var drift *phase1.DriftError
		if err := phase1.Check(t.Context(), c); !errors.As(err, &drift) || len(drift.Differs) != 1 || !strings.Contains(drift.Differs[0].Text, name) {
			t.Errorf("%v, want a DriftError with %q", err, name)
		}
		setup(t, c)
		if err := phase1.Check(t.Context(), c); err != nil {
			t.Error(err)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != string(written) {
			t.Errorf("Setup again has written %s, %v", now, err)
		}
	}
}
