package dhcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
)

// The pause after a read that failed, which is doubled each time.
const (
	pauseMin = 100 * time.Millisecond
	pauseMax = 5 * time.Second
)

// ErrHandover is a cause for the end of Serve's context (context.WithCancelCause): another process takes over, so Serve
// withdraws nothing.
var ErrHandover = errors.New("another responder takes over")

// Serve answers the guest until ctx is done, and then returns nil. Nothing else may read the port meanwhile. Serve
// leaves the port open. Its read deadline is then in the past: set a new one before you read.
//
// At the end Serve withdraws its router advertisements (RFC 4861 section 6.2.5), which takes the IPv6 default route
// from the guest. If the cause of ctx is [ErrHandover], it does not.
//
// After most errors of the port, such as that of a tap that is down, Serve tries again. It returns these:
//
//	os.ErrNoDeadline        the port has no deadlines
//	os.ErrClosed or io.EOF  the port was closed
//	syscall.EBADFD          the tap was deleted
//	syscall.EBUSY           the responder serves a port already
func (r *Responder) Serve(ctx context.Context, port Port) error {
	log := r.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r.mu.Lock()
	if r.port != nil {
		r.mu.Unlock()
		return fmt.Errorf("serve: this responder has a port already: %w", syscall.EBUSY)
	}
	r.port, r.updated = port, false
	r.mu.Unlock()
	l := loop{r: r, port: port, log: log, asked: map[netip.Addr]time.Time{}, claims: map[netip.Addr]claim{}}
	defer func() {
		r.mu.Lock()
		r.port = nil
		l.callers, r.asked = append(l.callers, r.asked...), nil
		r.mu.Unlock()
		l.announcing = false
		l.endAnnouncement(errNotServed)
	}()

	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		if err := port.SetReadDeadline(time.Unix(1, 0)); err != nil {
			log.Warn("interrupt the port's read", "error", err)
		}
	})
	defer func() {
		if !stop() {
			<-interrupted
		}
	}()
	return l.run(ctx)
}

// loop is one call of Serve.
type loop struct {
	r    *Responder
	port Port
	log  *slog.Logger
	out  []byte

	answers    *answers  // those that are served
	advertised *router   // what the last multicast advertisement said; nil: nothing, or it is withdrawn
	next       time.Time // when the next multicast advertisement is due; zero: never
	last       time.Time // when the last one was sent
	sent       int       // how many were sent, up to raInitials

	announcing bool
	rounds     []round      // of the announcement that are left
	due        time.Time    // when the next one is; zero: never
	callers    []chan error // of Announce
	failure    error        // of a write of the announcement

	asked6  bool      // for an address by DHCPv6, or the guest's silence is reported
	silent6 time.Time // when that is reported; zero: never

	asked  map[netip.Addr]time.Time // when the network was asked for a station
	claims map[netip.Addr]claim     // of stations that may have another MAC
	settle time.Time                // when the next one is looked at; zero: never

	limits [len(kinds)]limiter
}

