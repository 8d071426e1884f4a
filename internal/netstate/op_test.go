package netstate_test

import (
	"cmp"
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TestOpText: an operation reads as the command that does the same, with all that it changes. The golden plans
// of package wiring have the common ones; here is the rest.
func TestOpText(t *testing.T) {
	mac := cache.MAC{2, 0, 0, 0, 0, 7}
	addr := netip.MustParseAddr
	address := func(edit func(*netstate.Address)) netstate.Op {
		a := netstate.Address{Prefix: prefix("10.0.0.7/24"), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever}
		edit(&a)
		return netstate.AddressAdd{Link: "eth0", Address: a}
	}
	route := func(edit func(*netstate.Route)) netstate.Op {
		r := netstate.Route{Table: netstate.TableMain, Destination: prefix("10.1.0.0/16"), Type: netstate.RouteUnicast, Protocol: 3}
		edit(&r)
		return netstate.RouteAdd{Link: "eth0", Route: r}
	}
	set := func(have, want netstate.Link) netstate.Op {
		have.Name, want.Name = "eth0", cmp.Or(want.Name, "eth0")
		return netstate.LinkSet{Have: have, Want: want}
	}
	kind := func(number uint8) netstate.Op { return route(func(r *netstate.Route) { r.Type = number }) }
	port := func(settings netstate.Settings) netstate.Op {
		return netstate.BridgePortSet{Link: "tap0", Settings: settings}
	}
	for want, op := range map[string]netstate.Op{
		"ethtool -K tap0 tx off":                                                         netstate.TapReset{Link: "tap0"},
		"ip tuntap add tap0 mode tap user 107":                                           netstate.TapAdd{Link: "tap0", Tap: netstate.Tap{Owner: infra.Owner{UID: 107}}},
		"ip tuntap add tap0 mode tap user 107 group 36 vnet_hdr multi_queue":             netstate.TapAdd{Link: "tap0", VNetHeader: true, Tap: netstate.Tap{Owner: infra.Owner{UID: 107, GID: 36}, MultiQueue: true}},
		"runcon system_u:system_r:svirt_t:s0:c1,c2 ip tuntap add tap0 mode tap user 107": netstate.TapAdd{Link: "tap0", Tap: netstate.Tap{Owner: infra.Owner{UID: 107}}, Context: "system_u:system_r:svirt_t:s0:c1,c2"},

		"ip link set eth0 nomaster":                                                     set(netstate.Link{Master: 3}, netstate.Link{}),
		"ip link set eth0 master br0":                                                   netstate.LinkSet{Have: netstate.Link{Name: "eth0"}, Want: netstate.Link{Name: "eth0", Master: 3}, MasterName: "br0"},
		"ip link set eth0 arp off":                                                      set(netstate.Link{}, netstate.Link{NoARP: true}),
		"ip link set eth0 arp on":                                                       set(netstate.Link{NoARP: true}, netstate.Link{}),
		"ip link set eth0 allmulticast on up":                                           set(netstate.Link{}, netstate.Link{AllMulticast: true, Up: true}),
		"ip link set eth0 allmulticast off down":                                        set(netstate.Link{AllMulticast: true, Up: true}, netstate.Link{}),
		"ip link set eth0 mtu 9 txqueuelen 16":                                          set(netstate.Link{}, netstate.Link{MTU: 9, QueueLength: 16}),
		"ip link set eth0 addrgenmode eui64":                                            set(netstate.Link{AddrGen: 1}, netstate.Link{}),
		"ip link set eth0 addrgenmode none":                                             set(netstate.Link{}, netstate.Link{AddrGen: 1}),
		"ip link set eth0 addrgenmode random":                                           set(netstate.Link{}, netstate.Link{AddrGen: 3}),
		"ip link set eth0 addrgenmode 4":                                                set(netstate.Link{}, netstate.Link{AddrGen: 4}),
		"ip link set eth0 name a address 02:00:00:00:00:07 mtu 9 group 8 alias \"b c\"": set(netstate.Link{}, netstate.Link{Name: "a", MAC: mac, MTU: 9, Group: 8, Alias: "b c"}),

		"conntrack -D --orig-src 10.0.2.0/24":                  netstate.ConnectionsDel{OrigSrc: prefix("10.0.2.0/24")},
		"conntrack -D --reply-src fd00::2 --reply-dst fd00::1": netstate.ConnectionsDel{ReplySrc: prefix("fd00::2/128"), ReplyDst: prefix("fd00::1/128")},
		"conntrack -D -p udp --orig-dst fd00::7 --orig-port-dst 53\n# for each PORT from 55 to 65535: conntrack -D -p udp --orig-dst fd00::7 --orig-port-dst PORT": netstate.ConnectionsDel{
			OrigDst: prefix("fd00::7/128"), Ports: []infra.Ports{{Protocol: "udp", First: 53}, {Protocol: "udp", First: 55, Last: 65535}}},
		"conntrack -D -p udp --orig-dst 10.0.0.7 --reply-src 10.0.0.7": netstate.ConnectionsDel{OrigDst: prefix("10.0.0.7/32"), ReplySrc: prefix("10.0.0.7/32"), Ports: []infra.Ports{{Protocol: "udp", First: 1, Last: 65535}}},

		"ip link set br0 type bridge group_fwd_mask 8 stp_state 1":           netstate.BridgeSet{Link: "br0", Settings: netstate.Settings{"stp_state": 1, "group_fwd_mask": 8}},
		"bridge link set dev tap0 isolated on learning off":                  port(netstate.Settings{"learning": 0, "isolated": 1}),
		"bridge link set dev tap0 group_fwd_mask 0 mcast_router 1 state 0":   port(netstate.Settings{"state": 0, "mcast_router": 1, "group_fwd_mask": 0}),
		"bridge link set dev tap0 another 2":                                 port(netstate.Settings{"another": 2}),
		"sysctl -w net/ipv4/conf/eth0/forwarding=1":                          netstate.ConfSet{Link: "eth0", Name: "forwarding", On: true},
		"sysctl -w net/ipv4/conf/eth0/route_localnet=0":                      netstate.ConfSet{Link: "eth0", Name: "route_localnet"},
		`sysctl -w net/ipv4/ping_group_range="0 7"`:                          netstate.SysctlSet{Path: "net/ipv4/ping_group_range", Value: "0 7"},
		"ip addr add 10.0.0.7/24 dev eth0":                                   address(func(a *netstate.Address) { a.Label = "eth0" }),
		"ip addr add 10.0.0.7/24 broadcast 10.0.0.255 dev eth0 label eth0:1": address(func(a *netstate.Address) { a.Label, a.Broadcast = "eth0:1", addr("10.0.0.255") }),
		"ip addr add 10.0.0.7 peer 10.0.0.1/32 dev eth0 scope host":          address(func(a *netstate.Address) { a.Peer, a.Scope = prefix("10.0.0.1/32"), 254 }),
		"ip addr add 10.0.0.7/24 dev eth0 scope link metric 7":               address(func(a *netstate.Address) { a.Scope, a.Metric = netstate.ScopeLink, 7 }),
		"ip addr add 10.0.0.7/24 dev eth0 scope 200":                         address(func(a *netstate.Address) { a.Scope = 200 }),
		"ip addr add 10.0.0.7/24 dev eth0 valid_lft 60 preferred_lft 0":      address(func(a *netstate.Address) { a.ValidSeconds, a.PreferredSeconds = 60, 0 }),
		"ip addr replace fd00::7/64 dev eth0 nodad noprefixroute": address(func(a *netstate.Address) {
			a.Prefix, a.Flags = prefix("fd00::7/64"), netstate.AddrNoDAD|netstate.AddrNoPrefixRoute
		}),
		"ip addr replace fd00::7/64 dev eth0 home mngtmpaddr autojoin": address(func(a *netstate.Address) { a.Prefix, a.Flags = prefix("fd00::7/64"), 0x10|0x100|0x400 }), // IFA_F_*
		"ip route add 10.1.0.0/16 dev eth0":                            kind(1),
		"ip route add local 10.1.0.0/16 dev eth0":                      kind(2),
		"ip route add broadcast 10.1.0.0/16 dev eth0":                  kind(3),
		"ip route add multicast 10.1.0.0/16 dev eth0":                  kind(5),
		"ip route add blackhole 10.1.0.0/16 dev eth0":                  kind(6),
		"ip route add unreachable 10.1.0.0/16 dev eth0":                kind(7),
		"ip route add prohibit 10.1.0.0/16 dev eth0":                   kind(8),
		"ip route add throw 10.1.0.0/16 dev eth0":                      kind(9),
		"ip route add default via 10.0.0.1 dev eth0 onlink": route(func(r *netstate.Route) {
			r.Destination, r.Gateway, r.OnLink = prefix("0.0.0.0/0"), addr("10.0.0.1"), true
		}),
		"ip route add ::/0 from fd00::/64 dev eth0 expires 60": route(func(r *netstate.Route) {
			r.Destination, r.Source, r.ExpiresSeconds = prefix("::/0"), prefix("fd00::/64"), 60
		}),
		"ip route add 10.1.0.7 tos 0x10 dev eth0 table 7 scope link proto 4": route(func(r *netstate.Route) {
			r.Destination, r.TOS, r.Table, r.Scope, r.Protocol = prefix("10.1.0.7/32"), 16, 7, netstate.ScopeLink, 4
		}),
		"ip route add 10.1.0.0/16 dev eth0 src 10.0.0.7 metric 7 mtu 1400":          route(func(r *netstate.Route) { r.PrefSrc, r.Metric, r.MTU = addr("10.0.0.7"), 7, 1400 }),
		"ip neigh replace 10.0.0.1 lladdr 02:00:00:00:00:07 dev eth0 nud permanent": netstate.NeighbourAdd{Link: "eth0", Neighbour: netstate.Neighbour{Address: addr("10.0.0.1"), MAC: mac}},
		"ip neigh replace fe80::1 lladdr 02:00:00:00:00:07 dev eth0 nud permanent router extern_learn": netstate.NeighbourAdd{Link: "eth0", Neighbour: netstate.Neighbour{
			Address: addr("fe80::1"), MAC: mac, Flags: netstate.NeighbourRouter | netstate.NeighbourExtLearned}},
		"bridge fdb replace 02:00:00:00:00:07 dev tap0 master static": netstate.NeighbourAdd{Link: "tap0", Neighbour: netstate.Neighbour{MAC: mac}},
		"bridge fdb del 02:00:00:00:00:07 dev tap0 master":            netstate.NeighbourDel{Link: "tap0", Neighbour: netstate.Neighbour{MAC: mac}},
		"ip neigh del fe80::1 dev eth0":                               netstate.NeighbourDel{Link: "eth0", Neighbour: netstate.Neighbour{Address: addr("fe80::1"), MAC: mac}},
	} {
		if have := op.String(); have != want {
			t.Errorf("have %s\nwant %s", have, want)
		}
	}
}
