package kernel

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/netlinktest"
)

var testRoutes = []netstate.Route{
	{ // the default route, with metrics
		Link: 7, Table: netstate.TableMain, Destination: everywhere, Gateway: gateway4, PrefSrc: netip.MustParseAddr("10.0.0.2"),
		Type: netstate.RouteUnicast, Protocol: 3, TOS: 0x10, Metric: 100, OnLink: true, MTU: 1400,
		Other: []netstate.Attribute{{Type: unix.RTA_METRICS, Data: mtu1400}},
	},
	{ // IPv4 by an IPv6 gateway (RFC 5549), in a table with a number of more than 8 bits
		Link: 7, Table: 1000, Destination: netip.MustParsePrefix("192.0.2.0/24"), Gateway: gateway6, Type: netstate.RouteUnicast,
	},
	{ // several next hops, of both families
		Table: netstate.TableMain, Destination: everywhere, Type: netstate.RouteUnicast, Protocol: netstate.ProtocolStatic, Hops: []netstate.Hop{
			{Link: 7, Gateway: gateway4, Weight: 1},
			{Link: 8, Gateway: gateway6, OnLink: true},
			{Link: 9, Weight: 255},
		},
	},
	{ // by source
		Link: 7, Table: netstate.TableMain, Destination: netip.MustParsePrefix("2001:db8:1::/48"), Source: netip.MustParsePrefix("2001:db8::/64"),
		Gateway: gateway6, Type: netstate.RouteUnicast, Scope: netstate.ScopeUniverse, Protocol: netstate.ProtocolRA, Metric: 1024, ExpiresSeconds: 1800,
	},
	{ // a blackhole
		Table: netstate.TableMain, Destination: netip.MustParsePrefix("198.51.100.0/24"), Type: 6, Scope: netstate.ScopeLink,
	},
}

// routeReport is the kernel's message of a route: the lifetime is in RTA_CACHEINFO, and not in RTA_EXPIRES as in a
// request.
func routeReport(t testing.TB, op netstate.Op, r netstate.Route) []byte {
	t.Helper()
	b := body(t, op)
	if r.ExpiresSeconds == 0 {
		return b
	}
	if have := netlink.U32(netlinktest.Inside(t, b, unix.SizeofRtMsg, unix.RTA_EXPIRES)); have != r.ExpiresSeconds {
		t.Errorf("%v: expires in %d s, want %d", op, have, r.ExpiresSeconds)
	}
	sent := netlink.Attr32(unix.RTA_EXPIRES, r.ExpiresSeconds).Serialize()
	at := len(b) - len(sent)
	for _, o := range r.Other {
		at -= len(nl.NewRtAttr(int(o.Type), o.Data).Serialize())
	}
	info := make([]byte, 32) // struct rta_cacheinfo, linux/rtnetlink.h
	copy(info[8:], nl.Uint32Attr(r.ExpiresSeconds*userHZ))
	return slices.Concat(b[:at], nl.NewRtAttr(unix.RTA_CACHEINFO, info).Serialize(), b[at+len(sent):])
}

func TestRouteRoundTrip(t *testing.T) {
	for _, want := range testRoutes {
		hops := make([]string, len(want.Hops))
		for _, op := range []netstate.Op{netstate.RouteAdd{Route: want, Hops: hops}, netstate.RouteDel{Route: want, Hops: hops}} {
			if have, err := parseRoute(routeReport(t, op, want)); err != nil || !reflect.DeepEqual(have, want) {
				t.Errorf("%v:\nhave %+v, %v\nwant %+v", op, have, err, want)
			}
		}
	}
}

// TestRouteExpires: a started second counts as a whole one, because 0 stands for a route without an end.
func TestRouteExpires(t *testing.T) {
	for ticks, want := range map[int32]uint32{-1: 0, 0: 0, 1: 1, 100: 1, 101: 2, 1<<31 - 1: 21474837} {
		info := make([]byte, 32)
		copy(info[8:], nl.Uint32Attr(uint32(ticks)))
		m := append((&nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET6}}).Serialize(), nl.NewRtAttr(unix.RTA_CACHEINFO, info).Serialize()...)
		if r, err := parseRoute(m); err != nil || r.ExpiresSeconds != want {
			t.Errorf("%d/100 s: have %d s, %v; want %d", ticks, r.ExpiresSeconds, err, want)
		}
	}
}
