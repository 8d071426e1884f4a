package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/examples/metrics"
	"github.com/guestwire/guestwire/phase1"
)

const (
	// crowd is how many requests wait for a look at the node. All others get the last answer.
	crowd = 4
	// connections is how many are open at once that have no request yet, and how many that have an answer.
	connections = 256
	// receiveBuffer and sendBuffer are the memory of a connection in the kernel, which doubles them.
	receiveBuffer, sendBuffer = 8 << 10, 32 << 10
	// answered is how long a client may take for a request, and for an answer.
	answered = 10 * time.Second
)

// serveMetrics serves at -metrics until ctx is done.
//
// Its clients are whoever reaches the address, and the process that they could exhaust is the NRI plugin as well. So
// each connection has one request, and gives way to newer ones.
func (o *options) serveMetrics(ctx context.Context) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", o.metricsHandler(ctx))
	for {
		server := &http.Server{
			Handler: mux, ReadTimeout: answered, WriteTimeout: 2 * answered, MaxHeaderBytes: 4 << 10,
			ConnContext: func(ctx context.Context, c net.Conn) context.Context { return c.(*connection).within(ctx) },
		}
		server.SetKeepAlivesEnabled(false)
		stop := context.AfterFunc(ctx, func() { server.Close() })
		listener, err := (&net.ListenConfig{Control: boundSockets}).Listen(ctx, "tcp", o.metrics)
		if err == nil {
			err = server.Serve(&newest{Listener: listener})
		}
		stop()
		if ctx.Err() != nil {
			return
		}
		o.log.Warn("metrics", "error", err, "again in", recheck)
		select {
		case <-ctx.Done():
			return
		case <-time.After(recheck):
		}
	}
}

// boundSockets sets what a listener's connections inherit. What a client does not read is dropped when its connection
// is closed: the kernel would keep it for minutes.
func boundSockets(_, _ string, c syscall.RawConn) (err error) {
	failed := c.Control(func(fd uintptr) {
		err = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer),
			unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	})
	return errors.Join(failed, err)
}

// newest is a listener that closes a connection when a new one is too many: of those without a request the oldest, of
// those with an answer the one whose client has read nothing for longest. A limit of connections would keep new ones
// waiting for clients that say or read nothing.
type newest struct {
	net.Listener
	mu              sync.Mutex
	silent, reading []*connection
}

// Accept implements net.Listener.
func (l *newest) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := &connection{Conn: c, listener: l}
	n.open, n.end = context.WithCancel(context.Background())
	n.enter(&l.silent)
	return n, nil
}

// connection is one of a newest.
type connection struct {
	net.Conn
	listener *newest
	open     context.Context // until Close
	end      context.CancelFunc
}

// ofRequest is the key of a request's connection in its context.
type ofRequest struct{}

// within returns the context of the connection's request. It ends with the connection: net/http sees the end of one
// only if nothing is left to read.
func (c *connection) within(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(c.open, cancel)
	return context.WithValue(ctx, ofRequest{}, c)
}

// enter makes the connection the last one of the list that gives way; nil: it stays open.
func (c *connection) enter(list *[]*connection) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, other := range []*[]*connection{&l.silent, &l.reading} {
		*other = slices.DeleteFunc(*other, func(o *connection) bool { return o == c })
	}
	if list == nil || c.open.Err() != nil {
		return
	}
	if *list = append(*list, c); len(*list) > connections {
		oldest := (*list)[0]
		oldest.end()
		oldest.Conn.Close()
		*list = slices.Delete(*list, 0, 1)
	}
}

// Write implements net.Conn.
func (c *connection) Write(b []byte) (n int, err error) {
	for part := range slices.Chunk(b, sendBuffer/2) {
		c.enter(&c.listener.reading) // the client has read what was before it, but for a buffer
		written, err := c.Conn.Write(part)
		if n += written; err != nil {
			return n, err
		}
	}
	return n, nil
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.end()
	c.enter(nil)
	return c.Conn.Close()
}

// answer is what a look at the node has given.
type answer struct {
	status int
	text   []byte
	at     time.Time // when it was ready
}

// looks answers requests. It looks at the node once at a time, and at most once a second.
type looks struct {
	look   func() answer
	last   atomic.Pointer[answer]
	places chan struct{} // of those that wait
	turn   chan struct{} // of the one that looks
}

func newLooks(look func() answer) *looks {
	return &looks{look: look, places: make(chan struct{}, crowd), turn: make(chan struct{}, 1)}
}

// ServeHTTP implements http.Handler.
func (l *looks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, connected := r.Context().Value(ofRequest{}).(*connection)
	a := l.last.Load()
	select {
	case l.places <- struct{}{}:
		func() {
			defer func() { <-l.places }()
			if connected {
				c.enter(nil)
			}
			a = l.next(r.Context())
		}()
	default:
		if a == nil {
			a = l.next(r.Context())
		}
	}
	if a == nil {
		return // the client is gone, and nobody reads an answer
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	w.Header().Set("Content-Length", strconv.Itoa(len(a.text)))
	w.WriteHeader(a.status)
	if _, err := w.Write(a.text); err != nil || !connected || http.NewResponseController(w).Flush() != nil {
		return
	}
	// The connection counts as open until the client has all.
	if tcp, ok := c.Conn.(*net.TCPConn); ok && tcp.CloseWrite() == nil {
		select {
		case <-r.Context().Done():
		case <-time.After(answered):
		}
	}
}

// next returns an answer that is less than a second old, or the last one if ctx ends first; nil: there is none.
func (l *looks) next(ctx context.Context) *answer {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return l.last.Load()
	}
	if a := l.last.Load(); a != nil && time.Since(a.at) < time.Second {
		return a
	}
	a := l.look() // for all that ask meanwhile: it does not end with this client
	a.at = time.Now()
	l.last.Store(&a)
	return &a
}

// metricsHandler answers with the metrics of the node's wired NICs. A look enters each pod's namespace.
func (o *options) metricsHandler(ctx context.Context) http.Handler {
	return newLooks(func() answer {
		text, err := o.metricsText(ctx)
		if err != nil {
			o.log.Warn("metrics", "error", err)
			return answer{status: http.StatusInternalServerError, text: []byte(err.Error() + "\n")}
		}
		return answer{status: http.StatusOK, text: text}
	})
}

// metricsText looks at the node.
func (o *options) metricsText(ctx context.Context) ([]byte, error) {
	wirings, err := phase1.List(ctx, o.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // without the directory nothing was ever wired
		return nil, err
	}
	registry := prometheus.NewRegistry()
	all := phase1.NIC{Dir: o.dir, Progress: func(text string) { o.log.Info("metrics", "progress", text) }}
	registry.MustRegister(metrics.NICs{Context: ctx, Wirings: wirings, NIC: all}, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "guestwire_repairs_total",
		Help: "How many NICs guestwire-node has repaired since its start, see -repair."}, func() float64 { return float64(o.repaired.Load()) }))
	if o.names != "" {
		named := 0
		for _, w := range wirings {
			if len(w.Names) > 0 && len(w.FoundAt) > 0 {
				named++
			}
		}
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "guestwire_named_nics",
			Help: "How many wired NICs have names in their configuration; absent without -names."}, func() float64 { return float64(named) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "guestwire_dns_proxies",
				Help: "How many of them have a DNS proxy of guestwire-node that runs; absent without -names."}, func() float64 { return float64(o.proxies.Load()) }))
	}
	families, err := registry.Gather()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}
