package phase1_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// move are two sides of a guest, on nodes of their own. The bed's own side is harmed; the guest is active on the source
// at first.
type move struct {
	*bed
	verb     string // setup of the target on standby, deactivate of the source, or activate of the target
	other    side
	inactive string // the file with the source's record
}

func newMove(b *bed, verb string) *move {
	n := nstest.NewNetwork(b.T)
	n.Pod.IP("link set eth0 address " + linkField(b.T, b.n, "eth0", "address"))
	m := &move{b, verb, side{n, config(n, b.c.Binding), settled(b.T, n)}, filepath.Join(b.TempDir(), inactiveName)}
	m.other.c.Dir = filepath.Join(nstest.Dir(b.T), "other-node")
	m.other.c.DNS, m.other.c.Egress = nil, b.c.Egress
	return m
}

func (m *move) operation() *operation {
	args := m.args(m.verb)
	switch m.verb {
	case "setup":
		args = m.setupArgs("-standby")
	case "activate":
		args = append(args, "-inactive", m.inactive)
	}
	return &operation{
		args: args, prepare: m.begin, finish: m.goOn,
		done: func() error {
			if here := active(m.n); here != (m.verb == "activate") {
				return fmt.Errorf("the guest is active: %v", here)
			}
			return nil
		},
		always: m.once,
	}
}

// sides are the source and the target.
func (m *move) sides() (source, target wired.NIC) {
	if m.verb == "deactivate" {
		return m.c, m.other.c
	}
	return m.other.c, m.c
}

// begin goes as far as to the step that is harmed.
func (m *move) begin() error {
	source, target := m.sides()
	if err := errors.Join(m.removeState(), setupAlone(m.Context(), source)); m.verb == "setup" || err != nil {
		return err
	}
	from := nstest.Record(m.T, source.State, source.Name) // so that the guest can go back
	target.From, target.Standby = &from, true
	if err := setupAlone(m.Context(), target); m.verb == "deactivate" || err != nil {
		return err
	}
	inactive, err := source.Deactivate(m.Context())
	if err != nil {
		return err
	}
	text, err := cache.Encode(inactive)
	if err != nil {
		return err
	}
	return os.WriteFile(m.inactive, text, 0o600)
}

// active reports whether the guest's tap is up.
func active(n nstest.Network) bool {
	return strings.Contains(n.Pod.IP("-o link show"), " eth0-tap: <") && strings.Contains(n.Pod.IP("-o link show eth0-tap"), ",UP")
}

// once wants the guest to be active on one side at most.
func (m *move) once() error {
	if active(m.n) && active(m.other.Network) {
		return errors.New("the guest is active on both sides")
	}
	return nil
}

// goOn finishes the move, or gives it up, as a caller who has lost the step's answer: then the guest is active on the
// source. In the end both namespaces are given back.
func (m *move) goOn(forward bool) error {
	source, target := m.sides()
	if m.verb == "setup" {
		target.Standby = true
		if err := setupAlone(m.Context(), target); err != nil {
			return fmt.Errorf("setup again: %w", err)
		}
	}
	if m.verb == "deactivate" {
		// What lies on the source's disk allows the target to be active only if the source is inactive.
		r := nstest.Record(m.T, source.State, source.Name)
		_, err := target.Activate(m.Context(), phase1.Other{Inactive: &r})
		if both := m.once(); both != nil {
			return fmt.Errorf("by the record on disk (%v): %w", err, both)
		}
	}
	from, to, there := target, source, source
	if forward {
		from, to, there = source, target, target
	}
	var err error
	for range 3 { // the record may not be the latest at once
		var inactive cache.Record
		if inactive, err = from.Deactivate(m.Context()); err != nil {
			return fmt.Errorf("deactivate afterwards: %w", err)
		}
		if err := m.once(); err != nil {
			return err
		}
		if _, err = to.Activate(m.Context(), phase1.Other{Inactive: &inactive}); !errors.Is(err, phase1.ErrActive) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("activate afterwards: %w", err)
	}
	if here := there.State == m.c.State; active(m.n) != here || active(m.other.Network) == here {
		return fmt.Errorf("afterwards the guest is active on the harmed side: %v, on the other side: %v", active(m.n), active(m.other.Network))
	}
	if m.verb == "activate" && !forward { // it may have been learning the gateways' MACs, and Deactivate repairs nothing
		target.Standby = true
		err = setupAlone(m.Context(), target)
	}
	err = errors.Join(err, source.Check(m.Context()), target.Check(m.Context()))
	err = errors.Join(err, m.c.Teardown(m.Context()), m.other.c.Teardown(m.Context()))
	return errors.Join(err, m.isFound(), difference(m.other.before, m.other.Pod.Settled()))
}
