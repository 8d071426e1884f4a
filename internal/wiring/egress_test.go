package wiring_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/policy"
	"github.com/guestwire/guestwire/internal/wiring"
)

// destinationsOf are the sets of the plan's table by which the guest is forwarded.
func destinationsOf(t *testing.T, found netstate.Snapshot, spec asked) (sets []firewall.Destinations) {
	t.Helper()
	return setsOf(newPlan(t, found, spec))
}

func setsOf(plan *wiring.Plan) (sets []firewall.Destinations) {
	for _, table := range plan.Tables() {
		sets = append(sets, table.Destinations...)
	}
	return sets
}

// opens reports whether the sets let the guest open TCP port 80 of the address.
func opens(sets []firewall.Destinations, to string) bool {
	return !policy.Judge(sets).Refuses(netip.AddrPortFrom(ip(to), 80), firewall.ProtocolTCP)
}

// TestEgressTooMany: a policy that makes too many sets or too large ones is refused, by the field's name.
func TestEgressTooMany(t *testing.T) {
	var texts []string
	for i := range 8000 {
		texts = append(texts, fmt.Sprintf("refuse 10.0.%d.%d", i/128, i%128*2), fmt.Sprintf("allow all %d", 2*i+1))
	}
	_, err := tryPlan(flannel(), withSpec(masquerade(), func(s *asked) { s.Egress = egressOf(append(texts, "refuse all")...) }))
	var field *cache.FieldError
	if !errors.As(err, &field) || field.Field != "egress" || !strings.Contains(field.Reason, "name fewer") {
		t.Error(err)
	}
}

// TestEgressLists: what the lists mean that depend on namespace and Spec.
func TestEgressLists(t *testing.T) {
	dns := &cache.DNS{Servers: []netip.Addr{ip("10.96.0.10"), ip("fd00:10:96::a"), ip("::ffff:10.96.0.11")}}
	only := func(found netstate.Snapshot, list string) string {
		var text []string
		for _, s := range destinationsOf(t, found, withSpec(masquerade(), func(s *asked) { s.DNS, s.Egress = dns, egressOf("allow "+list, "refuse all") })) {
			if strings.HasPrefix(s.Name, "pinnable-") {
				continue
			}
			for _, b := range s.Boxes {
				text = append(text, strings.TrimSuffix(b.String(), " . 0-255 . 0-65535"))
			}
		}
		return strings.Join(text, ", ")
	}
	for _, c := range []struct {
		found      netstate.Snapshot
		list, want string
	}{
		{flannel(), "resolvers", "10.96.0.10/31, 64:ff9b::a60:a/127, fd00:10:96::a"},
		{flannel(), "nic-networks", "10.244.1.0, 10.244.1.2-10.244.1.255, 64:ff9b::af4:100, 64:ff9b::af4:102-64:ff9b::af4:1ff, fd00:244:1::, fd00:244:1::2-fd00:244:1:0:ffff:ffff:ffff:ffff, fe80::/64"},
		{lan4With(func(s *netstate.Snapshot) { // tun: a default route is no network
			s.Routes = []netstate.Route{onLink("0.0.0.0/0"), connected("10.244.1.7/24")}
			s.Addresses = s.Addresses[:1]
		}), "nic-networks", "10.244.1.0/24"},
		{lan4With(func(s *netstate.Snapshot) { // ptp: the link has the next hop alone
			s.Addresses = []netstate.Address{address("10.244.1.7/32")}
			s.Routes = []netstate.Route{via("0.0.0.0/0", "169.254.1.1"), onLink("169.254.1.1/32")}
		}), "nic-networks", "10.244.1.7"},
		{lan4With(func(s *netstate.Snapshot) { // a part of the network is beyond another link
			addNet1(s)
			s.Routes[0] = netstate.Route{Table: netstate.TableMain, Destination: pfx("10.9.0.0/24"), Type: netstate.RouteUnicast, Protocol: netstate.ProtocolStatic,
				Hops: []netstate.Hop{{Link: nic}, {Link: 3, Gateway: ip("10.50.0.1")}}}
		}), "nic-networks", "10.9.0.0/24, 10.244.1.0/24"},
		{lan4(), "10.9.0.0/16", "10.9.0.0/16"},
	} {
		if have := only(c.found, c.list); have != c.want {
			t.Errorf("%s: %s\nwant %s", c.list, have, c.want)
		}
	}
}

