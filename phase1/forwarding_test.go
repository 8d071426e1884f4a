package phase1_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// always is what no choice of ports changes.
var always = []exchange{
	{from: "guest", to: "gateway:9000", want: "world:9000 sees pod"},
	{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"},
	{from: "guest", to: "beyond:9000", protocol: "udp", size: 5000, want: "world:9000 sees pod"},
	{from: "guest", to: "beyond:7", protocol: "tcp", want: "refused"},
	{from: "guest", to: "beyond:7", protocol: "udp", want: "refused"},
	{from: "pod", to: "beyond:9000", want: "world:9000 sees pod"},
	{from: "pod", to: "guest's gateway:9000", want: "pod:9000 sees guest's gateway"},
	{from: "pod", to: "guest:9000", want: "guest:9000 sees guest's gateway"},
	{from: "world", to: "guest:9000", want: ""},           // it has a route by the pod
	{from: "world", to: "guest's gateway:9000", want: ""}, // it is the guest's alone
}

// forwardings are what can be asked of a masquerade, and who answers whom then.
var forwardings = []struct {
	name    string
	binding infra.Masquerade
	guard   infra.Guard
	prepare func(s *scene)
	want    []exchange
}{
	{
		name: "everything",
		want: []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world@gateway", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world@beyond", to: "pod:8000", want: "guest:8000 sees beyond"},
			{from: "world", to: "pod:8000", protocol: "udp", size: 5000, want: "guest:8000 sees gateway"},
			{from: "world", to: "pod:7", protocol: "tcp", want: "refused"},
			{from: "world", to: "pod:7", protocol: "udp", want: "refused"},
			{from: "pod", to: "pod:8000", want: "guest:8000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "pod:8000 sees loopback"},
			{from: "guest", to: "pod:8000", want: "guest:8000 sees guest's gateway"},
			{from: "guest", to: "guest's gateway:8000", want: ""},
		},
	},
	{
		name: "everything, loopback, no guard", binding: infra.Masquerade{Loopback: true}, guard: infra.Guard{Off: true},
		want: []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "pod", to: "pod:8000", want: "guest:8000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "guest:8000 sees guest's gateway"},
			{from: "pod", to: "loopback:8000", protocol: "udp", size: 5000, want: "guest:8000 sees guest's gateway"},
			{from: "guest", to: "pod:8000", want: "guest:8000 sees guest's gateway"},
			{from: "guest", to: "guest's gateway:8000", want: "pod:8000 sees guest"},
		},
	},
	{
		name: "everything but some", binding: infra.Masquerade{Excluded: each("8000", "8010-8012"), Loopback: true},
		guard: infra.Guard{Open: each("8011")},
		want: []exchange{
			{from: "world", to: "pod:8000", want: "pod:8000 sees gateway"},
			{from: "world", to: "pod:8001", want: "guest:8001 sees gateway"},
			{from: "world", to: "pod:8009", want: "guest:8009 sees gateway"},
			{from: "world", to: "pod:8010", want: "pod:8010 sees gateway"},
			{from: "world", to: "pod:8012", want: "pod:8012 sees gateway"},
			{from: "world", to: "pod:8013", want: "guest:8013 sees gateway"},
			{from: "pod", to: "pod:8000", want: "pod:8000 sees pod"},
			{from: "pod", to: "pod:8001", want: "guest:8001 sees pod"},
			{from: "pod", to: "loopback:8000", want: "pod:8000 sees loopback"},
			{from: "pod", to: "loopback:8001", want: "guest:8001 sees guest's gateway"},
			{from: "guest", to: "pod:8000", want: ""},
			{from: "guest", to: "pod:8001", want: "guest:8001 sees guest's gateway"},
			{from: "guest", to: "pod:8011", want: "pod:8011 sees guest"},
			{from: "guest", to: "guest's gateway:8011", want: "pod:8011 sees guest"},
		},
	},
	{
		name: "ports", binding: infra.Masquerade{Ports: each("8000", "8100-8110", "8200:9200", "8300-8302:9300"), Loopback: true},
		want: []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world", to: "pod:8001", want: "pod:8001 sees gateway"},
			{from: "world", to: "pod:8099", want: "pod:8099 sees gateway"},
			{from: "world", to: "pod:8100", want: "guest:8100 sees gateway"},
			{from: "world", to: "pod:8110", want: "guest:8110 sees gateway"},
			{from: "world", to: "pod:8110", protocol: "udp", size: 5000, want: "guest:8110 sees gateway"},
			{from: "world", to: "pod:8111", want: "pod:8111 sees gateway"},
			{from: "world", to: "pod:8200", want: "guest:9200 sees gateway"},
			{from: "world", to: "pod:9200", want: "pod:9200 sees gateway"},
			{from: "world", to: "pod:8300", want: "guest:9300 sees gateway"},
			{from: "world", to: "pod:8302", want: "guest:9302 sees gateway"},
			{from: "pod", to: "pod:8000", want: "guest:8000 sees pod"},
			{from: "pod", to: "pod:8001", want: "pod:8001 sees pod"},
			{from: "pod", to: "pod:8200", want: "guest:9200 sees pod"},
			{from: "pod", to: "loopback:8000", want: "guest:8000 sees guest's gateway"},
			{from: "pod", to: "loopback:8001", want: "pod:8001 sees loopback"},
			{from: "pod", to: "loopback:8302", want: "guest:9302 sees guest's gateway"},
			{from: "guest", to: "pod:8000", want: "guest:8000 sees guest's gateway"},
			{from: "guest", to: "pod:8200", want: "guest:9200 sees guest's gateway"},
			{from: "guest", to: "pod:8001", want: ""},
		},
	},
	{
		name: "baked addresses", binding: infra.Masquerade{
			IPv4: netip.MustParsePrefix("169.254.0.20/30"), IPv6: netip.MustParsePrefix("fd10:0:3::/64"), Ports: each("8000"), Loopback: true, NICMAC: true,
			Guest:   []netip.Addr{netip.MustParseAddr("169.254.0.21"), netip.MustParseAddr("fd10:0:3::1")},
			Gateway: []netip.Addr{netip.MustParseAddr("fd10:0:3::a"), netip.MustParseAddr("169.254.0.22")},
		},
		want: []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world@beyond", to: "pod:8000", want: "guest:8000 sees beyond"},
			{from: "world", to: "pod:8000", protocol: "udp", size: 5000, want: "guest:8000 sees gateway"},
			{from: "world", to: "pod:8001", want: "pod:8001 sees gateway"},
			{from: "pod", to: "loopback:8000", want: "guest:8000 sees guest's gateway"},
			{from: "guest", to: "pod:8000", want: "guest:8000 sees guest's gateway"},
		},
	},
	{
		name: "nothing", binding: infra.Masquerade{Ports: []infra.Ports{}, Loopback: true},
		want: []exchange{
			{from: "world", to: "pod:8000", want: "pod:8000 sees gateway"},
			{from: "pod", to: "pod:8000", want: "pod:8000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "pod:8000 sees loopback"},
			{from: "guest", to: "pod:8000", want: ""},
		},
	},
	{
		// https://istio.io/latest/docs/ops/deployment/application-requirements/#ports-used-by-istio
		name: "sidecar", binding: infra.Masquerade{
			Excluded: []infra.Ports{
				tcp("15000"), tcp("15001"), tcp("15002"), tcp("15004"), tcp("15006"), tcp("15008"), tcp("15020"),
				tcp("15021"), tcp("15053"), tcp("15090"),
			},
			Sidecar: &infra.Sidecar{Sources: []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}},
		},
		guard: infra.Guard{Open: []infra.Ports{tcp("15001")}},
		prepare: func(s *scene) {
			s.Pod.IP("addr add ::6/128 dev lo")
			s.name("pod", "proxy", netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6"))
			// What the proxies' own rules do, in few words.
			s.Pod.Exec("nft", "add table inet mesh; add chain inet mesh proxies { type nat hook prerouting priority -110; "+
				"iifname eth0 tcp dport 8000-8099 redirect to :15006; iifname eth0-tap tcp dport 9900 redirect to :15001; }")
		},
		want: []exchange{
			{from: "world", to: "pod:8000", protocol: "tcp", want: "pod:15006 sees gateway"},
			{from: "world", to: "pod:8000", protocol: "udp", want: "pod:8000 sees gateway"},
			{from: "world", to: "pod:8500", want: "pod:8500 sees gateway"},
			{from: "pod@proxy", to: "pod:8000", want: "guest:8000 sees guest's gateway"},
			{from: "pod", to: "pod:8000", want: "guest:8000 sees pod"},
			{from: "pod", to: "pod:15000", protocol: "tcp", want: "pod:15000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "pod:8000 sees loopback"},
			{from: "guest", to: "beyond:9900", protocol: "tcp", want: "pod:15001 sees guest"},
			{from: "guest", to: "pod:15020", protocol: "tcp", want: ""},
			{from: "guest", to: "pod:8500", want: "guest:8500 sees guest's gateway"},
		},
	},
}

// eachFirewall calls f with all that can translate.
func eachFirewall(t *testing.T, f func(t *testing.T, firewall cache.Firewall)) {
	for _, name := range []cache.Firewall{cache.FirewallNFTables, cache.FirewallIPTablesNFT, cache.FirewallIPTablesLegacy} {
		t.Run(string(name), func(t *testing.T) {
			if name != cache.FirewallNFTables {
				nstest.Need(t, string(name), strings.Replace(string(name), "ip", "ip6", 1))
			}
			f(t, name)
		})
	}
}

// TestForwarding asks from every side, and judges by who answers and whom it sees.
func TestForwarding(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for _, f := range forwardings {
		t.Run(f.name, func(t *testing.T) {
			eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
				if f.name == "everything" && firewall != cache.FirewallIPTablesNFT {
					nstest.KernelDecides(t, "IPv6 forwards in the whole namespace before Linux 6.17; iptables-legacy is modules")
				}
				s := newScene(t)
				if f.prepare != nil {
					f.prepare(s)
				}
				b := f.binding
				b.Firewall = firewall
				c := config(s.Network, b)
				c.Guard = f.guard
				r := s.wire(t, "guest", c)
				if r.Firewall != firewall {
					t.Errorf("the record says %q, want %q", r.Firewall, firewall)
				}
				s.World.IP(fmt.Sprintf("route add %v via %v", r.IPv4.Address.Masked(), nstest.Pod4))
				s.World.IP(fmt.Sprintf("route add %v via %v", r.IPv6.OnLink[0], nstest.Pod6))
				s.ask(t, append(slices.Clone(f.want), always...))
			})
		})
	}
}

