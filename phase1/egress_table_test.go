package phase1_test

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// byNFTables reports whether the binding needs no iptables, which take long in an emulated machine.
func byNFTables(b infra.Binding) bool {
	m, is := b.(infra.Masquerade)
	return !is || m.Firewall == cache.FirewallNFTables
}

// TestChecksumTable: a NIC with a policy has a chain in the table mangle, which others use as well. It comes with the
// first policy and goes with the last one, also by ForceTeardown. What other NICs and other programs have there stays.
// What is done to the chain, Check finds and Setup repairs.
func TestChecksumTable(t *testing.T) {
	nstest.Long(t)
	nstest.Need(t, "iptables-nft")
	eachTracking(t, func(t *testing.T, b infra.Binding) {
		if byNFTables(b) {
			nstest.KernelDecides(t, "iptables' CHECKSUM")
		}
		n := nstest.NewNetwork(t)
		secondNIC(n, "192.168.9.2/24", "fd00:9::2/64")
		n.Pod.Settle("net1")
		list := func() string {
			return n.Pod.Exec("sh", "-c", "nft list table ip mangle; nft list table ip6 mangle; true")
		}
		has := func(when string, chains ...string) {
			t.Helper()
			have := list()
			for _, chain := range []string{"guestwire-eth0", "guestwire-net1", "PREROUTING"} {
				want := 0
				for _, c := range chains {
					if c == chain {
						want = 2
					}
				}
				if strings.Count(have, "chain "+chain+" {") != want {
					t.Errorf("%s: want %q\n%s", when, chains, have)
				}
			}
			if len(chains) == 0 && strings.Contains(have, "table") {
				t.Errorf("%s: left is\n%s", when, have)
			}
		}
		refuse := policy(t, "allow 198.51.100.9 53/udp", "refuse all")
		first, second := config(n, b), configOfSecondNIC(n, b)
		if m, is := b.(infra.Masquerade); is {
			m.IPv4, m.IPv6 = netip.MustParsePrefix("10.0.3.0/24"), netip.MustParsePrefix("fd10:0:3::/64")
			second.Binding = m
		}
		first.State, second.State = filepath.Join(n.State, "first"), filepath.Join(n.State, "second")
		setup(t, first)
		has("without a policy")
		first.Egress = refuse
		setup(t, first)
		check(t, first)
		has("with the first policy", "guestwire-eth0")
		if b.Kind() == cache.BindingMasquerade { // two NICs have their hops in one namespace
			second.EgressWithin = refuse
			setup(t, second)
			check(t, first)
			check(t, second)
			has("with two NICs", "guestwire-eth0", "guestwire-net1")
			unwire(t, second)
			check(t, first)
			has("with one NIC", "guestwire-eth0")
		}
		foreign := []string{"iptables-nft -t mangle -A PREROUTING -i lo -j ACCEPT", "ip6tables-nft -t mangle -A PREROUTING -i lo -j ACCEPT"}
		n.Pod.Exec("sh", "-c", strings.Join(foreign, "; "))
		check(t, first)
		has("with iptables", "guestwire-eth0", "PREROUTING")
		for _, show := range []string{"iptables-nft -t mangle -S", "ip6tables-nft -t mangle -S", "iptables-nft -t mangle -S PREROUTING", "iptables-nft-save -t mangle"} {
			if have := n.Pod.Exec("sh", "-c", show); !strings.Contains(have, "-A PREROUTING -i lo -j ACCEPT") {
				t.Errorf("beside the chain, %s shows\n%s", show, have)
			}
		}
		damages := map[string]string{}
		if byNFTables(b) { // to read iptables takes long
			damages = map[string]string{
				"nft flush chain ip mangle guestwire-eth0":                                                "chain guestwire-eth0 of the nftables table ip mangle",
				"nft add rule ip6 mangle guestwire-eth0 accept":                                           "extra rule",
				"nft 'flush chain ip mangle guestwire-eth0; delete chain ip mangle guestwire-eth0'":       "chain guestwire-eth0 of the nftables table ip mangle is gone",
				"nft 'add table ip mangle { flags dormant; }'":                                            "dormant",
				"iptables-nft -t mangle -F; " + foreign[0]:                                                "lacks the rule",
				"printf '*mangle\nCOMMIT\n' | iptables-nft-restore; " + foreign[0]:                        "is gone",
				"nft delete table ip6 mangle; " + foreign[1]:                                              "chain guestwire-eth0 of the nftables table ip6 mangle is gone",
				"nft delete table ip mangle; nft delete table ip6 mangle; " + strings.Join(foreign, "; "): "is gone",
			}
		}
		for damage, words := range damages {
			n.Pod.Exec("sh", "-c", damage)
			drifted(t, first, words)
			has("after "+damage, "guestwire-eth0", "PREROUTING")
		}
		unwire(t, first)
		has("after Teardown", "PREROUTING")

		setup(t, first)
		harmJournal(t, n, "cut in half")
		if _, err := first.ForceTeardown(t.Context()); err != nil {
			t.Fatal(err)
		}
		has("after ForceTeardown", "PREROUTING")
		n.Pod.Exec("sh", "-c", "nft delete table ip mangle; nft delete table ip6 mangle")
		setup(t, first)
		first.Egress = nil
		setup(t, first)
		check(t, first)
		has("without a policy again")
		unwire(t, first)
		has("at the end")
	})
}
