package phase1

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/undo"
	"github.com/guestwire/guestwire/internal/wiring"
)

// LeftError reports what a Teardown with Force could not restore. All else is done.
type LeftError struct {
	// What has a phrase for each thing. Some name what stays changed, such as sysctls. If the record can be read, others
	// are the commands that add its missing addresses and routes.
	What []string

	// Err is an infra.ErrNoNIC if the NIC is gone. Nil: it is there.
	Err error
}

func (e *LeftError) Error() string {
	text := "not known, so not restored: " + strings.Join(e.What, "; ")
	if e.Err != nil {
		text = e.Err.Error() + "; " + text
	}
	return text
}

func (e *LeftError) Unwrap() error { return e.Err }

// force is Teardown with Force. If work is left, the next call reports what is lost.
func (n NIC) force(ctx context.Context, o TeardownOptions) error {
	lost, err := n.takeDownForced(ctx, o)
	if len(lost) > 0 && (err == nil || errors.Is(err, infra.ErrNoNIC)) {
		return &LeftError{lost, err}
	}
	return err
}

func (n NIC) takeDownForced(ctx context.Context, o TeardownOptions) (lost []string, err error) {
	if o.Discard {
		return nil, &cache.FieldError{Field: "discard", Reason: "not with Force: it needs the journal"}
	}
	if err := checkStatePath(o.State); err != nil {
		return nil, err
	}
	force := func(s *session) error {
		j, err := s.readJournal()
		var cannotUse unusable
		if err != nil && !errors.As(err, &cannotUse) {
			return err
		}
		if err := s.checkHeld(o.CutOff); err != nil {
			return err
		}
		if j != nil {
			if j.Salvaged && j.Spec.State == "" && o.State != "" { // the interrupted call knew no record
				if j.Spec.State, err = realState(o.State); err != nil {
					return err
				}
			}
			if err := cmp.Or(j.checkState(o.State), checkFor(j.Spec.For, cmp.Or(o.For, j.Spec.For))); err != nil {
				return err
			}
			lost = j.Lost
			return s.takeDown(ctx, j, o.CutOff)
		}
		lost, err = s.takeDownForced(ctx, o, err)
		return err
	}
	if err = n.doWired(ctx, force); errors.Is(err, errNoNode) {
		err = n.do(ctx, force)
	}
	return lost, err
}

// errNoNode is of work that needs the directory of the node, which is not there.
var errNoNode = errors.New("the journal directory is not there")

// takeDownForced writes a journal of what the namespace shows, so that a call that is killed can be repeated, and
// undoes what that journal says. Unreadable is why the journal that is there cannot be used; nil: there is none.
func (s *session) takeDownForced(ctx context.Context, o TeardownOptions, unreadable error) ([]string, error) {
	said, has := s.node.describe(s.identity.Name(), s.nic)
	state, err := said.lostState(o.State)
	if has && o.For != "" {
		err = cmp.Or(err, checkFor(said.For, o.For))
	}
	if err != nil {
		return nil, err
	}
	if s.node.Root == nil && state != "" {
		return nil, errNoNode // the State is locked there
	}
	if err := s.findState(ctx, state); err != nil {
		return nil, err
	}
	record, err := s.recordInState()
	if err != nil {
		return nil, err
	}
	kind := said.Binding
	if record != nil {
		kind = record.Binding
	}
	now, lost, err := s.readForced(record)
	if err != nil {
		return nil, err
	}
	if record == nil { // also in a directory that the call names, and that is not the wiring's
		lost = append(lost, "whether a directory still has the record "+s.nic+".json: if one has, call Teardown with Force again with it (State, guestwire-agent -state), and the record is removed")
	}
	if !now.Bears(s.nic) && !compare.TraitsOf(kind).Direct {
		return s.forgetUnmarked(lost, record, unreadable)
	}
	shown := undo.Salvage(now, s.nic, kind, record)
	binding, err := infra.NewBinding(shown.Kind)
	if err != nil {
		return nil, err
	}
	j := journal{Made: shown.Made, Salvaged: true, Lost: append(shown.Lost, lost...)}
	j.Journal = wiring.Journal{NIC: s.nic, Found: shown.Found, Spec: infra.Spec{Binding: binding, Tap: shown.Tap, State: state, For: said.For}}
	if _, _, err := s.undoSteps(&j, o.CutOff); err != nil {
		return nil, err
	}
	if s.node.Root == nil {
		return nil, errNoNode
	}
	if err := s.writeJournal(j); err != nil {
		return nil, err
	}
	return j.Lost, s.undo(&j, true)
}

// forgetUnmarked removes record and journal where nothing in the namespace shows a wiring.
func (s *session) forgetUnmarked(lost []string, record *cache.Record, unreadable error) ([]string, error) {
	if unreadable == nil && record == nil {
		return nil, fmt.Errorf("%w: no link and no table in this namespace bears its mark", ErrNotWired)
	}
	lost = append(lost, "what Setup changed in the namespace, where nothing bears guestwire's mark any more")
	if err := s.removeRecord(); err != nil {
		return lost, err
	}
	return lost, s.removeJournal()
}

// recordInState is the NIC's record in State; nil: it is lost, or another namespace's.
func (s *session) recordInState() (*cache.Record, error) {
	if s.state.Root == nil {
		return nil, nil
	}
	r, err := cache.Read(s.state.Root, s.nic)
	if isUnreadable(err) {
		return nil, err
	}
	if err != nil || r.Namespace != s.identity.Name() {
		return nil, nil
	}
	return &r, nil
}

// readForced reads the namespace, with the rules of iptables unless the record has another firewall. Lost names the
// rules that could not be read.
func (s *session) readForced(record *cache.Record) (now netstate.Snapshot, lost []string, err error) {
	names := netstate.NamesFor(s.nic, "")
	sysctls, programs := undo.AskSalvage(s.nic)
	now, err = s.ns.SnapshotForUndo(names, nil, nil, sysctls...)
	if err != nil || record != nil && (record.Firewall == "" || record.Firewall == cache.FirewallNFTables) {
		return now, nil, err
	}
	for _, program := range programs {
		if kernel.HavePrograms([]firewall.Table{{Family: program}}) != nil {
			continue
		}
		with, err := s.ns.SnapshotForUndo(names, nil, []firewall.Family{program})
		if err != nil {
			lost = append(lost, fmt.Sprintf("rules of %s that begin with %s: %v", program, names.Chains(), err))
			continue
		}
		now.Tables = append(now.Tables, slices.DeleteFunc(with.Tables, func(i firewall.Image) bool { return i.Family != program })...)
	}
	return now, lost, nil
}

// lostState is the State that the caller names, or what the journal that cannot be used says.
func (w Wiring) lostState(named string) (string, error) {
	if checkStatePath(w.State) != nil {
		w.State = ""
	}
	if named == "" {
		return w.State, nil
	}
	real, err := realState(named)
	if err == nil && w.State != "" && real != w.State {
		return "", &cache.FieldError{Field: "state", Reason: fmt.Sprintf("%s, but the record of %s is in %s: name that directory; a teardown needs none", named, w.NIC, w.State)}
	}
	return real, err
}
