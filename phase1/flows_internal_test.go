package phase1

import (
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/firewall"
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

// TestFlowsNamed: the name of a pin is what Pin takes. Other programs can give elements any comment.
func TestFlowsNamed(t *testing.T) {
	t.Parallel()
	for comment, want := range map[string]string{"*.registry.example": "*.registry.example", "a\n12:00:00.000  begin  tcp": "", "\x1b[2J": "", strings.Repeat("a", maxPinName+1): ""} {
		b := &flowBook{pins: map[firewall.Pin]knownPin{}, pinned: func(string, firewall.Pin) (string, bool, error) { return comment, true, nil }}
		for range 2 { // the second is known
			if name, pinned := b.pin(firewall.Pin{}); name != want || !pinned {
				t.Errorf("%q: %q, %t, want %q", comment, name, pinned, want)
			}
		}
	}
}
