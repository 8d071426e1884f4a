package names

import (
	"context"
	"net"
	"sync"
	"time"
)

// streams are the guest's connections.
type streams struct {
	most int

	mu   sync.Mutex
	idle map[net.Conn]time.Time // since when it waits for the guest; zero: its question waits
}

// add takes a place for a connection. If all are taken, it closes the connection that has waited for the guest for the
// longest time. Not ok: the questions of all wait, and none is closed.
func (s *streams) add(c net.Conn) (closed, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) >= s.most {
		var oldest net.Conn
		for other, since := range s.idle {
			if !since.IsZero() && (oldest == nil || since.Before(s.idle[oldest])) {
				oldest = other
			}
		}
		if oldest == nil {
			return false, false
		}
		oldest.Close()
		delete(s.idle, oldest)
		closed = true
	}
	s.idle[c] = time.Now()
	return closed, true
}

// set sets since when the connection waits for the guest. It reports whether the connection still has its place.
func (s *streams) set(c net.Conn, since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, has := s.idle[c]
	if has {
		s.idle[c] = since
	}
	return has
}

func (s *streams) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.idle, c)
}

// serveStreams answers the questions that come by TCP.
func (s *server) serveStreams(ctx context.Context, l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if !s.isGuest(c.RemoteAddr()) {
			c.Close()
			continue
		}
		closed, ok := s.streams.add(c)
		if closed || !ok {
			s.log.Warn("the guest has too many connections to the proxy: one is closed")
		}
		if !ok {
			c.Close()
			continue
		}
		s.tasks.Go(func() {
			defer s.streams.remove(c)
			s.serveStream(ctx, c)
		})
	}
}

// serveStream answers the questions of a connection, one after the other.
func (s *server) serveStream(ctx context.Context, c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	for s.streams.set(c, time.Now()) {
		c.SetDeadline(time.Now().Add(s.limits.idle))
		message, err := readStream(c, 1<<12)
		if err != nil || !s.admitted() {
			return
		}
		q, ok := parseQuery(message)
		if !ok {
			return
		}
		a, known := s.known(q)
		if !known {
			if a, ok = s.await(ctx, c, q.question()); !ok {
				return
			}
		}
		reply := q.reply(a, time.Now(), 1<<16-1)
		c.SetDeadline(time.Now().Add(s.limits.idle))
		if _, err := c.Write(append([]byte{byte(len(reply) >> 8), byte(len(reply))}, reply...)); err != nil {
			return
		}
	}
}

// await returns the answer that resolvers give. The connection keeps its place meanwhile.
func (s *server) await(ctx context.Context, c net.Conn, asked question) (a answer, ok bool) {
	if !s.streams.set(c, time.Time{}) {
		return a, false
	}
	select {
	case s.waiting <- struct{}{}:
	case <-ctx.Done():
		return a, false
	}
	a, err := s.find(ctx, asked)
	<-s.waiting
	return a, err == nil && s.streams.set(c, time.Now())
}
