package phase1_test

import (
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// TestRedirectShares has another program's qdisc and filters at the NIC's ingress before Setup. They stay as they
// are. The guest gets all frames that they do not take.
func TestRedirectShares(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string][]string{
		"ingress": {
			"tc qdisc add dev eth0 ingress",
			"tc filter add dev eth0 ingress pref 7 protocol ip u32 match ip dport 9000 0xffff action mirred egress redirect dev aside",
		},
		"clsact": {
			"tc qdisc add dev eth0 clsact",
			"tc filter add dev eth0 ingress pref 7 protocol ip u32 match ip dport 9000 0xffff action mirred egress redirect dev aside",
			"tc filter add dev eth0 egress pref 7 protocol ip u32 match ip dport 9001 0xffff action mirred egress redirect dev aside",
		},
		"nftables": {
			"nft add table netdev theirs",
			"nft add chain netdev theirs first { type filter hook ingress device eth0 priority -10; }",
			"nft add rule netdev theirs first tcp dport 9000 drop",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "clsact" {
				nstest.KernelDecides(t, "tc and nftables at the ingress of one link")
			}
			s := newScene(t)
			s.Pod.IP("link add aside type veth peer name aside-end")
			s.Pod.IP("link set aside up")
			for _, line := range lines {
				s.Pod.Exec(strings.Fields(line)...)
			}
			theirs := func() string {
				out := s.Pod.Exec("sh", "-c", "tc qdisc show dev eth0; tc filter show dev eth0 ingress; tc filter show dev eth0 egress; nft list tables")
				return strings.NewReplacer("table netdev guestwire-eth0\n", "", "table inet guestwire-eth0\n", "").Replace(out)
			}
			before, theirsBefore := settled(t, s.Network), theirs()
			c := config(s.Network, infra.Redirect{})
			s.wireBare(t, c)
			exchanges := []exchange{
				{protocol: "tcp", from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
				{protocol: "tcp", from: "guest", to: "gateway:8000", want: "world:8000 sees pod"},
				{protocol: "tcp", from: "world", to: "pod:9000", only: 4, want: ""},
			}
			if name != "nftables" {
				exchanges = append(exchanges, exchange{protocol: "tcp", from: "world", to: "pod:9000", only: 6, want: "guest:9000 sees gateway"})
			}
			if name == "clsact" {
				exchanges = append(exchanges, exchange{protocol: "tcp", from: "guest", to: "gateway:9001", only: 4, want: ""})
			}
			s.ask(t, exchanges)
			if err := difference(theirsBefore, theirs()); err != nil {
				t.Errorf("the other program's qdisc and filters: %v", err)
			}
			c.Down.CutOff = true // the guest has the tap open
			teardown(t, s.Network, c, before)
		})
	}
}

