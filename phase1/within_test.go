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
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// TestManyMasquerades has three NICs with rules of their own; one NIC leaves and comes back.
func TestManyMasquerades(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		for i := 2; i <= 3; i++ {
			link := fmt.Sprintf("net%d", i)
			s.World.IP(fmt.Sprintf("link add pod%d type veth peer name %s netns %s", i, link, s.Pod.Name))
			s.World.IP(fmt.Sprintf("link set pod%d up", i))
			s.Pod.IP("link set " + link + " up")
			for name, n := range map[string]*nstest.Namespace{"gateway": s.World, "pod": s.Pod} {
				host, dev := 1, fmt.Sprintf("pod%d", i)
				if name == "pod" {
					host, dev = 7, link
				}
				v4, v6 := fmt.Sprintf("10.245.%d.%d", i, host), fmt.Sprintf("fd00:245:%d::%d", i, host)
				n.IP("addr add " + v4 + "/24 dev " + dev)
				n.IP("addr add " + v6 + "/64 dev " + dev + " nodad")
				who := map[string]string{"gateway": "world", "pod": "pod"}[name]
				s.name(who, fmt.Sprintf("%s%d", name, i), netip.MustParseAddr(v4), netip.MustParseAddr(v6))
			}
		}
		first := config(s.Network, infra.Masquerade{Firewall: firewall})
		second := config(s.Network, infra.Masquerade{
			IPv4: netip.MustParsePrefix("10.0.3.0/24"), IPv6: netip.MustParsePrefix("fd10:0:3::/120"), Ports: each("8000", "8100:8000"), Firewall: firewall,
		})
		second.Name = "net2"
		third := config(s.Network, infra.Masquerade{
			IPv4: netip.MustParsePrefix("10.0.4.0/24"), IPv6: netip.MustParsePrefix("fd10:0:4::/120"), Excluded: each("8000"), Loopback: true, Firewall: firewall,
		})
		third.Name = "net3"
		s.wire(t, "guest", first)
		s.wire(t, "guest2", second)
		s.wire(t, "guest3", third)
		ofSecond := []exchange{
			{from: "world", to: "pod2:8000", want: "guest2:8000 sees gateway2"},
			{from: "world", to: "pod2:8001", want: "pod:8001 sees gateway2"},
			{from: "world", to: "pod2:8100", want: "guest2:8000 sees gateway2"},
			{from: "pod", to: "pod2:8000", want: "guest2:8000 sees pod2"},
			{from: "guest2", to: "pod2:8000", want: "guest2:8000 sees guest2's gateway"},
			{from: "guest2", to: "gateway2:9000", want: "world:9000 sees pod2"},
			{from: "guest2", to: "beyond:9000", want: "world:9000 sees pod"},
			{from: "guest2", to: "guest:8000", want: ""},
			{from: "guest2", to: "guest's gateway:8000", want: ""},
			{from: "guest", to: "guest2:8000", want: ""},
			{from: "guest", to: "pod2:8000", want: ""},
		}
		ofOthers := []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world", to: "pod3:8000", want: "pod:8000 sees gateway3"},
			{from: "world", to: "pod3:8001", want: "guest3:8001 sees gateway3"},
			{from: "pod", to: "pod:8000", want: "guest:8000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "pod:8000 sees loopback"},
			{from: "pod", to: "loopback:8001", want: "guest3:8001 sees guest3's gateway"},
			{from: "guest", to: "gateway:9000", want: "world:9000 sees pod"},
			{from: "guest3", to: "gateway3:9000", want: "world:9000 sees pod3"},
			{from: "guest3", to: "guest:8000", want: ""},
		}
		s.ask(t, append(slices.Clone(ofOthers), ofSecond...))
		second.Down.CutOff = true // the guest has the tap open
		unwire(t, second)
		s.ask(t, append(slices.Clone(ofOthers), exchange{from: "world", to: "pod2:8000", want: "pod:8000 sees gateway2"}))
		for _, c := range []wired.NIC{first, third} {
			check(t, c)
		}
	})
}

