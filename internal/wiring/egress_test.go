package wiring_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
	"github.com/guestwire/guestwire/internal/wiring"
)

// policy is a Spec's Egress of texts.
func policy(texts ...string) (list []infra.Egress) {
	for _, text := range texts {
		var e infra.Egress
		if err := e.UnmarshalText([]byte(text)); err != nil {
			panic(err)
		}
		list = append(list, e)
	}
	return list
}

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

// packet is one of the guest's.
type packet struct {
	to       netip.Addr
	protocol uint8
	port     uint16
}

// isIn reports whether the packet is in a box of the sets whose name has the beginning, and refuses boxes that overlap.
func (p packet) isIn(t *testing.T, name string, sets []firewall.Destinations) (is bool) {
	t.Helper()
	for _, s := range sets {
		if !strings.HasPrefix(s.Name, name) {
			continue
		}
		for i, b := range s.Boxes {
			if b.AllPorts() != s.AllPorts || s.AllPorts && i > 0 && s.Boxes[i-1].Last.Next() == b.First {
				t.Fatalf("%v is in the wrong set, or touches the box before, in\n%v", b, s)
			}
			in := p.to.BitLen() == b.First.BitLen() && b.First.Compare(p.to) <= 0 && p.to.Compare(b.Last) <= 0 &&
				b.FirstProtocol <= p.protocol && p.protocol <= b.LastProtocol && b.FirstPort <= p.port && p.port <= b.LastPort
			if in && is {
				t.Fatalf("%v is in two boxes of\n%v", p, s)
			}
			is = is || in
		}
	}
	return is
}

// decided is the entry that decides; an empty list has none and allows all.
func (p packet) decided(list []infra.Egress) int {
	if len(list) == 0 {
		return -1
	}
	to := p.to
	if nat64 := netip.MustParsePrefix("64:ff9b::/96"); nat64.Contains(to) {
		octets := to.As16()
		to = netip.AddrFrom4([4]byte(octets[12:]))
	}
	for i, e := range list {
		if !slices.ContainsFunc(syntax.Destinations(e.To), func(n netip.Prefix) bool { return n.Contains(p.to) || n.Contains(to) }) {
			continue
		}
		protocols := map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132, "icmp": map[bool]uint8{true: 1, false: 58}[p.to.Is4()]}
		if e.Ports != (infra.Ports{}) && protocols[syntax.Ports(e.Ports).Full().Protocol] != p.protocol {
			continue
		}
		if e.Ports.First != 0 && (p.port < e.Ports.First || p.port > syntax.Ports(e.Ports).Full().Last) {
			continue
		}
		return i
	}
	panic("no entry decides")
}

