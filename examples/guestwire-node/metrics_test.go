package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestMetrics: the handler looks at the node anew for a request after a second, and reports an error as such.
// examples/guestwire-agent's tests show the metrics of wired NICs.
func TestMetrics(t *testing.T) {
	n := newNode(t)
	o, err := parseArgs(n.args("run"))
	if err != nil {
		t.Fatal(err)
	}
	o.log = discard()
	handler := o.metricsHandler(t.Context())
	get := func() *httptest.ResponseRecorder {
		r := httptest.NewRecorder()
		handler.ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return r
	}
	if r := get(); r.Code != http.StatusOK { // nothing was ever wired
		t.Errorf("%d: %s", r.Code, r.Body)
	}
	fresh := func() { handler.(*looks).last.Store(nil) }
	fresh()
	write(t, n.dir, "no directory")
	if r := get(); r.Code != http.StatusInternalServerError || !strings.Contains(r.Body.String(), n.dir) {
		t.Errorf("%d: %s", r.Code, r.Body)
	}
}

// TestServeMetrics: -metrics serves, and ends with run.
func TestServeMetrics(t *testing.T) {
	n := newNode(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String() // free again when l is closed
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	stop := start(t, n.args("run", "-metrics", address)...)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	eventually(t, func() error {
		r, err := client.Get("http://" + address + "/metrics")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return errors.New(r.Status)
		}
		return nil
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := client.Get("http://" + address + "/metrics"); err == nil {
		t.Error("metrics are served after the end")
	}
}

// TestCrowd: the metrics are for whoever reaches the port. Of a crowd one looks at the node, a few wait for what it
// sees, and all others get the last answer at once. Before the first answer all wait.
func TestCrowd(t *testing.T) {
	working, work := make(chan bool, 1000), make(chan string)
	l := newLooks(func() answer {
		working <- true
		return answer{status: http.StatusOK, text: []byte(<-work)}
	})
	answers := make(chan string, 1000)
	ask := func(ctx context.Context) {
		r := httptest.NewRecorder()
		l.ServeHTTP(r, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil))
		answers <- r.Body.String()
	}
	next := func(count int, want string) {
		t.Helper()
		for range count {
			select {
			case have := <-answers:
				if have != want {
					t.Errorf("%q, want %q", have, want)
				}
			case <-time.After(patience):
				t.Fatal("no answer")
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go ask(t.Context())
	<-working
	for range 100 {
		go ask(ctx)
	}
	work <- "first"
	next(101, "first")

	old := *l.last.Load()
	old.at = time.Now().Add(-time.Minute)
	l.last.Store(&old)
	go ask(t.Context())
	<-working
	for range 100 {
		go ask(ctx)
	}
	next(100-(crowd-1), "first")
	cancel() // of those that wait
	next(crowd-1, "first")
	go ask(t.Context())
	work <- "second"
	next(2, "second")
	if len(working) > 0 {
		t.Error("a look without need")
	}
}
