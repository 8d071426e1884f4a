package guestwiretest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Capture has the Ethernet frames that came since it began.
type Capture struct {
	mu      sync.Mutex
	frames  [][]byte
	err     error         // why there will be no more
	changed chan struct{} // closed and replaced at every change
}

func newCapture() *Capture { return &Capture{changed: make(chan struct{})} }

// Next waits for the next frame that want accepts, returns it, and drops the frames before it. A nil want accepts each.
func (c *Capture) Next(ctx context.Context, want func(frame []byte) bool) ([]byte, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	for dropped := 0; ; {
		c.mu.Lock()
		frames, err, changed := c.frames, c.err, c.changed
		at := 0
		if want != nil {
			at = slices.IndexFunc(frames, want)
		}
		if at >= 0 && at < len(frames) {
			c.frames = frames[at+1:]
			c.mu.Unlock()
			return frames[at], nil
		}
		dropped += len(frames)
		c.frames = nil
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a frame, after %d others: %w", dropped, context.Cause(ctx))
		}
	}
}

func (c *Capture) add(frame []byte) {
	c.change(func() { c.frames = append(c.frames, slices.Clone(frame)) })
}

func (c *Capture) end(err error) { c.change(func() { c.err = err }) }

func (c *Capture) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Capture begins to collect a link's frames, until the test ends. The outer VLAN tags are missing (packet(7)).
func (n *Namespace) Capture(link string) *Capture {
	n.t.Helper()
	socket, err := n.lab.PacketSocket(link, true)
	if err != nil {
		n.t.Fatalf("capture at %s: %v", link, err)
	}
	c := newCapture()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		frame := make([]byte, 1<<16)
		for {
			size, err := socket.Read(frame)
			if errors.Is(err, unix.ENETDOWN) { // it may come up again
				continue
			}
			if err != nil {
				c.end(fmt.Errorf("capture at %s: %w", link, err))
				return
			}
			c.add(frame[:size])
		}
	}()
	n.t.Cleanup(func() {
		socket.Close()
		<-ended
	})
	return c
}

// Send sends an Ethernet frame as it is, by a link of the namespace.
func (n *Namespace) Send(link string, frame []byte) error {
	socket, err := n.lab.PacketSocket(link, false)
	if err != nil {
		return fmt.Errorf("send at %s: %w", link, err)
	}
	defer socket.Close()
	_, err = socket.Write(frame)
	return err
}