// TestWithin has a guest with an address of the NIC's network, where a station has the same one, and the network's
// gateway.
func TestWithin(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		twin := nstest.New(t, "twin")
		s.who["twin"] = twin
		twin4, twin6 := withinPod.Guest[0], netip.MustParseAddr("fd00:244:1::3")
		near4, near6 := netip.MustParseAddr("10.244.1.9"), netip.MustParseAddr("fd00:244:1::9")
		for _, line := range []string{
			"link add br0 type bridge", "link set br0 up", "link set pod master br0", "addr flush dev pod scope global",
			fmt.Sprintf("addr add %v/24 dev br0", nstest.Gateway4), fmt.Sprintf("addr add %v/64 dev br0 nodad", nstest.Gateway6),
			fmt.Sprintf("addr add %v/24 dev br0", near4), fmt.Sprintf("addr add %v/64 dev br0 preferred_lft 0 nodad", near6),
			"link add twin type veth peer name eth0 netns " + twin.Name, "link set twin master br0 up",
		} {
			s.World.IP(line)
		}
		for _, line := range []string{"link set eth0 up", fmt.Sprintf("addr add %v/24 dev eth0", twin4), fmt.Sprintf("addr add %v/64 dev eth0 nodad", twin6)} {
			twin.IP(line)
		}
		s.name("twin", "twin", twin4, twin6)
		s.name("world", "near", near4, near6)

		b := withinPod
		b.Firewall, b.Ports, b.Loopback = firewall, each("8000"), true
		c := config(s.Network, b)
		if firewall != cache.FirewallNFTables {
			s.Pod.Exec("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1")
		}
		before := s.Pod.Settled()
		c.Standby = firewall == cache.FirewallIPTablesNFT
		setup(t, c)
		if c.Standby {
			if _, err := c.Activate(t.Context(), phase1.Other{Gone: true}); err != nil {
				t.Fatal(err)
			}
			c.Standby = false
		}
		r := record(t, s.Network)
		guest := recordsGuest(t, s.Network, r, r.MTU)
		s.who["guest"] = guest
		s.name("guest", "guest", r.IPv4.Address.Addr(), r.IPv6.Address)
		s.name("nobody", "guest's gateway", nstest.Gateway4, r.IPv6.Gateway)
		s.ask(t, []exchange{
			{from: "guest", to: "gateway:9000", want: "world:9000 sees pod"},
			{from: "guest", to: "near:9000", want: "world:9000 sees pod"},
			{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"},
			{from: "guest", to: "beyond:9000", protocol: "udp", size: 5000, want: "world:9000 sees pod"},
			{from: "guest", to: "pod:8000", only: 4, want: "guest:8000 sees pod"},
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world@near", to: "pod:8000", want: "guest:8000 sees near"},
			{from: "world@beyond", to: "pod:8000", want: "guest:8000 sees beyond"},
			{from: "world", to: "pod:8001", want: "pod:8001 sees gateway"},
			{from: "pod", to: "gateway:9000", want: "world:9000 sees pod"},
			{from: "pod", to: "near:9000", want: "world:9000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "guest:8000 sees guest's gateway"},
			{from: "pod", to: "guest:9000", only: 4, want: "guest:9000 sees pod"},
			{from: "world", to: "twin:9000", want: "twin:9000 sees gateway"},
			{from: "twin", to: "gateway:9000", want: "world:9000 sees twin"},
			{from: "twin", to: "pod:8000", only: 6, want: "guest:8000 sees twin"},
			{from: "twin", to: "pod:8000", only: 4, want: ""}, // the guest has its address
		})
		for line, says := range map[string]string{
			"ip route del 10.244.1.3 dev eth0-tap":          "route 10.244.1.3 dev eth0-tap",
			"sysctl -qw net.ipv4.conf.eth0-tap.proxy_arp=0": "IPv4 proxy_arp of eth0-tap is off, not on",
		} {
			s.Pod.Exec("sh", "-c", line)
			var drift *phase1.DriftError
			if err := c.Check(t.Context()); !errors.As(err, &drift) || !strings.Contains(fmt.Sprint(drift.Differs), says) {
				t.Errorf("check says\n%v\nwant a DriftError with %q", err, says)
			}
			setup(t, c)
			check(t, c)
		}
		c.Down.CutOff = true // the guest has the tap open
		unwire(t, c)
		if err := difference(before, s.Pod.Settled()); firewall == cache.FirewallNFTables && err != nil { // iptables leaves its tables
			t.Error(err)
		}
	})
}

// TestOtherLinksDoNotForward has a neighbour at another link of the namespace, who takes that for a
// router, as the world does on the way back.
func TestOtherLinksDoNotForward(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		if firewall == cache.FirewallNFTables {
			nstest.KernelDecides(t, "IPv6 forwards in the whole namespace before Linux 6.17")
		}
		s := newScene(t)
		s.addNeighbour(t)
		neighbour := s.who["neighbour"]
		// What it answers to the world's gateway goes another way.
		neighbour.IP("link add eth1 type veth peer name neighbour netns " + s.World.Name)
		s.World.IP("link set neighbour up")
		s.World.IP("addr add fe80::1/64 dev neighbour nodad")
		s.World.IP("addr add 10.247.0.1/24 dev neighbour")
		neighbour.IP("link set eth1 up")
		neighbour.IP("addr add 10.247.0.2/24 dev eth1")
		neighbour.IP("route add " + nstest.Gateway4.String() + " via 10.247.0.1")
		neighbour.IP("route add " + nstest.Gateway6.String() + " via fe80::1 dev eth1")
		s.World.IP("route add 10.246.0.0/24 via " + nstest.Pod4.String())
		s.World.IP("route add fd00:246::/64 via " + nstest.Pod6.String())
		c := config(s.Network, infra.Masquerade{Firewall: firewall})
		s.wire(t, "guest", c)

		only := 0
		if !s.forwardsByLink() {
			only = 4 // IPv6 forwarding is a matter of the whole namespace in this kernel
		}
		s.ask(t, []exchange{
			{from: "neighbour", to: "pod9:8000", want: "pod:8000 sees neighbour"},
			{from: "neighbour", to: "pod:8000", want: "pod:8000 sees neighbour"}, // it is not the NIC's link
			{from: "neighbour", to: "beyond:8000", want: "", only: only},
			{from: "neighbour", to: "guest:8000", want: ""},
			{from: "world@gateway", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world@gateway", to: "neighbour:8000", want: ""},
			{from: "guest", to: "beyond:8000", want: "world:8000 sees pod"},
		})
		s.otherLinkRefused(t, c, 0, 1)
	})
}
