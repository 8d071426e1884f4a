package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/guestwire/guestwire/examples/cni/podsandbox"
	"github.com/guestwire/guestwire/examples/metrics"
	"github.com/guestwire/guestwire/phase1"
)

// serveMetrics serves at -metrics until ctx is done.
func (o *options) serveMetrics(ctx context.Context) {
	mux := http.NewServeMux()
	mux.Handle("/metrics", o.metricsHandler())
	for {
		// The clients are any pods of the cluster, and the process that they could exhaust is the NRI plugin as well.
		server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
		stop := context.AfterFunc(ctx, func() { server.Close() })
		listener, err := net.Listen("tcp", o.metrics)
		if err == nil {
			err = server.Serve(netutil.LimitListener(listener, 4*crowd))
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

// crowd is how many requests of metrics are there at once, with those that wait.
const crowd = 4

// oneByOne handles one request at a time, and at most one a second. It refuses what is too much.
func oneByOne(h http.Handler) http.Handler {
	places, turn := make(chan struct{}, crowd), make(chan struct{}, 1)
	busy := func(w http.ResponseWriter) {
		http.Error(w, "too many requests: ask again later", http.StatusServiceUnavailable)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		default:
			busy(w)
			return
		}
		select {
		case turn <- struct{}{}:
			defer time.AfterFunc(time.Second, func() { <-turn })
		case <-r.Context().Done():
			busy(w)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// metricsHandler looks at the node anew for each request: it enters each pod's namespace.
func (o *options) metricsHandler() http.Handler {
	return oneByOne(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wirings, err := phase1.List(r.Context(), o.dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // without the directory nothing was ever wired
			o.log.Warn("metrics", "error", err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		registry := prometheus.NewRegistry()
		all := phase1.NIC{Dir: o.dir, Progress: func(text string) { o.log.Info("metrics", "progress", text) }}
		registry.MustRegister(metrics.NICs{Context: r.Context(), Wirings: wirings, NIC: all}, podInfo(podsandbox.State(o.state)))
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	}))
}

// podInfo says which pod a state directory belongs to. Its label uid is that of kube_pod_info (kube-state-metrics), so
// a query can join both.
func podInfo(state podsandbox.State) prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "guestwire_pod_info",
		Help: "The newest sandbox of a pod with a wired NIC, by the pod's UID; the value is 1."}, []string{"state", "uid"})
	links, _ := os.ReadDir(state.Links()) // without it nothing was ever wired
	for _, link := range links {
		if sandboxID, err := os.Readlink(filepath.Join(state.Links(), link.Name())); err == nil {
			info.WithLabelValues(filepath.Join(state.Links(), sandboxID), link.Name()).Set(1)
		}
	}
	return info
}
