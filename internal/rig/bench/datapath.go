package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// burst is the number of frames that are timed together. It is small, so that most bursts end before the scheduler runs
// another thread.
const burst = 8

// Rounds in a set of namespaces, and bursts of a turn: of short frames, and of segments of 64 KiB.
const (
	setRounds     = 25
	shortBursts   = 40
	segmentBursts = 10
)

// measureDatapath measures what a frame costs: with the guest filter, without it, and by a bridge without any rule. A
// write to the tap, or to the other end of the pod's NIC, returns when the kernel has forwarded the frame, so its time
// is the whole cost. Beyond the pod a frame is dropped as early as possible.
//
// A datapath's speed differs by where its rules and links lie in memory. So there are sets of fresh namespaces.
func measureDatapath(s *scope, w io.Writer, sets int) error {
	// A move of the thread to another CPU would be measured too.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var rows []row
	for _, binding := range bindings {
		var took []row
		for _, f := range flows {
			name := string(binding.Kind()) + ", " + f.name
			took = append(took, newRow(name+", from the guest", 3), newRow(name+", to the guest", 3))
		}
		for range sets {
			err := inScope(s.ctx, func(s *scope) error { return s.measureSet(binding, took) })
			if err != nil {
				return fmt.Errorf("%s: %w", binding.Kind(), err)
			}
		}
		rows = append(rows, took...)
	}
	printTable(w, "Microseconds a frame", []string{"filter", "Guard.Off", "bare"}, rows)
	return nil
}

