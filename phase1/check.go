package phase1

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/statefile"
	"github.com/guestwire/guestwire/internal/wiring"
)

// Check compares the kernel and the record with what Setup left, and changes nothing in the namespace. It may wait 1 s
// for each gateway that Setup asks. It does not see the header size and the byte order that an ended VMM has left at
// the tap: a process sees them by opening the tap. Setup resets both.
//
//	*DriftError     something differs
//	ErrNotWired     there was no Setup, or a forced Teardown was interrupted
//	infra.ErrNoNIC  the NIC is gone
//	infra.ErrWired  Dir has no journal of the wiring: name Setup's Dir, or see TeardownOptions.Force
func (n NIC) Check(ctx context.Context) error {
	return n.failed("check", n.read(ctx, func(s *session) error {
		j, plan, err := s.planOf()
		if err != nil {
			return err
		}
		return s.check(ctx, j, plan)
	}))
}

// check looks at kernel, gateway and record. One *DriftError says what differs of all.
func (s *session) check(ctx context.Context, j *journal, plan *wiring.Plan) error {
	repaired, gateways, err := s.askGateways(ctx, plan, false)
	if err != nil {
		return err
	}
	s.expect(j, repaired)
	var now netstate.Snapshot
	var seen seenRecord
	err = s.look(func() (err error) {
		seen = s.seeRecord(j, plan)
		now, err = s.read(repaired, repaired.Hinders()...)
		return err
	})
	if err != nil {
		return err
	}
	differs, steps, err := plan.Differences(now)
	if err != nil {
		return err
	}
	repaired, now, networks, err := repaired.Present(now)
	if err == nil && repaired != plan {
		_, steps, err = repaired.Differences(now)
	}
	if err != nil {
		return err
	}
	later, err := plan.Later(ctx, now)
	if err != nil {
		return err
	}
	record := s.compareRecord(ctx, j, seen)
	drift := DriftError{NIC: s.nic, Repair: netstate.Steps(steps), Differs: slices.Concat(gateways, networks, differs, plan.Hindrances(now), later, record)}
	if len(drift.Differs) == 0 {
		s.journal = j.text
		s.noteSight() // of this program: the next Check reads no rules
		return nil
	}
	if slices.ContainsFunc(drift.Differs, func(d cache.Finding) bool { return d.Grave }) {
		drift.Repair = nil
	} else if len(gateways)+len(record) > 0 {
		drift.Repair = append(drift.Repair, infra.Step{Kind: "record-write", Command: "write the record " + s.nic + ".json anew"})
	}
	return &drift
}

// wired returns the journal. The error is ErrNotWired if there is none.
//
// A reader that finds the journal needs no lock: its next look begins the call again if the journal has changed. What a
// call that works on the namespace may be about to write or to remove is read with the lock.
func (s *session) wired() (j *journal, err error) {
	if r := s.reader; r != nil && !r.looked {
		if j, err = s.readJournal(); err == nil && j != nil && !j.Salvaged {
			r.looked, r.began = true, j.text
			return j, nil
		}
	}
	err = s.look(func() error {
		if j, err = s.readJournal(); j != nil || err != nil {
			return err
		}
		now, err := s.ns.Snapshot(netstate.NamesFor(s.nic, ""), nil, nil)
		if err != nil {
			return err
		}
		err = fmt.Errorf("%w in this namespace%s", ErrNotWired, s.mistyped())
		if held := s.elsewhere(); !s.held && errors.Is(held, ErrHeld) && !errors.Is(held, errHeldHere) {
			err = fmt.Errorf("%w, and its guest has no network, since a Teardown cut it off or until Setup: %w, and start it again", err, held)
		}
		return s.explainMark(now, err)
	})
	if err != nil {
		return nil, err
	}
	if j.Salvaged {
		return nil, fmt.Errorf("%w: its forced Teardown was interrupted: call Teardown (guestwire-agent teardown)", ErrNotWired)
	}
	return j, nil
}

// mistyped says what whoever calls may have mistyped: the directory that is not there, or the NIC where others are
// wired. Empty: neither.
func (s *session) mistyped() string {
	if s.node.Root == nil {
		return ": " + absentError{s.node.Name()}.Error()
	}
	nics, err := s.node.nics(s.identity.Name())
	nics = slices.DeleteFunc(nics, func(nic string) bool { return nic == s.nic })
	if err != nil || len(nics) == 0 {
		return ""
	}
	return fmt.Sprintf(" (wired here: %s)", strings.Join(nics, ", "))
}

// seenRecord is what seeRecord has seen.
type seenRecord struct {
	opened, read error
	same         bool // as the plan has it
	octets       bool // and octet by octet
	mode         fs.FileMode
}

// seeRecord looks at the wiring's record, if it has one.
func (s *session) seeRecord(j *journal, plan *wiring.Plan) (r seenRecord) {
	if j.Spec.State == "" {
		return r
	}
	if r.opened = s.openState(j.Spec.State); r.opened != nil {
		return r
	}
	if r.octets = s.holdsRecord(plan.Record); !r.octets {
		var record cache.Record
		record, r.read = cache.Read(s.state.Root, s.nic)
		r.same = r.read == nil && reflect.DeepEqual(record, plan.Record)
	}
	if info, err := s.state.Root.Lstat(s.nic + ".json"); err == nil {
		r.mode = info.Mode()
	}
	return r
}

// compareRecord returns nothing if the record is as Setup wrote it, and the launcher can read it. The difference is
// grave if Setup refuses the State instead of writing the record anew.
func (s *session) compareRecord(ctx context.Context, j *journal, seen seenRecord) []cache.Finding {
	if j.Spec.State == "" {
		return nil
	}
	err := seen.opened
	switch {
	case err != nil:
	case seen.octets: // so it is of no other namespace and no other version
		err = checkReadable(j.owner(), s.state.Name())
	default:
		err = s.checkState(ctx, j.owner())
	}
	refused := err != nil && !errors.Is(err, fs.ErrNotExist)
	same := err == nil && (seen.octets || seen.same)
	if err == nil {
		err = seen.read
	}
	var text string
	switch {
	case same && seen.mode == recordMode:
		return nil
	case same:
		text = fmt.Sprintf("record %s.json has another mode than %#o", s.nic, recordMode)
	case errors.Is(err, fs.ErrNotExist):
		text = fmt.Sprintf("record %s is gone", filepath.Join(j.Spec.State, s.nic+".json"))
	case err != nil:
		text = err.Error()
	default:
		text = fmt.Sprintf("record %s.json is not as it was written", s.nic)
	}
	return []cache.Finding{{Kind: "record", Grave: refused, What: text}}
}

// recordMode is that of a file of cache.Write.
const recordMode fs.FileMode = 0o644

// holdsRecord reports whether the open directory has the record, octet by octet. To decode it took half of a Check.
func (s *session) holdsRecord(r cache.Record) bool {
	text, err := cache.Encode(r)
	if err != nil {
		return false
	}
	have, err := statefile.Read(s.state.Root, s.nic+".json")
	return err == nil && bytes.Equal(have, text)
}

// verify looks at the kernel: a plan is carried out when nothing is left to do.
func (s *session) verify(plan *wiring.Plan) error {
	now, err := s.read(plan)
	if err != nil {
		return err
	}
	differs, steps, err := plan.Differences(now)
	if err != nil || len(differs)+len(steps) == 0 {
		return err
	}
	return &DriftError{NIC: s.nic, Differs: differs, Repair: netstate.Steps(steps)}
}
