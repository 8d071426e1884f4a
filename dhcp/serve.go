package dhcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"syscall"
	"time"
)

// Port is where the guest's frames come from and the answers go to: an open tap without packet
// information and without vnet_hdr, or anything else that keeps the borders of frames.
// *os.File is one.
type Port interface {
	// Read reads one frame. After the deadline it ends with os.ErrDeadlineExceeded.
	Read(b []byte) (n int, err error)
	// Write sends one frame and does not wait for the guest.
	Write(b []byte) (n int, err error)
	// SetReadDeadline also ends a Read under way. The zero time is no deadline.
	SetReadDeadline(t time.Time) error
}

// How long to wait after a read that failed.
const (
	pauseMin = 100 * time.Millisecond
	pauseMax = 5 * time.Second
)

// ErrHandover is for the cause of a context (context.WithCancelCause) that ends a Serve whose place
// another process takes: the router advertisements are not withdrawn.
var ErrHandover = errors.New("another responder takes over")

// Serve answers the guest until ctx is done, which is no error: nil. Nothing else may read the port
// meanwhile; it stays open, with a deadline that has passed. Router advertisements that nobody
// asked for are sent at the start and then at RFC 4861's pace; without IPv6 an idle Serve never
// wakes. At the end they are withdrawn (RFC 4861 section 6.2.5), unless the cause is ErrHandover: a
// guest then has no IPv6 default route any more, while one whose responder died keeps it for hours.
//
// A port that does not read or write, such as one that is down, is tried again. The error is
// os.ErrNoDeadline if the port has no deadlines, os.ErrClosed or io.EOF if it was closed,
// syscall.EBADFD if the tap was deleted, and syscall.EBUSY if the responder is serving already.
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
	defer func() {
		r.mu.Lock()
		r.port = nil
		r.mu.Unlock()
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
	l := loop{r: r, port: port, log: log}
	return l.run(ctx)
}

// loop is one Serve.
type loop struct {
	r    *Responder
	port Port
	log  *slog.Logger
	out  []byte

	says *answers  // what is served
	told *router   // by the last multicast advertisement; nil: by none, or it is withdrawn
	next time.Time // of the next multicast advertisement; zero: there is none
	last time.Time // of the last one
	sent int       // of them, up to raInitials

	lines limiter
}

