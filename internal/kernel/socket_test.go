package kernel

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestManyFailures: each message of a batch can fail, and the answers to all of them fit. Where they do not, the first
// ones count.
func TestManyFailures(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	var ops []netstate.Op
	for i := range 5000 {
		ops = append(ops, netstate.RouteDel{Link: "lo", Route: netstate.Route{
			Link: 1, Table: netstate.TableMain, Type: netstate.RouteUnicast, Protocol: netstate.ProtocolStatic,
			Destination: netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), 32),
		}})
	}
	err := netns.Do(pod.File, func() error {
		n, err := Open()
		if err != nil {
			return err
		}
		defer n.Close()
		messages, last, err := Encode(ops)
		if err != nil {
			return err
		}
		failures, err := n.route.Send(messages, last)
		if err != nil || len(failures) != len(ops) {
			t.Errorf("%d failures of %d, %v", len(failures), len(ops), err)
		}
		small, err := netlink.Open(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer small.Close()
		if err := unix.SetsockoptInt(small.Descriptor(), unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil { // the least that the kernel gives
			return err
		}
		messages = messages[:64] // what fits the default buffer
		failures, err = small.Send(messages, len(messages)-1)
		if err != nil || len(failures) == 0 || len(failures) == len(messages) {
			t.Errorf("%d failures of %d by a small buffer, %v", len(failures), len(messages), err)
		}
		for i, f := range failures {
			if f.Message != i || !errors.Is(f.Err, unix.ESRCH) {
				t.Errorf("failure %d is of message %d: %v", i, f.Message, f.Err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
