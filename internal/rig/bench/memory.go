package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// memory is the memory use of both servers at several moments.
type memory struct {
	both    servers
	moments []string
	found   map[string][2]map[string]float64 // moment, server, field of /proc/PID/status
}

// fields are the fields of /proc/PID/status that are printed, in KiB; Threads is a count. Pages of a binary on a tmpfs
// would count as RssShmem, not as RssFile.
var fields = []string{"VmRSS", "RssAnon", "RssFile", "VmHWM", "Threads"}

func newMemory(both servers) *memory {
	return &memory{both: both, found: map[string][2]map[string]float64{}}
}

// measure waits until both servers are idle, and stores their memory use.
func (m *memory) measure(ctx context.Context, moment string) error {
	var found [2]map[string]float64
	for i, s := range m.both {
		if err := s.waitQuiet(ctx); err != nil {
			return err
		}
		found[i] = map[string]float64{}
		for _, f := range fields {
			var err error
			if found[i][f], err = s.status(f); err != nil {
				return err
			}
		}
	}
	m.moments = append(m.moments, moment)
	m.found[moment] = found
	return nil
}

// Limits of the launcher's memory, in KiB, and of its wake-ups: Go's monitor thread wakes once a minute, and guestwire never
// does.
var (
	mostIdle   = 6144.0
	mostPeak   = 6144.0
	mostGrowth = 256.0
	mostWakes  = 2.0
)

// run floods both servers, counts their wake-ups while idle, and prints the table.
func (m *memory) run(ctx context.Context, w io.Writer, l load) error {
	warm := max(1, l.packets/10)
	for _, part := range []struct {
		moment  string
		packets int
	}{
		{fmt.Sprintf("after %d packets", warm), warm},
		{fmt.Sprintf("after %d packets", l.packets), l.packets - warm},
	} {
		for i, s := range m.both {
			packets := part.packets
			if i > 0 {
				packets = max(1, packets/dnsmasqShare)
			}
			if err := m.flood(ctx, l.progress, s, packets); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		if err := m.measure(ctx, part.moment); err != nil {
			return err
		}
	}
	wakes := row{name: fmt.Sprintf("wake-ups in %v without a packet", l.idle), format: "%.0f", atMost: &mostWakes}
	fmt.Fprintf(l.progress, "idle for %v\n", l.idle)
	before, err := m.switches()
	if err != nil {
		return err
	}
	if err := sleep(ctx, l.idle); err != nil {
		return err
	}
	after, err := m.switches()
	if err != nil {
		return err
	}
	for i := range m.both {
		wakes.values[i] = []float64{float64(after[i] - before[i])}
	}
	reportRows(w, fmt.Sprintf("Memory, KiB (dnsmasq: a %dth of the packets)", dnsmasqShare), m.both.names(), append(m.rows(), wakes))
	return nil
}

// dnsmasqShare divides the number of packets for dnsmasq, which would need minutes for all.
const dnsmasqShare = 10

func (m *memory) flood(ctx context.Context, progress io.Writer, s *server, packets int) error {
	frames := floodFrames(s.v4, s.v6)
	for sent := 0; sent < packets; {
		part := min(100_000, packets-sent)
		begin := time.Now()
		if err := s.client.flood(ctx, frames, s.v4, part); err != nil {
			return err
		}
		sent += part
		fmt.Fprintf(progress, "%s: %d of %d packets, %.0f/s\n", s.name, sent, packets, float64(part)/time.Since(begin).Seconds())
	}
	return nil
}

func (m *memory) switches() (counts [2]int, err error) {
	for i, s := range m.both {
		if counts[i], err = s.switches(); err != nil {
			return counts, err
		}
	}
	return counts, nil
}

func (m *memory) rows() []row {
	var rows []row
	value := func(moment, field string) (values [2][]float64) {
		for i := range values {
			values[i] = []float64{m.found[moment][i][field]}
		}
		return values
	}
	for i, moment := range m.moments {
		for _, f := range []string{"VmRSS", "RssAnon", "RssFile"} {
			r := row{name: moment + ": " + f, format: "%.0f", values: value(moment, f)}
			if i == 0 && f == "VmRSS" {
				r.atMost = &mostIdle
			}
			rows = append(rows, r)
		}
	}
	growth := row{name: "growth of VmRSS between the last two", format: "%.0f", atMost: &mostGrowth}
	last, before := m.moments[len(m.moments)-1], m.moments[len(m.moments)-2]
	for i := range m.both {
		growth.values[i] = []float64{m.found[last][i]["VmRSS"] - m.found[before][i]["VmRSS"]}
	}
	return append(rows, growth,
		row{name: "peak: VmHWM", format: "%.0f", values: value(last, "VmHWM"), atMost: &mostPeak},
		row{name: "threads", format: "%.0f", values: value(last, "Threads")})
}