// TestAuto: the first binding that can work, said in the plan and in the record; called again it is the same one. That
// is redirect, which leaves the NIC's name and kind, and bridge where redirect cannot work.
// docs/how-to/choose-a-binding.md shows the plan of a tun device.
func TestAuto(t *testing.T) {
	t.Parallel()
	page, other := readFile(t, "../docs/how-to/choose-a-binding.md"), cache.MAC{2, 0, 0, 0, 0, 7}
	for _, test := range []struct {
		name, create string
		auto         infra.Auto
		want         string
		says         []string
		ports        string // of bridges, by bridge(8)
	}{
		{"veth", "", infra.Auto{}, "redirect", []string{"# binding: redirect\n"}, ""},
		{"veth, another MAC", "", infra.Auto{MAC: other}, "redirect", []string{"# binding: redirect\n"}, ""},
		{"macvlan", "link add link up0 name eth0 type macvlan mode bridge", infra.Auto{}, "redirect", // no binding reaches the resolvers, so bridge is tried too
			[]string{"# binding: redirect\n", "# not bridge: a macvlan in mode bridge receives only for its own MAC\n"}, ""},
		{"macvlan in mode passthru, another MAC", "link add link up0 name eth0 type macvlan mode passthru", infra.Auto{MAC: other}, "bridge",
			[]string{"# binding: bridge\n", "# not redirect: its kind is macvlan and its MAC 02:00:00:00:00:70, and the guest must have " + other.String() + ": the link below it passes frames by the MAC that the macvlan was made with\n"}, "eth0-nic eth0-tap"},
		{"ipvlan", "link add link up0 name eth0 type ipvlan mode l2", infra.Auto{}, "redirect", []string{"# binding: redirect\n", "# not bridge: an ipvlan can be no bridge's port\n"}, ""},
		{"ipvlan, another MAC", "link add link up0 name eth0 type ipvlan mode l2", infra.Auto{MAC: other}, "masquerade", // as no IPv6 is here to lose
			[]string{"# binding: masquerade\n", "# not redirect: its kind is ipvlan and its MAC 02:00:00:00:00:70, and the guest must have " + other.String() + ": it shares the MAC of the link below it\n", "# not bridge: an ipvlan can be no bridge's port\n"}, ""},
		{"tun", "tuntap add eth0 mode tun", infra.Auto{}, "routed",
			[]string{"# binding: routed\n", "# not redirect: it carries no Ethernet\n", "# not bridge: it carries no Ethernet with ARP\n"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if strings.HasPrefix(test.name, "ipvlan") {
				nstest.KernelDecides(t, "which kinds there are")
			}
			n := nstest.NewNetwork(t)
			if test.create != "" {
				n.Pod.IP("link set eth0 down")
				n.Pod.IP("link set eth0 name up0")
				n.Pod.IP("link set up0 address 02:00:00:00:00:70 up")
				if err := try(n.Pod, test.create); lacksFeature(err) {
					nstest.LeaveOut(t, "this kernel lacks the kind")
				} else if err != nil {
					t.Fatal(err)
				}
				n.Pod.IP("addr flush dev up0")
				n.Pod.IP("addr add 10.244.1.7/24 dev eth0")
				n.Pod.IP("link set eth0 up")
			}
			before := settled(t, n)
			c := config(n, test.auto)
			preview, err := c.Plan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if preview.Record.Binding != cache.Kind(test.want) || len(preview.Refused) != len(test.says)-1 || !strings.HasPrefix(preview.String(), strings.Join(test.says, "")) {
				t.Errorf("binding %s, refused %v, and the plan begins\n%.300s\nwant %s and\n%s", preview.Record.Binding, preview.Refused, preview, test.want, strings.Join(test.says, ""))
			}
			if test.name == "tun" && !strings.Contains(page, "```\n"+strings.Join(test.says, "")+"```\n") {
				t.Errorf("the page does not show\n%s", strings.Join(test.says, ""))
			}
			if err := difference(before, n.Pod.Dump()); err != nil {
				t.Errorf("the plan changed something: %v", err)
			}
			setup(t, c)
			if got := record(t, n).Binding; got != cache.Kind(test.want) {
				t.Errorf("the binding is %s, want %s", got, test.want)
			}
			ports := strings.Join(regexp.MustCompile(`eth0-(nic|tap)`).FindAllString(n.Pod.Exec("bridge", "link"), -1), " ")
			if ports != test.ports {
				t.Errorf("a bridge has the ports %q, want %q", ports, test.ports)
			}
			wired := n.Pod.Dump()
			setup(t, c)
			if err := difference(stable(wired), stable(n.Pod.Dump())); err != nil {
				t.Errorf("a second Setup changed something: %v", err)
			}
			without := config(n, infra.Auto{MAC: test.auto.MAC, Order: slices.DeleteFunc([]cache.Kind{"redirect", "bridge", "routed", "masquerade"}, func(kind cache.Kind) bool { return kind == cache.Kind(test.want) })})
			if _, err := without.Setup(t.Context()); !errors.Is(err, infra.ErrWired) {
				t.Errorf("auto without %s: %v, want ErrWired", test.want, err)
			}
			check(t, c)
			teardown(t, n, c, before)
		})
	}
}

