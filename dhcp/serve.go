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

// Serve answers the guest until ctx is done, which is no error: nil. Nothing else may read the port
// meanwhile; it stays open, with a deadline that has passed. Router advertisements that nobody
// asked for are sent at the start and then at RFC 4861's pace; without IPv6 an idle Serve never
// wakes.
//
// A port that does not read or write, such as one that is down, is tried again. The error is
// os.ErrNoDeadline if the port has no deadlines, os.ErrClosed or io.EOF if it was closed, and
// syscall.EBADFD if the tap was deleted.
func (r *Responder) Serve(ctx context.Context, port Port) error {
	log := r.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	for _, w := range r.warnings {
		log.Warn(w)
	}
	l := loop{r: r, port: port, log: log}

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

// loop is one Serve.
type loop struct {
	r    *Responder
	port Port
	log  *slog.Logger
	out  []byte

	next time.Time // of the next multicast advertisement; zero: there is none
	last time.Time // of the last one
	sent int       // of them, up to raInitials

	lines limiter
}

func (l *loop) run(ctx context.Context) error {
	in := make([]byte, l.r.frameSize)
	if l.r.router != nil {
		l.advertise(time.Now())
	}
	pause := pauseMin
	armed := time.Unix(1, 0) // never the next, so the first turn arms the deadline
	for {
		if !l.next.Equal(armed) {
			if err := l.port.SetReadDeadline(l.next); err != nil {
				return fmt.Errorf("set the port's deadline: %w", err)
			}
			armed = l.next
		}
		// After the deadline was set: whoever is done with us sets it once more.
		if ctx.Err() != nil {
			return nil
		}
		n, err := l.port.Read(in)
		switch {
		case err == nil:
			pause = pauseMin
			l.frame(in[:n])
		case errors.Is(err, os.ErrDeadlineExceeded):
			if ctx.Err() == nil && !l.next.IsZero() {
				l.advertise(time.Now())
			}
		case errors.Is(err, os.ErrClosed), errors.Is(err, io.EOF), errors.Is(err, syscall.EBADFD):
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read from the port: %w", err)
		default:
			l.warn("read from the port", err)
			if !sleep(ctx, pause) {
				return nil
			}
			pause = min(2*pause, pauseMax)
		}
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
	out, e := l.r.answer(l.out[:0], in)
	l.out = out[:0]
	if e.kind == advertised && out[0]&1 != 0 {
		now := time.Now()
		if now.Sub(l.last) < raDistance {
			l.next = minTime(l.next, l.last.Add(raDistance))
			return
		}
		l.pace(now)
	}
	if len(out) > 0 {
		if _, err := l.port.Write(out); err != nil {
			l.warn("write to the port", err)
			return
		}
	}
	l.report(e)
}

// advertise sends a multicast advertisement.
func (l *loop) advertise(now time.Time) {
	out := l.r.router.advertise(l.out[:0], multicastMAC(allNodes), allNodes)
	l.out = out[:0]
	l.pace(now)
	if _, err := l.port.Write(out); err != nil {
		l.warn("write to the port", err)
		return
	}
	l.report(event{kind: advertised})
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
	if e.kind == nothing || !l.log.Enabled(context.Background(), e.level()) {
		return
	}
	held, ok := l.lines.allow(time.Now())
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String("guest", l.r.guest.String())}
	if a := l.r.subject(e); a.IsValid() {
		attrs = append(attrs, slog.String("address", a.String()))
	}
	if held > 0 {
		attrs = append(attrs, slog.Int("linesHeldBack", held))
	}
	l.log.LogAttrs(context.Background(), e.level(), eventText[e.kind], attrs...)
}

// subject is the address that an event is about.
func (r *Responder) subject(e event) netip.Addr {
	switch {
	case e.address.IsValid() || e.kind == advertised:
		return e.address
	case e.kind < offered6:
		return r.v4.address
	}
	return r.v6.address
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
