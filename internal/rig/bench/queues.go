package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
)

// queued is how redirect is measured with a tap of several queues.
type queued struct {
	sets, rounds int
	turn         time.Duration
}

// scaleLimit is the least share of a bare tap's gain by further queues that redirect is to have: all of it, but for noise.
const scaleLimit = 0.95

// parallelFlows is the number of flows, however many queues there are.
const parallelFlows = 4

// queueCounts are the compared numbers of queues. The first one is what the others are compared with.
var queueCounts = []int{1, 2, 4}

// measureQueues prints how redirect gains by a tap's further queues, beside a tap and a bridge alone. As behind QEMU's vhost
// each queue has a thread. A thread sends frames of its flows, which the kernel forwards at once, and reads what comes
// for them: from its own queue, where the kernel sends what belongs to the queue's flows.
func measureQueues(ctx context.Context, w io.Writer, l queued) (err error) {
	if l.sets < 1 || l.rounds < 1 || l.turn <= 0 {
		return errors.New("the queues' traffic: want 1 or more sets and rounds, and a time above 0")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return errors.New("ip is missing: make install, or install it")
	}
	dir, err := os.MkdirTemp("", "guestwire-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	flows := []flow{{name: "packets"}, {name: "TCP", tcp: true}}
	// Rates by flow, direction, way (redirect, bare) and number of queues.
	rates := make([][2][2][][]float64, len(flows))
	for i := range rates {
		for direction := range 2 {
			for way := range 2 {
				rates[i][direction][way] = make([][]float64, len(queueCounts))
			}
		}
	}
	for range l.sets {
		if err := l.measureSet(ctx, dir, flows, rates); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "Redirect with several queues, %d flows of IPv4 in all, a thread for each queue; bare: a tap and a bridge alone.\n"+
		"Linux %s, %d CPUs, %s; %d sets of fresh namespaces, %d rounds in each: medians, and the rounds' ratios: median and quartiles.\n"+
		"With more queues than CPUs, compare the gain with that of bare.\n\n", parallelFlows, release(), runtime.NumCPU(), runtime.Version(), l.sets, l.rounds)
	var absolute, scales []comparison
	for i, f := range flows {
		for direction, from := range []string{"from", "to"} {
			of := rates[i][direction]
			for q, count := range queueCounts {
				name := fmt.Sprintf("%s, %s the guest, queues: %d", f.name, from, count)
				absolute = append(absolute, comparison{name: name, format: "%.0f", values: [][]float64{of[0][q], of[1][q]}})
				if q > 0 {
					scales = append(scales, comparison{name: name, format: "%.2f", atLeast: scaleLimit,
						values: [][]float64{ratios(of[0][q], of[0][0]), ratios(of[1][q], of[1][0])}})
				}
			}
		}
	}
	names := []string{"redirect", "bare"}
	printComparisons(w, "frames a millisecond", names, absolute)
	printComparisons(w, "gain to one queue", names, scales)
	return nil
}

func (l queued) measureSet(ctx context.Context, dir string, flows []flow, rates [][2][2][][]float64) (err error) {
	var pods []*pod
	var all []*wide
	defer func() {
		for _, n := range all {
			err = errors.Join(err, n.close())
		}
		err = errors.Join(err, closePods(pods))
	}()
	for _, at := range rand.Perm(2 * len(queueCounts)) {
		p, err := newPod(ctx, dir)
		if err != nil {
			return err
		}
		pods = append(pods, p)
		if err := p.waitSettled(ctx); err != nil {
			return err
		}
		n := &wide{way: at % 2, count: at / 2}
		all = append(all, n)
		if err := n.open(ctx, p, queueCounts[n.count]); err != nil {
			return err
		}
	}
	for i, f := range flows {
		for _, n := range all {
			if err := n.connect(ctx, f); err != nil {
				return fmt.Errorf("%s with %d queues: %w", f.name, len(n.guests), err)
			}
		}
		for round := -1; round < l.rounds; round++ {
			for _, turn := range rand.Perm(len(all)) {
				for direction := range 2 {
					n := all[turn]
					rate, err := n.run(ctx, l.turn, direction == 0)
					if err != nil {
						return fmt.Errorf("%s with %d queues: %w", f.name, len(n.guests), err)
					}
					if round >= 0 {
						to := &rates[i][direction][n.way][n.count]
						*to = append(*to, rate)
					}
				}
			}
		}
	}
	return nil
}

// wide is a pod whose tap has several queues.
type wide struct {
	way, count int // places of its rates
	lane       *lane
	guests     []*client // at the queues
	sockets    []int     // at the other end of the NIC, one for each queue's thread
	flows      []*lane
}

// open wires a pod and opens the queues of its tap.
func (n *wide) open(ctx context.Context, p *pod, queues int) (err error) {
	if n.way == 0 {
		n.lane, err = wireLane(ctx, p, infra.Spec{Binding: infra.Redirect{}, Queues: queues})
	} else {
		network := bareNetwork
		if queues > 1 {
			network = strings.Replace(network, "mode tap vnet_hdr", "mode tap vnet_hdr multi_queue", 1)
		}
		n.lane, err = bareLane(ctx, p, network)
	}
	if err != nil {
		return err
	}
	fds, err := openQueues(p.file, guestTap, queues)
	if err != nil {
		return err
	}
	for _, fd := range fds {
		n.guests = append(n.guests, &client{fd: fd, in: make([]byte, 1<<17)})
	}
	for range queues {
		fd, err := p.packetSocket(0)
		if err != nil {
			return err
		}
		n.sockets = append(n.sockets, fd)
	}
	return nil
}

func (n *wide) close() (err error) {
	for _, g := range n.guests {
		err = errors.Join(err, g.close())
	}
	for _, fd := range n.sockets {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

// connect makes a connection for each flow. It fails if an answer comes at another queue than the question's.
func (n *wide) connect(ctx context.Context, f flow) error {
	n.flows = nil
	for i := range parallelFlows {
		flow, one := f, *n.lane
		flow.port = uint16(i)
		one.guest, one.network = n.guests[i%len(n.guests)], n.sockets[i%len(n.sockets)]
		if err := one.openConnection(ctx, flow); err != nil {
			return err
		}
		n.flows = append(n.flows, &one)
	}
	return nil
}

// run lets each queue's thread send and receive for the given time, and returns the frames a millisecond of all. To the guest
// a burst comes after a frame of the guest's, from which the kernel knows the flow's queue.
func (n *wide) run(ctx context.Context, turn time.Duration, fromGuest bool) (float64, error) {
	for _, g := range n.guests {
		if err := g.drain(); err != nil {
			return 0, err
		}
	}
	var frames atomic.Int64
	errs := make([]error, len(n.guests))
	var running sync.WaitGroup
	start := make(chan struct{})
	var begin time.Time
	for i := range n.guests {
		running.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			<-start
			for end := begin.Add(turn); errs[i] == nil && time.Now().Before(end); {
				for at := i; at < len(n.flows) && errs[i] == nil; at += len(n.guests) {
					errs[i] = n.flows[at].burst(fromGuest)
					frames.Add(burst)
				}
			}
		})
	}
	begin = time.Now()
	close(start)
	running.Wait()
	took := time.Since(begin)
	return float64(frames.Load()) / ms(took), errors.Join(append(errs, context.Cause(ctx))...)
}

// burst sends a burst from the guest, or receives one.
func (n *lane) burst(fromGuest bool) error {
	if fromGuest {
		return n.sendBurst()
	}
	if err := n.guest.send(n.out); err != nil {
		return err
	}
	return n.receiveBurst()
}
