package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestOvertaken: what is done already when the kernel gets the operation is no failure, and the operations after it are
// carried out. Another object in the way is a failure.
func TestOvertaken(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	pod.IP("link add eth0 type veth peer name away")
	pod.IP("link set away up")
	pod.IP("link set eth0 up")
	pod.IP("addr add 10.0.0.2/24 dev eth0")
	pod.IP("addr add fd00::2/64 dev eth0 nodad")
	var link netstate.Link
	err := inPod(pod, func(n *Namespace) error {
		var s netstate.Snapshot
		err := readLinks(n.route, &s)
		link, _ = s.Named("eth0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	route := func(destination string, change func(*netstate.Route)) netstate.Route {
		r := netstate.Route{
			Link: link.Index, Table: netstate.TableMain, Destination: netip.MustParsePrefix(destination),
			Type: netstate.RouteUnicast, Protocol: netstate.ProtocolKernel,
		}
		if r.Destination.Addr().Is4() {
			r.Scope = netstate.ScopeLink
		} else {
			r.Metric = 256
			r.Other = []netstate.Attribute{{Type: unix.RTA_PREF, Data: []byte{0}}} // the kernel says so of all IPv6 routes
		}
		if change != nil {
			change(&r)
		}
		return r
	}
	static := func(r *netstate.Route) { r.Protocol = netstate.ProtocolStatic }
	from := func(r *netstate.Route) { r.PrefSrc = netip.MustParseAddr("10.0.0.2") }
	via := func(gateway string) func(*netstate.Route) {
		return func(r *netstate.Route) {
			static(r)
			r.Gateway, r.Scope, r.Metric = netip.MustParseAddr(gateway), netstate.ScopeUniverse, 1024
		}
	}
	address := func(prefix, label string) netstate.Address {
		return netstate.Address{
			Link: link.Index, Prefix: netip.MustParsePrefix(prefix), Label: label,
			ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever,
		}
	}
	add := func(r netstate.Route) netstate.Op { return netstate.RouteAdd{Link: "eth0", Route: r} }
	del := func(r netstate.Route) netstate.Op { return netstate.RouteDel{Link: "eth0", Route: r} }
	for _, c := range []struct {
		name string
		// meanwhile is what is done after the plan was made, and afterwards takes it back.
		meanwhile, afterwards string
		op                    netstate.Op
		want                  error
	}{
		{"the route of a peer", "route add fd78::1 dev eth0 proto kernel metric 256", "route del fd78::1 dev eth0", add(route("fd78::1/128", nil)), nil},
		{"a connected route of IPv4", "route add 10.78.0.0/24 dev eth0 proto kernel scope link src 10.0.0.2", "route del 10.78.0.0/24", add(route("10.78.0.0/24", from)), nil},
		{"a route by a gateway", "route add 10.79.0.0/24 via 10.0.0.1 proto static metric 1024", "route del 10.79.0.0/24", add(route("10.79.0.0/24", via("10.0.0.1"))), nil},
		{"a route by an IPv6 gateway", "route add fd79::/64 via fd00::1 proto static", "route del fd79::/64", add(route("fd79::/64", via("fd00::1"))), nil},
		{"a local route", "route add local fd80::7 dev lo table 77 proto static metric 256", "route del local fd80::7 dev lo table 77", add(route("fd80::7/128", func(r *netstate.Route) {
			r.Type, r.Table, r.Link, r.Protocol = netstate.RouteLocal, 77, 1, netstate.ProtocolStatic
		})), nil},
		{"an address", "addr add 10.0.0.7/24 dev eth0", "addr del 10.0.0.7/24 dev eth0", netstate.AddressAdd{Link: "eth0", Address: address("10.0.0.7/24", "eth0")}, nil},
		{"an IPv6 address", "addr add fd00::7/64 dev eth0 nodad", "addr del fd00::7/64 dev eth0", netstate.AddressAdd{Link: "eth0", Address: address("fd00::7/64", "")}, nil},
		{"a route that has gone", "", "", del(route("fd78::1/128", nil)), nil},
		{"a route of IPv4 that has gone", "", "", del(route("10.78.0.0/24", from)), nil},
		{"an address that has gone", "", "", netstate.AddressDel{Link: "eth0", Address: address("10.0.0.7/24", "eth0")}, nil},
		{"an IPv6 address that has gone", "", "", netstate.AddressDel{Link: "eth0", Address: address("fd00::7/64", "")}, nil},

		{"a route of another program", "route add fd78::1 dev eth0 proto static metric 256", "route del fd78::1 dev eth0", add(route("fd78::1/128", nil)), unix.EEXIST},
		{"a route with another MTU", "route add fd79::/64 via fd00::1 proto static mtu 1300", "route del fd79::/64", add(route("fd79::/64", via("fd00::1"))), unix.EEXIST},
		{"an address with another label", "addr add 10.0.0.7/24 dev eth0 label eth0:1", "addr del 10.0.0.7/24 dev eth0", netstate.AddressAdd{Link: "eth0", Address: address("10.0.0.7/24", "eth0")}, unix.EEXIST},
		{"a link", "link add eth1 type bridge", "link del eth1", netstate.LinkAdd{Index: 77, Name: "eth1", Kind: "bridge", MAC: mac4, MTU: 1500}, unix.EEXIST},
		{"a link that has gone", "", "", netstate.LinkDel{Index: 77, Link: "eth1"}, unix.ENODEV},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.meanwhile != "" {
				pod.IP(c.meanwhile)
				defer pod.IP(c.afterwards)
			}
			after := netstate.SysctlSet{Path: "net/ipv4/conf/eth0/arp_filter", Value: "1"}
			pod.Exec("sysctl", "-qw", "net.ipv4.conf.eth0.arp_filter=0")
			err := inPod(pod, func(n *Namespace) error { return n.Apply(t.Context(), []netstate.Op{c.op, after}) })
			done := strings.TrimSpace(pod.Exec("sysctl", "-n", "net.ipv4.conf.eth0.arp_filter"))
			if c.want == nil && (err != nil || done != "1") {
				t.Errorf("%v, and the next operation has left %s; want no error and 1", err, done)
			}
			var step *infra.StepError
			if c.want != nil && (!errors.Is(err, c.want) || !errors.As(err, &step) || step.Command != fmt.Sprint(c.op) || done != "0") {
				t.Errorf("%v, and the next operation has left %s; want %v of %v, and 0", err, done, c.want, c.op)
			}
		})
	}
}
