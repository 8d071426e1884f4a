package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/phase1"
)

// implementation is one of those that are compared.
type implementation func(p *pod) (cost, error)

// measureSetup compares Setup, Check, Status and Teardown of each binding with the same system calls in C. The other
// variant is, for Setup, the calls of other programs for a similar network, for Check and Status a dump, and for
// Teardown one with Discard.
func measureSetup(s *scope, w io.Writer, rounds int) error {
	dir, err := os.MkdirTemp("", "guestwire-bench-")
	if err != nil {
		return err
	}
	s.atEnd(func() error { return os.RemoveAll(dir) })
	floor, err := s.startFloor(dir)
	if err != nil {
		return err
	}
	var rows []row
	for _, binding := range bindings {
		lists, err := newLists(s.ctx, filepath.Join(dir, string(binding.Kind())), binding)
		if err != nil {
			return fmt.Errorf("%s: %w", binding.Kind(), err)
		}
		spec := infra.Spec{Binding: binding}
		setup := func(p *pod) error { _, err := p.setup(s.ctx, spec); return err }
		teardown := func(o phase1.TeardownOptions) func(*pod) error {
			return func(p *pod) error { return p.nic().Teardown(s.ctx, o) }
		}
		wired := func(p *pod) error {
			if err := errors.Join(p.gateway(), setup(p)); err != nil {
				return err
			}
			journal, err := p.journal()
			if err != nil {
				return err
			}
			return os.Link(journal, filepath.Join(p.state, journalFile)) // where the floor's list has it
		}
		withPath := func(p *pod) error { return errors.Join(wired(p), p.mounted()) }
		for _, call := range []struct {
			name    string
			prepare func(*pod) error
			run     func(*pod) error
			list    string
			other   func(*pod) error // nil: there is none
		}{
			{"Setup", func(*pod) error { return nil }, setup, lists.setup, inPod(others[string(binding.Kind())])},
			{"Check", wired, func(p *pod) error { return p.nic().Check(s.ctx) }, lists.check, inPod(dump)},
			{"Status", withPath, func(p *pod) error { return p.statusAtPath(s.ctx) }, lists.check, inPod(dump)},
			{"Status without a path", wired, func(p *pod) error { _, err := p.nic().Status(s.ctx); return err }, lists.check, inPod(dump)},
			{"Teardown", wired, teardown(phase1.TeardownOptions{}), lists.teardown, teardown(phase1.TeardownOptions{Discard: true})},
		} {
			variants := []implementation{
				func(p *pod) (cost, error) { return timed(func() error { return call.run(p) }) },
				func(p *pod) (cost, error) { return floor.run(call.list, p) },
			}
			if call.other != nil {
				variants = append(variants, func(p *pod) (cost, error) { return timed(func() error { return call.other(p) }) })
			}
			name := string(binding.Kind()) + ", " + call.name
			wall, cpu := newRow(name+", ms", 3), newRow(name+", ms of CPU", 3)
			err := inScope(s.ctx, func(s *scope) error { return s.compareInPods(rounds, call.prepare, variants, wall, cpu) })
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rows = append(rows, wall, cpu)
		}
	}
	printTable(w, "A NIC with IPv4 and IPv6", []string{"guestwire", "C floor", "other"}, rows)
	return nil
}

// inPod is a call in the pod's namespace; nil: there is none.
func inPod(call func() error) func(*pod) error {
	if call == nil {
		return nil
	}
	return func(p *pod) error { return p.Do(call) }
}