// TestRulesOfTheNamespace: what the namespace's own rules drop they do not drop for a guest that is the
// pod, and they stay.
func TestRulesOfTheNamespace(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			s := newScene(t)
			s.Pod.Exec("nft", "add table inet theirs")
			for _, hook := range []string{"input", "forward", "output"} {
				s.Pod.Exec("nft", "add chain inet theirs "+hook+" { type filter hook "+hook+" priority 0; policy drop; }")
			}
			before := settled(t, s.Network)
			c := config(s.Network, b)
			s.wireBare(t, c)
			s.ask(t, []exchange{
				{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
				{from: "guest", to: "gateway:8000", want: "world:8000 sees pod"},
			})
			c.Down.CutOff = true // the guest has the tap open
			teardown(t, s.Network, c, before)
		})
	}
}

// TestRedirectMutesTheNamespace: what another NIC's guest sends by the namespace does not leave by the NIC as
// the guest there, and no process of the namespace speaks for it.
func TestRedirectMutesTheNamespace(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	router := strings.Fields(s.World.IP("-br link show dev pod"))[2]
	s.Pod.IP("neigh replace 10.244.1.1 lladdr " + router + " dev eth0 nud permanent") // so no neighbour solicitation is sent
	secondNIC(s.Network, "10.250.0.7/24")
	s.World.IP("addr add 10.250.0.1/24 dev pod2")
	before := settled(t, s.Network)
	c := config(s.Network, infra.Redirect{})
	s.wireBare(t, c)
	s.who["guest"].IP("neigh replace 10.244.1.1 lladdr " + router + " dev eth0") // which the responder would say
	other := configOfSecondNIC(s.Network, infra.Masquerade{})
	setup(t, other)
	r := nstest.Record(t, s.State, "net1")
	second := recordsGuest(t, s.Network, r, r.MTU)
	s.World.Exec("nft", "add table ip counted; add chain ip counted input { type filter hook prerouting priority 0; }; "+
		"add rule ip counted input udp dport 7777 counter; add rule ip counted input udp dport 7778 counter")
	counted := func(port string) string {
		_, text, _ := strings.Cut(s.World.Exec("nft", "list", "chain", "ip", "counted", "input"), "dport "+port+" counter packets ")
		return strings.Fields(text)[0]
	}
	send := func(from *nstest.Namespace, to netip.Addr, port uint16) {
		q, err := from.Question("udp", netip.Addr{}, netip.AddrPortFrom(to, port), 8)
		if err == nil { // the kernel says so itself
			q.Close()
		}
	}
	nstest.Eventually(t, func() error {
		send(s.who["guest"], nstest.Beyond4, 7778)
		send(second, netip.MustParseAddr("10.250.0.1"), 7778)
		if got := counted("7778"); got == "0" || got == "1" {
			return errors.New("the guests' own packets do not come: " + got)
		}
		return nil
	})
	for range 5 {
		send(second, nstest.Beyond4, 7777)
		send(s.Pod, nstest.Beyond4, 7777)
	}
	s.ask(t, []exchange{{protocol: "tcp", from: "guest", to: "gateway:8000", want: "world:8000 sees pod"}})
	if got := counted("7777"); got != "0" {
		t.Errorf("%s packets leave as the guest's that are not", got)
	}
	other.Down.CutOff, c.Down.CutOff = true, true // the guests have the taps open
	unwire(t, other)
	teardown(t, s.Network, c, before)
}

// TestRedirectOfWhatExpires: no client renews the NIC's address while it is wired by redirect. Teardown gives the
// address back, with the rest of its lifetime.
func TestRedirectOfWhatExpires(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	n.Pod.IP("addr del 10.244.1.7/24 dev eth0")
	n.Pod.IP("addr add 10.244.1.7/24 broadcast 10.244.1.255 dev eth0 valid_lft 600 preferred_lft 600")
	n.Pod.IP("route add default via 10.244.1.1")
	before := settled(t, n)
	c := config(n, infra.Redirect{})
	setup(t, c)
	n.Pod.IP("addr change 10.244.1.7/24 broadcast 10.244.1.255 dev eth0 valid_lft 1 preferred_lft 1")
	nstest.Eventually(t, func() error {
		if out := n.Pod.IP("-4 addr show dev eth0"); out != "" {
			return errors.New(out)
		}
		return nil
	})
	unwire(t, c)
	nstest.Eventually(t, func() error { return difference(stable(before), stable(n.Pod.Dump())) })
}

