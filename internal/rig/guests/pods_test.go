package guests_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// pods are pods of further kinds.
var pods = []network{
	{
		name: "ipv4", binding: infra.Bridge{}, once: true, search: longSearch,
		lost: "lost: option part of DHCPv4 option 119 (search domains): it has 283 octets, and systemd-networkd reads the last part of such an option alone",
		create: func(t *testing.T) nstest.Network {
			n := nstest.NewNetwork(t)
			n.Pod.IP("addr del fd00:244:1::7/64 dev eth0")
			n.Pod.IP("-6 route flush dev eth0")
			return n
		},
		address4: "10.244.1.7/24",
		routes4:  []string{"10.244.1.0/24", "default via 10.244.1.1"},
	},
	{
		name: "ipv6", binding: infra.Bridge{}, once: true, search: []string{"pod.example"},
		create: func(t *testing.T) nstest.Network {
			n := nstest.NewNetwork(t)
			n.Pod.IP("addr del 10.244.1.7/24 dev eth0")
			return n
		},
		address6: "fd00:244:1::7/128",
		routes6:  []string{"fd00:244:1::/64", "default via " + router},
	},
	{
		name: "second", binding: infra.Bridge{}, once: true, second: true, search: []string{"pod.example"}, create: createSecond,
		address4: "10.244.1.7/24", address6: "fd00:244:1::7/128",
		routes4: []string{"10.244.1.0/24", "default via 10.244.1.1"},
		routes6: []string{"fd00:244:1::/64", "default via " + router},
	},
	{
		name: "deprecated", binding: infra.Bridge{}, once: true, deprecated: "fd00:244:1::aaaa", search: []string{"pod.example"},
		create: func(t *testing.T) nstest.Network {
			n := nstest.NewNetwork(t)
			n.Pod.IP("addr add fd00:244:1::aaaa/64 dev eth0 nodad preferred_lft 0")
			return n
		},
		address4: "10.244.1.7/24", address6: "fd00:244:1::7/128",
		routes4: []string{"10.244.1.0/24", "default via 10.244.1.1"},
		routes6: []string{"fd00:244:1::/64", "default via " + router},
	},
	manyRoutes(32),
	manyRoutes(45),
}

// createSecond returns a network whose pod has a second NIC without a gateway.
func createSecond(t *testing.T) nstest.Network {
	n := nstest.NewNetwork(t)
	n.World.IP("link add net1 type veth peer name eth1 netns " + n.Pod.Name)
	n.World.IP("addr add 192.168.50.1/24 dev net1")
	n.World.IP("link set net1 up")
	n.Pod.IP("addr add 192.168.50.7/24 dev eth1")
	n.Pod.IP("addr add fd00:50::7/64 dev eth1 nodad")
	n.Pod.IP("link set eth1 up")
	n.Pod.Settle("eth1")
	return n
}

// manyRoutes is a network with so many routes of each family beside the default route. From 32 on they do not fit into
// one DHCPv4 option, and 45 do not fit into a message of 576 octets.
func manyRoutes(count int) network {
	n := network{
		name: fmt.Sprintf("routes-%d", count), binding: infra.Bridge{}, once: true, full: count <= 32, long: count > 32, search: []string{"pod.example"},
		address4: "10.244.1.7/24", address6: "fd00:244:1::7/128",
		routes4: []string{"10.244.1.0/24", "default via 10.244.1.1"},
		routes6: []string{"fd00:244:1::/64", "default via " + router},
		beyond:  []string{"172.16.1.9", "2001:db8:1::9"},
	}
	if n.long {
		n.lost = "lost: option DHCPv4 option 121 (routes): its 369 octets do not fit into the answer to dhclient, udhcpc, Windows"
	}
	for i := range count {
		n.routes4 = append(n.routes4, fmt.Sprintf("172.16.%d.0/24 via 10.244.1.254", i+1))
		n.routes6 = append(n.routes6, fmt.Sprintf("2001:db8:%d::/64 via %s", i+1, router))
	}
	slices.Sort(n.routes4)
	n.create = func(t *testing.T) nstest.Network {
		net := nstest.NewNetwork(t)
		net.World.IP("addr add 10.244.1.254/24 dev pod")
		net.World.IP("addr add 172.16.1.9/32 dev lo")
		net.World.IP("addr add 2001:db8:1::9/128 dev lo nodad")
		for i := range count {
			net.Pod.IP(fmt.Sprintf("route add 172.16.%d.0/24 via 10.244.1.254", i+1))
			net.Pod.IP(fmt.Sprintf("route add 2001:db8:%d::/64 via fd00:244:1::1", i+1))
		}
		return net
	}
	return n
}
