package phase1

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// ForceTeardown is Teardown for a NIC whose journal is lost, damaged or of another version. It removes what bears
// guestwire's mark for the NIC, and gives the NIC its name, MAC and addresses back as far as the kernel still knows
// them. Lost says what could not be known, a phrase each, such as "routes and permanent neighbours of eth0". With a
// journal that can be read, ForceTeardown is Teardown, and nothing is lost.
//
// The errors are those of Teardown. It is ErrNotWired if nothing in the namespace bears the mark. A State that is given
// says where the record is.
func ForceTeardown(ctx context.Context, c Config) (lost []string, err error) {
	if err := checkStatePath(c.State); err != nil {
		return nil, err
	}
	err = c.do(ctx, func(s *session) error {
		j, err := s.readJournal()
		if errors.Is(err, fs.ErrPermission) {
			return err
		}
		if err == nil && j != nil {
			if err := j.checkState(c.State); err != nil {
				return err
			}
			return s.takeDown(ctx, j)
		}
		lost, err = s.takeDownForced(ctx, c.State, err)
		return err
	})
	return lost, err
}

// takeDownForced writes a journal of what the namespace shows, so that a call that is killed can be repeated, and
// takes down what the journal says. Unreadable is why the journal that is there cannot be used; nil: there is none.
func (s *session) takeDownForced(ctx context.Context, state string, unreadable error) ([]string, error) {
	state, err := s.lostState(state)
	if err != nil {
		return nil, err
	}
	now, err := s.ns.Snapshot(netstate.NamesFor(s.nic), nil, nil)
	if err != nil {
		return nil, err
	}
	if !now.Bears(s.nic) {
		return s.forgetUnmarked(ctx, state, unreadable)
	}
	made, lost := wiring.Salvage(now, s.nic)
	if made.Spec.State = state; state == "" {
		lost = append(lost, "which directory has the record "+s.nic+".json")
	}
	if err := s.writeJournal(made, nil); err != nil {
		return nil, err
	}
	return lost, s.takeDown(ctx, &journal{Namespace: s.identity, Journal: made})
}

// forgetUnmarked removes record and journal where nothing in the namespace shows a wiring.
func (s *session) forgetUnmarked(ctx context.Context, state string, unreadable error) ([]string, error) {
	if unreadable == nil {
		return nil, fmt.Errorf("NIC %s: %w: no link and no table in this namespace bears its mark", s.nic, ErrNotWired)
	}
	if err := s.findState(ctx, state); err != nil {
		return nil, err
	}
	lost := []string{fmt.Sprintf("what Setup changed in the namespace, where nothing bears guestwire's mark (%v)", unreadable)}
	return lost, errors.Join(s.removeRecord(), s.removeJournal())
}

// lostState is the State that the caller names, or what a journal that cannot be used says.
func (s *session) lostState(named string) (string, error) {
	if named != "" {
		return realState(named)
	}
	w, _ := s.node.describe(s.identity.Name(), s.nic)
	return w.State, nil
}