func (l *loop) run(ctx context.Context) error {
	l.take()
	var in []byte
	pause := pauseMin
	armed := time.Unix(1, 0) // never the next, so the first turn arms the deadline
	for {
		if len(in) < l.says.frameSize {
			in = make([]byte, l.says.frameSize)
		}
		if !l.next.Equal(armed) {
			if err := l.port.SetReadDeadline(l.next); err != nil {
				return fmt.Errorf("set the port's deadline: %w", err)
			}
			armed = l.next
		}
		// After the deadline was set: whoever is done with us, or has something new to say, sets
		// it once more.
		if ctx.Err() != nil {
			l.end(ctx)
			return nil
		}
		if l.updated() {
			l.take()
			armed = time.Unix(1, 0)
			continue
		}
		n, err := l.port.Read(in)
		switch {
		case err == nil:
			pause = pauseMin
			l.frame(in[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !l.next.IsZero() && !time.Now().Before(l.next) {
				l.advertise(time.Now())
			}
		case errors.Is(err, os.ErrClosed), errors.Is(err, io.EOF), errors.Is(err, syscall.EBADFD):
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read from the port: %w", err)
		default:
			l.r.counters.failed.Add(1)
			l.warn("read from the port", err)
			if !sleep(ctx, pause) {
				l.end(ctx)
				return nil
			}
			pause = min(2*pause, pauseMax)
		}
	}
}

// updated says once that there is something new.
func (l *loop) updated() bool {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	updated := l.r.updated
	l.r.updated = false
	return updated
}

// take begins to serve what the responder says now: it is advertised, and a router that is no more
// is withdrawn.
func (l *loop) take() {
	before := l.says
	l.says = l.r.says.Load()
	for _, w := range l.says.warnings {
		l.log.Warn(w)
	}
	if before != nil && before.router != nil && (l.says.router == nil || l.says.router.source != before.router.source) {
		l.withdraw(before.router)
		l.told = nil
	}
	l.next, l.sent = time.Time{}, 0
	if l.says.router == nil {
		return
	}
	if now := time.Now(); now.Sub(l.last) < raDistance {
		l.next = l.last.Add(raDistance)
	} else {
		l.advertise(now)
	}
}

// end withdraws the advertisements, if nobody else takes over.
func (l *loop) end(ctx context.Context) {
	if l.says.router != nil && !errors.Is(context.Cause(ctx), ErrHandover) {
		l.withdraw(l.says.router)
	}
}

// sleep waits, and says whether ctx let it.
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

// frame answers one frame. A multicast advertisement comes at most once in raDistance: what is
// asked for sooner is sent then, by deadline.
func (l *loop) frame(in []byte) {
	l.r.counters.received.Add(1)
	out, e := l.says.answer(l.out[:0], in)
	l.out = out[:0]
	if e.kind == Advertised && out[0]&1 != 0 {
		now := time.Now()
		if now.Sub(l.last) < raDistance {
			l.next = minTime(l.next, l.last.Add(raDistance))
			return
		}
		l.advertise(now)
		return
	}
	if len(out) == 0 || l.write(out) {
		l.report(e)
	}
}

// advertise sends a multicast advertisement, and before it one that takes back what is no more.
func (l *loop) advertise(now time.Time) {
	r := l.says.router
	if l.told != nil && l.told != r {
		if msg := r.ended(l.told); msg != nil {
			out := appendICMPv6(l.out[:0], multicastMAC(allNodes), r.mac, allNodes, r.source, msg)
			l.out = out[:0]
			if !l.write(out) {
				l.pace(now)
				return
			}
			l.report(event{kind: Advertised})
		}
	}
	out := r.advertise(l.out[:0], multicastMAC(allNodes), allNodes)
	l.out = out[:0]
	l.pace(now)
	if l.write(out) {
		l.told = r
		l.report(event{kind: Advertised})
	}
}

func (l *loop) withdraw(r *router) {
	out := r.withdraw(l.out[:0])
	l.out = out[:0]
	if l.write(out) {
		l.report(event{kind: Withdrawn})
	}
}

func (l *loop) write(frame []byte) bool {
	if _, err := l.port.Write(frame); err != nil {
		l.r.counters.failed.Add(1)
		l.warn("write to the port", err)
		return false
	}
	l.r.counters.sent.Add(1)
	return true
}

// pace sets the time of the next multicast advertisement after one at now (RFC 4861 section
// 6.2.4): random, to stay out of step with other routers, the first ones soon.
func (l *loop) pace(now time.Time) {
	wait := raIntervalMin + rand.N(raIntervalMax-raIntervalMin)
	if l.sent < raInitials {
		l.sent++
	}
	if l.sent < raInitials {
		wait = raInitial
	}
	l.last, l.next = now, now.Add(wait)
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (l *loop) report(e event) {
	if e.kind == nothing {
		return
	}
	l.r.counters.events[e.kind].Add(1)
	if l.r.Notify != nil {
		l.r.Notify(Event{Time: time.Now(), Kind: e.kind, Address: e.address})
	}
	if !l.log.Enabled(context.Background(), e.kind.level()) {
		return
	}
	held, ok := l.lines.allow(time.Now())
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String("guest", l.says.guest.String())}
	if e.address.IsValid() {
		attrs = append(attrs, slog.String("address", e.address.String()))
	}
	if held > 0 {
		attrs = append(attrs, slog.Int("linesHeldBack", held))
	}
	l.log.LogAttrs(context.Background(), e.kind.level(), e.kind.String(), attrs...)
}

func (l *loop) warn(what string, err error) {
	if held, ok := l.lines.allow(time.Now()); ok {
		l.log.Warn(what, "error", err, "linesHeldBack", held)
	}
}

// limiter keeps a guest from filling the log: a burst of lines, then one in a while.
type limiter struct {
	used int       // of the burst
	last time.Time // when it was counted
	held int       // lines since the last one
}

const (
	burst      = 20
	burstEvery = 10 * time.Second // a line is added to the burst
)

// allow says whether a line may be written, and how many were held back before it.
func (l *limiter) allow(now time.Time) (held int, ok bool) {
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
