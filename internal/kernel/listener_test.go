package kernel

import (
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// listenerReport is the kernel's message of a socket, struct inet_diag_msg.
func listenerReport(l netstate.Listener) []byte {
	b := make([]byte, sizeofDiagMessage)
	b[0] = netlink.Family(l.Address)
	copy(b[4:], netlink.EncodeBE16(l.Port))
	copy(b[8:], l.Address.AsSlice())
	return b
}

func TestParseListener(t *testing.T) {
	for reported, want := range map[netstate.Listener]string{
		{Address: netip.MustParseAddr("127.0.0.1"), Port: 53}:       "127.0.0.1",
		{Address: netip.MustParseAddr("::"), Port: 8080}:            "::",
		{Address: netip.MustParseAddr("::ffff:10.0.0.2"), Port: 80}: "10.0.0.2", // of a socket of both families
	} {
		have, err := parseListener(listenerReport(reported))
		if err != nil || have.Address.String() != want || have.Port != reported.Port {
			t.Errorf("have %+v, %v; want %s, %d", have, err, want, reported.Port)
		}
	}
}