// TestClones has two guests of one snapshot at once, each in a pod of its own: they have one MAC, and one address of
// each family.
func TestClones(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	clone := *s
	clone.Network = nstest.Network{Pod: nstest.New(t, "clone"), World: s.World, State: nstest.Dir(t)}
	s.who["clone"] = clone.Pod
	s.name("clone", "clone", netip.MustParseAddr("10.245.1.7"), netip.MustParseAddr("fd00:245:1::7"))
	s.name("world", "clone's network", netip.MustParseAddr("10.245.1.1"), netip.MustParseAddr("fd00:245:1::1"))
	s.World.IP("link add clone type veth peer name eth0 netns " + clone.Pod.Name)
	for n, link := range map[*nstest.Namespace]string{s.World: "clone", clone.Pod: "eth0"} {
		name := map[string]string{"clone": "clone's network", "eth0": "clone"}[link]
		n.IP("link set " + link + " mtu 1450 up")
		n.IP(fmt.Sprintf("addr add %v/24 dev %s", s.addresses[name][0], link))
		n.IP(fmt.Sprintf("addr add %v/64 dev %s nodad", s.addresses[name][1], link))
	}
	for _, gateway := range s.addresses["clone's network"] {
		clone.Pod.IP("route add default via " + gateway.String())
	}
	b := infra.Masquerade{
		IPv4: netip.MustParsePrefix("169.254.0.20/30"), MAC: cache.MAC{0x02, 0xfc, 0, 0, 0, 5},
		Guest: []netip.Addr{netip.MustParseAddr("169.254.0.21")}, Gateway: []netip.Addr{netip.MustParseAddr("169.254.0.22")},
	}
	first, second := s.wire(t, "guest", config(s.Network, b)), clone.wire(t, "guest2", config(clone.Network, b))
	if changes := cache.Changes(first, second); len(changes) > 0 {
		t.Errorf("a guest notices in which of the pods it is: %v", changes)
	}
	s.ask(t, []exchange{
		{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"},
		{from: "guest2", to: "beyond:9000", want: "world:9000 sees clone"},
		{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
		{from: "world", to: "clone:8000", want: "guest2:8000 sees clone's network"},
		{from: "guest", to: "clone:8000", want: "guest2:8000 sees pod"},
		{from: "guest2", to: "pod:8000", want: "guest:8000 sees clone"},
	})
	for _, c := range []wired.NIC{config(s.Network, b), config(clone.Network, b)} {
		check(t, c)
	}
}

// TestEcho asks by ping, and who answers says it by the hops on the way.
func TestEcho(t *testing.T) {
	t.Parallel()
	nstest.Need(t, "ping")
	for name, c := range map[string]struct {
		binding infra.Masquerade
		ttl     string
	}{
		"everything": {infra.Masquerade{}, "ttl=63"},
		"ports":      {infra.Masquerade{Ports: each("8000")}, "ttl=64"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.wire(t, "guest", config(s.Network, c.binding))
			for _, a := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
				if out := s.World.Exec("ping", "-c1", "-w20", a.String()); !strings.Contains(out, c.ttl) {
					t.Errorf("the world's ping of %v: want %s\n%s", a, c.ttl, out)
				}
			}
			// With fragments, there and back.
			for _, a := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
				if out := s.who["guest"].Exec("ping", "-c1", "-w20", "-s5000", a.String()); !strings.Contains(out, "ttl=63") {
					t.Errorf("the guest's ping of %v: want ttl=63\n%s", a, out)
				}
			}
		})
	}
}

