package guests_test

import (
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// pods are pods of further kinds.
var pods = []network{
	{
		name: "ipv4", binding: infra.Bridge{}, once: true, search: []string{"pod.example"},
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
}
