package kernel

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

var testNeighbours = []netstate.Neighbour{
	{Link: 7, Address: gateway4, MAC: mac4, Permanent: true},
	{Link: 7, Address: gateway6, MAC: mac6, Permanent: true, Flags: netstate.NeighbourRouter | netstate.NeighbourExtLearned},
	{Link: 7, MAC: mac4, Permanent: true}, // of a bridge's forwarding database
}

// neighbourReport is the kernel's message of a neighbour. The message of a forwarding entry names the bridge.
func neighbourReport(t testing.TB, op netstate.Op) []byte {
	b := body(t, op)
	if b[0] == unix.AF_BRIDGE {
		b = append(b, netlink.Attr32(unix.NDA_MASTER, 3).Serialize()...)
	}
	return b
}

func TestNeighbourRoundTrip(t *testing.T) {
	for _, want := range testNeighbours {
		for _, op := range []netstate.Op{netstate.NeighbourAdd{Neighbour: want}, netstate.NeighbourDel{Neighbour: want}} {
			if have, err := parseNeighbour(neighbourReport(t, op)); err != nil || have != want {
				t.Errorf("%v:\nhave %+v, %v\nwant %+v", op, have, err, want)
			}
		}
	}
}
