package guestwiretest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Capture notes Ethernet frames, without VLAN tags that the kernel has taken out.
type Capture struct {
	mu      sync.Mutex
	frames  [][]byte
	err     error         // why there will be no more
	changed chan struct{} // closed and replaced at every change
}

func newCapture() *Capture { return &Capture{changed: make(chan struct{})} }

// Next returns the next frame that want accepts, and drops those before it; a nil want accepts each. The frames since the
// capture began count, in their order.
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

// Capture notes the frames that a link of the namespace receives or sends from now on, until the test ends (packet(7)).
func (n *Namespace) Capture(link string) *Capture {
	n.t.Helper()
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in the network's order
	socket, err := n.packetSocket(link, all)
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

// Send puts an Ethernet frame on the wire at a link of the namespace, as it is.
func (n *Namespace) Send(link string, frame []byte) error {
	socket, err := n.packetSocket(link, 0)
	if err != nil {
		return fmt.Errorf("send at %s: %w", link, err)
	}
	defer socket.Close()
	_, err = socket.Write(frame)
	return err
}

func (n *Namespace) packetSocket(link string, protocol int) (*os.File, error) {
	fd := -1
	err := n.Do(func() error {
		at, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: at.Index, Protocol: uint16(protocol)}))
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, err
	}
	return os.NewFile(uintptr(fd), link), nil
}