// TestEgressNetworks: nic-networks are those that the NIC has now. What the wiring adds to the NIC, what Setup gives
// back to it, and what no packet of the guest can reach, is no difference. The journal keeps the NIC as the first Setup
// found it.
func TestEgressNetworks(t *testing.T) {
	later, later6 := address("10.9.0.5/24"), address("fd00:9::5/64")
	for _, spec := range []asked{masquerade(), routed()} {
		spec.Egress = egressOf("refuse nic-networks", "allow 10.99.0.0/16", "refuse all 25", "allow all")
		unrouted := flannelWith(func(s *netstate.Snapshot) { // an address without a route to its network
			s.Addresses = append(s.Addresses, withAddress(address("10.77.0.5/24"), func(a *netstate.Address) { a.Flags = netstate.AddrNoPrefixRoute }))
		})
		leased := flannelWith(func(s *netstate.Snapshot) {
			for i := range 2 {
				s.Addresses[i].ValidSeconds, s.Addresses[i].PreferredSeconds = 3600, 1800
			}
		})
		isLinkLocal := func(a netstate.Address) bool { return a.Prefix == linkLocal().Prefix }
		without := flannelWith(func(s *netstate.Snapshot) {
			s.Addresses = slices.DeleteFunc(s.Addresses, isLinkLocal)
			s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool { return r.Destination == pfx("fe80::/64") })
		})
		for _, c := range []struct {
			name    string
			found   netstate.Snapshot
			edit    func(s *netstate.Snapshot)
			want    string
			refused []string // and not before
			allowed []string // likewise
		}{
			{"nothing", flannel(), func(*netstate.Snapshot) {}, "", nil, nil},
			{"an address", flannel(), func(s *netstate.Snapshot) { s.Addresses = append(s.Addresses, later) }, "10.9.0.0/24 is new", []string{"10.9.0.9"}, nil},
			{"two", flannel(), func(s *netstate.Snapshot) { s.Addresses = append(s.Addresses, later, later6) }, "10.9.0.0/24 is new, fd00:9::/64 is new", []string{"10.9.0.9", "fd00:9::9", "64:ff9b::10.9.0.9"}, nil},
			{"a second address of a network", flannel(), func(s *netstate.Snapshot) { s.Addresses = append(s.Addresses, address("10.244.1.8/24")) }, "", nil, nil},
			{"a prefix that a router advertises", flannel(), func(s *netstate.Snapshot) {
				s.Routes = append(s.Routes, withRoute(connected6("2001:db8:5::/64"), func(r *netstate.Route) { r.ExpiresSeconds = 1800 }))
			}, "2001:db8:5::/64 is new", []string{"2001:db8:5::9"}, nil},
			{"a network by a route alone", flannel(), func(s *netstate.Snapshot) { s.Routes = append(s.Routes, onLink("10.9.0.0/24")) }, "10.9.0.0/24 is new", []string{"10.9.0.9"}, nil},
			{"a next hop", flannel(), func(s *netstate.Snapshot) { s.Routes = append(s.Routes, via("203.0.113.0/24", "10.244.1.44")) }, "10.244.1.44 is a next hop", nil, []string{"10.244.1.44"}},
			{"next hops of one route", flannel(), func(s *netstate.Snapshot) {
				s.Routes = append(s.Routes, multipath("203.0.113.0/24", "10.244.1.44", "10.244.1.1"))
			}, "10.244.1.44 is a next hop", nil, []string{"10.244.1.44"}},
			{"a next hop elsewhere", flannel(), func(s *netstate.Snapshot) { s.Routes = append(s.Routes, via("203.0.113.0/24", "192.0.2.1")) }, "", nil, nil},
			{"a link-local router", flannel(), func(s *netstate.Snapshot) { s.Routes = append(s.Routes, via("2001:db8:7::/64", "fe80::7")) }, "", nil, nil},
			{"a link-local address that comes", without, func(s *netstate.Snapshot) {
				s.Addresses, s.Routes = append(s.Addresses, linkLocal()), append(s.Routes, connected6("fe80::/64"))
			}, "", nil, nil},
			{"an address that Setup gives back", unrouted, func(s *netstate.Snapshot) {
				s.Addresses = slices.DeleteFunc(s.Addresses, func(a netstate.Address) bool { return a.Prefix == pfx("10.77.0.5/24") })
			}, "", nil, nil},
			{"routes that Setup gives back", flannel(), func(s *netstate.Snapshot) {
				s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool { return r.Uses(nic) })
			}, "", nil, nil},
			{"a second NIC", flannel(), addNet1, "", nil, nil},
			{"another network than the guest has by policy", flannel(), func(s *netstate.Snapshot) { s.Addresses = append(s.Addresses, address("10.244.1.9/28")) }, "", nil, nil},
			{"the NIC is down", leased, func(s *netstate.Snapshot) {
				for i := range s.Links {
					s.Links[i].Up = s.Links[i].Up && s.Links[i].Index != nic
				}
				s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool { return r.Uses(nic) })
				s.Addresses = append(slices.DeleteFunc(s.Addresses, func(a netstate.Address) bool { return a.Link == nic && a.Prefix.Addr().Is6() }), later)
			}, "10.9.0.0/24 is new", []string{"10.9.0.9"}, nil},
			{"the NIC is gone", flannel(), func(s *netstate.Snapshot) {
				s.Links = slices.DeleteFunc(s.Links, func(l netstate.Link) bool { return l.Index == nic })
				s.Addresses = nil
			}, "", nil, nil},
		} {
			name := fmt.Sprintf("%s, %s", spec.Binding.Kind(), c.name)
			plan := newPlan(t, c.found, spec)
			was := wire(t, plan, c.found).snapshot()
			now := clone(was)
			c.edit(&now)
			present, seen, changed, err := plan.Present(now)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if said := strings.TrimPrefix(strings.Trim(fmt.Sprint(changed), "[]"), "egress: nic-networks has changed: "); changed == nil && c.want != "" || changed != nil && said != c.want {
				t.Errorf("%s: it differs in %v, want %q", name, changed, c.want)
			}
			before, after := setsOf(plan), setsOf(present)
			for list, is := range map[*[]string]bool{&c.refused: false, &c.allowed: true} {
				for _, to := range *list {
					was, then := opens(before, to), opens(after, to)
					if was == is || then != is {
						t.Errorf("%s: before, %s is allowed: %t; then: %t", name, to, was, then)
					}
				}
			}
			if changed == nil {
				if !reflect.DeepEqual(before, after) {
					t.Errorf("%s: the policy changes without a word", name)
				}
				continue
			}
			j, err := json.Marshal(present.Journal())
			if err != nil {
				t.Fatal(err)
			}
			var again wiring.Journal
			if err := json.Unmarshal(j, &again); err != nil || !reflect.DeepEqual(again.Found, plan.Journal().Found) {
				t.Errorf("%s: the journal has another NIC than was found, %v", name, err)
			}
			replan, err := again.Plan()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if same, _, changed, err := replan.Present(seen); err != nil || changed != nil || same != replan || !reflect.DeepEqual(setsOf(replan), after) {
				t.Errorf("%s: by the journal it differs in %v, %v", name, changed, err)
			}
			back, _, changed, err := replan.Present(was)
			if err != nil || changed == nil || !reflect.DeepEqual(setsOf(back), before) || back.Journal().Networks != nil {
				t.Errorf("%s: where the NIC is as it was found, it differs in %v, %v", name, changed, err)
			}
		}
	}
}

