package phase1

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/wiring"
)

// TestTurns has two sides call Deactivate and Activate by chance, with any record that either has ever had. They are
// never both active, and from each state the guest can become active on either side.
func TestTurns(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		sides := [2]cache.Record{{Namespace: "a"}, {Namespace: "b", Standby: true}}
		records := sides[:]
		records = append([]cache.Record{}, records...)
		deactivate := func(i int) {
			turn := nextTurn(wiring.Turn{Standby: sides[i].Standby, Inactive: sides[i].Inactive, Turn: sides[i].Turn})
			sides[i].Standby, sides[i].Inactive, sides[i].Turn = turn.Standby, turn.Inactive, turn.Turn
			records = append(records, sides[i])
		}
		activate := func(i int, inactive cache.Record) error {
			if !sides[i].Standby {
				return nil
			}
			turn, err := Other{Inactive: &inactive}.turn(t.Context(), sides[i])
			if err == nil {
				sides[i].Standby, sides[i].Inactive, sides[i].Turn = false, false, turn
				records = append(records, sides[i])
			}
			return err
		}
		for range 40 {
			i := random.IntN(2)
			if random.IntN(2) == 0 {
				deactivate(i)
			} else if err := activate(i, records[random.IntN(len(records))]); err != nil && !errors.Is(err, ErrActive) {
				t.Fatal(err)
			}
			if !sides[0].Standby && !sides[1].Standby {
				t.Fatalf("both are active: %+v", records)
			}
		}
		to := random.IntN(2)
		for calls := 1; sides[to].Standby; calls++ {
			deactivate(1 - to)
			if err := activate(to, sides[1-to]); err == nil || calls > 100 {
				break
			}
		}
		if sides[to].Standby || !sides[1-to].Standby {
			t.Fatalf("the guest cannot become active: %+v", sides)
		}
	}
}

// TestWaiting: a guest that has moved before has records with a Turn. That of a namespace which waits for its first
// Activate is no proof that the guest is inactive, neither for Activate nor for a Setup that is active at once. Nor is
// that of an earlier turn: one more Deactivate may not be enough, so the error names the turn.
func TestWaiting(t *testing.T) {
	waiting := cache.Record{Namespace: "waiting", Binding: cache.BindingRedirect, Tap: "eth0-tap", Standby: true, Turn: 4}
	if turn, err := (Other{Inactive: &waiting}).turn(t.Context(), cache.Record{Namespace: "other", Standby: true}); !errors.Is(err, ErrActive) {
		t.Errorf("Activate: turn %d, %v, want ErrActive", turn, err)
	}
	earlier := cache.Record{Namespace: "earlier", Binding: cache.BindingRedirect, Tap: "eth0-tap", Standby: true, Inactive: true, Turn: 4}
	_, err := (Other{Inactive: &earlier}).turn(t.Context(), cache.Record{Namespace: "other", Standby: true, Turn: 7})
	if want := "call Deactivate there until its turn is higher than 7"; !errors.Is(err, ErrActive) || !strings.Contains(err.Error(), want) {
		t.Errorf("Activate with a turn of before: %v, want ErrActive and %q", err, want)
	}
	if turn, err := (request{Moving: Moving{From: &waiting}}).firstTurn("other"); !errors.Is(err, ErrActive) {
		t.Errorf("Setup: turn %d, %v, want ErrActive", turn, err)
	}
	if turn, err := (request{Moving: Moving{From: &waiting, Standby: true}}).firstTurn("other"); err != nil || turn != 4 {
		t.Errorf("Setup on standby: turn %d, %v, want 4", turn, err)
	}
}