// TestLearnedRoute: a default route that a router advertised is there after Setup, and the next
// advertisement still counts.
func TestLearnedRoute(t *testing.T) {
	nstest.KernelDecides(t, "accept_ra where IPv6 forwards in the whole namespace, before Linux 6.17")
	t.Parallel()
	s := newScene(t)
	s.Pod.IP("-6 route del default")
	router := frames.Link{MAC: gatewayMAC, Gateway: newGatewayMAC, IPv6: nstest.Pod6, IPv4: nstest.Pod4, Gateway4: nstest.Gateway4, Gateway6: nstest.Gateway6, Far4: nstest.Beyond4, Far6: nstest.Beyond6}
	advertisement, route := kind(frames.Outer(router), "router advertisement")[0], "via "+eui64.LinkLocal(newGatewayMAC).String()+" dev eth0 proto ra"
	learned := func() error {
		s.World.Send(t, "pod", advertisement)
		if out := s.Pod.IP("-6 route show default"); !strings.Contains(out, route) {
			return errors.New("the namespace has not learned the route: " + out)
		}
		return nil
	}
	nstest.Eventually(t, learned)
	c := config(s.Network, infra.Masquerade{})
	setup(t, c)
	if out := s.Pod.IP("-6 route show default"); !strings.Contains(out, route) {
		t.Errorf("Setup lost the default route:\n%s", out)
	}
	s.Pod.IP("-6 route del default")
	nstest.Eventually(t, learned)
	check(t, c)
	unwire(t, c)
	s.Pod.IP("-6 route del default")
	nstest.Eventually(t, learned)
}

