package phase1_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// addressLines give a NIC the pod's addresses. Of some links the kernel refuses one family, or both.
var addressLines = []string{
	"link set eth0 up", "addr add 10.244.1.7/24 dev eth0", "addr add fd00:244:1::7/64 dev eth0 nodad",
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

// linkKinds are NICs of every kind that ip(8) can add in a namespace, and NICs on which such links lie. Want are the
// bindings that carry the NIC. Each kind is looked at under Debian's kernels where all tests run; few of them where
// those run in which the kernel decides. Adds: the kind's module adds a link to each namespace of the machine.
var linkKinds = []struct {
	name, lines string
	want        string
	few, adds   bool
}{
	{name: "dummy", want: "redirect masquerade routed", lines: "link add eth0 type dummy"},
	{name: "ifb", want: "redirect masquerade routed", lines: "link add eth0 type ifb"},
	{name: "bridge", want: "redirect masquerade routed", lines: "link add eth0 type bridge"},
	{name: "bond", want: "bridge redirect masquerade routed", lines: "link add eth0 type bond"},
	{name: "team", want: "bridge redirect masquerade routed", lines: "link add eth0 type team"},
	{name: "vxlan", want: "bridge redirect masquerade routed", lines: "link add eth0 type vxlan id 5 dstport 4789 remote 10.9.0.1"},
	{name: "gretap", adds: true, want: "bridge redirect masquerade routed", lines: "link add eth0 type gretap local 10.9.0.2 remote 10.9.0.1"},
	{name: "gre", adds: true, want: "masquerade routed", lines: "link add eth0 type gre local 10.9.0.2 remote 10.9.0.1"},
	{name: "ipip", adds: true, want: "masquerade routed", lines: "link add eth0 type ipip local 10.9.0.2 remote 10.9.0.1"},
	{name: "sit", adds: true, want: "masquerade routed", lines: "link add eth0 type sit local 10.9.0.2 remote 10.9.0.1"},
	{name: "vti", adds: true, want: "masquerade routed", lines: "link add eth0 type vti local 10.9.0.2 remote 10.9.0.1 key 5"},
	{name: "xfrm", want: "masquerade routed", lines: "link add eth0 type xfrm if_id 5"},
	{name: "wireguard", want: "masquerade routed", lines: "link add eth0 type wireguard"},
	{name: "vcan", want: "masquerade routed", lines: "link add eth0 type vcan"},
	{name: "nlmon", want: "masquerade routed", lines: "link add eth0 type nlmon"},
	{name: "vsockmon", want: "masquerade routed", lines: "link add eth0 type vsockmon"},
	{name: "batadv", want: "bridge redirect masquerade routed", lines: "link add eth0 type batadv"},
	{name: "netkit", want: "masquerade routed", lines: "link add eth0 type netkit"},
	{name: "vrf", lines: "link add eth0 type vrf table 10"},
	{name: "hsr", want: "redirect masquerade routed", lines: lower + "link add port1 type dummy\nlink set port1 up\nlink add eth0 type hsr slave1 port0 slave2 port1"},
	{name: "macsec", want: "bridge redirect masquerade routed", lines: lower + "link add link port0 name eth0 type macsec port 1"},
	{name: "macvlan", want: "redirect masquerade routed", lines: lower + "link add link port0 name eth0 type macvlan mode bridge"},
	{name: "macvlan passthru", want: "bridge redirect masquerade routed", lines: lower + "link add link port0 name eth0 type macvlan mode passthru"},
	{name: "macvtap passthru", want: "redirect masquerade routed", lines: lower + "link add link port0 name eth0 type macvtap mode passthru"},
	{name: "macvtap", want: "redirect masquerade routed", lines: lower + "link add link port0 name eth0 type macvtap mode bridge"},
	{name: "ipvlan L2", want: "redirect masquerade routed", lines: lower + "link add link port0 name eth0 type ipvlan mode l2"},
	{name: "ipvlan L3", want: "redirect masquerade routed", lines: lower + "link add link port0 name eth0 type ipvlan mode l3"},
	{name: "ipvtap", few: true, want: "redirect masquerade routed", lines: lower + "link add link port0 name eth0 type ipvtap mode l2"},
	{name: "vlan", want: "bridge redirect masquerade routed", lines: lower + "link add link port0 name eth0 type vlan id 5"},
	{name: "port of a bridge", lines: nicOfVeth + "link add up0 type bridge\nlink set eth0 master up0"},
	{name: "port of a bond", lines: nicOfVeth + "link add up0 type bond\nlink set eth0 down\nlink set eth0 master up0"},
	{name: "port of a team", lines: nicOfVeth + "link add up0 type team\nlink set eth0 down\nlink set eth0 master up0"},
	{name: "port of a batadv", few: true, lines: nicOfVeth + "link add up0 type batadv\nlink set eth0 master up0"},
	{name: "port of an hsr", few: true, lines: nicOfVeth + "link add port1 type dummy\nlink set port1 up\nlink add up0 type hsr slave1 eth0 slave2 port1"},
	{name: "in a VRF", want: "redirect", lines: nicOfVeth + "link add up0 type vrf table 10\nlink set up0 up\nlink set eth0 master up0"},
	{name: "below a macsec", want: "masquerade routed", lines: nicOfVeth + "link add link eth0 name up0 type macsec port 1\nlink set up0 up"},
	{name: "below a macvlan", want: "masquerade routed", lines: nicOfVeth + "link add link eth0 name up0 type macvlan mode bridge\nlink set up0 up"},
	{name: "below a macvtap", want: "masquerade routed", lines: nicOfVeth + "link add link eth0 name up0 type macvtap mode bridge\nlink set up0 up"},
	{name: "below an ipvlan", want: "masquerade routed", lines: nicOfVeth + "link add link eth0 name up0 type ipvlan mode l2\nlink set up0 up"},
	{name: "below an ipvtap", want: "masquerade routed", lines: nicOfVeth + "link add link eth0 name up0 type ipvtap mode l2\nlink set up0 up"},
	{name: "below a VLAN", want: "masquerade routed", lines: nicOfVeth + "link add link eth0 name up0 type vlan id 5\nlink set up0 up"},
	{name: "below a VLAN that is down", few: true, want: "masquerade routed", lines: nicOfVeth + "link add link eth0 name up0 type vlan id 5"},
	{name: "below a VLAN of another MAC that is down", want: "masquerade routed", lines: nicOfVeth + "link add link eth0 name up0 address 02:00:00:00:02:05 type vlan id 5"},
}

const (
	lower     = "link add port0 address 02:00:00:00:02:01 type veth peer name peer0\nlink set peer0 up\nlink set port0 up\n"
	nicOfVeth = "link add eth0 address 02:00:00:00:02:01 type veth peer name peer0\nlink set peer0 up\nlink set eth0 up\n"
)

// TestLinkKinds: a NIC of any kind is carried, or refused before anything changes.
func TestLinkKinds(t *testing.T) {
	for _, k := range linkKinds {
		t.Run(k.name, func(t *testing.T) {
			if k.few {
				nstest.KernelDecides(t, "which kinds there are")
			}
			if k.adds && !nstest.Emulated {
				nstest.LeaveOut(t, "the kind would add a link to each namespace of this machine")
			}
			n := nstest.NewWorld(t)
			n.NeedTaps()
			if k.adds {
				onlyInFirst(t)
			}
			for line := range strings.SplitSeq(k.lines, "\n") {
				if err := try(n.Pod, line); lacksFeature(err) {
					nstest.LeaveOut(t, "this kernel lacks the kind")
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if have := strings.Trim(fmt.Sprint(carries(t, n)), "[]"); have != k.want {
				t.Errorf("carried by %q, want %q", have, k.want)
			}
		})
	}
}

// onlyInFirst has the kernel add such links to its first namespace alone: other tests look at theirs.
func onlyInFirst(t *testing.T) {
	t.Helper()
	nstest.Run(t, "nsenter", "--net=/proc/1/ns/net", "sysctl", "-qw", "net.core.fb_tunnels_only_for_init_net=1")
}
