package phase1

import (
	"testing"

	"github.com/guestwire/guestwire/internal/kernel"
)

// TestFlowsRemembered: an end has what its begin said, if no more flows than Flow.List names have begun since.
func TestFlowsRemembered(t *testing.T) {
	t.Parallel()
	const entry = "allow 198.51.100.9"
	for _, before := range []uint32{0, 1, mostKnownFlows - 1, mostKnownFlows} {
		b := &flowBook{known: map[flowKey]knownFlow{}}
		n := uint32(0)
		others := func(number uint32) {
			for range number {
				n++
				b.remember(Flow{}, kernel.Flow{ID: n})
			}
		}
		others(before)
		b.remember(Flow{List: "egress", Entry: entry}, kernel.Flow{Zone: 1})
		others(mostKnownFlows)
		var end Flow
		if b.recall(&end, kernel.Flow{Zone: 1}); end.List != "egress" || end.Entry != entry {
			t.Errorf("after %d flows, with %d others since: %q, %q", before, uint32(mostKnownFlows), end.List, end.Entry)
		}
		others(3 * mostKnownFlows)
		if most := 2 * mostKnownFlows; len(b.known)+len(b.older) > most {
			t.Errorf("%d flows are known, want at most %d", len(b.known)+len(b.older), most)
		}
	}
}
