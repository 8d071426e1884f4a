package phase1

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft"
	"github.com/guestwire/guestwire/internal/wiring"
)

// CutRefused ends the guest's connections that Spec.Egress would not allow now, and returns their number. Without
// CutRefused they stay open, after a Setup with another list and after the life of a Pin. The guest's next packet of
// such a connection is refused as that of a new one. Connections that others opened to the guest go on. Among them is
// UDP that the other side still sends (docs/proofs/security.md). Without Egress nothing is cut.
//
// The errors are those of Check, except *DriftError, and one of a kernel that cannot list connections.
func (n NIC) CutRefused(ctx context.Context) (cut int, err error) {
	err = n.read(ctx, func(s *session) error {
		_, plan, err := s.planOf()
		if err != nil {
			return err
		}
		end := s.report.during("cuts connections that are refused now")
		defer end()
		more, err := s.cutRefused(ctx, plan)
		cut += more
		return err
	})
	return cut, n.failed("cut", err)
}

// cutRefused judges the connections without the namespace's lock: a pod chooses how many there are.
func (s *session) cutRefused(ctx context.Context, plan *wiring.Plan) (cut int, err error) {
	sets := plan.EgressSets()
	if len(sets) == 0 {
		return 0, nil
	}
	var now netstate.Snapshot
	err = s.look(func() (err error) {
		if now, err = s.read(plan); err == nil {
			err = s.readSets(plan.Names().Table, sets)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	refused := plan.Judge(now, sets)
	judge := func(c kernel.Connection) bool { return refused(wiring.Tracked(c)) }
	// Before Linux 6.4 the kernel forgets no connection that is in a flow table. A policy takes the flow table away, and
	// the kernel releases its connections later.
	for deadline := time.Now().Add(kernel.LetGo); ; {
		more, err := s.ns.CutConnections(ctx, judge, s.look)
		cut += more
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return cut, err
		}
		select {
		case <-ctx.Done():
			return cut, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// readSets reads the boxes of the table's sets.
func (s *session) readSets(table string, sets []firewall.Destinations) (err error) {
	var other *nft.SetError
	switch err := s.ns.Tables.CheckSets(table, sets); {
	case errors.As(err, &other):
		return foreignSet(other)
	case errors.Is(err, nft.ErrNoTable):
		return fmt.Errorf("the nftables table inet %s is gone, and refuses nothing: call Setup, which makes it anew, and cut again", table)
	case err != nil:
		return err
	}
	for i := range sets {
		if sets[i].Boxes, err = s.ns.Tables.Boxes(table, sets[i]); err != nil {
			return err
		}
	}
	return nil
}
