package kernel

import (
	"testing"

	"github.com/guestwire/guestwire/internal/netstate"
)

var testShape = netstate.Shape{Rate: 1_250_000, Burst: 12_500, Limit: 75_000}

// TestShapeRoundTrip: the ends of the range, too.
func TestShapeRoundTrip(t *testing.T) {
	for _, want := range []netstate.Shape{
		testShape,
		{Rate: 1000, Burst: 1468, Limit: 16148},
		{Rate: 1000, Burst: 240_000, Limit: 1},
		{Rate: 1000, Burst: 65539, Limit: 65539 * 11},
		{Rate: 12_500_000_000, Burst: 125_000_000, Limit: 1<<32 - 1},
		{Rate: 12_500_000_000, Burst: 1 << 31, Limit: 1<<31 + 4<<20},
	} {
		have, dropped, err := parseShape(body(t, netstate.ShapeSet{Index: 7, Shape: want}))
		if err != nil || dropped != 0 || !have.Same(want) {
			t.Errorf("have %+v, %d, %v\nwant %+v", have, dropped, err, want)
		}
		want.Burst += want.Burst / 100
		if have.Same(want) {
			t.Errorf("%+v is the same as %+v", have, want)
		}
	}
}
