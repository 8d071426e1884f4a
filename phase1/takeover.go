package phase1

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/wiring"
)

// takeOver returns the Spec for a Setup of a NIC that is wired already. The record From of the first Setup counts. If
// that Setup had none, the guest comes back to its source: then the binding is the call's, or the journal's if the
// call has none, so a MAC that was left out stays out, and so is the tap's name.
func (j *journal) takeOver(c request, taken infra.Spec) (infra.Spec, error) {
	switch {
	case j.From != nil:
		from := *j.From
		if c.MTU != 0 {
			from.MTU = c.MTU // which Setup can change in both directions
		}
		return wiring.TakeOver(c.Spec, from)
	case c.From != nil:
		taken.Binding, taken.Tap = c.Binding, cmp.Or(c.Tap, j.Spec.Tap)
		if c.Binding == nil {
			taken.Binding = j.Spec.Binding
		}
	}
	return taken, nil
}

// sameGuest refuses the record of another guest than the one that the NIC is wired for: a later Setup cannot give the
// guest another MAC, and a caller who has forgotten From at the first Setup learns it before Activate refuses.
func (j *journal) sameGuest(from *cache.Record, wired cache.Record) error {
	if from == nil || from.MAC == wired.MAC || !wiring.MakesTaps(j.Spec.Binding) {
		return nil
	}
	return fmt.Errorf("%w for the guest %v, and from is the record of the guest %v: Teardown first (guestwire-agent teardown), or name the record of the same guest", infra.ErrWired, wired.MAC, from.MAC)
}

// checkMovedMTU refuses a NIC with a smaller MTU than the guest has: the guest keeps its MTU, so the Spec has no way
// out.
func (c request) checkMovedMTU(nic int) error {
	if c.From.MTU <= nic || c.MTU > c.From.MTU || !wiring.MakesTaps(c.Binding) {
		return nil
	}
	return &cache.FieldError{Field: "mtu", Reason: fmt.Sprintf("the guest that moves here keeps its %d, but %s has %d: give %s at least %d", c.From.MTU, c.Name, nic, c.Name, c.From.MTU)}
}

// reportChanges reports what the guest that moves here notices of its new record. From is nil for a guest that does not
// move.
func (s *session) reportChanges(from *cache.Record, r cache.Record) {
	if from == nil {
		return
	}
	for _, change := range cache.Changes(*from, r) {
		s.report.say("%s", noticed(change))
	}
}

// noticed says who notices the change: the guest, or its VMM, if it starts from a snapshot.
func noticed(c cache.Change) string {
	who := "the guest"
	if slices.Contains([]string{"name", "tap", "sriov.pciAddress"}, c.Field) {
		who = "a snapshot of the VMM"
	}
	return who + " notices: " + c.String()
}
