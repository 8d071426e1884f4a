package phase1_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestLater: Check reports what the namespace has got since Setup, if the guest does not have it, and Plan and a
// later Setup say so. Without the thing, Check finds nothing.
func TestLater(t *testing.T) {
	t.Parallel()
	const gets = ": the guest gets it after a Teardown and another Setup"
	const getsBoth = ": the guest gets what it lacks of them after a Teardown and another Setup"
	const loses = ": after a Teardown and another Setup with BINDING this is lost: "
	const refuses = ", and after a Teardown Setup refuses the NIC with it: "
	bindings := []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}, infra.Passt{}, infra.Slirp{}}
	for _, c := range []struct {
		before string // lines
		add    string // lines with "add", which becomes "del"
		text   string
		want   map[cache.Kind]string // what follows the text; "": no difference
	}{
		{"", "address add 10.244.1.77/24 dev eth0", "address 10.244.1.77/24 of eth0", map[cache.Kind]string{
			cache.BindingRedirect: loses + "DHCPv4 leases one address, 10.244.1.7: configure it in the guest",
			cache.BindingRouted:   loses + "DHCPv4 leases one address, 10.244.1.7: configure it in the guest",
			cache.BindingPasst:    loses + "passt gives the guest one address of a family, 10.244.1.7",
		}},
		{"", "address add fd00:244:1::77/64 dev eth0 nodad", "address fd00:244:1::77/64 of eth0", map[cache.Kind]string{
			cache.BindingRedirect: gets,
			cache.BindingRouted:   gets,
			cache.BindingPasst:    loses + "passt gives the guest one address of a family, fd00:244:1::77",
		}},
		{"", "route add 203.0.113.0/24 via 10.244.1.3 dev eth0", "route 203.0.113.0/24 via 10.244.1.3 dev eth0", map[cache.Kind]string{
			cache.BindingRedirect: gets,
		}},
		{"", "route add 203.0.113.0/24 via 10.244.1.1 dev eth0", "route 203.0.113.0/24 via 10.244.1.1 dev eth0", nil}, // the default route's gateway
		{"", "-6 route add 2001:db8:7::/48 via fd00:244:1::3 dev eth0", "route 2001:db8:7::/48 via fd00:244:1::3 dev eth0 metric 1024", map[cache.Kind]string{
			cache.BindingRedirect: loses + "its next hop is fd00:244:1::3, and the guest has one router, fd00:244:1::1",
		}},
		{"", "address add 192.0.2.7/32 dev lo", "address 192.0.2.7/32 of lo", map[cache.Kind]string{
			cache.BindingBridge:   loses + "it is on lo, and the namespace answers nothing by eth0 any more",
			cache.BindingRedirect: loses + "it is on lo, and the namespace answers nothing by eth0 any more",
		}},
		{"", "rule add pref 99 fwmark 1 lookup 100", "policy rule 99 of IPv4, table 100,", map[cache.Kind]string{
			cache.BindingBridge:   loses + "a guest cannot learn policy rules by DHCP",
			cache.BindingRedirect: loses + "a guest cannot learn policy rules by DHCP",
		}},
		{"", "rule add pref 100 to 10.0.2.0/24 lookup 100", "", nil}, // the table has no route
		{"", "rule add pref 100 to 192.0.2.0/24 lookup 100\nroute add 192.0.0.0/16 via 10.244.1.3 dev eth0 table 100", "policy rule 100 of IPv4, table 100, and route 192.0.0.0/16 via 10.244.1.3 dev eth0 table 100", map[cache.Kind]string{
			cache.BindingRedirect: getsBoth,
		}},
		{"", "address add 10.244.1.7/16 dev eth0", "address 10.244.1.7/16 of eth0", map[cache.Kind]string{ // the guest has the address
			cache.BindingRedirect: gets,
		}},
		{"", "route add blackhole 203.0.113.0/24", "route blackhole 203.0.113.0/24", map[cache.Kind]string{
			cache.BindingBridge:   loses + "a lease has no such routes",
			cache.BindingRedirect: loses + "a lease has no such routes",
		}},
		{"", "route add 203.0.113.0/24 via 10.244.1.1 dev eth0 mtu 1300", "route 203.0.113.0/24 via 10.244.1.1 dev eth0 mtu 1300", map[cache.Kind]string{
			cache.BindingRedirect: gets,
		}},
		{"", "-6 route append default via fd00:244:1::2 dev eth0", "route ::/0 metric 1024 nexthop via fd00:244:1::1 dev eth0 weight 1 nexthop via fd00:244:1::2 dev eth0 weight 1", map[cache.Kind]string{
			cache.BindingRedirect: loses + "the guest gets one of 2, ",
			cache.BindingPasst:    loses + "passt serves it only with a default route by eth0",
		}},
		{"", "route prepend default via 10.244.1.3 dev eth0", "route default via 10.244.1.3 dev eth0", map[cache.Kind]string{
			cache.BindingRedirect: gets,
		}},
		{"", "route append default via 10.244.1.3 dev eth0", "", nil}, // the kernel asks the first one
		{"-6 route del default", "-6 route add default via fd00:244:1::1 dev eth0", "route ::/0 via fd00:244:1::1 dev eth0 metric 1024", map[cache.Kind]string{
			cache.BindingRedirect: gets, // though the namespace need not know the gateway's MAC
			cache.BindingRouted:   gets,
			cache.BindingPasst:    gets,
		}},
		{"-6 address flush dev eth0 scope global\n-6 route flush dev eth0", "address add fd00:244:1::7/64 dev eth0 nodad", "address fd00:244:1::7/64 of eth0", map[cache.Kind]string{
			cache.BindingRedirect:   gets,
			cache.BindingRouted:     gets,
			cache.BindingMasquerade: ": the guest gets IPv6 after a Teardown and another Setup",
			cache.BindingPasst:      loses + "passt serves it only with a default route by eth0",
		}},
		{"", "rule add pref 100 from 10.244.1.7 lookup 77\nroute add default via 10.244.1.1 dev eth0 table 77", "policy rule 100 of IPv4, table 77, and route default via 10.244.1.1 dev eth0 table 77", map[cache.Kind]string{
			cache.BindingRedirect:   getsBoth, // the rule leads there
			cache.BindingMasquerade: refuses,
		}},
		{"rule add pref 100 fwmark 1 lookup 77", "rule add pref 101 fwmark 1 lookup 77\nrule del pref 100 fwmark 1 lookup 77", "", nil}, // moved
		{"", "rule add pref 100 fwmark 1 lookup 77\nroute add local default dev lo table 77", "policy rule 100 of IPv4, table 77,", map[cache.Kind]string{
			cache.BindingBridge:     loses + "a guest cannot learn policy rules by DHCP",
			cache.BindingRedirect:   loses + "a guest cannot learn policy rules by DHCP",
			cache.BindingMasquerade: loses + "the policy rule with the preference 100 comes before main",
		}},
		{"route add default via 10.244.1.1 dev eth0 table 77", "rule add pref 100 from 10.244.1.7 lookup 77", "policy rule 100 of IPv4, table 77,", map[cache.Kind]string{
			cache.BindingRedirect:   ": the guest's routes follow it after a Teardown and another Setup",
			cache.BindingBridge:     ": the guest's routes follow it after a Teardown and another Setup",
			cache.BindingMasquerade: refuses,
		}},
		{"", "route add 10.244.0.0/16 dev eth0 scope link metric 100", "route 10.244.0.0/16 dev eth0 scope link metric 100", map[cache.Kind]string{
			cache.BindingRedirect: gets,
		}},
		{"", "rule add pref 100 from 10.244.1.0/24 prohibit", "policy rule 100 of IPv4", map[cache.Kind]string{
			cache.BindingBridge:   loses + "a guest cannot learn policy rules by DHCP",
			cache.BindingRedirect: loses + "a guest cannot learn policy rules by DHCP",
			// Answers to the guest, too.
			cache.BindingMasquerade: loses + "the policy rule with the preference 100 comes before main",
		}},
		{"-6 rule add pref 100 lookup 77", "-6 route add default from 2001:db8:9::/64 via fd00:244:1::1 dev eth0 table 77", "route ::/0 from 2001:db8:9::/64 via fd00:244:1::1 dev eth0 table 77 metric 1024", map[cache.Kind]string{
			cache.BindingMasquerade: loses + "the policy rule with the preference 100 comes before main",
		}},
		{"rule add pref 100 lookup 77", "route add default via 10.244.1.1 dev eth0 table 77 tos 0x10", "route default tos 0x10 via 10.244.1.1 dev eth0 table 77", map[cache.Kind]string{
			cache.BindingRedirect:   loses + "a lease has no routes for some packets to a destination",
			cache.BindingMasquerade: loses + "the policy rule with the preference 100 comes before main",
		}},
		{"", "route add multicast 224.0.0.0/4 dev eth0", "", nil},
		{"-6 address flush dev eth0 scope global\n-6 route flush dev eth0\n-6 address add 2001:db8::7/128 dev lo", "-6 route add 2001:db8:9::/64 dev eth0", "route 2001:db8:9::/64 dev eth0 metric 1024", map[cache.Kind]string{
			cache.BindingRedirect: refuses, cache.BindingRouted: refuses, cache.BindingMasquerade: refuses,
		}},
		{"-6 address flush dev eth0 scope global\n-6 route flush dev eth0\n-6 address add 2001:db8::7/128 dev lo", "-6 rule add pref 100 from 2001:db8::7 lookup 77\n-6 route add 2001:db8:9::/64 dev eth0 table 77", "policy rule 100 of IPv6, table 77, and route 2001:db8:9::/64 dev eth0 table 77 metric 1024", map[cache.Kind]string{
			cache.BindingRedirect: refuses, cache.BindingRouted: refuses, cache.BindingMasquerade: refuses,
		}},
	} {
		for _, b := range bindings {
			n := nstest.NewNetwork(t)
			ip := func(lines string) {
				for line := range strings.Lines(lines) {
					n.Pod.IP(strings.TrimSpace(line))
				}
			}
			ip(c.before)
			nic := config(n, b)
			nic.DNS = nil // passt and slirp have their own
			said := ""
			nic.Progress = func(text string) { said += text + "\n" }
			nic.AcceptLosses = b.Kind() == cache.BindingPasst
			setup(t, nic)
			if b.Kind() == cache.BindingRouted && strings.Contains(c.add, "10.244.1.7/") {
				continue // Steps has the local route that comes with it
			}
			if b.Kind() == cache.BindingBridge && strings.Contains(c.add, "dev eth0") {
				continue // Steps has them: TestAddressAdded
			}
			ip(c.add)
			var drift *phase1.DriftError
			if err := nic.Check(t.Context()); err != nil && !errors.As(err, &drift) {
				t.Fatal(err)
			}
			want, have := strings.Replace(c.want[b.Kind()], "BINDING", string(b.Kind()), 1), ""
			if drift != nil {
				at := slices.IndexFunc(drift.Differs, func(d cache.Finding) bool { return d.Kind == "later" })
				if len(drift.Differs) != 1 || at != 0 || len(drift.Repair) > 0 || drift.Differs[0].Link != "eth0" {
					t.Errorf("%s, %s: %+v", b.Kind(), c.add, drift)
					continue
				}
				have = drift.Differs[0].String()
			}
			way, why, _ := strings.Cut(want, "lost: ") // the loss is between them
			if (have != "") != (want != "") || want != "" && !strings.HasPrefix(have, c.text+" came after Setup"+way) || !strings.Contains(have, why) {
				t.Errorf("%s, %s: Check says %q, want %q", b.Kind(), c.add, have, want)
			}
			preview, err := nic.Plan(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if drift != nil && !slices.Equal(preview.Later, drift.Differs) || drift == nil && len(preview.Later) > 0 {
				t.Errorf("%s, %s: Plan has %+v", b.Kind(), c.add, preview.Later)
			}
			said = ""
			setup(t, nic)
			if (want != "") != strings.Contains(said, "NIC eth0: "+have+"\n") {
				t.Errorf("%s, %s: Setup says %q", b.Kind(), c.add, said)
			}
			ip(strings.NewReplacer(" nodad", "", " add ", " del ", " append ", " del ", " prepend ", " del ", " del ", " add ").Replace(c.add))
			check(t, nic)
			if want == "" {
				continue
			}
			unwire(t, nic)
			ip(c.add)
			record, err := nic.Setup(t.Context())
			if want == refuses {
				var refused *infra.RefusedError
				if !errors.As(err, &refused) {
					t.Errorf("%s, %s: after a Teardown Setup returns %v, want a RefusedError", b.Kind(), c.add, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			check(t, nic)
			if lost := len(record.Losses) > 0; lost != strings.Contains(want, "lost: ") {
				t.Errorf("%s, %s: after the way out the losses are %+v", b.Kind(), c.add, record.Losses)
			}
		}
	}
}