// measureSet measures the three ways in fresh namespaces. Took has two rows for each flow.
func (s *scope) measureSet(binding infra.Binding, took []row) error {
	_, all, err := s.newWorld(3)
	if err != nil {
		return err
	}
	var variants [3]*variant
	variants[0], err = s.newWiredVariant(all[0], infra.Spec{Binding: binding})
	if err == nil {
		variants[1], err = s.newWiredVariant(all[1], infra.Spec{Binding: binding, Guard: infra.Guard{Off: true}})
	}
	if err == nil {
		variants[2], err = s.newBareVariant(all[2])
	}
	if err != nil {
		return err
	}
	for i, f := range flows {
		for _, n := range variants {
			if err := n.openConnection(s.ctx, f); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
		count := segmentBursts
		if f.short {
			count = shortBursts
		}
		if err := s.takeTurns(variants[:], count, took[2*i], took[2*i+1]); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// takeTurns adds to out and in what turns of count bursts take, of each variant and its present flow.
func (s *scope) takeTurns(variants []*variant, count int, out, in row) error {
	err := s.inTurns(setRounds+1, len(variants), func(round, way int) error {
		from, to, err := variants[way].turn(count)
		if round > 0 {
			out.add(way, from)
			in.add(way, to)
		}
		return err
	})
	for _, n := range variants {
		err = errors.Join(err, n.checkArrived(count*burst*(setRounds+1)))
	}
	return err
}

// variant is a pod with a port on the tap, in the place of the guest, and one at the other end of its NIC.
type variant struct {
	pod            *pod
	guest, network *port
	mac, next      cache.MAC
	source         netip.Addr
	gateway        netip.Addr // the guest's, if the namespace routes

	out, in []byte // frames of the present flow
	before  uint64 // number of frames that had arrived in the network before
	opened  uint16 // connections, by connect
}

// newWiredVariant wires a pod by phase1's Setup.
func (s *scope) newWiredVariant(p *pod, spec infra.Spec) (*variant, error) {
	record, err := p.setup(s.ctx, spec)
	if err != nil {
		return nil, err
	}
	n := &variant{pod: p, mac: record.MAC, next: gatewayMAC, source: record.IPv4.Address.Addr()}
	if !record.GatewayMAC.IsZero() { // the namespace routes
		n.next, n.gateway = record.GatewayMAC, record.IPv4.Gateway()
		// No station answers ARP for the next hop, and no guest, so the entries are static.
		known := fmt.Sprintf("neigh replace %v lladdr %v nud permanent dev %s", gateways[0], gatewayMAC, nic)
		if spec.Binding.Kind() == (infra.Routed{}).Kind() {
			known += fmt.Sprintf("\nneigh replace %v lladdr %v nud permanent dev %s", n.source, n.mac, guestTap)
		}
		if err := ip(p.Namespace, "%s", known); err != nil {
			return nil, err
		}
	}
	return n, s.attach(n)
}

// bareNetwork is the least that connects a tap with a NIC. The guest has the NIC's address.
const bareNetwork = `addr flush dev eth0
link set eth0 address 02:00:00:00:00:08
link add eth0-br type bridge forward_delay 0 mcast_snooping 0
tuntap add eth0-tap mode tap vnet_hdr
link set eth0-tap master eth0-br
link set eth0 master eth0-br
link set eth0-tap type bridge_slave learning off
link set eth0 type bridge_slave learning off
link set eth0-br up
link set eth0-tap up`

func (s *scope) newBareVariant(p *pod) (*variant, error) {
	if err := ip(p.Namespace, bareNetwork); err != nil {
		return nil, err
	}
	// As Setup does, where the kernel has it.
	if _, err := p.Run("sh", "-c", "for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $f ] || echo 0 >$f; done"); err != nil {
		return nil, err
	}
	n := &variant{pod: p, mac: podMAC, next: gatewayMAC, source: pods[0]}
	return n, s.attach(n)
}

// attach attaches to the tap like QEMU with a guest that supports all offloads.
func (s *scope) attach(n *variant) (err error) {
	n.guest, err = s.openTap(n.pod.Namespace, guestTap, offloads)
	if err == nil {
		n.network, err = s.openPacketSocket(n.pod, false)
	}
	return err
}

// openConnection checks that a flow's frames pass in both directions, so that connection tracking knows the connection,
// and stores the frames for the turns.
func (n *variant) openConnection(ctx context.Context, f flow) error {
	return inScope(ctx, func(s *scope) error {
		seen, err := s.openPacketSocket(n.pod, true)
		if err != nil {
			return err
		}
		n.out = f.frame(n)
		if n.in, err = deliver(ctx, n.guest, seen, n.out, serverPort); err != nil {
			return fmt.Errorf("%s, from the guest: %w", n.pod.peer, err)
		}
		n.in = answer(n.in)
		if _, err = deliver(ctx, n.network, n.guest, n.in, clientPort); err != nil {
			return fmt.Errorf("%s, to the guest: %w", n.pod.peer, err)
		}
		n.before, err = n.received()
		return err
	})
}

// deliver sends a frame until it comes, and returns what came.
func deliver(ctx context.Context, from, to *port, frame []byte, destination uint16) ([]byte, error) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; {
		if err := from.send(frame); err != nil && !errors.Is(err, unix.EIO) { // the link is not up yet
			return nil, err
		}
		for again := time.Now().Add(200 * time.Millisecond); time.Now().Before(again); {
			got, err := to.receive(time.Until(again))
			if err != nil {
				return nil, err
			}
			if isFor(got, destination) {
				return slices.Clone(got), nil
			}
		}
	}
	return nil, errors.Join(context.Cause(ctx), os.ErrDeadlineExceeded)
}

// received returns the number of frames that have arrived at the other end of the NIC.
func (n *variant) received() (count uint64, err error) {
	err = n.pod.world.Do(func() error {
		link, err := netlink.LinkByName(n.pod.peer)
		if err == nil {
			count = link.Attrs().Statistics.RxPackets
		}
		return err
	})
	return count, err
}

// checkArrived returns an error unless count frames have arrived from the guest.
func (n *variant) checkArrived(count int) error {
	now, err := n.received()
	if err == nil && now-n.before < uint64(count) {
		err = fmt.Errorf("of %d frames of the guest of %s, %d came", count, n.pod.peer, now-n.before)
	}
	return err
}

// turn sends count bursts in each direction, and returns the median of the microseconds per frame.
func (n *variant) turn(count int) (out, in float64, err error) {
	if err := n.guest.drain(); err != nil {
		return 0, 0, err
	}
	if out, err = bursts(count, func() error { return n.guest.sendBurst(n.out) }); err != nil {
		return 0, 0, err
	}
	in, err = bursts(count, n.receiveBurst)
	return out, in, err
}

// receiveBurst sends a burst to the guest, and waits for it there.
func (n *variant) receiveBurst() error {
	if err := n.network.sendBurst(n.in); err != nil {
		return err
	}
	for got := 0; got < burst; {
		frame, err := n.guest.receive(time.Second)
		if err != nil {
			return err
		}
		if frame == nil {
			return fmt.Errorf("of %d frames for the guest of %s, %d came", burst, n.pod.peer, got)
		}
		if len(frame) == len(n.in) {
			got++
		}
	}
	return nil
}

// bursts sends count bursts by calls of one, and returns the median of the microseconds per frame.
func bursts(count int, one func() error) (float64, error) {
	var took []float64
	for range count {
		begin := time.Now()
		if err := one(); err != nil {
			return 0, err
		}
		took = append(took, us(time.Since(begin))/burst)
	}
	return quantile(took, 2), nil
}
