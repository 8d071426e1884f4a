package kernel

import (
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

func TestLinkRoundTrip(t *testing.T) {
	for _, c := range []struct {
		op   netstate.Op
		want netstate.Link
	}{
		{
			netstate.LinkAdd{Index: 7, Name: "eth0", Kind: "dummy", MAC: mac4, MTU: 1450, Group: 9},
			netstate.Link{Index: 7, Name: "eth0", Kind: "dummy", MAC: mac4, MTU: 1450, Group: 9, AddrGen: netstate.AddrGenNoIPv6},
		},
		{
			netstate.LinkAdd{Index: 7, Name: "eth0-br", Kind: "bridge", MAC: mac4, MTU: 1450, Group: 9},
			netstate.Link{
				Index: 7, Name: "eth0-br", Kind: "bridge", MAC: mac4, MTU: 1450, Group: 9, AddrGen: netstate.AddrGenNoIPv6,
				Bridge: netstate.Settings{"mcast_snooping": 0},
			},
		},
		{
			netstate.LinkSet{Want: netstate.Link{
				Index: 7, Name: "eth0-nic", MAC: mac6, MTU: 9000, Group: 9, Alias: "guestwire eth0", AddrGen: netstate.AddrGenNone,
				Master: 8, NoARP: true, AllMulticast: true, Up: true,
			}},
			netstate.Link{
				Index: 7, Name: "eth0-nic", MAC: mac6, MTU: 9000, Group: 9, Alias: "guestwire eth0", AddrGen: netstate.AddrGenNone,
				Master: 8, NoARP: true, AllMulticast: true, Up: true, NoCarrier: true,
			},
		},
		{ // of a link that is no tap, the length of the queue is not known
			netstate.LinkSet{Want: netstate.Link{Index: 7, QueueLength: 16}},
			netstate.Link{Index: 7, AddrGen: netstate.AddrGenNoIPv6},
		},
		{
			netstate.LinkSet{Have: netstate.Link{NoARP: true, AllMulticast: true, Up: true}, Want: netstate.Link{Index: 7}},
			netstate.Link{Index: 7, AddrGen: netstate.AddrGenNoIPv6},
		},
	} {
		if have, err := parseLink(body(t, c.op)); err != nil || !reflect.DeepEqual(have, c.want) {
			t.Errorf("%v:\nhave %+v, %v\nwant %+v", c.op, have, err, c.want)
		}
	}
}

// TestLinkFlags: the mask has only the flags that the operation changes.
func TestLinkFlags(t *testing.T) {
	for _, c := range []struct {
		op   netstate.LinkSet
		want uint32
	}{
		{netstate.LinkSet{}, 0},
		{netstate.LinkSet{Have: netstate.Link{Up: true}}, unix.IFF_UP},
		{netstate.LinkSet{Have: netstate.Link{NoARP: true}}, unix.IFF_NOARP},
		{netstate.LinkSet{Have: netstate.Link{AllMulticast: true}}, unix.IFF_ALLMULTI},
		{netstate.LinkSet{Have: netstate.Link{Up: true}, Want: netstate.Link{Up: true, NoARP: true}}, unix.IFF_NOARP},
	} {
		if have := nl.DeserializeIfInfomsg(body(t, c.op)).Change; have != c.want {
			t.Errorf("%v: have %#x, want %#x", c.op, have, c.want)
		}
	}
}

// trafficReport is the kernel's message of a link with counters.
func trafficReport(counters ...uint64) []byte {
	var data []byte
	for _, c := range counters {
		data = binary.NativeEndian.AppendUint64(data, c)
	}
	return append(ifInfo(unix.AF_UNSPEC, 7).Serialize(), nl.NewRtAttr(unix.IFLA_STATS64, data).Serialize()...)
}

func TestParseTraffic(t *testing.T) {
	want := Traffic{InPackets: 1, OutPackets: 2, InBytes: 1 << 40, OutBytes: 4}
	if have, err := parseTraffic(trafficReport(1, 2, 1<<40, 4, 5, 6)); err != nil || have == nil || *have != want {
		t.Errorf("have %+v, %v, want %+v", have, err, want)
	}
	if have, err := parseTraffic(trafficReport(1, 2, 3)); err == nil {
		t.Errorf("of counters that were cut short: %+v", have)
	}
	if have, err := parseTraffic(familiesReport()); err != nil || have != nil {
		t.Errorf("of a link without counters: %+v, %v", have, err)
	}
}

// familiesReport is the kernel's message of a link with settings of IPv4 and IPv6.
func familiesReport() []byte {
	conf4, conf6 := make([]byte, 4*32), make([]byte, 4*64)
	conf4[4*(devconfForwarding-1)], conf4[4*(devconfRouteLocalnet-1)], conf6[4*devconfNoIPv6], conf6[4*devconfForwarding6] = 1, 1, 1, 1
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, conf4)
	six := spec.AddRtAttr(unix.AF_INET6, nil)
	six.AddRtAttr(inet6Conf, conf6)
	six.AddRtAttr(addrGenMode, []byte{2})
	return append(ifInfo(unix.AF_UNSPEC, 7).Serialize(), spec.Serialize()...)
}

func TestParseFamilies(t *testing.T) {
	want := netstate.Link{Index: 7, Forwarding4: true, NoSourceRoutes: true, RouteLocalnet: true, NoIPv6: true, Forwarding6: true, AddrGen: 2}
	if l, err := parseLink(familiesReport()); err != nil || !reflect.DeepEqual(l, want) {
		t.Errorf("have %+v, %v\nwant %+v", l, err, want)
	}
}

// TestParseUppers: a VRF has its table. The mode of a bond is noted if it decides about MACs, which fail_over_mac does
// in the mode active-backup alone.
func TestParseUppers(t *testing.T) {
	bond := func(mode, failOver byte) []byte {
		return append(nl.NewRtAttr(nl.IFLA_BOND_MODE, []byte{mode}).Serialize(), nl.NewRtAttr(nl.IFLA_BOND_FAIL_OVER_MAC, []byte{failOver}).Serialize()...)
	}
	for _, c := range []struct {
		data []byte
		want netstate.Link
	}{
		{netlink.Attr32(nl.IFLA_VRF_TABLE, 1000).Serialize(), netstate.Link{Kind: "vrf", VRF: 1000}},
		{bond(0, 1), netstate.Link{Kind: "bond"}},
		{bond(1, 0), netstate.Link{Kind: "bond"}},
		{bond(1, 1), netstate.Link{Kind: "bond", Mode: netstate.ModeActive}},
		{bond(1, 2), netstate.Link{Kind: "bond", Mode: netstate.ModeFollow}},
		{bond(5, 0), netstate.Link{Kind: "bond", Mode: netstate.ModeTLB}},
		{bond(6, 1), netstate.Link{Kind: "bond", Mode: netstate.ModeALB}},
	} {
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_KIND, nl.ZeroTerminated(c.want.Kind))
		info.AddRtAttr(nl.IFLA_INFO_DATA, c.data)
		c.want.Index, c.want.AddrGen = 7, netstate.AddrGenNoIPv6
		if l, err := parseLink(append(ifInfo(unix.AF_UNSPEC, 7).Serialize(), info.Serialize()...)); err != nil || !reflect.DeepEqual(l, c.want) {
			t.Errorf("have %+v, %v\nwant %+v", l, err, c.want)
		}
	}
}
