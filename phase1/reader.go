package phase1

import (
	"bytes"
	"context"
	"errors"
)

// reader is what a session has of a call that changes nothing that others plan by: nothing, or tracked connections.
type reader struct {
	ctx    context.Context
	lock   func() (unlock func(), err error)
	looked bool
	began  []byte // the journal at the first look; nil: there was none
}

// errChanged is the error of a reader's look after another call has changed the journal.
var errChanged = errors.New("the journal has changed since")

// look calls f, which reads the namespace and its files, or ends connections, with the namespace's lock held. A call
// that changes something holds the lock already. A reader holds it for f alone, and computes, asks the network and
// searches the node without: how long that takes may be up to a pod, and Teardown must not wait for it. All looks of a
// reader are at one journal.
func (s *session) look(f func() error) error {
	r := s.reader
	if r == nil {
		return f()
	}
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.checkJournal(s); err != nil {
		return err
	}
	return f()
}

// checkJournal returns errChanged if the journal is not as at the first look.
func (r *reader) checkJournal(s *session) error {
	text, _ := s.node.read(s.identity.Name(), s.nic+journalSuffix) // one that cannot be read is f's to report
	if !r.looked {
		r.looked, r.began = true, text
	}
	if !bytes.Equal(text, r.began) {
		return errChanged
	}
	return nil
}
