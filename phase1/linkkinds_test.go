package phase1_test

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// addressLines give a NIC the pod's addresses. Of some links the kernel refuses one family, or both.
var addressLines = []string{
	"link set eth0 up", "addr add 10.244.1.7/24 dev eth0", "addr add fd00:244:1::7/64 dev eth0 nodad", "route add default via 10.244.1.1 dev eth0", "route add default via fd00:244:1::1 dev eth0",
}

// carries reports which bindings carry the NIC eth0: then Setup, Check and Teardown succeed. All others refuse it. Both
// leave the namespace as it was.
func carries(t *testing.T, n nstest.Network) (kinds []cache.Kind) {
	t.Helper()
	for _, line := range addressLines {
		if err := try(n.Pod, line); err != nil {
			t.Log(err)
		}
	}
	before := steady(settled(t, n))
	for _, b := range bindings {
		err := giveAndTake(t, n, "eth0", b, before)
		var field *cache.FieldError
		switch {
		case err == nil, errors.Is(err, errOrder):
			kinds = append(kinds, b.Kind())
		case isRefusal(err), errors.Is(err, infra.ErrWired), errors.As(err, &field):
			t.Logf("%v", err)
			if changed := difference(before, steady(n.Pod.Dump())); changed != nil {
				t.Errorf("%s: refused, and changed: %v", b.Kind(), changed)
			}
		default:
			t.Errorf("%s: %v", b.Kind(), err)
		}
	}
	return kinds
}

// TestLinkTypes: a NIC that carries no Ethernet is refused by bridge and redirect, and by routed if it has ARP. It is a
// tun device that says to be of another type: so IPoIB and the like are here without their cards.
func TestLinkTypes(t *testing.T) {
	t.Parallel()
	types := map[string]int{
		"InfiniBand": unix.ARPHRD_INFINIBAND, "none": unix.ARPHRD_NONE, "raw IP": unix.ARPHRD_RAWIP, "PPP": unix.ARPHRD_PPP, "GRE": unix.ARPHRD_IPGRE,
		"IEEE 802.15.4": unix.ARPHRD_IEEE802154, "6LoWPAN": unix.ARPHRD_6LOWPAN, "CAN": unix.ARPHRD_CAN, "netlink": unix.ARPHRD_NETLINK, "vsockmon": unix.ARPHRD_VSOCKMON,
	}
	for name, number := range types {
		for mode, want := range map[string][]cache.Kind{"tap": {"masquerade"}, "tun": {"masquerade", "routed"}} {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				n := nstest.NewWorld(t)
				n.NeedTaps()
				setLinkType(t, n, mode, number)
				if have := carries(t, n); !slices.Equal(have, want) {
					t.Errorf("carried by %v, want %v", have, want)
				}
			})
		}
	}
}

// setLinkType makes eth0, which is a tun device of the mode, one of the type. It has a carrier until the test ends.
func setLinkType(t *testing.T, n nstest.Network, mode string, number int) {
	t.Helper()
	flags := map[string]uint16{"tun": unix.IFF_TUN, "tap": unix.IFF_TAP}[mode]
	in(t, n.Pod, func() error {
		fd, err := unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		ifr, err := unix.NewIfreq("eth0")
		if err != nil {
			return err
		}
		ifr.SetUint16(flags | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
			return err
		}
		return unix.IoctlSetInt(fd, unix.TUNSETLINK, number)
	})
}
