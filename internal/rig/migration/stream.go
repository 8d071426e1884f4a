// Package migration moves guests between the pods of two nodes, and reports what stations in the world notice: octets
// that are lost or come twice, and the longest time without any.
package migration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Stream is a TCP connection to a station that echoes. It sends octets all the time and compares those that come back.
type Stream struct {
	conn               net.Conn
	stop               chan struct{}
	stopped            sync.Once
	sending, receiving sync.WaitGroup

	mu       sync.Mutex
	more     *sync.Cond
	sent     int
	received int
	gap      time.Duration // the longest without an octet
	gapBegin time.Time
	last     time.Time // when the last octet came
	err      error
}

// Measured is what a Stream or Pings have noticed.
type Measured struct {
	// Sent is the number of octets, or of requests.
	Sent int
	// Lost is how many have not come back. Twice is how many have come back once more.
	Lost, Twice int
	// Gap is the longest time without an answer, and GapBegin its begin.
	Gap      time.Duration
	GapBegin time.Time
}

func (m Measured) String() string {
	return fmt.Sprintf("%d sent, %d lost, %d twice, longest gap %v at %s", m.Sent, m.Lost, m.Twice,
		m.Gap.Round(time.Millisecond), m.GapBegin.Format("15:04:05.000"))
}

const (
	// sendInterval is how often a Stream sends, and sendSize how much.
	sendInterval = 5 * time.Millisecond
	sendSize     = 100
	// drainTime is how long the last octets may take to come back.
	drainTime = 20 * time.Second
)

// octet is the octet at a position. Neighbours differ, and so do octets whose positions differ by less than a cycle of
// 2^16, so that one lost or repeated octet is noticed.
func octet(at int) byte { return byte(at ^ at>>8*7 ^ at>>16) }

// NewStream begins to send. It owns the connection.
func NewStream(conn net.Conn) *Stream {
	s := &Stream{conn: conn, stop: make(chan struct{}), last: time.Now()}
	s.more = sync.NewCond(&s.mu)
	s.sending.Go(s.send)
	s.receiving.Go(s.receive)
	return s
}

func (s *Stream) send() {
	ticker := time.NewTicker(sendInterval)
	defer ticker.Stop()
	data := make([]byte, sendSize)
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		for i := range data {
			data[i] = octet(s.sent + i)
		}
		s.sent += len(data)
		s.mu.Unlock()
		if _, err := s.conn.Write(data); err != nil {
			s.fail(err)
			return
		}
	}
}

func (s *Stream) receive() {
	buffer := make([]byte, 1<<16)
	for {
		n, err := s.conn.Read(buffer)
		if n > 0 {
			err = errors.Join(s.compare(buffer[:n]), err)
		}
		if err != nil {
			s.fail(err)
			return
		}
	}
}

// compare takes octets that have come back.
func (s *Stream) compare(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if gap := now.Sub(s.last); gap > s.gap {
		s.gap, s.gapBegin = gap, s.last
	}
	s.last = now
	defer s.more.Broadcast()
	for i, b := range data {
		switch at := s.received + i; {
		case at >= s.sent:
			return fmt.Errorf("octet %d came back and was not sent", at)
		case b != octet(at):
			return fmt.Errorf("octet %d is %#02x, want %#02x", at, b, octet(at))
		}
	}
	s.received += len(data)
	return nil
}

// fail ends sending and receiving. One of the two learns from the kernel why a connection has ended, and the other no
// more than that (EPIPE, or the end of the file), so both errors count.
func (s *Stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil || !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed) {
		s.err = errors.Join(s.err, err)
	}
	if failed := s.conn.SetDeadline(time.Unix(1, 0)); failed != nil && !errors.Is(failed, net.ErrClosed) {
		s.err = errors.Join(s.err, failed)
	}
	s.more.Broadcast()
}

// Progress waits until octets that are sent after the call have come back.
func (s *Stream) Progress() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.await(s.sent + 2*sendSize)
}

// Forget forgets the gaps so far.
func (s *Stream) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gap, s.gapBegin = 0, time.Time{}
}

// Gap is the longest time without an octet since Forget.
func (s *Stream) Gap() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gap
}

// await waits until that many octets have come back. s.mu is held.
func (s *Stream) await(received int) error {
	timer := time.AfterFunc(drainTime, func() {
		s.fail(fmt.Errorf("octet %d has not come back within %v", received, drainTime))
	})
	defer timer.Stop()
	for s.err == nil && s.received < received {
		s.more.Wait()
	}
	return s.err
}

// Ended waits until the connection has ended by itself, and returns why.
func (s *Stream) Ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	timer := time.AfterFunc(drainTime, func() { s.fail(fmt.Errorf("the connection has not ended within %v", drainTime)) })
	defer timer.Stop()
	for s.err == nil {
		s.more.Wait()
	}
	s.mu.Unlock()
	s.sending.Wait()
	s.receiving.Wait()
	s.mu.Lock()
	return s.err
}

// Close ends the connection at once.
func (s *Stream) Close() error {
	s.stopped.Do(func() { close(s.stop) })
	err := s.conn.Close()
	s.sending.Wait()
	s.receiving.Wait()
	return err
}

// End stops sending, waits for all octets, and ends the connection. The error is what went wrong with the connection,
// or the first octet that differs.
func (s *Stream) End() (Measured, error) {
	s.stopped.Do(func() { close(s.stop) })
	err := s.conn.SetWriteDeadline(time.Now().Add(drainTime))
	s.sending.Wait()
	s.mu.Lock()
	err = errors.Join(err, s.await(s.sent))
	s.mu.Unlock()
	if err == nil {
		// What comes between here and the end of the other side was not sent.
		if err = s.conn.(interface{ CloseWrite() error }).CloseWrite(); err == nil {
			if err = s.Ended(); errors.Is(err, io.EOF) {
				err = nil
			}
		}
	}
	closed := s.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	m := Measured{Sent: s.sent, Lost: s.sent - s.received, Gap: s.gap, GapBegin: s.gapBegin}
	return m, errors.Join(err, closed)
}