// TestEgressNetworksUnnamed: a policy that names no nic-networks does not depend on them, and a difference names the
// list that does. It names some changes, and counts the others.
func TestEgressNetworksUnnamed(t *testing.T) {
	now := flannelWith(func(s *netstate.Snapshot) {
		for i := range 20 {
			s.Addresses = append(s.Addresses, address(fmt.Sprintf("10.9.%d.5/24", i)))
		}
	})
	unnamed := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) { s.Egress = egressOf("refuse private", "allow all") }))
	if same, _, changed, err := unnamed.Present(now); same != unnamed || changed != nil || err != nil {
		t.Errorf("%v, %v", changed, err)
	}
	within := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) {
		s.Egress, s.EgressWithin = egressOf("allow all"), egressOf("refuse nic-networks", "allow all")
	}))
	const want = "egressWithin: nic-networks has changed: 10.9.0.0/24 is new, 10.9.1.0/24 is new, 10.9.2.0/24 is new, 10.9.3.0/24 is new, 10.9.4.0/24 is new, 10.9.5.0/24 is new, 10.9.6.0/24 is new, 10.9.7.0/24 is new, 12 more"
	if _, _, changed, err := within.Present(now); err != nil || len(changed) != 1 || changed[0].What != want {
		t.Errorf("%v, %v; want %s", changed, err, want)
	}
	covered := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) { s.Egress = egressOf("refuse private", "refuse nic-networks", "allow all") }))
	if _, _, changed, err := covered.Present(now); changed != nil || err != nil {
		t.Errorf("a network that another entry refuses: %v, %v", changed, err)
	}
	scattered := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) {
		for i := range 500 {
			s.Egress = append(s.Egress, egressOf(fmt.Sprintf("refuse nic-networks %d", 2*i+1))...)
		}
		s.Egress = append(s.Egress, egressOf("allow all")...)
	}))
	for i := range 40 {
		now.Addresses = append(now.Addresses, address(fmt.Sprintf("10.%d.1.5/24", 2*i)))
	}
	var field *cache.FieldError
	if _, _, _, err := scattered.Present(now); !errors.As(err, &field) || field.Field != "egress" || !strings.Contains(err.Error(), "by the present networks of eth0: ") {
		t.Errorf("too many ranges: %v", err)
	}
}