func (l *loop) run(ctx context.Context) error {
	l.load()
	var in []byte
	pause := pauseMin
	armed := time.Unix(1, 0) // differs from l.next, so that the first turn sets the deadline
	for {
		if len(in) < l.answers.frameSize {
			in = make([]byte, l.answers.frameSize)
		}
		if next := earlier(earlier(l.next, l.due), earlier(l.settle, l.silent6)); !next.Equal(armed) {
			if err := l.port.SetReadDeadline(next); err != nil {
				return fmt.Errorf("set the port's deadline: %w", err)
			}
			armed = next
		}
		// These checks come after setting the deadline: the end of ctx, Update or Announce
		// sets a deadline that has passed, which the call above may have replaced.
		if ctx.Err() != nil {
			l.withdrawAtEnd(ctx)
			return nil
		}
		if l.takeUpdate() {
			l.load()
			armed = time.Unix(1, 0)
			continue
		}
		if asked := l.takeAsked(); len(asked) > 0 {
			l.startAnnouncement(asked...)
			armed = time.Unix(1, 0)
			continue
		}
		n, err := l.port.Read(in)
		switch {
		case err == nil:
			pause = pauseMin
			// A read can return a frame that came after Update, although Update ended
			// its deadline.
			if l.takeUpdate() {
				l.load()
				armed = time.Unix(1, 0)
			}
			l.answerFrame(in[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !l.next.IsZero() && !time.Now().Before(l.next) {
				l.advertise(time.Now())
			}
			if !l.due.IsZero() && !time.Now().Before(l.due) {
				l.announce(time.Now())
			}
			if !l.settle.IsZero() && !time.Now().Before(l.settle) {
				l.settleClaims(time.Now())
			}
			if !l.silent6.IsZero() && !time.Now().Before(l.silent6) {
				l.asked6, l.silent6 = true, time.Time{}
				l.report(Event{Kind: noDHCP6})
			}
		case errors.Is(err, os.ErrClosed), errors.Is(err, io.EOF), errors.Is(err, syscall.EBADFD):
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read from the port: %w", err)
		default:
			l.r.counters.failed.Add(1)
			l.report(Event{Kind: readFailed, Err: err})
			if !sleep(ctx, pause) {
				l.withdrawAtEnd(ctx)
				return nil
			}
			pause = min(2*pause, pauseMax)
		}
	}
}

// takeUpdate reports whether Update was called since the last takeUpdate.
func (l *loop) takeUpdate() bool {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	updated := l.r.updated
	l.r.updated = false
	return updated
}

// load serves the responder's current answers from now on: it advertises them, and withdraws a router that is
// not in them.
func (l *loop) load() {
	before := l.answers
	l.answers = l.r.answers.Load()
	for _, w := range l.answers.warnings {
		l.log.Warn(w)
	}
	if before != nil && before.router != nil && (l.answers.router == nil || l.answers.router.source != before.router.source) {
		l.withdraw(before.router)
		l.advertised = nil
	}
	l.next = time.Time{}
	l.advertiseAnew()
	for s := range l.answers.stations {
		l.ask(s, time.Now())
	}
	if l.announcing || before != nil && before.standby && !l.answers.standby {
		l.startAnnouncement()
	}
}

// advertiseAnew begins with the first advertisements again, if there is a router.
func (l *loop) advertiseAnew() {
	l.sent = 0
	if l.answers.router == nil {
		return
	}
	if now := time.Now(); now.Sub(l.last) < raDistance {
		l.next = l.last.Add(raDistance)
	} else {
		l.advertise(now)
	}
}

// withdrawAtEnd withdraws the advertisements, unless another process takes over.
func (l *loop) withdrawAtEnd(ctx context.Context) {
	if l.answers.router != nil && !errors.Is(context.Cause(ctx), ErrHandover) {
		l.withdraw(l.answers.router)
	}
}

// sleep waits for d, and reports whether ctx was not done meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// answerFrame answers one frame. There is at most one multicast advertisement in raDistance: one that is asked
// for too early is sent later, at the deadline.
func (l *loop) answerFrame(in []byte) {
	l.r.counters.received.Add(1)
	out, result := l.answers.answer(l.out[:0], in)
	l.out = out[:0]
	if result.ignored != "" {
		l.r.countIgnored(result.ignored)
	}
	l.noteDHCP6(result.kind)
	if result.kind == advertised && out[0]&1 != 0 {
		now := time.Now()
		if now.Sub(l.last) < raDistance {
			l.next = minTime(l.next, l.last.Add(raDistance))
			return
		}
		l.advertise(now)
		return
	}
	if result.said.Target.IsValid() {
		l.consider(result.said, time.Now())
		return
	}
	if len(out) > 0 && !l.write(out) {
		return
	}
	if result.asks.IsValid() {
		l.ask(result.asks, time.Now())
	}
	if result.kind == "" {
		return
	}
	e := Event{Kind: result.kind, Address: result.address}
	if e.Kind == otherMACSeen {
		e.MAC = cache.MAC(in[6:12])
	}
	l.report(e)
}

// silence6 is the time that a guest has from its first router solicitation to its first message of DHCPv6. Clients ask
// at once when an advertisement says so.
const silence6 = 2 * time.Minute

// noteDHCP6 notes whether a guest that solicits routers asks for an address. A guest stops to solicit when it has
// received an advertisement.
func (l *loop) noteDHCP6(kind Kind) {
	switch {
	case strings.HasPrefix(string(kind), "dhcpv6-"):
		l.asked6, l.silent6 = true, time.Time{}
	case kind == advertised && !l.asked6 && l.silent6.IsZero():
		l.silent6 = time.Now().Add(silence6)
	}
}

// advertise sends a multicast advertisement, and before it one that takes back what is not advertised any more.
func (l *loop) advertise(now time.Time) {
	r := l.answers.router
	if l.advertised != nil && l.advertised != r {
		if msg := r.takenBack(l.advertised); msg != nil {
			out := toAllNodes(l.out[:0], r.mac, r.source, msg)
			l.out = out[:0]
			if !l.write(out) {
				l.schedule(now)
				return
			}
			l.report(Event{Kind: advertised})
		}
	}
	out := r.appendAdvertisement(l.out[:0], frame.MulticastMAC(frame.AllNodes), frame.AllNodes)
	l.out = out[:0]
	l.schedule(now)
	if l.write(out) {
		l.advertised = r
		l.report(Event{Kind: advertised})
	}
}

func (l *loop) withdraw(r *router) {
	out := r.appendWithdrawal(l.out[:0])
	l.out = out[:0]
	if l.write(out) {
		l.report(Event{Kind: withdrawn})
	}
}

func (l *loop) write(frame []byte) bool { return l.send(frame) == nil }

// send writes a frame, and reports an error as well.
func (l *loop) send(frame []byte) error {
	if _, err := l.port.Write(frame); err != nil {
		l.r.counters.failed.Add(1)
		l.report(Event{Kind: writeFailed, Err: err})
		return err
	}
	l.r.counters.sent.Add(1)
	return nil
}

// schedule sets the time of the next multicast advertisement after one at now (RFC 4861 section 6.2.4). The
// interval is random, so that routers do not send at the same time, and short for the first ones.
func (l *loop) schedule(now time.Time) {
	wait := raIntervalMin + rand.N(raIntervalMax-raIntervalMin)
	if l.sent < raInitials {
		l.sent++
	}
	if l.sent < raInitials {
		wait = raInitial
	}
	l.last, l.next = now, now.Add(wait)
}

// earlier is the earlier of two times; the zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// report counts an event, and gives it to Notify and to the log, unless too many of its kind came before.
func (l *loop) report(e Event) {
	i := indexOf(e.Kind)
	if i < 0 {
		return // a launcher goes on without an event that has no name
	}
	l.r.counters.events[i].Add(1)
	logged := l.log.Enabled(context.Background(), kinds[i].level)
	if l.r.Notify == nil && !logged {
		return
	}
	var ok bool
	e.Time = time.Now()
	if e.Held, ok = l.limits[i].allow(e.Time, kinds[i].burst); !ok {
		return
	}
	e.Text = e.sentence(kinds[i].text, l.answers.guest)
	if l.r.Notify != nil {
		l.r.Notify(e)
	}
	if !logged {
		return
	}
	attrs := []slog.Attr{slog.String("event", string(e.Kind)), slog.String("guest", l.answers.guest.String())}
	if e.Address.IsValid() {
		attrs = append(attrs, slog.String("address", e.Address.String()))
	}
	if e.Held > 0 {
		attrs = append(attrs, slog.Uint64("held", e.Held))
	}
	l.log.LogAttrs(context.Background(), kinds[i].level, e.Text, attrs...)
}

// limiter limits the events of one kind: a burst of events, then one in burstEvery.
type limiter struct {
	used int       // events of the burst that are used
	last time.Time // when used was counted
	held uint64    // events that were held back since the last one that was not
}

const burstEvery = 10 * time.Second

// allow reports whether an event may be reported now, and how many events before it were held back.
func (l *limiter) allow(now time.Time, burst int) (held uint64, ok bool) {
	if gone := int(now.Sub(l.last) / burstEvery); gone > 0 {
		l.used = max(0, l.used-gone)
		l.last = now
	}
	if l.used >= burst {
		l.held++
		return 0, false
	}
	l.used++
	held, l.held = l.held, 0
	return held, true
}