// TestEgressOrder: of random policies, the boxes say of each packet what the first entry that matches says, of each
// list that is set, and those of refused that another entry than the last one of Egress refuses. They do not overlap,
// which the kernel would refuse.
func TestEgressOrder(t *testing.T) {
	const seed = 32
	r := rand.New(rand.NewPCG(seed, seed))
	networks := []string{"all", "private", "link-local", "metadata", "10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9", "10.0.0.255", "10.0.1.0/24",
		"255.255.255.255", "0.0.0.0/1", "240.0.0.0/4", "fd00::/8", "fd00::/64", "fd00::1", "ffff::/16", "64:ff9b::/96", "64:ff9b::a00:0/104", "::/1"}
	what := []string{"", "", "tcp", "udp", "icmp", " 1-65535/tcp", "53/udp", "80", "79-81/tcp", "81-90", "443/sctp", "65535/udp", "1-52/udp"}
	addresses := strings.Fields("0.0.0.0 9.255.255.255 10.0.0.0 10.0.0.254 10.0.0.255 10.0.1.0 10.127.255.255 10.128.0.0 10.255.255.255 11.0.0.0 100.100.100.200 " +
		"127.255.255.255 128.0.0.0 169.254.169.254 239.255.255.255 240.0.0.0 255.255.255.254 255.255.255.255 " +
		":: 7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 8000:: fd00:: fd00::1 fd00::2 fd00:0:0:1:: fd00:ec2::254 fe80::1 fe80::a9fe:a9fe ffff:: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff " +
		"64:ff9b::a00:ff 64:ff9b::a80:0 64:ff9b::808:808 64:ff9b::1:0:0")
	protocols := []uint8{0, 1, 5, 6, 7, 16, 17, 18, 58, 131, 132, 133, 255}
	ports := []uint16{0, 1, 52, 53, 54, 78, 79, 80, 81, 82, 90, 91, 443, 65534, 65535}
	random := func() []infra.Egress {
		var texts []string
		for range r.IntN(8) {
			verb := []string{"allow", "refuse"}[r.IntN(2)]
			texts = append(texts, fmt.Sprintf("%s %s %s", verb, networks[r.IntN(len(networks))], what[r.IntN(len(what))]))
		}
		return policy(append(texts, []string{"allow all", "refuse all"}[r.IntN(2)])...)
	}
	valid := func() []infra.Egress {
		for {
			if s := (infra.Spec{Binding: infra.Routed{}, Owner: infra.Owner{UID: 107}, Egress: random()}); s.Validate() == nil {
				return s.Egress
			}
		}
	}
	for i := range 400 {
		lists := [][2][]infra.Egress{{valid()}, {nil, valid()}, {valid(), valid()}}[i%3]
		sets := destinationsOf(t, flannel(), withSpec(routed(), func(s *asked) { s.Egress, s.EgressWithin = lists[0], lists[1] }))
		for range 1000 {
			p := packet{netip.MustParseAddr(addresses[r.IntN(len(addresses))]), protocols[r.IntN(len(protocols))], ports[r.IntN(len(ports))]}
			egress, within := p.decided(lists[0]), p.decided(lists[1])
			own := egress >= 0 && lists[0][egress].Refuse
			above := within >= 0 && lists[1][within].Refuse
			if have, want := p.isIn(t, "egress-", sets), !own && !above; have != want {
				t.Fatalf("%v is allowed: %v, want %v, by %v\n%v", p, have, want, lists, sets)
			}
			pins := len(lists[0]) > 0 && lists[0][len(lists[0])-1].Refuse
			if have, want := p.isIn(t, "pinnable-", sets), pins && !above && (!own || egress == len(lists[0])-1); have != want {
				t.Fatalf("%v is pinnable: %v, want %v, by %v\n%v", p, have, want, lists, sets)
			}
		}
	}
}

