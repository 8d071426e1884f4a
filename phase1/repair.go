package phase1

import (
	"context"
	"errors"
	"reflect"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// Repair is Setup with the Spec of the last Setup, which the journal has. It repairs what Check reports, and changes
// nothing that the guest was given. A guest on standby stays so.
//
// The errors are those of Setup, and
//
//	ErrNotWired  there was no Setup, or a forced Teardown was interrupted
func (n NIC) Repair(ctx context.Context) (cache.Record, error) {
	for {
		var last infra.Spec
		err := n.read(ctx, func(s *session) error {
			j, err := s.wired()
			if err == nil {
				last = j.Spec
			}
			return err
		})
		var record cache.Record
		if err == nil {
			record, err = request{NIC: n, Spec: last, repairs: true}.setup(ctx)
		}
		if !errors.Is(err, errChanged) {
			return record, n.failed("repair", err)
		}
	}
}

// isLast returns errChanged if the Spec of a Repair is no longer that of the last Setup.
func (c request) isLast(earlier *journal) error {
	if c.repairs && (earlier == nil || !reflect.DeepEqual(c.Spec, earlier.Spec)) {
		return errChanged
	}
	return nil
}
