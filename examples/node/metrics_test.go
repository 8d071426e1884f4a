package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMetrics: the handler looks at the node anew for each request, and reports an error as such. examples/agent's
// tests show the metrics of wired NICs.
func TestMetrics(t *testing.T) {
	n := newNode(t)
	o, err := parseArgs(n.args("run"))
	if err != nil {
		t.Fatal(err)
	}
	o.log = discard()
	handler := o.metricsHandler()
	get := func() *httptest.ResponseRecorder {
		r := httptest.NewRecorder()
		handler.ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return r
	}
	if r := get(); r.Code != http.StatusOK { // nothing was ever wired
		t.Errorf("%d: %s", r.Code, r.Body)
	}
	write(t, n.state+"/sandbox1/eth0.json", "{}")
	if err := errors.Join(os.Mkdir(n.state+"/pods", 0o755), os.Symlink("../sandbox1", n.state+"/pods/uid1")); err != nil {
		t.Fatal(err)
	}
	if r := get(); !strings.Contains(r.Body.String(), fmt.Sprintf("guestwire_pod_info{state=%q,uid=\"uid1\"} 1", n.state+"/sandbox1")) {
		t.Errorf("%d: %s", r.Code, r.Body)
	}
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

// TestCrowd: the metrics are for whoever reaches the port. A crowd is refused, a client that gives up frees its place,
// and a client that says nothing holds none for long.
func TestCrowd(t *testing.T) {
	working, work := make(chan bool, 1000), make(chan bool)
	handler := oneByOne(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		working <- true
		<-work
	}))
	answers := make(chan int, 1000)
	ask := func(ctx context.Context) {
		r := httptest.NewRecorder()
		handler.ServeHTTP(r, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil))
		answers <- r.Code
	}
	next := func(want int) {
		t.Helper()
		select {
		case have := <-answers:
			if have != want {
				t.Errorf("%d, want %d", have, want)
			}
		case <-time.After(patience):
			t.Fatal("no answer")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go ask(t.Context())
	<-working
	for range 100 {
		go ask(ctx)
	}
	for range 100 - (crowd - 1) {
		next(http.StatusServiceUnavailable)
	}
	cancel()
	for range crowd - 1 {
		next(http.StatusServiceUnavailable)
	}
	select {
	case <-working:
		t.Error("two at once")
	default:
	}
	go ask(t.Context())
	close(work)
	next(http.StatusOK)
	next(http.StatusOK)
}
