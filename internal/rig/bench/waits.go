package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/guestwire/guestwire/infra"
)

// measureWaits measures Setup's waits that are not the kernel's work: a gateway that cannot answer yet, and a disk.
func measureWaits(s *scope, w io.Writer, rounds int) error {
	var first, onDisk []row
	for _, binding := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		setup := func(p *pod) (cost, error) {
			return timed(func() error { _, err := p.setup(s.ctx, infra.Spec{Binding: binding}); return err })
		}
		compare := func(prepare func(*pod) error, variants ...implementation) (row, error) {
			wall, cpu := newRow("Setup by "+string(binding.Kind())+", ms", len(variants)), newRow("", len(variants))
			err := inScope(s.ctx, func(s *scope) error { return s.compareInPods(rounds, prepare, variants, wall, cpu) })
			return wall, err
		}
		gateway := func(detects bool) implementation {
			return func(p *pod) (cost, error) {
				if err := p.gatewayOnBridge(detects); err != nil {
					return cost{}, err
				}
				took, err := setup(p)
				return took, errors.Join(err, ip(p.world.Namespace, "link del %s", p.bridge()))
			}
		}
		bridge, err := compare((*pod).onBridge, gateway(true), gateway(false))
		if err != nil {
			return err
		}
		journal, err := compare(func(*pod) error { return nil }, func(p *pod) (cost, error) {
			if err := s.toDisk(p); err != nil {
				return cost{}, err
			}
			return setup(p)
		}, setup)
		if err != nil {
			return err
		}
		first, onDisk = append(first, bridge), append(onDisk, journal)
	}
	printTable(w, "A pod on a bridge with IPv4 and IPv6", []string{"the first", "later"}, first)
	printTable(w, "Journal and record", []string{"on disk", "on tmpfs"}, onDisk)
	return nil
}

// toDisk moves the pod's directories from the tmpfs to where programs have their temporary files.
func (s *scope) toDisk(p *pod) error {
	dir, err := os.MkdirTemp("", "guestwire-bench-")
	if err != nil {
		return err
	}
	s.atEnd(func() error { return os.RemoveAll(dir) })
	p.state, p.dir = filepath.Join(dir, "state"), filepath.Join(dir, "journal")
	return nil
}

// bridge is a bridge of the world for this pod alone.
func (p *pod) bridge() string { return "br-" + p.peer }

// onBridge connects the pod's NIC with its bridge, which has no IPv6 address yet. The pod does not know its gateway.
func (p *pod) onBridge() error {
	return errors.Join(
		ip(p.world.Namespace, "link add name %[1]s address %[2]v type bridge\nlink set %[3]s master %[1]s\nlink set %[1]s up\naddr add %[4]v/24 dev %[1]s",
			p.bridge(), gatewayMAC, p.peer, gateways[0]),
		ip(p.Namespace, "neigh del %v dev eth0", gateways[1]),
	)
}

// gatewayOnBridge gives the bridge the address of the IPv6 gateway. If it detects duplicates, as the bridge of a node's
// first pod does, it answers no question for that address during the next second.
func (p *pod) gatewayOnBridge(detects bool) error {
	if detects {
		if _, err := p.world.Run("sysctl", "-qw", "net.ipv6.conf."+p.bridge()+".accept_dad=1"); err != nil {
			return err
		}
	}
	err := ip(p.world.Namespace, "addr add %v/64 dev %s", gateways[1], p.bridge())
	if err == nil && !detects {
		err = p.world.Settle(p.bridge())
	}
	return err
}
