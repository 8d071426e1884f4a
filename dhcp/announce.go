package dhcp

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// ErrStandby is the error of Announce while the guest is on standby. Activate of phase1.NIC ends the standby.
var ErrStandby = errors.New("the guest is on standby")

// Announce announces the guest's new place to the network, and its gateways to the guest, after a move. The network
// gets ARP announcements (RFC 5227), neighbour advertisements (RFC 4861) and a RARP request. It gets nothing under
// masquerade, nor while no VMM has the guest's tap open.
//
// Announce returns when everything is sent, after about 2 seconds. If ctx is done earlier, it returns, and Serve sends
// the rest. The error can be that of a write, or one of these:
//
//	syscall.ENOTCONN  Serve does not run
//	ErrStandby        the guest is on standby
func (r *Responder) Announce(ctx context.Context) error {
	if err := r.answers.Load().mayAnnounce(); err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	done := make(chan error, 1)
	r.mu.Lock()
	if r.port == nil {
		r.mu.Unlock()
		return fmt.Errorf("announce: %w", errNotServed)
	}
	r.asked = append(r.asked, done)
	err := r.port.SetReadDeadline(time.Unix(1, 0))
	r.mu.Unlock()
	if err != nil {
		return fmt.Errorf("announce: interrupt the port's read: %w", err)
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("announce: %w", err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errNotServed = fmt.Errorf("the guest is not served: %w", syscall.ENOTCONN)

// startAnnouncement begins an announcement, anew if one is under way, for a caller of Announce or for none.
func (l *loop) startAnnouncement(callers ...chan error) {
	l.callers = append(l.callers, callers...)
	if err := l.answers.mayAnnounce(); err != nil {
		l.endAnnouncement(err)
		return
	}
	l.announcing, l.failure, l.rounds = true, nil, l.answers.rounds
	l.advertiseAnew()
	l.announce(time.Now())
}

// announce sends the rounds that are due.
func (l *loop) announce(now time.Time) {
	for first := true; len(l.rounds) > 0; first = false {
		if r := l.rounds[0]; !first && r.pause > 0 {
			l.due = now.Add(r.pause)
			return
		}
		for _, f := range l.rounds[0].frames {
			if err := l.send(f); err != nil {
				l.failure = err
			}
		}
		l.rounds = l.rounds[1:]
	}
	l.endAnnouncement(l.failure)
}

// endAnnouncement reports to the callers of Announce how it ended.
func (l *loop) endAnnouncement(err error) {
	if err == nil && l.announcing {
		l.report(Event{Kind: announced})
	}
	for _, c := range l.callers {
		c <- err // has room for one
	}
	l.announcing, l.callers, l.rounds, l.due = false, nil, nil, time.Time{}
}

// takeAsked returns the callers of Announce since the last takeAsked.
func (l *loop) takeAsked() []chan error {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	asked := l.r.asked
	l.r.asked = nil
	return asked
}

func (r *answers) mayAnnounce() error {
	if r.standby {
		return ErrStandby
	}
	return nil
}