// TestOthersRules: what we let pass is still for the rules of others to drop. A launcher knows the guest by its tap,
// and its rules see the guest's packets there. The rules are those of docs/how-to/own-firewall-rules.md.
func TestOthersRules(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		nstest.Need(t, "iptables-nft", "ip6tables-nft")
		s.wire(t, "guest", config(s.Network, infra.Masquerade{Firewall: firewall}))
		flavour := "-nft"
		if firewall == cache.FirewallIPTablesLegacy {
			flavour = "-legacy"
		}
		rules := strings.NewReplacer("exec pod ", "exec "+s.Pod.Name+" ", "tables ", "tables"+flavour+" ", "dport 25 ", "dport 8777 ", "dport 587 ", "dport 8666 ")
		nstest.Run(t, "bash", "-ec", rules.Replace(nstest.Commands(t, "../docs/how-to/own-firewall-rules.md", "Rules")))
		s.ask(t, []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world", to: "pod:8666", protocol: "tcp", want: ""},
			{from: "world", to: "pod:8666", protocol: "udp", want: "guest:8666 sees gateway"},
			{from: "guest", to: "beyond:8000", want: "world:8000 sees pod"},
			{from: "guest", to: "beyond:8666", protocol: "tcp", want: ""},
			{from: "guest", to: "beyond:8777", protocol: "tcp", want: ""},
			{from: "guest", to: "beyond:8777", protocol: "udp", want: "world:8777 sees pod"},
		})
	})
}
