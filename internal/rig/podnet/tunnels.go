package podnet

import (
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// tunnels are the networks of pods whose NIC carries IP packets without Ethernet, and of a node that reaches other
// nodes by such a NIC.
var tunnels = []Network{
	{Name: "tun", Origin: RealLink, Create: tunnel},
	{Name: "WireGuard", Origin: RealLink, Kind: "wireguard", Create: wireguard},
}

// tunnel creates a pod whose NIC is a tun device. A VPN's program holds it, and hands the packets to a tun device of
// the node.
func tunnel(t testing.TB) *Instance {
	nstest.NeedTaps(t)
	node, pod := nstest.New(t, "node"), nstest.New(t, "pod")
	far := addBehindRouter(t, node)
	joinTuns(t, openTun(t, node, "vpn0"), openTun(t, pod, "tun0"))
	node.IP("link set vpn0 mtu 1400 up")
	pod.IP("link set tun0 mtu 1400 up")
	addAddresses(node, "vpn0", "10.29.0.1/24", "fd00:29::1/64")
	addAddresses(pod, "tun0", "10.29.0.2/24", "fd00:29::2/64")
	pod.IP("route add default via 10.29.0.1")
	pod.IP("-6 route add default dev tun0")
	pod.Settle("tun0")
	return &Instance{Pod: pod, NIC: "tun0", IPv4: addr("10.29.0.2"), IPv6: addr("fd00:29::2"), Stations: append([]Station{
		newStation("gateway", node, "10.29.0.1", "fd00:29::1"),
	}, far...)}
}
