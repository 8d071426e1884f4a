package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

var (
	ofNIC = []string{"nic", "namespace", "state"}

	wiredInfo = prometheus.NewDesc("guestwire_wired_info", "A wired NIC of the node; the value is 1.",
		append(ofNIC, "binding", "version"), nil)
	namespaceFound = prometheus.NewDesc("guestwire_namespace_found", "Whether the namespace of the wired NIC is there (1) or gone (0).", ofNIC, nil)
	differences    = prometheus.NewDesc("guestwire_differences", "In how many things kernel and record differ from what Setup left; a NIC that is gone is one.", ofNIC, nil)
	droppedPackets = prometheus.NewDesc("guestwire_dropped_packets_total", "Packets that the NIC's rules have dropped.", append(ofNIC, "reason"), nil)
	droppedBytes   = prometheus.NewDesc("guestwire_dropped_bytes_total", "Octets of the packets that the NIC's rules have dropped.", append(ofNIC, "reason"), nil)
)

// collector has the metrics of the wired NICs.
type collector struct {
	ctx     context.Context
	o       *options
	wirings []phase1.Wiring
}

func (c collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{wiredInfo, namespaceFound, differences, droppedPackets, droppedBytes} {
		descs <- d
	}
}

func (c collector) Collect(metrics chan<- prometheus.Metric) {
	// A Check waits a second for a gateway that does not answer.
	var working sync.WaitGroup
	free := make(chan struct{}, 64)
	for _, w := range c.wirings {
		free <- struct{}{}
		working.Go(func() {
			c.collect(w, metrics)
			<-free
		})
	}
	working.Wait()
}

func (c collector) collect(w phase1.Wiring, metrics chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, more ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{w.NIC, w.Namespace, w.State}, more...)...)
	}
	gauge(wiredInfo, 1, w.Binding, w.Version)
	if len(w.FoundAt) == 0 {
		gauge(namespaceFound, 0)
		return
	}
	gauge(namespaceFound, 1)
	found, drops, ok := c.look(w)
	if !ok {
		return
	}
	gauge(differences, float64(found))
	for _, d := range drops {
		labels := []string{w.NIC, w.Namespace, w.State, d.Reason}
		metrics <- prometheus.MustNewConstMetric(droppedPackets, prometheus.CounterValue, float64(d.Packets), labels...)
		metrics <- prometheus.MustNewConstMetric(droppedBytes, prometheus.CounterValue, float64(d.Bytes), labels...)
	}
}

// look returns in how many things the NIC differs, and what its rules have dropped; ok is false if the namespace cannot
// be opened here, or the NIC is not wired any more. It does without Status, which looks for the namespace again, in all
// processes.
func (c collector) look(w phase1.Wiring) (found int, drops []phase1.DropCount, ok bool) {
	if c.o.Own { // printMetrics has left no wiring of another namespace
		nic := c.o.Config
		nic.NIC, nic.State = w.NIC, w.State
		found, drops, err := c.compare(nic)
		if err != nil {
			c.o.Progress(err.Error())
		}
		return found, drops, err == nil
	}
	for _, path := range w.FoundAt {
		// A path of another mount namespace may lead to a FIFO here, which would wait.
		ns, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		// By the State, Check refuses another namespace, which the path may lead to by now.
		nic := phase1.Config{NetNS: ns, Dir: c.o.Dir, Progress: c.o.Progress, Spec: infra.Spec{NIC: w.NIC, State: w.State}}
		found, drops, err = c.compare(nic)
		ns.Close()
		if err == nil {
			return found, drops, true
		}
		c.o.Progress(err.Error())
	}
	return 0, nil, false
}

// compare returns in how many things the NIC differs, and what its rules have dropped.
func (c collector) compare(nic phase1.Config) (found int, drops []phase1.DropCount, err error) {
	err = phase1.Check(c.ctx, nic)
	var drift *phase1.DriftError
	switch {
	case errors.As(err, &drift):
		found, err = len(drift.Differs), nil
	case errors.Is(err, infra.ErrNoNIC):
		found, err = 1, nil
	}
	if err == nil {
		drops, err = phase1.Drops(c.ctx, nic)
	}
	return found, drops, err
}

func printMetrics(ctx context.Context, o *options) error {
	wirings, err := phase1.List(ctx, o.Dir)
	if err != nil {
		return err
	}
	if o.NetNS != nil || o.Own {
		report, err := phase1.Status(ctx, o.Config)
		if report == nil {
			return err
		}
		wirings = slices.DeleteFunc(wirings, func(w phase1.Wiring) bool {
			return w.Namespace != report.Namespace || w.NIC != report.NIC
		})
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector{ctx, o, wirings}); err != nil {
		return err
	}
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(stdout, f); err != nil {
			return err
		}
	}
	return nil
}
