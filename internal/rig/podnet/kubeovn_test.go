package podnet

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/infra"
)

func (l *Instance) station(t *testing.T, name string) Station {
	t.Helper()
	for _, s := range l.Stations {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no station %q", name)
	return Station{}
}

// TestVPCPolicies: policies of the router and of the switches hold for a guest as for a process: a subnet whose gateway
// is one node, a DNS server on each node at one address, and a network policy in both directions.
//
// github.com/kubeovn/kube-ovn: pkg/controller/{node,subnet}.go, pkg/ovs/ovn-nb-acl.go
func TestVPCPolicies(t *testing.T) {
	t.Parallel()
	l, v := createKubeOVN(t, true)
	l.listen()
	outside, peer, other, remote := l.station(t, "outside"), l.station(t, "peer"), l.station(t, "other subnet"), l.station(t, "another node's pod")
	w := l.mustSetup(t.Context(), t, infra.Redirect{})
	g := w.bootAnswering(t.Context(), t)
	apply := func(commands ...string) {
		t.Helper()
		v.nodes[0].nbctl(commands...)
		v.nodes[0].nbctl("--wait=hv sync")
	}
	at := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, stationPort) }
	own4, own6 := netip.AddrPortFrom(l.IPv4, Port), netip.AddrPortFrom(l.IPv6, Port)
	refused := func(dial dialer, to netip.AddrPort) {
		t.Helper()
		if answer, err := answerAt(t, dial, to, impatience); err == nil {
			t.Errorf("%v answers %q; want no answer", to, answer)
		}
	}

	node4, node6 := nodeAddress(0)
	checkTalk(t, g.DialTCP, at(outside.IPv4), "outside sees "+node4)
	checkTalk(t, g.DialTCP, at(outside.IPv6), "outside sees "+node6)
	v4, v6 := ovnDefault.networks()
	var central []string
	for i := range v.nodes {
		group := ovnDefault.portGroup(i)
		central = append(central, "lr-policy-del ovn-cluster 29000 'ip4.src == $"+group+"_ip4'", "lr-policy-del ovn-cluster 29000 'ip6.src == $"+group+"_ip6'")
	}
	apply(append(central, policy(29000, "ip4.src == "+v4, join.IPv4(joinNode+1)), policy(29000, "ip6.src == "+v6, join.IPv6(joinNode+1)))...)
	node4, node6 = nodeAddress(1)
	checkTalk(t, g.DialTCP, at(outside.IPv4), "outside sees "+node4)
	checkTalk(t, g.DialTCP, at(outside.IPv6), "outside sees "+node6)

	dns := netip.MustParseAddrPort("169.254.20.10:53")
	for i, ports := range []string{"pod.default peer.default other.default", "remote.default"} {
		group := fmt.Sprint("node.node", i+1)
		addAddresses(v.nodes[i].node, "lo", dns.Addr().String()+"/32")
		v.nodes[i].node.Listen(fmt.Sprint("DNS of node ", i+1), dns.String())
		apply("pg-add "+group+" "+ports, policy(30000, fmt.Sprintf("ip4.src == $%s_ip4 && ip4.dst == %v", group, dns.Addr()), join.IPv4(joinNode+i)))
	}
	checkTalk(t, g.DialTCP, dns, "DNS of node 1 sees "+l.IPv4.String())
	checkTalk(t, remote.dial, dns, "DNS of node 2 sees "+remote.IPv4.String())

	// The pod receives from the peer at its port alone, and reaches the peer alone.
	apply("pg-add web.default pod.default",
		"acl-add web.default to-lport 2000 'outport == @web.default && ip' drop",
		fmt.Sprintf("acl-add web.default to-lport 2001 'outport == @web.default && ip4.src == %v && tcp.dst == %d' allow-related", peer.IPv4, Port),
		fmt.Sprintf("acl-add web.default to-lport 2001 'outport == @web.default && ip6.src == %v && tcp.dst == %d' allow-related", peer.IPv6, Port),
		"acl-add web.default from-lport 2000 'inport == @web.default && ip' drop",
		fmt.Sprintf("acl-add web.default from-lport 2001 'inport == @web.default && ip4.dst == %v' allow-related", peer.IPv4),
		fmt.Sprintf("acl-add web.default from-lport 2001 'inport == @web.default && ip6.dst == %v' allow-related", peer.IPv6))
	checkTalk(t, peer.dial, own4, "guest sees "+peer.IPv4.String())
	checkTalk(t, peer.dial, own6, "guest sees "+peer.IPv6.String())
	checkTalk(t, g.DialTCP, at(peer.IPv4), "peer sees "+l.IPv4.String())
	checkTalk(t, g.DialTCP, at(peer.IPv6), "peer sees "+l.IPv6.String())
	refused(other.dial, own4)
	refused(remote.dial, own6)
	refused(g.DialTCP, at(other.IPv4))
	refused(g.DialTCP, at(remote.IPv6))
	w.end(t.Context(), t)
}
