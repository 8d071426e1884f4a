package dhcp

import (
	"bytes"
	"context"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakePort is a port with deadlines by the clock of a synctest bubble.
type fakePort struct {
	in       chan []byte
	failures chan error

	mu      sync.Mutex
	out     [][]byte
	times   []time.Time // of out
	reads   int
	arms    int // calls of SetReadDeadline
	broken  error
	timer   *time.Timer
	expired chan struct{}
}

func newFakePort() *fakePort {
	return &fakePort{in: make(chan []byte), failures: make(chan error, 100), expired: make(chan struct{})}
}

func (p *fakePort) Read(b []byte) (int, error) {
	p.mu.Lock()
	p.reads++
	expired := p.expired
	p.mu.Unlock()
	select {
	case <-expired:
		return 0, os.ErrDeadlineExceeded
	default:
	}
	select {
	case f := <-p.in:
		return copy(b, f), nil
	case err := <-p.failures:
		return 0, err
	case <-expired:
		return 0, os.ErrDeadlineExceeded
	}
}

func (p *fakePort) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return 0, p.broken
	}
	p.out, p.times = append(p.out, bytes.Clone(b)), append(p.times, time.Now())
	return len(b), nil
}

// SetReadDeadline cannot extend the deadline of a Read that has begun. Serve does not need that: it sets a
// deadline between two reads, and the end of its context sets one that has passed.
func (p *fakePort) SetReadDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arms++
	if p.timer != nil {
		p.timer.Stop()
	}
	select {
	case <-p.expired:
		p.expired = make(chan struct{})
	default:
	}
	if expired := p.expired; !t.IsZero() && !t.After(time.Now()) {
		close(expired)
	} else if !t.IsZero() {
		p.timer = time.AfterFunc(time.Until(t), func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			select {
			case <-expired:
			default:
				close(expired)
			}
		})
	}
	return nil
}

// breakWrites has each Write fail from now on; nil: none.
func (p *fakePort) breakWrites(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = err
}

func (p *fakePort) readsSoFar() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reads
}

func (p *fakePort) sent() ([][]byte, []time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out, p.times
}

// serve runs Serve in a bubble and ends it after f.
func serve(t *testing.T, r *Responder, f func(t *testing.T, p *fakePort)) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakePort()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Serve(ctx, p) }()
		synctest.Wait()
		f(t, p)
		before := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if took := time.Since(before); took != 0 {
			t.Errorf("Serve ended %v after its context", took)
		}
	})
}
