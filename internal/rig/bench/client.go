package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
)

// client is a DHCP client on a tap. It sends and receives frames without allocation, and sleeps while it waits, like a
// virtual machine.
type client struct {
	fd int
	in []byte
}

// attachClient attaches to a tap, without Go's network poller, which would run for each frame.
func attachClient(namespace *os.File, tapName string) (*client, error) {
	c := &client{in: make([]byte, 1<<16)}
	return c, netns.Do(namespace, func() error {
		f, err := tap.Open(tapName)
		if err != nil {
			return err
		}
		defer f.Close()
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		var dupErr error
		err = raw.Control(func(fd uintptr) {
			c.fd, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		})
		return errors.Join(err, dupErr)
	})
}

func (c *client) close() error { return unix.Close(c.fd) }

// receive returns the next frame, or nil if none comes in time. The frame is valid until the next call.
func (c *client) receive(wait time.Duration) ([]byte, error) {
	n, err := unix.Read(c.fd, c.in)
	if err == unix.EAGAIN && wait > 0 {
		timeout := unix.NsecToTimespec(int64(wait))
		_, err = unix.Ppoll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}, &timeout, nil)
		if err == nil {
			n, err = unix.Read(c.fd, c.in)
		}
	}
	if err == unix.EAGAIN || err == unix.EINTR {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read from the guest's tap: %w", err)
	}
	return c.in[:n], nil
}

func (c *client) send(frame []byte) error {
	if _, err := unix.Write(c.fd, frame); err != nil {
		return fmt.Errorf("write to the guest's tap: %w", err)
	}
	return nil
}

// ask repeats one of the two messages until the server answers.
func (c *client) ask(ctx context.Context, p *protocol, leg int) ([]byte, error) {
	message := p.first
	if leg == 1 {
		message = p.then
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; {
		if err := c.send(message.stamp(learnID)); err != nil {
			return nil, err
		}
		for again := time.Now().Add(200 * time.Millisecond); time.Now().Before(again); {
			frame, err := c.receive(time.Until(again))
			if err != nil {
				return nil, err
			}
			if got, id, err := p.answer(frame); id == learnID && (got == leg || err != nil) {
				return slices.Clone(frame), err
			}
		}
	}
	return nil, fmt.Errorf("%s: no %s: %w", p.name, p.legs[leg], errors.Join(context.Cause(ctx), os.ErrDeadlineExceeded))
}

// turn is the result of a series of exchanges.
type turn struct {
	legs  [2][]time.Duration // latencies of the answers
	took  time.Duration
	began int
}

func (t *turn) completed() int { return len(t.legs[1]) }

// answerTimeout is the time after which an answer does not count.
const answerTimeout = time.Second

// inFlight exceeds the number of transactions that begin within answerTimeout.
const inFlight = 1 << 14

// transaction is an unfinished exchange.
type transaction struct {
	id   uint32
	leg  int
	sent time.Duration
}

// runExchanges makes count exchanges: one each pace, or, with pace 0, one after the other.
func (c *client) runExchanges(ctx context.Context, p *protocol, count int, pace time.Duration) (*turn, error) {
	runtime.LockOSThread() // the timer slack is set for this thread
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("timer slack: %w", err)
	}
	r := &turn{legs: [2][]time.Duration{make([]time.Duration, 0, count), make([]time.Duration, 0, count)}}
	flying := make([]transaction, inFlight)
	if err := c.drain(); err != nil {
		return nil, err
	}
	start := time.Now()
	last := time.Duration(0) // time of the last answer or first message
	for r.completed() < count && ctx.Err() == nil {
		now := time.Since(start)
		next := time.Duration(r.began) * pace
		free := pace > 0 || r.completed() == r.began || now-last > answerTimeout
		wait := answerTimeout
		if r.began < count && free && now >= next {
			t := &flying[r.began%inFlight]
			*t = transaction{id: uint32(r.began), sent: now}
			if err := c.send(p.first.stamp(t.id)); err != nil {
				return nil, err
			}
			last = now
			r.began++
			wait = 0
		} else if pace > 0 && r.began < count {
			wait = next - now
		}
		if r.began == count && now-last > answerTimeout {
			break // the missing answers are lost
		}
		frame, err := c.receive(wait)
		if err != nil {
			return nil, err
		}
		leg, id, err := p.answer(frame)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		t := &flying[id%inFlight]
		if leg < 0 || t.id != id || t.leg != leg {
			continue
		}
		now = time.Since(start)
		r.legs[leg] = append(r.legs[leg], now-t.sent)
		last, t.leg = now, leg+1
		if leg == 0 {
			t.sent = now
			if err := c.send(p.then.stamp(id)); err != nil {
				return nil, err
			}
		}
	}
	r.took = last
	return r, context.Cause(ctx)
}

// drain discards the frames that have arrived.
func (c *client) drain() error {
	for {
		if frame, err := c.receive(0); frame == nil {
			return err
		}
	}
}

// flood sends count of the frames in turn. It waits for the server after each burst, so that no queue is ever full: the
// responder's holds 16 frames (wiring's responderQueue).
func (c *client) flood(ctx context.Context, frames [][]byte, p *protocol, count int) error {
	const burst = 12
	for sent := 0; sent < count && ctx.Err() == nil; {
		for range burst {
			if err := c.send(frames[sent%len(frames)]); err != nil {
				return err
			}
			sent++
		}
		if _, err := c.ask(ctx, p, 0); err != nil {
			return err
		}
		sent++
	}
	return context.Cause(ctx)
}