// TestChildren: what lies on a NIC would be cut off by a guest that has the NIC, so it is refused.
func TestChildren(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	n.Pod.IP("link add link eth0 name child type macvlan mode bridge")
	before := settled(t, n)
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		var refused *infra.RefusedError
		if _, err := config(n, b).Setup(t.Context()); !errors.As(err, &refused) || refused.Instead != "routed" || !strings.Contains(err.Error(), "child") {
			t.Errorf("%s: %v, want a RefusedError that names the child, and routed", b.Kind(), err)
		}
		asFound(t, n, before)
	}
	c := config(n, infra.Auto{})
	setup(t, c)
	if got := record(t, n).Binding; got != "routed" {
		t.Errorf("auto is %s", got)
	}
	teardown(t, n, c, before)
}

// otherMasquerade is one beside the default one.
var otherMasquerade = infra.Masquerade{IPv4: netip.MustParsePrefix("10.0.3.0/24"), IPv6: netip.MustParsePrefix("fd10:0:3::/120")}

// TestSharedSysctls: one NIC is given back while the other is wired, and then the other. A sysctl that the
// whole namespace shares gets its old value back when no wiring needs it any more, in whichever order the NICs are torn
// down.
func TestSharedSysctls(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	const calls = "net.bridge.bridge-nf-call-iptables"
	for name, test := range map[string]struct {
		first, second infra.Binding
		sysctl        string
	}{
		"masquerade, then redirect":  {infra.Masquerade{}, infra.Redirect{}, "net.ipv6.conf.default.disable_ipv6"},
		"two masquerades":            {infra.Masquerade{}, otherMasquerade, "net.ipv6.conf.all.forwarding"},
		"two masquerades, new links": {infra.Masquerade{}, otherMasquerade, "net.ipv6.conf.default.disable_ipv6"},
		"bridge, then masquerade":    {infra.Bridge{}, infra.Masquerade{}, calls},
		"bridge, then redirect":      {infra.Bridge{}, infra.Redirect{}, calls},
		"bridge, then a function":    {infra.Bridge{}, infra.SRIOV{PCI: "0000:03:10.1"}, calls},
		"passt, then slirp":          {infra.Passt{}, infra.Slirp{Ports: []infra.Ports{{First: 80}}}, "net.ipv4.ip_unprivileged_port_start"},
		"passt with ports, then not": {infra.Passt{Ports: []infra.Ports{{First: 80}}}, infra.Passt{}, "net.ipv4.ip_unprivileged_port_start"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "masquerade, then redirect" || name == "two masquerades" {
				nstest.KernelDecides(t, "forwarding is shared by the NICs")
			}
			for _, value := range []string{"0", "1"} {
				n := nstest.NewNetwork(t)
				secondNIC(n, "10.250.0.7/24", "fd00:250::7/64")
				n.Pod.Exec("sh", "-c", "sysctl -qw "+test.sysctl+"="+value+" || true") // a kernel may not have it yet
				read := func() string { return n.Pod.Exec("sh", "-c", "sysctl -n "+test.sysctl+" 2>/dev/null || true") }
				was, before := read(), sorted(settled(t, n))
				first, second := config(n, test.first), configOfSecondNIC(n, test.second)
				for _, c := range []*wired.NIC{&first, &second} {
					switch c.Binding.(type) {
					case infra.Macvtap, infra.SRIOV, infra.Passt, infra.Slirp:
						c.DNS, c.AcceptLosses = nil, true
					}
				}
				for _, order := range [][2]wired.NIC{{first, second}, {second, first}} {
					setup(t, order[0])
					setup(t, order[1])
					unwire(t, order[0])
					check(t, order[1])
					unwire(t, order[1])
					// Routes of two links that are equal but for the link have changed places.
					nstest.Eventually(t, func() error { return difference(before, sorted(n.Pod.Dump())) })
					if now := read(); was != "" && now != was {
						t.Errorf("%s is %q, and was %q", test.sysctl, now, was)
					}
				}
			}
		})
	}
}
