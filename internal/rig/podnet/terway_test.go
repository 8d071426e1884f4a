package podnet

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// TestVeth1: in addition to its exclusive ENI, a pod of Terway has the link veth1 to the node, with the same addresses.
// The node sends all packets for the pod there, and the pod its packets to services. A guest with the ENI alone
// therefore does not reach the node or a service, and the record warns; a guest with both links has the pod's network.
func TestVeth1(t *testing.T) {
	t.Parallel()
	nstest.Need(t, "iptables")
	nstest.NeedTaps(t)
	l := createExclusive(t)
	station := map[string]Station{}
	for _, s := range l.Stations {
		station[s.Name] = s
	}
	node, peer := station["node"], station["peer"]
	addVeth1(node.Namespace, l.Pod, l.IPv4.String(), l.IPv6.String())
	// The service's backend is a pod on another ENI, so the node has to receive the answers.
	iptables(node.Namespace, "iptables",
		fmt.Sprintf("-t nat -A PREROUTING -d %v -p tcp --dport %d -j DNAT --to-destination %v:%d", service.Addr(), service.Port(), peer.IPv4, stationPort),
		"-t nat -A POSTROUTING -m conntrack --ctstate DNAT -j MASQUERADE")
	iptables(node.Namespace, "ip6tables",
		fmt.Sprintf("-t nat -A PREROUTING -d %v -p tcp --dport %d -j DNAT --to-destination [%v]:%d", service6.Addr(), service6.Port(), peer.IPv6, stationPort),
		"-t nat -A POSTROUTING -m conntrack --ctstate DNAT -j MASQUERADE")
	l.listen()
	l.Pod.Listen(processName, fmt.Sprintf(":%d", Port))
	before := l.Pod.Settled()

	for _, test := range []struct {
		binding infra.Binding
		both    bool // a guest can have both links
	}{{infra.Bridge{}, true}, {infra.Redirect{}, true}, {infra.Masquerade{}, false}} {
		t.Run(string(test.binding.Kind()), func(t *testing.T) {
			n := nstest.Network{Pod: l.Pod, State: nstest.Dir(t)}
			wire := func(nic string) (wired.NIC, cache.Record) {
				c := wired.NIC{NIC: phase1.NIC{NetNS: l.Pod.File, Name: nic}, Spec: infra.Spec{Binding: test.binding, State: n.State, Owner: nstest.Owner()}}
				r, err := c.Setup(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return c, r
			}
			first, r := wire("eth0")
			if !strings.Contains(fmt.Sprint(r.Losses), "other-link veth1: [10.22.0.30 fd00:22::30]: ") {
				t.Errorf("losses %v: want one that names veth1 and both addresses", r.Losses)
			}
			configs := []wired.NIC{first}
			if test.both {
				g := n.Guest(t, r)
				configureStatic(g, "eth0", r)
				g.Listen("guest", fmt.Sprintf(":%d", Port))
				checkTalk(t, Station{Namespace: g}.dial, netip.AddrPortFrom(peer.IPv4, stationPort), "peer sees "+l.IPv4.String())
				if answer, err := answerAt(t, Station{Namespace: g}.dial, netip.AddrPortFrom(node.IPv4, stationPort), impatience); err == nil {
					t.Errorf("the guest with the ENI alone asks the node: %q; want no answer", answer)
				}

				second, r := wire("veth1")
				configs = append(configs, second)
				n.Attach(t, g, "eth1", r)
				configureStatic(g, "eth1", r)
				for _, s := range l.Stations {
					for to, own := range map[netip.Addr]netip.Addr{s.IPv4: l.IPv4, s.IPv6: l.IPv6} {
						checkTalk(t, Station{Namespace: g}.dial, netip.AddrPortFrom(to, stationPort), s.Name+" sees "+own.String())
						checkTalk(t, s.dial, netip.AddrPortFrom(own, Port), "guest sees "+to.String())
					}
				}
				checkTalk(t, Station{Namespace: g}.dial, service, "peer sees "+node.IPv4.String())
				checkTalk(t, Station{Namespace: g}.dial, service6, "peer sees "+node.IPv6.String())
			}
			var errs []error
			for _, c := range configs {
				c.Down.CutOff = true // the guest lasts as long as the test
				errs = append(errs, c.Teardown(t.Context()))
			}
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
			l.checkRestored(t, n.State, before)
		})
	}
	l.Check(t)
}

var service6 = netip.MustParseAddrPort("[fd00:172:21::10]:80")

// configureStatic gives a guest's link the record's static configuration, without the addresses that the link makes
// itself.
func configureStatic(g *nstest.Namespace, link string, r cache.Record) {
	g.IP(fmt.Sprintf("link set %s mtu %d up", link, r.MTU))
	for _, a := range r.Static.Addresses {
		if !a.Address.Addr().IsLinkLocalUnicast() {
			addAddresses(g, link, a.Address.String())
		}
	}
	for _, n := range r.Static.Neighbours {
		g.IP(fmt.Sprintf("neigh replace %v lladdr %v dev %s nud permanent", n.Address, n.MAC, link))
	}
	for _, route := range r.Static.Routes {
		line := fmt.Sprintf("route replace %v dev %s", route.Destination, link)
		if route.Gateway.IsValid() {
			line += fmt.Sprintf(" via %v onlink", route.Gateway)
		}
		g.IP(line)
	}
}

// addVeth1 adds the link between pod and node. The link in the pod has the ENI's addresses too, and the routes to
// services; the node sends packets for the pod there.
func addVeth1(node, pod *nstest.Namespace, ipv4, ipv6 string) {
	node.IP(fmt.Sprintf("link add cali1 type veth peer name veth1 netns %s", pod.Name))
	node.IP("link set cali1 up")
	pod.IP("link set veth1 up")
	addAddresses(node, "cali1", "169.254.1.1/32", "fe80::1/128")
	node.IP("route add " + ipv4 + " dev cali1 scope link")
	node.IP("route add " + ipv6 + " dev cali1")
	addAddresses(pod, "veth1", ipv4+"/32", ipv6+"/128")
	pod.IP("route add 169.254.1.1 dev veth1 scope link")
	pod.IP("route add 172.21.0.0/20 via 169.254.1.1 dev veth1 onlink")
	pod.IP("route add fe80::1 dev veth1")
	pod.IP("route add fd00:172:21::/112 via fe80::1 dev veth1 onlink")
	mac := macOf(node, "cali1")
	pod.IP("neigh add 169.254.1.1 lladdr " + mac + " dev veth1 nud permanent")
	pod.IP("neigh add fe80::1 lladdr " + mac + " dev veth1 nud permanent")
	pod.Settle("veth1")
	node.Settle("cali1")
}
