package phase1

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/statefile"
	"github.com/guestwire/guestwire/internal/wiring"
)

// Teardown gives the namespace back as Setup found it, and removes record and journal. It is no
// error if there is nothing to take down. Teardown uses NetNS, State and NIC of the configuration only. A
// nil NetNS says that the namespace is gone: then record and journals of the NIC are removed. The
// error is infra.ErrNoNIC if the NIC has gone; then everything else is removed.
func Teardown(ctx context.Context, c Config) error {
	if c.NetNS == nil {
		return forget(c)
	}
	return c.do(ctx, openState, func(s *session) error {
		if s.dir == nil {
			return nil
		}
		journal, err := s.readJournal()
		if err != nil {
			return err
		}
		if journal == nil {
			return errors.Join(s.checkNotWiredElsewhere(), s.removeJournal()) // an interrupted Setup may have begun to write one
		}
		plan, err := s.replan(journal)
		if err != nil {
			return err
		}
		return s.undo(plan)
	})
}

// checkUnmarked refuses a NIC that is wired by a Setup with another state directory.
func (s *session) checkNotWiredElsewhere() error {
	now, err := s.ns.Snapshot(netstate.NamesFor(s.nic), nil, nil)
	if err != nil {
		return err
	}
	for _, l := range now.Links {
		if l.Alias == netstate.Mark(s.nic) {
			return fmt.Errorf("NIC %s: %w by a Setup with another state directory, as the alias of %s says: name that one", s.nic, infra.ErrWired, l.Name)
		}
	}
	return nil
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
	record := cache.Remove(s.dir, s.nic)
	err := s.giveBack(plan)
	if record == nil && (err == nil || errors.Is(err, infra.ErrNoNIC)) {
		err = errors.Join(err, s.removeJournal())
	}
	if err = errors.Join(record, err); err != nil {
		return fmt.Errorf("give the namespace back: %w", err)
	}
	return nil
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
// NIC is wired by a Setup with another state directory, whose journal cannot be read here.
func (s *session) neededSysctls(now netstate.Snapshot) ([]string, error) {
	others, err := s.otherJournals()
	if err != nil {
		return nil, err
	}
	var needed []string
	known := map[string]bool{s.nic: true}
	for _, journal := range others {
		plan, err := s.replan(journal)
		if err != nil {
			return nil, err
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

// forget removes what is left of a NIC whose namespace is gone.
func forget(c Config) error {
	if err := c.checkNIC(); err != nil {
		return err
	}
	dir, err := openStateDir(c.State, openState)
	if err != nil || dir == nil {
		return err
	}
	defer dir.Close()
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	errs := []error{cache.Remove(dir, c.NIC)}
	for _, entry := range entries {
		if nic, _, ok := cutJournalName(entry.Name()); ok && nic == c.NIC {
			if err := statefile.Remove(dir, entry.Name()); err != nil {
				errs = append(errs, fmt.Errorf("journal %s/%s: %w", dir.Name(), entry.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}
