package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// boundedObjects is how many objects the smaller of two pods has.
var boundedObjects = 1500

// bounded are the objects of which a pod chooses how many it has: a program, and its input for each.
var bounded = []struct {
	name, program string
	input         func(i int) string
}{
	{"rules and routes", "ip -batch -", func(i int) string {
		return fmt.Sprintf("rule add pref %d from %v table %[1]d\nroute add 198.51.100.0/24 via %v dev eth0 onlink table %[1]d\n", 1000+i, numbered(i), gateways[0])
	}},
	{"routes", "ip -batch -", func(i int) string {
		return fmt.Sprintf("route add %v via %v dev eth0 onlink\n", numbered(i), gateways[0])
	}},
	{"addresses", "ip -batch -", func(i int) string { return fmt.Sprintf("addr add %v/32 dev lo\n", numbered(i)) }},
	{"links", "ip -batch -", func(i int) string { return fmt.Sprintf("link add one%d type veth peer name two%[1]d\n", i) }},
	{"neighbours", "ip -batch -", func(i int) string {
		return fmt.Sprintf("neigh add %v lladdr %v nud permanent dev eth0\n", numbered(i), gatewayMAC)
	}},
	{"chains", "nft -f -", func(i int) string { return fmt.Sprintf("add chain inet guestwire-eth0 other%d\n", i) }},
}

func numbered(i int) netip.Addr { return netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}) }

// measureBounds compares the calls on a pod that has some objects with those on a pod that has half as many.
func measureBounds(s *scope, w io.Writer, rounds int) error {
	world, _, err := s.newWorld(0)
	if err != nil {
		return err
	}
	var rows []row
	for _, kind := range bounded {
		calls := []struct {
			name string
			run  func(*pod) error
		}{
			{"Setup", func(p *pod) error { _, err := p.setup(s.ctx, infra.Spec{Binding: infra.Masquerade{}}); return err }},
			{"Check", func(p *pod) error {
				err := p.nic().Check(s.ctx)
				var drift *phase1.DriftError
				if errors.As(err, &drift) {
					return nil
				}
				return err
			}},
			{"Teardown", func(p *pod) error { return p.nic().Teardown(s.ctx, phase1.TeardownOptions{State: p.state}) }},
		}
		var took []row
		for _, call := range calls {
			took = append(took, newRow(kind.name+", "+call.name+", ms of CPU", 2), newRow(kind.name+", "+call.name+", MiB", 2))
		}
		err := s.inTurns(rounds, 2, func(_, way int) error {
			pods, err := world.newPods(1)
			if err != nil {
				return err
			}
			if strings.HasPrefix(kind.program, "nft") { // into the wiring's table
				err = calls[0].run(pods[0])
			}
			var input strings.Builder
			for i := range boundedObjects * (2 - way) {
				input.WriteString(kind.input(i))
			}
			if err := errors.Join(err, pods[0].feed(kind.program, input.String())); err != nil {
				return err
			}
			for i, call := range calls {
				before := allocated()
				c, err := timed(func() error { return call.run(pods[0]) })
				if err != nil {
					return fmt.Errorf("%s, %s: %w", kind.name, call.name, err)
				}
				took[2*i].add(way, ms(c.cpu))
				took[2*i+1].add(way, (allocated()-before)/(1<<20))
			}
			return pods[0].File.Close()
		})
		if err != nil {
			return err
		}
		rows = append(rows, took...)
	}
	printTable(w, "Objects in the pod's namespace", []string{fmt.Sprint(2 * boundedObjects), fmt.Sprint(boundedObjects)}, rows)
	return nil
}

// allocated is how many octets this process has allocated since it began.
func allocated() float64 {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return float64(memory.TotalAlloc)
}