// measureClaim compares a later Setup, as of a launcher that has wired namespaces in a pool and gets a tenant for one,
// with a first Setup for the tenant, and with a later Setup that changes nothing.
func measureClaim(s *scope, w io.Writer, rounds int) error {
	var rows []row
	for _, binding := range bindings {
		pool, tenant := infra.Spec{Binding: binding}, infra.Spec{Binding: binding}
		tenant.DNS = &cache.DNS{Servers: pods[:]}
		tenant.Options.Hostname = "tenant"
		tenant.Limits.FromGuest.PacketsPerSecond, tenant.Limits.ToGuest.BitsPerSecond = 1000, 10_000_000
		tenant.Guard.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/28")}
		ports := []infra.Ports{{First: 80}, {First: 2222, Guest: 22}}
		none, some := []infra.Egress{{Refuse: true, To: "all"}}, []infra.Egress{{To: "198.51.100.0/24", Ports: ports[0]}, {Refuse: true, To: "all"}}
		switch binding.(type) {
		case infra.Masquerade:
			pool.Binding, tenant.Binding = infra.Masquerade{Ports: []infra.Ports{}}, infra.Masquerade{Ports: ports}
			pool.Egress, tenant.Egress = none, some
		case infra.Routed:
			tenant.Binding = infra.Routed{Excluded: ports[:1]}
			pool.Egress, tenant.Egress = none, some
		}
		after := func(first *infra.Spec, then infra.Spec) implementation {
			return func(p *pod) (took cost, err error) {
				if first != nil {
					if _, err := p.setup(s.ctx, *first); err != nil {
						return took, err
					}
				}
				return timed(func() error { _, err := p.setup(s.ctx, then); return err })
			}
		}
		name := string(binding.Kind())
		wall, cpu := newRow(name+", ms", 3), newRow(name+", ms of CPU", 3)
		variants := []implementation{after(&pool, tenant), after(nil, tenant), after(&pool, pool)}
		err := inScope(s.ctx, func(s *scope) error { return s.compareInPods(rounds, (*pod).gateway, variants, wall, cpu) })
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		rows = append(rows, wall, cpu)
	}
	printTable(w, "A wired NIC gets a tenant", []string{"later", "first", "unchanged"}, rows)
	return nil
}

// compareInPods runs all variants in each round, in fresh pods. A turn is two calls, and the second one counts: the
// first one fills the CPU's caches. Two rounds more come first and do not count. The first two variants must leave the
// same.
func (s *scope) compareInPods(rounds int, prepare func(*pod) error, variants []implementation, wall, cpu row) error {
	const warmUp, calls = 2, 2
	world, _, err := s.newWorld(0)
	if err != nil {
		return err
	}
	for round := range rounds + warmUp {
		fresh, err := world.newPods(len(variants) * calls)
		if err != nil {
			return err
		}
		for _, p := range fresh {
			err = errors.Join(err, prepare(p))
		}
		if err != nil {
			return err
		}
		err = s.inTurns(1, len(variants), func(_, i int) error {
			var took cost
			for _, p := range fresh[i*calls : (i+1)*calls] {
				var err error
				if took, err = variants[i](p); err != nil {
					return fmt.Errorf("variant %d: %w", i+1, err)
				}
			}
			if round >= warmUp {
				wall.add(i, ms(took.wall))
				cpu.add(i, ms(took.cpu))
			}
			return nil
		})
		if err == nil && round == 0 {
			err = checkSame(fresh[0], fresh[calls]) // the first variant's, and the floor's
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// volatile matches what differs between equal namespaces: the other ends of veths, and what duplicate address detection
// and neighbours have come to.
var (
	volatile = regexp.MustCompile(`@if\d+|link-netnsid \d+| tentative`)
	tapMAC   = regexp.MustCompile(`link/ether (\S+) .*\n +tun type tap`)
)

// describe is the lab's dump of a pod, without what differs between equal ones. Its lines are sorted, as random MACs
// have an order too.
func describe(p *pod) (string, error) {
	dump, err := p.Settled()
	for _, m := range tapMAC.FindAllStringSubmatch(dump, -1) {
		dump = strings.ReplaceAll(dump, m[1], "MAC")
	}
	lines := strings.SplitAfter(volatile.ReplaceAllString(lab.Stable(dump), ""), "\n")
	return strings.Join(slices.Sorted(slices.Values(lines)), ""), err
}

func checkSame(a, b *pod) error {
	first, err1 := describe(a)
	second, err2 := describe(b)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if diff := lab.Diff(first, second); diff != "" {
		return fmt.Errorf("the variants leave different namespaces:\n%s", diff)
	}
	return nil
}
