package phase1_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/routeget"
)

// TestRouteGet: in generated namespaces, package fib says where packets go as the kernel does.
func TestRouteGet(t *testing.T) {
	nstest.KernelDecides(t, "where packets go")
	t.Parallel()
	nstest.Need(t)
	first, last := uint64(1), uint64(12)
	switch {
	case *seed > 0:
		first, last = *seed, *seed
	case *crash == "all":
		last = 500
	}
	routed, other := 0, 0
	for s := first; s <= last; s++ {
		t.Run(fmt.Sprint("seed=", s), func(t *testing.T) {
			n, _, lines := generated(t, s)
			r, o := routeget.Judge(t, n.Pod, rand.New(rand.NewPCG(s, 1)), 60)
			routed, other = routed+r, other+o
			if t.Failed() {
				t.Logf("go test ./phase1 -run RouteGet -seed %d: of\n%s\n%s", s, lines, n.Pod.Exec("sh", "-c", "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all"))
			}
		})
	}
	t.Logf("%d packets have a route; %d have another one by a rule that no Snapshot holds", routed, other)
	if routed == 0 || other > routed/4 {
		t.Errorf("%d packets have a route, and %d have another one by a rule that no Snapshot holds", routed, other)
	}
}
