// Package metrics reports the wired NICs of a node, and the calls of its CNI plugin: for examples/guestwire-exporter,
// which prints, and examples/guestwire-node, which serves.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/guestwire/guestwire/examples/guestwire/calls"
	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

var (
	ofNIC = []string{"nic", "netns", "state"}

	wiredNICs = prometheus.NewDesc("guestwire_wired_nics", "How many NICs of the node are wired.", nil, nil)
	wiredInfo = prometheus.NewDesc("guestwire_wired_info", "A wired NIC of the node; the value is 1.",
		append(ofNIC, "binding", "version"), nil)
	namespaceFound = prometheus.NewDesc("guestwire_namespace_found", "Whether the namespace of the wired NIC is there (1) or gone (0).", ofNIC, nil)
	differences    = prometheus.NewDesc("guestwire_differences", "In how many things kernel and record differ from what Setup left; a NIC that is gone is one.", ofNIC, nil)
	droppedPackets = prometheus.NewDesc("guestwire_dropped_packets_total", "Packets that the NIC's rules have dropped; absent of a reason that has dropped none.", append(ofNIC, "reason", "expected"), nil)
	attached       = prometheus.NewDesc("guestwire_attached", "Whether a process has the tap of the side open (1) or not (0); absent of a macvtap, and without a tap.", append(ofNIC, "side"), nil)
	trafficPackets = prometheus.NewDesc("guestwire_traffic_packets_total", "Packets from the guest, also those that rules dropped then, and to the guest.", append(ofNIC, "direction"), nil)
	trafficBytes   = prometheus.NewDesc("guestwire_traffic_bytes_total", "Octets of the packets from the guest and to the guest, with their Ethernet headers.", append(ofNIC, "direction"), nil)
	opened         = prometheus.NewDesc("guestwire_opened_connections_total", "Connections of the guest that egress allowed; absent without egress.", ofNIC, nil)
	diverted       = prometheus.NewDesc("guestwire_diverted_connections_total", "Connections of the guest that egress diverted to a port of the namespace; absent without a divert.", ofNIC, nil)
	podInfo        = prometheus.NewDesc("guestwire_pod_info", "The pod of a State directory, if it is the pod's newest sandbox; without a pod uid and names are empty. The value is 1.", []string{"state", "uid", "pod_namespace", "pod_name"}, nil)
	cniCalls       = prometheus.NewDesc("guestwire_cni_call_seconds", "A histogram of the CNI plugin's calls that had something to do, since the node's start. The code is that of the error, and 0 without one.", []string{"operation", "code"}, nil)
	droppedBytes   = prometheus.NewDesc("guestwire_dropped_bytes_total", "Octets of the packets that the NIC's rules have dropped; absent with the packets.", append(ofNIC, "reason", "expected"), nil)
)

// NICs is a prometheus.Collector of wired NICs, with the labels nic, netns (the name of its network
// namespace, as Prometheus gives each sample a label namespace of its own) and state. Each Collect looks at the kernel:
// it needs what phase1.Check needs. A NIC that takes longer than three seconds, or is not
// looked at within eight, has no guestwire_differences and no counters, and NIC.Progress says so. It also collects the
// calls of the CNI plugin that calls.Count has counted in the Dir.
type NICs struct {
	// Context ends the looking.
	Context context.Context
	// Wirings are the NICs, as phase1.List returns them.
	Wirings []phase1.Wiring
	// NIC has the Dir and Progress of all calls. With Own, all Wirings are of the caller's own namespace.
	NIC phase1.NIC
}

// Describe implements prometheus.Collector.
func (c NICs) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{wiredNICs, wiredInfo, namespaceFound, differences, attached, trafficPackets, trafficBytes, opened, diverted, droppedPackets, droppedBytes, podInfo, cniCalls} {
		descs <- d
	}
}

const (
	// atOnce NICs are looked at: a Check waits a second for a gateway that does not answer, and keeps what it reads in
	// memory.
	atOnce = 16
	// mostRead bounds what is read of a namespace beside others, and mostReadAlone what is read of one alone, as a pod
	// can have as many routes as it likes.
	mostRead, mostReadAlone = 256 << 10, 4 << 20
	// patience is the time for one NIC. A pod can make the look at its own namespace long.
	patience = 3 * time.Second
	// inAll is the time for all NICs: Prometheus waits ten seconds by default.
	inAll = 8 * time.Second
)

// Collect implements prometheus.Collector.
func (c NICs) Collect(metrics chan<- prometheus.Metric) {
	metrics <- prometheus.MustNewConstMetric(wiredNICs, prometheus.GaugeValue, float64(len(c.Wirings)))
	c.collectCalls(metrics)
	c.collectPods(metrics)
	var cancel context.CancelFunc
	c.Context, cancel = context.WithTimeoutCause(c.Context, inAll, fmt.Errorf("no metrics after %v: other NICs take too long: %w", inAll, context.DeadlineExceeded))
	defer cancel()
	var working sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for _, w := range c.Wirings {
		free <- struct{}{}
		working.Go(func() {
			c.collect(w, metrics)
			<-free
		})
	}
	working.Wait()
}

