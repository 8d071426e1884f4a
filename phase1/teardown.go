package phase1

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// Teardown gives the namespace back as Setup found it, and removes record and journal. It uses NetNS, NIC and
// Dir of the configuration. A State that is given has to be the one of Setup, or the error is a
// *cache.FieldError. It is no error if the NIC is not wired; Progress is told so. The error is infra.ErrNoNIC if
// the NIC has gone; then everything else is removed. It is infra.ErrWired if the NIC is wired and Dir has no
// journal of it: see [ForceTeardown].
//
// A namespace that is gone has nothing to give back; [Forget] removes what is left of its wirings.
func Teardown(ctx context.Context, c Config) error {
	return c.do(ctx, func(s *session) error {
		j, err := s.readJournal()
		if err != nil {
			return err
		}
		if j == nil {
			return s.nothingWired(c.State)
		}
		if err := j.checkState(c.State); err != nil {
			return err
		}
		for _, what := range j.Lost { // by a ForceTeardown that was interrupted
			s.tell.say("not known: %s", what)
		}
		return s.takeDown(ctx, j)
	})
}

// takeDown undoes what the journal says, and removes record and journal.
func (s *session) takeDown(ctx context.Context, j *journal) error {
	plan, err := s.replan(j)
	if err != nil {
		return err
	}
	if err := s.findState(ctx, j.Spec.State); err != nil {
		return err
	}
	return s.undo(plan)
}

// nothingWired is the Teardown of a NIC without a journal. A wiring whose journal is not here is an error.
func (s *session) nothingWired(state string) error {
	now, err := s.ns.Snapshot(netstate.NamesFor(s.nic), nil, nil)
	if err != nil {
		return err
	}
	if err := s.explainMark(now, state, nil); err != nil {
		return err
	}
	s.tell.say("NIC %s is not wired in this namespace: nothing is taken down", s.nic)
	return s.removeJournal() // an interrupted Setup may have begun to write one
}

// explainMark returns err if nothing says that the NIC is wired: neither a link or table with the mark of its wiring,
// nor a journal of version 2 in the State. If one does, the journal is missing here: the error is infra.ErrWired, and
// says what to do.
func (s *session) explainMark(now netstate.Snapshot, state string, err error) error {
	if state != "" {
		old := filepath.Join(state, s.nic+"@"+s.identity.Name()+journalSuffix)
		if _, gone := os.Lstat(old); gone == nil {
			return fmt.Errorf("NIC %s: %w by another version of guestwire, which wrote %s: use the version of guestwire that wrote it", s.nic, infra.ErrWired, old)
		}
	}
	if !now.Bears(s.nic) {
		return err
	}
	return fmt.Errorf("NIC %s: %w, as links and tables of it say, but %s has no journal of it: use the version of guestwire that wired it, name the directory that Setup used (agent -dir), or take the NIC down by force (ForceTeardown, agent teardown -force)",
		s.nic, infra.ErrWired, s.node.Name())
}

// undoFailed is undo with new sockets. The old ones may still get an answer that could not be read, and
// until then the kernel takes no other question there.
func (s *session) undoFailed(plan *wiring.Plan) error {
	ns, err := kernel.Open()
	if err != nil {
		return fmt.Errorf("give the namespace back: %w", err)
	}
	defer ns.Close()
	fresh := *s
	fresh.ns = ns
	return fresh.undo(plan)
}

// undo gives the namespace back. The journal is removed last: without it, the rest could not be found.
func (s *session) undo(plan *wiring.Plan) error {
	record := s.removeRecord()
	err := s.giveBack(plan)
	if record == nil && (err == nil || errors.Is(err, infra.ErrNoNIC)) {
		err = errors.Join(err, s.removeJournal())
	}
	if err = errors.Join(record, err); err != nil {
		return fmt.Errorf("give the namespace back: %w", err)
	}
	return nil
}

// removeRecord leaves the record of another namespace.
func (s *session) removeRecord() error {
	if s.state.Root == nil {
		return nil
	}
	r, err := recordHead(s.state.Root, s.nic)
	if err != nil {
		return err
	}
	if r.Namespace != "" && r.Namespace != s.identity.Name() {
		return nil
	}
	return cache.Remove(s.state.Root, s.nic)
}

// giveBack does not end with the caller's context: half a way back is worse than a late one. If
// the NIC has gone, giveBack says so when everything else is done.
func (s *session) giveBack(plan *wiring.Plan) error {
	for range tries {
		now, err := s.read(plan)
		if err != nil {
			return err
		}
		if now.Needed, err = s.neededSysctls(now); err != nil {
			return err
		}
		ops, gone := plan.Undo(now)
		if gone != nil && !errors.Is(gone, infra.ErrNoNIC) {
			return gone
		}
		if len(ops) == 0 {
			return gone
		}
		if err := s.apply(context.Background(), ops); err != nil {
			return err
		}
	}
	return fmt.Errorf("NIC %s keeps changing", s.nic)
}

// neededSysctls are the shared sysctls that other NICs of the namespace need. All of them are needed if a
// NIC is wired whose journal cannot be read here.
func (s *session) neededSysctls(now netstate.Snapshot) ([]string, error) {
	others, whole, err := s.otherJournals()
	if err != nil {
		return nil, err
	}
	if !whole {
		return netstate.Shared(), nil
	}
	var needed []string
	known := map[string]bool{s.nic: true}
	for _, journal := range others {
		plan, err := s.replan(journal)
		if err != nil {
			return netstate.Shared(), nil
		}
		needed = append(needed, plan.Shared()...)
		known[journal.Spec.NIC] = true
	}
	for _, l := range now.Links {
		if nic, marked := netstate.Marked(l.Alias); marked && !known[nic] {
			return netstate.Shared(), nil
		}
	}
	return needed, nil
}