// TestEgressWithin: alone, the second list is a policy as the first one is. Beside a list that allows all, too.
func TestEgressWithin(t *testing.T) {
	list, all := egressOf("refuse metadata", "allow 198.51.100.0/24 443", "allow all 53/udp", "refuse all"), egressOf("allow all")
	for _, spec := range []asked{routed(), masquerade(), auto()} {
		of := func(egress, within []infra.Egress) string {
			sets := destinationsOf(t, flannel(), withSpec(spec, func(s *asked) { s.Egress, s.EgressWithin = egress, within }))
			return fmt.Sprint(slices.DeleteFunc(sets, func(d firewall.Destinations) bool { return !strings.HasPrefix(d.Name, "egress-") }))
		}
		want := of(list, nil)
		for _, have := range []string{of(nil, list), of(all, list), of(list, all), of(list, list)} {
			if have != want {
				t.Errorf("have\n%s\nwant\n%s", have, want)
			}
		}
	}
}

// TestEgressAuto: Auto becomes a binding that tracks connections.
func TestEgressAuto(t *testing.T) {
	plan := newPlan(t, flannel(), withSpec(auto(), func(s *asked) { s.Egress = egressOf("refuse all") }))
	if kind := plan.Binding().Kind(); kind != cache.BindingRouted || len(plan.Refused) != 2 {
		t.Errorf("%s after %v, want routed after bridge and redirect", kind, plan.Refused)
	}
}

// TestEgressWithoutNFTables: iptables alone look up no destinations, and the refusal names the way out.
func TestEgressWithoutNFTables(t *testing.T) {
	for _, by := range []cache.Firewall{"", cache.FirewallIPTablesLegacy} {
		spec := withSpec(masquerade(), func(s *asked) {
			s.Binding, s.Guard.Off, s.Egress = infra.Masquerade{Firewall: by}, true, egressOf("refuse all")
		})
		_, err := tryPlan(flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), spec)
		var field *cache.FieldError
		if !errors.As(err, &field) || field.Field != "egress" || !strings.Contains(field.Reason, "modprobe nf_tables") {
			t.Errorf("%q: %v", by, err)
		}
		// The NIC was wired without nf_tables, and stays so.
		plan := newPlan(t, flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), withSpec(spec, func(s *asked) { s.Egress = nil }))
		later := plan.Journal()
		later.Spec.Egress = spec.Egress
		if _, err := later.Plan(); !errors.As(err, &field) || !strings.Contains(field.Reason, "take the NIC down if it is wired (Teardown), and call Setup") {
			t.Errorf("%q, wired: %v", by, err)
		}
		newPlan(t, flannel(), spec) // after that
	}
}
