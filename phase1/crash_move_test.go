package phase1_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// move are two sides of a guest, on nodes of their own. The bed's own side is harmed; the guest is active on the source at first.
type move struct {
	*bed
	other    side
	fromHere bool   // the harmed side is the source
	quiet    string // the file with the source's record
}

// moveTrials do harm to a step of a move: the Setup of a target on standby, Deactivate of the source, Activate of the target.
func moveTrials(b *bed, verb string) {
	m := &move{bed: b, fromHere: verb == "deactivate", quiet: filepath.Join(b.TempDir(), quietName)}
	mac := linkField(b.T, b.n, "eth0", "address")
	n := nstest.NewNetwork(b.T)
	n.Pod.IP("link set eth0 address " + strings.Trim(mac, `"`))
	m.other = side{n, config(n, b.c.Binding), settled(b.T, n)}
	m.other.c.Dir = filepath.Join(nstest.Dir(b.T), "other-node")
	m.other.c.DNS = nil
	b.more = map[string][]string{"activate": {"-quiet", m.quiet}, "setup": {"-standby"}}
	b.judgeTrial = m.outcome
	if err := m.begin(verb); err != nil {
		b.Fatal(err)
	}
	r := b.run(attempt{verb: verb})
	if err := errors.Join(r.err, m.end()); err != nil {
		b.Fatal(err)
	}
	b.harmAll(verb, verb != "setup", r.points, 2, 2)
}

// sides are the source and the target.
func (m *move) sides() (source, target phase1.Config) {
	if m.fromHere {
		return m.c, m.other.c
	}
	return m.other.c, m.c
}

// begin goes as far as to the step that is harmed.
func (m *move) begin(verb string) error {
	m.removeState()
	source, target := m.sides()
	_, err := phase1.Setup(m.Context(), source)
	if verb == "setup" || err != nil {
		return err
	}
	target.Standby = true
	if _, err := phase1.Setup(m.Context(), target); verb == "deactivate" || err != nil {
		return err
	}
	quiet, err := phase1.Deactivate(m.Context(), source)
	if err != nil {
		return err
	}
	text, err := cache.Encode(quiet)
	if err != nil {
		return err
	}
	return os.WriteFile(m.quiet, text, 0o600)
}

// end gives both namespaces back.
func (m *move) end() error {
	err := errors.Join(phase1.Teardown(m.Context(), m.c), phase1.Teardown(m.Context(), m.other.c))
	return errors.Join(err, m.isFound(), difference(m.other.before, m.other.Pod.Settled()))
}

// active says whether the guest's tap is up.
func active(n nstest.Network) bool {
	return strings.Contains(n.Pod.IP("-o link show"), " eth0-tap: <") && strings.Contains(n.Pod.IP("-o link show eth0-tap"), ",UP")
}

// once says how often the guest is there.
func (m *move) once() (here, there bool, err error) {
	if here, there = active(m.n), active(m.other.Network); here && there {
		err = errors.New("the guest is active on both sides")
	}
	return here, there, err
}

// outcome harms one step, and goes on with the move or gives it up, as a caller who has lost the step's answer. The guest is
// never active on both sides.
func (m *move) outcome(c trial) (met bool, err error) {
	a := c.attempts[0]
	defer func() {
		if err != nil { // the next trial begins anew
			err = errors.Join(err, m.end())
		}
	}()
	if err := m.begin(a.verb); err != nil {
		return false, fmt.Errorf("before: %w", err)
	}
	r := m.run(a)
	met = m.meets(a, r)
	here, _, err := m.once()
	if err != nil {
		return false, err
	}
	switch {
	case r.killed:
		m.row.killed++
	case r.err == nil:
		if len(r.hits) > 0 {
			m.row.noEffect++
		}
		if here != (a.verb == "activate") {
			return false, fmt.Errorf("%s says it succeeded, and the guest is active: %v", a.verb, here)
		}
	case len(r.hits) == 0 && !r.stray:
		return false, fmt.Errorf("%s without harm: %w", a.verb, r.err)
	default:
		m.row.failed++
		if eexist := strings.HasPrefix(append(r.hits, "")[0], "mkdirat") && r.errnos[0] == "EEXIST"; !r.stray && !eexist {
			if err := says(r.err, r.errnos[0]); err != nil {
				return false, err
			}
		}
	}
	if err := m.goOn(a.verb, c.again); err != nil {
		return false, err
	}
	return met, m.end()
}

// goOn finishes the move, or gives it up: then the guest is active on the source.
func (m *move) goOn(verb string, forward bool) error {
	source, target := m.sides()
	if verb == "setup" {
		target.Standby = true
		if _, err := phase1.Setup(m.Context(), target); err != nil {
			return fmt.Errorf("setup again: %w", err)
		}
	}
	if verb == "deactivate" {
		// What lies on the source's disk allows the target to be active only if the source is quiet.
		dir, err := os.OpenRoot(source.State)
		if err != nil {
			return err
		}
		r, err := cache.Read(dir, source.NIC)
		dir.Close()
		if err == nil {
			_, err = phase1.Activate(m.Context(), target, phase1.Other{Quiet: &r})
		}
		if _, _, both := m.once(); both != nil {
			return fmt.Errorf("by the record on disk (%v): %w", err, both)
		}
	}
	from, to := target, source
	if forward {
		from, to = source, target
		m.row.again++
	}
	var err error
	for range 3 { // the record may not be the latest at once
		var quiet cache.Record
		if quiet, err = phase1.Deactivate(m.Context(), from); err != nil {
			return fmt.Errorf("deactivate afterwards: %w", err)
		}
		if _, _, err := m.once(); err != nil {
			return err
		}
		if _, err = phase1.Activate(m.Context(), to, phase1.Other{Quiet: &quiet}); !errors.Is(err, phase1.ErrNotQuiet) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("activate afterwards: %w", err)
	}
	here, there, err := m.once()
	if err != nil {
		return err
	}
	if onSource := here == m.fromHere && there != m.fromHere; onSource == forward {
		return fmt.Errorf("afterwards the guest is active on the harmed side: %v, on the other one: %v", here, there)
	}
	if err := errors.Join(phase1.Check(m.Context(), source), phase1.Check(m.Context(), target)); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	if forward {
		m.row.converged++
	}
	return nil
}
