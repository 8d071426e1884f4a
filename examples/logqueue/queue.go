// Package logqueue writes the log of a program that must not wait for the log's reader.
package logqueue

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// mostQueued is the number of bytes that wait for the reader.
	mostQueued = 256 << 10
	// closing is the time that the reader has for what is queued when the program ends.
	closing = time.Second
)

// Queue is a Writer for the log of a program that must not wait for the log's reader. Write queues the text and
// returns. One goroutine writes it to the file. Text that finds no room in the queue is lost. So is text that the file
// refuses, as a pipe without a reader does. When the file takes text again, a line first says how many lines were lost.
type Queue struct {
	file *os.File
	lost func(lines int) string // the text of that line

	mu     sync.Mutex
	parts  []part
	size   int           // of their texts
	more   chan struct{} // has an element if parts may have one; closed by Close
	closed bool
	ended  chan struct{} // closed when the goroutine has ended
}

// part is a text, or a gap of that many lines.
type part struct {
	text []byte
	gap  int
}

// New starts a Queue for the file. From then on, a reader that closes standard output or standard error does not
// end the program by SIGPIPE. Programs that it starts have the signal's default.
func New(file *os.File, lost func(lines int) string) *Queue {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // signal.Ignore would hold for programs that are started, too
	q := &Queue{file: file, lost: lost, more: make(chan struct{}, 1), ended: make(chan struct{})}
	go q.work()
	return q
}

// Write does not block, and its only error is that of a Queue that is closed.
func (q *Queue) Write(text []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch last := len(q.parts) - 1; {
	case q.closed:
		return 0, os.ErrClosed
	case q.size+len(text) <= mostQueued:
		q.parts = append(q.parts, part{text: bytes.Clone(text)})
		q.size += len(text)
	case last >= 0 && q.parts[last].gap > 0:
		q.parts[last].gap += lines(text)
	default:
		q.parts = append(q.parts, part{gap: lines(text)})
	}
	select {
	case q.more <- struct{}{}:
	default: // work has not looked yet
	}
	return len(text), nil
}

// Close gives the reader a second for what is queued. The error is os.ErrDeadlineExceeded if that was too short; the
// goroutine then stays until the process ends.
func (q *Queue) Close() error {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.more)
	}
	q.mu.Unlock()
	select {
	case <-q.ended:
		return nil
	case <-time.After(closing):
		return os.ErrDeadlineExceeded
	}
}

func (q *Queue) work() {
	defer close(q.ended)
	lost := 0
	for range q.more {
		for p := q.take(); p != nil; p = q.take() {
			lost += p.gap
			text := p.text
			if lost > 0 {
				text = slices.Concat([]byte(q.lost(lost)), text)
			}
			if err := q.write(text); err == nil {
				lost = 0
			} else if p.gap == 0 {
				lost += lines(p.text)
			}
		}
	}
}

// take returns the first part, or nil.
func (q *Queue) take() *part {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.parts) == 0 {
		return nil
	}
	p := q.parts[0]
	q.parts = q.parts[1:]
	q.size -= len(p.text)
	return &p
}

// write blocks as long as the file does. A process that shares the file may have made it non-blocking, as QEMU does.
func (q *Queue) write(text []byte) error {
	raw, err := q.file.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) {
		for len(text) > 0 && err == nil {
			var n int
			switch n, err = unix.Write(int(fd), text); {
			case err == nil && n == 0:
				err = io.ErrShortWrite
			case err == nil:
				text = text[n:]
			case err == unix.EAGAIN:
				_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
			}
			if err == unix.EINTR {
				err = nil
			}
		}
	})
	if failed != nil {
		return failed
	}
	return err
}

// lines is the number of lines in a text, of which the last may have no end.
func lines(text []byte) int { return max(1, bytes.Count(text, []byte{'\n'})) }