func (c NICs) collectCalls(metrics chan<- prometheus.Metric) {
	table, err := calls.Read(c.NIC.Dir)
	if err != nil && c.NIC.Progress != nil {
		c.NIC.Progress(fmt.Sprintf("no guestwire_cni_call_seconds: %v", err))
	}
	for i, operation := range calls.Operations {
		for j, code := range calls.Codes {
			latency := table[i][j]
			var count uint64
			buckets := map[float64]uint64{}
			for k, n := range latency.Buckets {
				if count += n; k < len(calls.Bounds) {
					buckets[calls.Bounds[k]] = count
				}
			}
			if count > 0 {
				seconds := time.Duration(latency.Nanoseconds).Seconds()
				metrics <- prometheus.MustNewConstHistogram(cniCalls, count, seconds, buckets, operation, fmt.Sprint(code))
			}
		}
	}
}

// collectPods says which pods the State directories belong to. The UID is that of kube_pod_info (kube-state-metrics),
// so a query can join both. Prometheus gives samples labels namespace and pod of its own: those of guestwire-node. Each
// State directory has a series, so a query that joins them loses no NIC.
func (c NICs) collectPods(metrics chan<- prometheus.Metric) {
	var states []string
	for _, w := range c.Wirings {
		states = append(states, w.State)
	}
	pods, err := podsandbox.PodsOf(states)
	if err != nil && c.NIC.Progress != nil {
		c.NIC.Progress(fmt.Sprintf("not all of guestwire_pod_info: %v", err))
	}
	for state, p := range pods {
		metrics <- prometheus.MustNewConstMetric(podInfo, prometheus.GaugeValue, 1, state, p.UID, p.Namespace, p.Name)
	}
}

func (c NICs) collect(w phase1.Wiring, metrics chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, more ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{w.NIC, w.Namespace, w.State}, more...)...)
	}
	gauge(wiredInfo, 1, string(w.Binding), w.Version)
	if len(w.FoundAt) == 0 {
		gauge(namespaceFound, 0)
		return
	}
	gauge(namespaceFound, 1)
	found, counters := c.measure(w)
	if counters == nil {
		return
	}
	gauge(differences, float64(found))
	counter := func(d *prometheus.Desc, value uint64, more ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), append([]string{w.NIC, w.Namespace, w.State}, more...)...)
	}
	for direction, t := range map[string]*phase1.Count{"from-guest": counters.FromGuest, "to-guest": counters.ToGuest} {
		if t != nil {
			counter(trafficPackets, t.Packets, direction)
			counter(trafficBytes, t.Bytes, direction)
		}
	}
	if counters.Opened != nil {
		counter(opened, *counters.Opened)
	}
	if counters.Diverted != nil {
		counter(diverted, *counters.Diverted)
	}
	for _, d := range counters.Drops {
		if d.Packets == 0 { // nearly all: they would be four fifths of the series
			continue
		}
		counter(droppedPackets, d.Packets, d.Reason, strconv.FormatBool(d.Expected))
		counter(droppedBytes, d.Bytes, d.Reason, strconv.FormatBool(d.Expected))
	}
	for _, a := range counters.Attached {
		switch a.State {
		case "attached":
			gauge(attached, 1, a.Side)
		case "none":
			gauge(attached, 0, a.Side)
		}
	}
}

// measure returns in how many things the NIC differs, and its counters; nil if the namespace cannot be opened here, or
// the NIC is not wired any more. It does without Status, which looks for the namespace again, in all processes.
func (c NICs) measure(w phase1.Wiring) (found int, counters *phase1.Counters) {
	ctx, cancel := context.WithTimeoutCause(c.Context, patience, fmt.Errorf("no metrics after %v, see guestwire-agent check: %w", patience, context.DeadlineExceeded))
	defer cancel()
	nic := c.NIC
	nic.Name, nic.MostRead = w.NIC, mostRead
	if nic.Own {
		found, counters, err := c.compare(ctx, nic)
		if err != nil {
			c.say(w, err)
		}
		return found, counters
	}
	ns, err := w.Open(ctx)
	if err != nil {
		c.say(w, err)
		return 0, nil
	}
	defer ns.Close()
	nic.NetNS = ns
	if found, counters, err = c.compare(ctx, nic); errors.Is(err, syscall.E2BIG) {
		large.Lock()
		defer large.Unlock()
		nic.MostRead = mostReadAlone
		found, counters, err = c.compare(ctx, nic)
	}
	if err != nil {
		c.say(w, err)
	}
	return found, counters
}

// large is held for a look at a namespace that is larger than others.
var large sync.Mutex

// compare returns in how many things the NIC differs, and its counters; nil after an error.
func (c NICs) compare(ctx context.Context, nic phase1.NIC) (found int, counters *phase1.Counters, err error) {
	err = nic.Check(ctx)
	var drift *phase1.DriftError
	switch {
	case errors.As(err, &drift):
		found, err = len(drift.Differs), nil
	case errors.Is(err, infra.ErrNoNIC):
		found, err = 1, nil
	}
	if err == nil {
		counters, err = nic.Counters(ctx)
	}
	return found, counters, err
}

// say says why there are no more metrics of a NIC.
func (c NICs) say(w phase1.Wiring, err error) {
	if c.NIC.Progress != nil {
		c.NIC.Progress(fmt.Sprintf("%s in namespace %s: %v", w.NIC, w.Namespace, err))
	}
}
