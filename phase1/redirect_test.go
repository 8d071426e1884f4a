package phase1_test

import (
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestRedirectShares has somebody's qdisc and filters at the NIC's ingress before Setup: what they take
// the guest does not get, everything else it does, and they stay as they are.
func TestRedirectShares(t *testing.T) {
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
			s := newScene(t)
			s.Pod.IP("link add aside type veth peer name aside-end")
			s.Pod.IP("link set aside up")
			for _, line := range lines {
				s.Pod.Exec(strings.Fields(line)...)
			}
			theirs := func() string {
				out := s.Pod.Exec("sh", "-c", "tc qdisc show dev eth0; tc filter show dev eth0 ingress; tc filter show dev eth0 egress; nft list tables")
				return strings.ReplaceAll(out, "table netdev guestwire-eth0\n", "")
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
				t.Errorf("what is somebody's: %v", err)
			}
			teardown(t, s.Network, c, before)
		})
	}
}

// TestAuto: the first binding that can work, said in the plan and in the record; called again it is the
// same one.
func TestAuto(t *testing.T) {
	for _, test := range []struct {
		name, lay, want string
		says            []string
	}{
		{"veth", "", "bridge", []string{"# binding: bridge\n"}},
		{"macvlan", "link add link up0 name eth0 type macvlan mode bridge", "redirect",
			[]string{"# binding: redirect\n", "# not bridge: a macvlan in mode bridge receives only for its own MAC\n"}},
		{"tun", "tuntap add eth0 mode tun", "masquerade",
			[]string{"# binding: masquerade\n", "# not bridge: it carries no Ethernet with ARP\n", "# not redirect: it carries no Ethernet\n"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := nstest.NewNetwork(t)
			if test.lay != "" {
				n.Pod.IP("link set eth0 down")
				n.Pod.IP("link set eth0 name up0")
				n.Pod.IP("link set up0 up")
				n.Pod.IP(test.lay)
				n.Pod.IP("addr flush dev up0")
				n.Pod.IP("addr add 10.244.1.7/24 dev eth0")
				n.Pod.IP("link set eth0 up")
			}
			before := settled(t, n)
			c := config(n, infra.Auto{})
			preview, err := phase1.Plan(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if preview.Record.Binding != test.want || len(preview.Refused) != len(test.says)-1 || !strings.HasPrefix(preview.String(), strings.Join(test.says, "")) {
				t.Errorf("binding %s, refused %v, and the plan begins\n%.300s\nwant %s and\n%s", preview.Record.Binding, preview.Refused, preview, test.want, strings.Join(test.says, ""))
			}
			if err := difference(before, n.Pod.Dump()); err != nil {
				t.Errorf("the plan changed something: %v", err)
			}
			setup(t, c)
			if got := record(t, n).Binding; got != test.want {
				t.Errorf("the binding is %s, want %s", got, test.want)
			}
			wired := n.Pod.Dump()
			setup(t, c)
			if err := difference(stable(wired), stable(n.Pod.Dump())); err != nil {
				t.Errorf("a second Setup changed something: %v", err)
			}
			if err := phase1.Check(t.Context(), c); err != nil {
				t.Error(err)
			}
			teardown(t, n, c, before)
		})
	}
}

// TestRulesOfTheNamespace: what the namespace's own rules drop they do not drop for a guest that is the
// pod, and they stay.
func TestRulesOfTheNamespace(t *testing.T) {
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		t.Run(b.Kind(), func(t *testing.T) {
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
			teardown(t, s.Network, c, before)
		})
	}
}