// TestEgressLists: what the lists mean that depend on namespace and Spec.
func TestEgressLists(t *testing.T) {
	dns := &cache.DNS{Servers: []netip.Addr{ip("10.96.0.10"), ip("fd00:10:96::a"), ip("::ffff:10.96.0.11")}}
	only := func(found netstate.Snapshot, list string) string {
		var text []string
		for _, s := range destinationsOf(t, found, withSpec(masquerade(), func(s *asked) { s.DNS, s.Egress = dns, policy("allow "+list, "refuse all") })) {
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
		spec.Egress = policy("refuse nic-networks", "allow 10.99.0.0/16", "refuse all 25", "allow all")
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
			if said := strings.TrimPrefix(fmt.Sprint(changed), "egress: nic-networks has changed: "); changed == nil && c.want != "" || changed != nil && said != c.want {
				t.Errorf("%s: it differs in %v, want %q", name, changed, c.want)
			}
			before, after := setsOf(plan), setsOf(present)
			for list, is := range map[*[]string]bool{&c.refused: false, &c.allowed: true} {
				for _, to := range *list {
					p := packet{ip(to), 6, 80}
					if p.isIn(t, "egress-", before) == is || p.isIn(t, "egress-", after) != is {
						t.Errorf("%s: before, %s is allowed: %t; then: %t", name, to, p.isIn(t, "egress-", before), p.isIn(t, "egress-", after))
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
	unnamed := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) { s.Egress = policy("refuse private", "allow all") }))
	if same, _, changed, err := unnamed.Present(now); same != unnamed || changed != nil || err != nil {
		t.Errorf("%v, %v", changed, err)
	}
	within := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) {
		s.Egress, s.EgressWithin = policy("allow all"), policy("refuse nic-networks", "allow all")
	}))
	const want = "egressWithin: nic-networks has changed: 10.9.0.0/24 is new, 10.9.1.0/24 is new, 10.9.2.0/24 is new, 10.9.3.0/24 is new, 10.9.4.0/24 is new, 10.9.5.0/24 is new, 10.9.6.0/24 is new, 10.9.7.0/24 is new, 12 more"
	if _, _, changed, err := within.Present(now); err != nil || changed == nil || changed.Text != want {
		t.Errorf("%v, %v; want %s", changed, err, want)
	}
	covered := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) { s.Egress = policy("refuse private", "refuse nic-networks", "allow all") }))
	if _, _, changed, err := covered.Present(now); changed != nil || err != nil {
		t.Errorf("a network that another entry refuses: %v, %v", changed, err)
	}
	scattered := newPlan(t, flannel(), withSpec(masquerade(), func(s *asked) {
		for i := range 500 {
			s.Egress = append(s.Egress, policy(fmt.Sprintf("refuse nic-networks %d", 2*i+1))...)
		}
		s.Egress = append(s.Egress, policy("allow all")...)
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
	list, all := policy("refuse metadata", "allow 198.51.100.0/24 443", "allow all 53/udp", "refuse all"), policy("allow all")
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
	plan := newPlan(t, flannel(), withSpec(auto(), func(s *asked) { s.Egress = policy("refuse all") }))
	if kind := plan.Binding().Kind(); kind != cache.BindingRouted || len(plan.Refused) != 2 {
		t.Errorf("%s after %v, want routed after bridge and redirect", kind, plan.Refused)
	}
}

// TestEgressWithoutNFTables: iptables alone look up no destinations, and the refusal names the way out.
func TestEgressWithoutNFTables(t *testing.T) {
	for _, by := range []cache.Firewall{"", cache.FirewallIPTablesLegacy} {
		spec := withSpec(masquerade(), func(s *asked) {
			s.Binding, s.Guard.Off, s.Egress = infra.Masquerade{Firewall: by}, true, policy("refuse all")
		})
		_, err := wiring.NewPlan(flannelWith(func(s *netstate.Snapshot) { s.NoNFTables = true }), spec.NIC, spec.Spec)
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

// TestEgressTooMany: a policy that takes the kernel or Setup long is refused, by the field's name.
func TestEgressTooMany(t *testing.T) {
	var hosts, ports []string
	for i := range 8000 {
		hosts = append(hosts, fmt.Sprintf("refuse 10.0.%d.%d", i/128, i%128*2))
		ports = append(ports, fmt.Sprintf("allow all %d", 2*i+1))
	}
	var scattered []string // between two of these lie the addresses of more than a hundred prefixes
	for i := range 31 {
		scattered = append(scattered, fmt.Sprintf("refuse all %d/udp", 1001+i*211))
	}
	for i := range 300 {
		scattered = append(scattered, fmt.Sprintf("refuse 2001:db8:%x:5555:aaaa:5555:aaaa:5555", i))
	}
	of := func(texts ...[]string) []infra.Egress {
		return policy(append(slices.Concat(texts...), "refuse all")...)
	}
	for name, c := range map[string]struct {
		own, within []infra.Egress
		field       string
	}{
		"ranges":          {of(hosts, ports), nil, "egress"},
		"ranges, within":  {nil, of(hosts, ports), "egressWithin"},
		"ranges, of both": {of(ports), policy(append(hosts, "allow all")...), "egress"},
		"prefixes":        {policy(append(scattered, "allow all")...), nil, "egress"},
		"looks":           {append(of(ports), of(hosts)...), policy("refuse all"), "egress"},
	} {
		_, err := tryPlan(flannel(), withSpec(masquerade(), func(s *asked) { s.Egress, s.EgressWithin = c.own, c.within }))
		var field *cache.FieldError
		if !errors.As(err, &field) || field.Field != c.field || !strings.Contains(field.Reason, "name fewer") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestManyNetworks: many networks become no more boxes than there are networks. What lies between as many hosts is
// ranges of addresses alone, whatever their prefixes are.
func TestManyNetworks(t *testing.T) {
	var texts, hosts []string
	for i := range 10_000 {
		texts = append(texts, fmt.Sprintf("allow 11.%d.%d.%d/30 443", i%7*36, i/40%250, i%40*4))
		hosts = append(hosts, fmt.Sprintf("refuse 2001:db8:%x:5555:aaaa:5555:aaaa:5555", i))
	}
	sets := destinationsOf(t, lan4(), withSpec(masquerade(), func(s *asked) { s.Egress = policy(append(texts, "refuse all")...) }))
	if len(sets) != 4 || len(sets[3].Boxes) != 3 || len(sets[0].Boxes) > 10_000 || len(sets[0].Boxes) < 5000 {
		t.Errorf("%d sets", len(sets))
	}
	sets = destinationsOf(t, flannel(), withSpec(routed(), func(s *asked) { s.Egress = policy(append(hosts, "allow all")...) }))
	if len(sets) != 4 || len(sets[2].Boxes) != 0 || len(sets[3].Boxes) != 10_001 {
		t.Errorf("between hosts there are %d sets", len(sets))
	}
}
