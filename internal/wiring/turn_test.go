package wiring_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/wiring"
)

// at is the record of a guest in the namespace.
func at(namespace string, turn wiring.Turn) cache.Record {
	r := moving()
	r.Namespace, r.Role, r.Source, r.Turn = namespace, turn.Role, turn.Source, turn.Turn
	return r
}

// namespaces are those of a guest that moves, with all records that they have ever had.
type namespaces struct {
	sides   []cache.Record
	records []cache.Record
}

func (m *namespaces) become(i int, turn wiring.Turn) {
	m.sides[i] = at(m.sides[i].Namespace, turn)
	m.records = append(m.records, m.sides[i])
}

func (m *namespaces) deactivate(i int) {
	turn := wiring.Turn{Role: m.sides[i].Role, Source: m.sides[i].Source, Turn: m.sides[i].Turn}
	m.become(i, turn.Deactivated())
}

func (m *namespaces) activate(i int, q cache.Record) error {
	turn, err := wiring.Activated(m.sides[i], &q, false, strings.ToUpper)
	if err == nil && m.sides[i].Role != cache.RoleActive {
		m.become(i, turn)
	}
	return err
}

func (m *namespaces) active() (count int) {
	for _, side := range m.sides {
		if side.Namespace != "" && side.Role == cache.RoleActive {
			count++
		}
	}
	return count
}

// TestTurns has two sides call Deactivate and Activate by chance, with any record that either has ever had. They are
// never both active, and from each state the guest can become active on either side.
func TestTurns(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		m := namespaces{sides: []cache.Record{at("a", wiring.Turn{}), at("b", wiring.Turn{Role: cache.RoleStandby, Source: "a"})}}
		m.records = append(m.records, m.sides...)
		for range 40 {
			i := random.IntN(2)
			if random.IntN(2) == 0 {
				m.deactivate(i)
			} else {
				_ = m.activate(i, m.records[random.IntN(len(m.records))])
			}
			if m.active() > 1 {
				t.Fatalf("both are active: %+v", m.records)
			}
		}
		to := random.IntN(2)
		for calls := 1; m.sides[to].Role != cache.RoleActive; calls++ {
			m.deactivate(1 - to)
			if err := m.activate(to, m.sides[1-to]); err == nil || calls > 100 {
				break
			}
		}
		if m.sides[to].Role != cache.RoleActive || m.sides[1-to].Role == cache.RoleActive {
			t.Fatalf("the guest cannot become active: %+v", m.sides)
		}
	}
}

// TestWaitingProvesNothing: a guest moves among four namespaces, by the latest record of where it was last. A record of
// a namespace on standby makes the guest active nowhere else, with Deactivate or without, except where it was last.
func TestWaitingProvesNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	var moves, back int
	for range 5000 {
		m := namespaces{sides: []cache.Record{at("a", wiring.Turn{}), {}, {}, {}}}
		last := 0 // where the guest was active last
		m.records = append(m.records, m.sides[0])
		for range 40 {
			i := random.IntN(len(m.sides))
			q := m.records[random.IntN(len(m.records))]
			if q.Role != cache.RoleStandby {
				q = m.sides[last]
			}
			active := m.active()
			switch side := m.sides[i]; {
			case side.Namespace == "":
				turn, err := wiring.FirstTurn(string(rune('a'+i)), infra.Redirect{}, &q, random.IntN(2) == 0)
				if err != nil {
					continue
				}
				m.sides[i].Namespace = string(rune('a' + i))
				m.become(i, turn)
			case random.IntN(2) == 0:
				m.deactivate(i)
				continue
			case q.Role == cache.RoleStandby && q.Source == side.Namespace && i != last:
				continue // the guest has been elsewhere since
			case m.activate(i, q) != nil || side.Role == cache.RoleActive:
				continue
			case q.Role == cache.RoleStandby:
				back++
			}
			if m.active() > active {
				last = i
				moves++
			}
			if m.active() > 1 {
				t.Fatalf("active twice: %+v\nby %+v, after %+v", m.sides, q, m.records)
			}
		}
	}
	if moves < 1000 || back < 100 {
		t.Errorf("%d moves, %d of them back from a target that waited", moves, back)
	}
}

// TestWaiting: a guest that has moved before has records with a Turn. That of a namespace which waits for its first
// Activate is no proof that the guest is inactive, neither for Activate nor for a Setup that is active at once. Nor is
// that of an earlier turn: one more Deactivate may not be enough, so the error names the turn.
func TestWaiting(t *testing.T) {
	waiting := at("waiting", wiring.Turn{Role: cache.RoleStandby, Source: "source", Turn: 4})
	for _, own := range []cache.Record{
		at("other", wiring.Turn{Role: cache.RoleStandby}), at("other", wiring.Turn{Role: cache.RoleInactive, Turn: 1}),
		at("source", wiring.Turn{Role: cache.RoleStandby}), at("source", wiring.Turn{Role: cache.RoleInactive, Turn: 4}),
	} {
		if turn, err := wiring.Activated(own, &waiting, false, strings.ToUpper); !errors.Is(err, wiring.ErrActive) {
			t.Errorf("Activate of %+v: turn %d, %v, want ErrActive", own, turn.Turn, err)
		}
	}
	earlier := at("earlier", wiring.Turn{Role: cache.RoleInactive, Turn: 4})
	_, err := wiring.Activated(at("other", wiring.Turn{Role: cache.RoleStandby, Turn: 7}), &earlier, false, strings.ToUpper)
	if want := "call Deactivate there until its turn is higher than 7"; !errors.Is(err, wiring.ErrActive) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "EARLIER") {
		t.Errorf("Activate with a turn of before: %v, want %q", err, want)
	}
	if turn, err := wiring.FirstTurn("other", infra.Redirect{}, &waiting, false); !errors.Is(err, wiring.ErrActive) {
		t.Errorf("Setup: turn %d, %v, want ErrActive", turn.Turn, err)
	}
	if turn, err := wiring.FirstTurn("other", infra.Redirect{}, &waiting, true); err != nil || turn != (wiring.Turn{Role: cache.RoleStandby, Source: "source", Turn: 4}) {
		t.Errorf("Setup on standby: %+v, %v", turn, err)
	}
}
