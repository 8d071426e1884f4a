package kernel

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// body is the message of an operation without struct nlmsghdr, which is what parsers get.
func body(t testing.TB, op netstate.Op) []byte {
	t.Helper()
	r, err := encodeOperation(op)
	if err != nil {
		t.Fatal(err)
	}
	return r.Serialize()[unix.NLMSG_HDRLEN:]
}

var (
	mac4       = cache.MAC{2, 0, 0, 0, 0, 4}
	mac6       = cache.MAC{2, 0, 0, 0, 0, 6}
	mtu1400    = nl.NewRtAttr(unix.RTAX_MTU, nl.Uint32Attr(1400)).Serialize()
	gateway4   = netip.MustParseAddr("10.0.0.1")
	gateway6   = netip.MustParseAddr("fe80::1")
	everywhere = netip.MustParsePrefix("0.0.0.0/0")
)

// everyOperation has one of each type of operation.
var everyOperation = []netstate.Op{
	netstate.TapAdd{}, netstate.TapReset{}, netstate.LinkAdd{Kind: "bridge"}, netstate.BridgeSet{}, netstate.LinkSet{}, netstate.LinkDel{}, netstate.GroupDel{}, netstate.BridgePortSet{},
	netstate.ConfSet{Name: "forwarding"}, netstate.SysctlSet{}, netstate.AddressAdd{}, netstate.AddressDel{}, netstate.RouteAdd{}, netstate.RouteDel{},
	netstate.NeighbourAdd{}, netstate.NeighbourDel{}, netstate.IngressAdd{}, netstate.IngressDel{}, netstate.ShapeSet{}, netstate.FilterAdd{}, netstate.FilterDel{},
	netstate.TableSet{Table: firewall.Table{Family: firewall.Inet}}, netstate.TableChange{}, netstate.TableDel{Family: firewall.Inet},
}

// TestEncode: each operation that netlink carries has a message.
func TestEncode(t *testing.T) {
	for _, op := range everyOperation {
		c, err := carrierOf(op)
		if err != nil {
			t.Errorf("%T: %v", op, err)
			continue
		}
		messages, acknowledge, err := Encode([]netstate.Op{op})
		if c == ofItsOwn {
			if err == nil {
				t.Errorf("%T: netlink messages for what is no netlink", op)
			}
			continue
		}
		if err != nil || acknowledge < 0 || acknowledge >= len(messages) {
			t.Errorf("%T: %d messages, acknowledge %d, %v", op, len(messages), acknowledge, err)
		}
	}
}

// inPod calls f with the pod's namespace.
func inPod(pod *nstest.Namespace, f func(*Namespace) error) error {
	return netns.Do(pod.File, func() error {
		n, err := Open()
		if err != nil {
			return err
		}
		defer n.Close()
		return f(n)
	})
}
