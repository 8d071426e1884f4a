package kernel

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/netlinktest"
)

// parsers are all parsers of this package. The encoders make the seeds of all messages that are also sent.
func parsers(t testing.TB) netlinktest.Parsers {
	var addresses, routes, neighbours [][]byte
	for _, a := range testAddresses {
		addresses = append(addresses, body(t, netstate.AddressAdd{Address: a}))
	}
	for _, r := range testRoutes {
		routes = append(routes, routeReport(t, netstate.RouteAdd{Route: r, Hops: make([]string, len(r.Hops))}, r))
	}
	for _, n := range testNeighbours {
		neighbours = append(neighbours, neighbourReport(t, netstate.NeighbourAdd{Neighbour: n}))
	}
	bridge := body(t, netstate.BridgeSet{Settings: netstate.Settings{"mcast_snooping": 0, "stp_state": 1, "group_fwd_mask": 8}})
	port := netlinktest.Inside(t, body(t, netstate.BridgePortSet{Settings: netstate.Settings{"learning": 0, netstate.StateSetting: 3}}), unix.SizeofIfInfomsg, unix.IFLA_PROTINFO)
	filter := body(t, netstate.FilterAdd{Filter: testFilter})
	options := netlinktest.Inside(t, filter, nl.SizeofTcMsg, nl.TCA_OPTIONS)
	link := &netstate.Link{}
	return netlinktest.Parsers{
		{Name: "parseLink", Seeds: [][]byte{body(t, netstate.LinkAdd{Index: 7, Name: "eth0", Kind: "bridge", MAC: mac4}), bridge, portReport(port, true), tapReport(), familiesReport()},
			Parse: func(b []byte) error { _, err := parseLink(b); return err }},
		{Name: "parseTraffic", Seeds: [][]byte{trafficReport(1, 2, 3, 4), familiesReport()},
			Parse: func(b []byte) error { _, err := parseTraffic(b); return err }},
		{Name: "parseLinkInfo", Seeds: [][]byte{netlinktest.Inside(t, bridge, unix.SizeofIfInfomsg, unix.IFLA_LINKINFO), netlinktest.Inside(t, tapReport(), unix.SizeofIfInfomsg, unix.IFLA_LINKINFO)},
			Parse: func(b []byte) error { return parseLinkInfo(b, link) }},
		{Name: "parseTap", Seeds: [][]byte{netlinktest.Inside(t, tapReport(), unix.SizeofIfInfomsg, unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA)},
			Parse: func(b []byte) error { return parseTap(b, link) }},
		{Name: "parseFamilies", Seeds: [][]byte{netlinktest.Inside(t, familiesReport(), unix.SizeofIfInfomsg, unix.IFLA_AF_SPEC)},
			Parse: func(b []byte) error { return parseFamilies(b, link) }},
		{Name: "parseSettings of a bridge", Seeds: [][]byte{netlinktest.Inside(t, bridge, unix.SizeofIfInfomsg, unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA)},
			Parse: func(b []byte) error { _, err := parseSettings(b, bridgeSettings); return err }},
		{Name: "parseSettings of a port", Seeds: [][]byte{port},
			Parse: func(b []byte) error { _, err := parseSettings(b, portSettings); return err }},
		{Name: "parseAddress", Seeds: addresses,
			Parse: func(b []byte) error { _, _, err := parseAddress(b); return err }},
		{Name: "parseRoute", Seeds: routes,
			Parse: func(b []byte) error { _, err := parseRoute(b); return err }},
		{Name: "parseHops", Seeds: [][]byte{netlinktest.Inside(t, routes[2], unix.SizeofRtMsg, unix.RTA_MULTIPATH)},
			Parse: func(b []byte) error { return parseHops(b, &netstate.Route{}) }},
		{Name: "parseMetrics", Seeds: [][]byte{mtu1400},
			Parse: func(b []byte) error { return parseMetrics(b, &netstate.Route{}) }},
		{Name: "parseRule", Seeds: [][]byte{ruleReport(unix.AF_INET, 100, 1000, everywhere)},
			Parse: func(b []byte) error { _, _, err := parseRule(b); return err }},
		{Name: "parseNeighbour", Seeds: neighbours,
			Parse: func(b []byte) error { _, err := parseNeighbour(b); return err }},
		{Name: "parseForwarding", Seeds: neighbours[2:],
			Parse: func(b []byte) error { _, err := parseForwarding(b); return err }},
		{Name: "parseQdisc", Seeds: [][]byte{body(t, netstate.IngressAdd{Index: 7})},
			Parse: func(b []byte) error { _, err := parseQdisc(b); return err }},
		{Name: "parseShape", Seeds: [][]byte{body(t, netstate.ShapeSet{Index: 7, Shape: testShape})},
			Parse: func(b []byte) error { _, _, err := parseShape(b); return err }},
		{Name: "parseFilter", Seeds: [][]byte{filter},
			Parse: func(b []byte) error { _, _, err := parseFilter(b); return err }},
		{Name: "parseU32Options", Seeds: [][]byte{options},
			Parse: func(b []byte) error { _, _, err := parseU32Options(b, netstate.Filter{}); return err }},
		{Name: "parseActions", Seeds: [][]byte{netlinktest.Inside(t, options, 0, nl.TCA_U32_ACT), netlinktest.Inside(t, netlinktest.Inside(t, body(t, netstate.FilterAdd{Filter: clearingFilter}), nl.SizeofTcMsg, nl.TCA_OPTIONS), 0, nl.TCA_U32_ACT)},
			Parse: func(b []byte) error { _, err := parseActions(b, &netstate.Filter{}); return err }},
		{Name: "parseListener", Seeds: [][]byte{listenerReport(netstate.Listener{Address: gateway4, Port: 53}), listenerReport(netstate.Listener{Address: gateway6, Port: 53})},
			Parse: func(b []byte) error { _, err := parseListener(b); return err }},
		{Name: "parseConnection", Seeds: [][]byte{connectionReport(gateway4, gateway4, gateway4), connectionReport(gateway6, gateway6, gateway6), countedReport(gateway4), countedReport(gateway6)},
			Parse: func(b []byte) error {
				c, err := parseConnection(b)
				c.flow()
				return err
			}},
		{Name: "eachReport", Seeds: [][]byte{flowDatagram(0, countedReport(gateway4)), flowDatagram(2, countedReport(gateway6))},
			Parse: func(b []byte) error { return eachReport(b, func(Flow) {}) }},
		{Name: "parseAnswer", Seeds: [][]byte{advertisementReport(neighbour6, mac6Reported...)},
			Parse: func(b []byte) error { frame.ParseAnswer(b); return nil }},
		{Name: "parseChains", Seeds: [][]byte{[]byte(strings.Join(iptablesLines, "\n"))},
			Parse: func(b []byte) error {
				parseChains(strings.Split(string(b), "\n"), "filter", "guestwire-eth0")
				return nil
			}},
	}
}

