package wiring_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
)

// TestManyRoutes: the work on a namespace grows with its routes, and not with their square. With these routes it takes
// a second of the processor's time for each binding; when each was compared with each, routed took more than a minute.
func TestManyRoutes(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and -short is set")
	}
	const many = 20_000
	gateway := func(i int) string { return fmt.Sprintf("10.244.%d.%d", 2+i%200, 1+i/200%250) }
	snapshot := flannelWith(func(s *netstate.Snapshot) {
		for i := range many {
			s.Routes = append(s.Routes, via(fmt.Sprintf("%d.%d.%d.0/24", 100+(i>>16), i>>8&255, i&255), gateway(i)))
		}
		s.Rules = append(s.Rules, netstate.Rule{Priority: 100, Table: 100})
	})
	for _, spec := range []asked{bridge(), redirect(), masquerade(), routed()} {
		t.Run(string(spec.Binding.Kind()), func(t *testing.T) {
			before := worked(t)
			p, err := tryPlan(snapshot, spec)
			if err != nil {
				t.Fatal(err)
			}
			ops, err := p.Steps(snapshot)
			if err != nil {
				t.Fatal(err)
			}
			now := snapshot
			added, deleted := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
			var routes []netstate.Route
			for _, op := range ops {
				switch o := op.(type) {
				case netstate.RouteDel:
					deleted[o.Route.Destination] = true
				case netstate.RouteAdd:
					added[o.Route.Destination] = true
					routes = append(routes, o.Route)
				}
			}
			for _, r := range snapshot.Routes {
				if !deleted[r.Destination] && !added[r.Destination] {
					routes = append(routes, r)
				}
			}
			now.Routes = routes
			if _, err := undoOf(p, now); err != nil {
				t.Fatal(err)
			}
			if _, _, err := p.Differences(now); err != nil {
				t.Fatal(err)
			}
			if _, _, err := p.Differences(snapshot); err != nil {
				t.Fatal(err)
			}
			if took := worked(t) - before; took > 20*time.Second {
				t.Errorf("took %v of the processor's time", took)
			}
		})
	}
}

// worked is the processor's time that the tests have taken.
func worked(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
