package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// load is the amount of work for the responders.
type load struct {
	rounds   int           // rounds; both servers have a turn in each
	closed   int           // exchanges of a turn without a pace
	paced    time.Duration // duration of a turn at a pace
	leases   int           // leases of each client
	packets  int           // packets of the flood
	idle     time.Duration // duration of the idle measurement
	progress io.Writer

	base      string        // a launcher to compare with instead of dnsmasq; empty: none
	unplugged time.Duration // time without a guest before the next one attaches
}

// measureResponders compares Phase2's responder with dnsmasq, and prints the tables.
func measureResponders(ctx context.Context, w io.Writer, l load) (err error) {
	for _, program := range []string{"go", "ip", "nsenter", "setpriv", "dnsmasq"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: make install, or install it", program)
		}
	}
	if l.rounds < 1 || l.closed < 1 || l.paced <= 0 || l.leases < 1 || l.packets < 1 || l.idle <= 0 {
		return errors.New("the responders' load: want 1 or more of everything")
	}
	dir, err := os.MkdirTemp("", "guestwire-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { // the launcher's user must enter it
		return err
	}
	both, stop, err := startServers(ctx, dir, l.base)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	fmt.Fprintf(w, "The responder beside "+both[1].name+", each in a namespace of its own, for the same client on a tap.\n"+
		"Linux %s, %d CPUs, %s; %d rounds, in each of which both have a turn: medians, and the median ratio.\n"+
		"A load of %s before; one of more than the CPUs shows in the slowest answers and in losses.\n\n",
		release(), runtime.NumCPU(), runtime.Version(), l.rounds, loadAverage())
	memory := newMemory(both)
	if err := memory.measure(ctx, "idle"); err != nil {
		return err
	}
	for _, s := range both {
		if err := s.learn(ctx); err != nil {
			return err
		}
	}
	for _, of := range []func(*server) *protocol{(*server).protocol4, (*server).protocol6} {
		if err := measureExchanges(ctx, w, l, both, of); err != nil {
			return err
		}
	}
	if err := measureLeases(ctx, w, l, both, filepath.Join(dir, "udhcpc-script")); err != nil {
		return err
	}
	return memory.run(ctx, w, l)
}

// loadAverage returns the machine's load average of the last minute.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err.Error()
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

func (s *server) protocol4() *protocol { return s.v4 }
func (s *server) protocol6() *protocol { return s.v6 }

// worst is the limit of the responder's ratio to the other server: against itself of another commit with room for noise.
func (l load) worst() float64 {
	if l.base != "" {
		return 1.05
	}
	return 1
}

// paces are the rates, in exchanges per second.
var paces = []int{2000, 8000}

// measureExchanges measures one protocol and prints its table.
func measureExchanges(ctx context.Context, w io.Writer, l load, both servers, of func(*server) *protocol) error {
	p := of(both[0])
	zero := 0.0
	rate := row{name: "one after the other, exchanges/s", format: "%.0f", ratioAtLeast: 1 / l.worst()}
	cpu := row{name: "  server's CPU, us an exchange", format: "%.1f"}
	for round := range l.rounds {
		err := both.inTurn(round, func(i int, s *server) error {
			t, used, err := s.turn(ctx, of(s), l.closed, 0)
			if err != nil {
				return err
			}
			rate.values[i] = append(rate.values[i], float64(t.completed())/t.took.Seconds())
			cpu.values[i] = append(cpu.values[i], used)
			return nil
		})
		if err != nil {
			return err
		}
	}
	rows := []row{rate, cpu}
	for _, pace := range paces {
		name := func(text string) string { return fmt.Sprintf("at %d/s: %s", pace, text) }
		lost := row{name: name("lost, of all rounds"), format: "%.0f", atMost: &zero, values: [2][]float64{{0}, {0}}}
		latency := []row{
			{name: name(p.legs[0] + " after, ms, half"), format: "%.3f", ratioAtMost: l.worst()},
			{name: name(p.legs[0] + " after, ms, 99 of 100"), format: "%.3f", ratioAtMost: l.worst()},
			{name: name(p.legs[1] + " after, ms, half"), format: "%.3f", ratioAtMost: l.worst()},
			{name: name(p.legs[1] + " after, ms, 99 of 100"), format: "%.3f", ratioAtMost: l.worst()},
		}
		cpu := row{name: name("server's CPU, us an exchange"), format: "%.1f", ratioAtMost: l.worst()}
		for round := range l.rounds {
			err := both.inTurn(round, func(i int, s *server) error {
				count := max(1, int(l.paced.Seconds()*float64(pace)))
				t, used, err := s.turn(ctx, of(s), count, time.Second/time.Duration(pace))
				if err != nil {
					return err
				}
				lost.values[i][0] += float64(count - t.completed())
				cpu.values[i] = append(cpu.values[i], used)
				for leg, all := range t.legs {
					slices.Sort(all)
					for j, percent := range []int{50, 99} {
						r := &latency[2*leg+j]
						r.values[i] = append(r.values[i], ms(all[(len(all)-1)*percent/100]))
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		rows = append(rows, lost)
		rows = append(rows, latency...)
		rows = append(rows, cpu)
	}
	reportRows(w, p.name, both.names(), rows)
	return nil
}

// turn runs exchanges with the server, and also returns the server's CPU time in microseconds per exchange. The kernel's work
// within a sender's system call counts for the sender.
func (s *server) turn(ctx context.Context, p *protocol, count int, pace time.Duration) (*turn, float64, error) {
	before, err := s.cpu()
	if err != nil {
		return nil, 0, err
	}
	t, err := s.client.runExchanges(ctx, p, count, pace)
	if err != nil {
		return nil, 0, err
	}
	if t.completed() == 0 {
		return nil, 0, fmt.Errorf("%s: not one of %d exchanges came to its end", p.name, count)
	}
	after, err := s.cpu()
	return t, float64(after-before) / float64(time.Microsecond) / float64(t.completed()), err
}