// TestSeeds: each parser accepts the messages that its fuzzing begins with.
func TestSeeds(t *testing.T) { parsers(t).CheckSeeds(t) }

// FuzzParse: no bytes make a parser panic or hang.
func FuzzParse(f *testing.F) { parsers(f).Fuzz(f) }

// FuzzRoundTrip: a value that is parsed, encoded and parsed again is the same value. Undo depends on that, as
// Undo makes again what a Snapshot holds.
func FuzzRoundTrip(f *testing.F) {
	parsers(f).FuzzRoundTrip(f, func(t *testing.T, b []byte, check func(first, again any, err error)) {
		if a, _, err := parseAddress(b); err == nil && a.Prefix.IsValid() && a.Peer.IsValid() == (a.Peer != netip.Prefix{}) {
			again, _, err := parseAddress(body(t, netstate.AddressAdd{Address: a}))
			a.Temporary, a.Duplicate = false, false // what the kernel alone says of an address
			check(a, again, err)
		}
		if r, err := parseRoute(b); err == nil && canBeMade(r) {
			again, err := parseRoute(routeReport(t, netstate.RouteAdd{Route: r}, r))
			check(r, again, err)
		}
		if n, err := parseNeighbour(b); err == nil && n.Permanent && !n.MAC.IsZero() && (n.Address.IsValid() || b[0] == unix.AF_BRIDGE) {
			again, err := parseNeighbour(neighbourReport(t, netstate.NeighbourAdd{Neighbour: n}))
			check(n, again, err)
		}
		if filter, whole, err := parseFilter(b); err == nil && whole && filter.Foreign == "" {
			again, _, err := parseFilter(body(t, netstate.FilterAdd{Filter: filter}))
			check(filter, again, err)
		}
		if l, err := parseLink(b); err == nil && l.Kind == "bridge" {
			again, err := parseLink(body(t, netstate.BridgeSet{Settings: l.Bridge}))
			check(l.Bridge, again.Bridge, err)
		}
		if l, err := parseLink(b); err == nil && l.BridgePort != nil {
			settings := netlinktest.Inside(t, body(t, netstate.BridgePortSet{Settings: l.BridgePort}), unix.SizeofIfInfomsg, unix.IFLA_PROTINFO)
			again, err := parseLink(portReport(settings, true))
			check(l.BridgePort, again.BridgePort, err)
		}
	})
}

// canBeMade reports whether the kernel could have reported a route. Fuzzing makes other routes too.
func canBeMade(r netstate.Route) bool {
	expires := slices.ContainsFunc(r.Other, func(a netstate.Attribute) bool { return a.Type == unix.RTA_EXPIRES })
	return r.Destination.IsValid() && r.Destination == r.Destination.Masked() && r.Source.IsValid() == (r.Source != netip.Prefix{}) &&
		!expires && r.ExpiresSeconds <= math.MaxInt32/userHZ && (r.Link == 0 || len(r.Hops) == 0)
}
