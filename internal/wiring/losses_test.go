package wiring_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TestAutoByLosses: auto takes the first binding without a loss, else the one that loses least, and says why.
func TestAutoByLosses(t *testing.T) {
	order := func(kinds ...cache.Kind) asked {
		return withSpec(auto(), func(s *asked) { s.Binding = infra.Auto{Order: kinds} })
	}
	with := func(edit func(*netstate.Snapshot)) netstate.Snapshot { return lan4With(edit) }
	second := func(s *netstate.Snapshot) { s.Addresses = append(s.Addresses, address("10.99.0.7/16")) }
	multipath := func(s *netstate.Snapshot) {
		s.Routes = append(s.Routes, netstate.Route{Table: netstate.TableMain, Type: netstate.RouteUnicast, Destination: pfx("10.96.0.0/12"),
			Hops: []netstate.Hop{{Link: 2, Gateway: ip("10.244.1.2")}, {Link: 2, Gateway: ip("10.244.1.3")}}})
	}
	card := func(s *netstate.Snapshot) { s.Links[1].Kind = "" }
	guarded := func(edit func(*infra.Guard)) asked { return withSpec(auto(), func(s *asked) { edit(&s.Guard) }) }
	both := func(s *netstate.Snapshot) { second(s); multipath(s) }
	vpn := func(forwards, nicForwards bool) netstate.Snapshot { // by which the namespace sends from another address
		return with(func(s *netstate.Snapshot) {
			wg0(s)
			a := address("10.66.0.2/32")
			a.Link, a.Label = 4, ""
			s.Addresses = append(s.Addresses, a)
			s.Links[len(s.Links)-1].Forwarding4, s.Links[1].Forwarding4 = forwards, nicForwards
		})
	}
	for _, c := range []struct {
		name  string
		found netstate.Snapshot
		spec  asked
		want  cache.Kind
		why   []string // a word of each refusal
	}{
		{"nothing is lost", lan4(), auto(), cache.BindingRedirect, nil},
		{"a bond of which redirect gets no answers", with(func(s *netstate.Snapshot) { s.Links[1].Kind, s.Links[1].Mode = "bond", netstate.ModeALB }), auto(), cache.BindingBridge, []string{"redirect: it gives stations the MACs of its ports"}},
		{"a kernel without fwd", with(func(s *netstate.Snapshot) { s.NoFwd = true }), auto(), cache.BindingBridge, []string{"redirect: this kernel's rules cannot forward"}},
		{"MACs that a card does not receive", with(card), guarded(func(g *infra.Guard) { g.MACs = []cache.MAC{mac(9)} }), cache.BindingBridge, []string{"redirect: frames to guard.macs (1)"}},
		{"MACs that a macvlan does not receive, and a router does not send to", with(func(s *netstate.Snapshot) { s.Links[1].Kind, s.Links[1].Mode = "macvlan", "private" }),
			guarded(func(g *infra.Guard) { g.MACs = []cache.MAC{mac(9)} }), cache.BindingRedirect, []string{"bridge: a macvlan in mode private"}},
		{"tags that a card can drop", with(card), guarded(func(g *infra.Guard) { g.VLANs = []uint16{5} }), cache.BindingBridge, []string{"redirect: frames with a tag of guard.vlans (1)"}},
		{"both, on a veth", lan4(), guarded(func(g *infra.Guard) { g.MACs, g.VLANs = []cache.MAC{mac(9)}, []uint16{5} }), cache.BindingRedirect, nil},
		{"a NIC that is down", with(func(s *netstate.Snapshot) { s.Links[1].Up = false }), auto(), cache.BindingBridge, []string{"redirect: frames all"}},
		{"another MAC on a card", with(card), withSpec(auto(), func(s *asked) { s.Binding = infra.Auto{MAC: mac(7)} }), cache.BindingRedirect, nil},
		{"a route that routed keeps", with(multipath), auto(), cache.BindingRouted, []string{"redirect: next-hop 10.96.0.0/12", "bridge: next-hop 10.96.0.0/12"}},
		{"an address that masquerade alone keeps, which hides the other", with(second), auto(), cache.BindingRedirect, nil},
		{"the same, masquerade first", with(second), order(cache.BindingMasquerade, cache.BindingBridge), cache.BindingMasquerade, nil},
		{"an address that masquerade keeps, and a network that is in use", with(func(s *netstate.Snapshot) {
			second(s)
			s.Links = append(s.Links, net1())
			s.Addresses = append(s.Addresses, netstate.Address{Link: 3, Prefix: pfx("10.0.2.7/24")})
		}), auto(), cache.BindingRedirect, []string{"masquerade: network in use"}},
		{"a VPN that is said to route", vpn(true, false), auto(), cache.BindingMasquerade, []string{"redirect: policy-rule", "bridge: policy-rule", "routed: other-link wg0: 0.0.0.0/0"}},
		{"a VPN, and the whole namespace forwards", vpn(true, true), auto(), cache.BindingRouted, []string{"redirect: policy-rule", "bridge: policy-rule"}},
		{"a VPN that does not forward", vpn(false, false), auto(), cache.BindingRouted, []string{"redirect: policy-rule", "bridge: policy-rule"}},
		{"a second NIC, and the whole namespace forwards", with(func(s *netstate.Snapshot) {
			addNet1(s)
			s.Links[1].Forwarding4, s.Links[2].Forwarding4 = true, true
		}), auto(), cache.BindingRedirect, nil},
		{"what loses least", with(both), order(cache.BindingBridge, cache.BindingRouted), cache.BindingRouted, []string{"bridge: next-hop"}},
		{"each loses as much", with(second), order(cache.BindingRedirect, cache.BindingBridge), cache.BindingRedirect, nil},
		{"a gateway that does not answer yet", lan6("2001:db8:1::1"), auto(), cache.BindingRedirect, nil},
		{"a family, accepted", unnumbered(), withSpec(auto(), func(s *asked) { s.AcceptLosses = true }), cache.BindingRedirect, nil},
	} {
		plan := newPlan(t, c.found, c.spec)
		var why []string
		for _, r := range plan.Refused {
			why = append(why, string(r.Binding)+": "+r.Reason)
		}
		ok := func(have, want string) bool {
			binding, lost, _ := strings.Cut(want, ": ")
			return strings.HasPrefix(have, binding+": the guest would lose "+lost) || strings.HasPrefix(have, binding+": ") && strings.Contains(have, ": "+lost)
		}
		if plan.Record.Binding != c.want || !slices.EqualFunc(why, c.why, ok) {
			t.Errorf("%s: %s, %q; want %s, %q", c.name, plan.Record.Binding, why, c.want, c.why)
		}
	}
}

// unnumbered is a NIC without an IPv4 address, by which the namespace sends from an address of the loopback.
func unnumbered() netstate.Snapshot {
	return flannelWith(func(s *netstate.Snapshot) {
		s.Addresses = slices.DeleteFunc(s.Addresses, func(a netstate.Address) bool { return a.Prefix.Addr().Is4() })
		s.Addresses = append(s.Addresses, netstate.Address{Link: 1, Prefix: pfx("10.244.1.7/32"), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever})
	})
}

// TestInnerAddressLosses: an address of a link that leads nowhere is lost under bridge and redirect. Those of the NIC,
// of other NICs and of a wired NIC are not, nor what no other host can reach.
func TestInnerAddressLosses(t *testing.T) {
	found := flannelWith(func(s *netstate.Snapshot) {
		s.Links = append(s.Links, netstate.Link{Index: 7, Name: "dummy0", Kind: "dummy"}, netstate.Link{Index: 8, Name: "net1", Kind: "veth", Ethernet: true},
			netstate.Link{Index: 9, Name: "net2", Kind: "dummy"}, netstate.Link{Index: 10, Name: "net2-br", Kind: "bridge", Alias: netstate.Mark("net2")})
		for link, list := range map[int][]string{1: {"127.0.0.1/8", "::1/128", "10.96.0.53/32", "fd00:96::53/128", "169.254.20.10/32", "10.244.1.7/32"}, 7: {"192.0.2.7/24", "fe80::7/64"}, 8: {"192.0.2.8/24"}, 9: {"192.0.2.9/24"}} {
			for _, a := range list {
				s.Addresses = append(s.Addresses, netstate.Address{Link: link, Prefix: pfx(a), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever})
			}
		}
	})
	for _, c := range []struct {
		spec asked
		want string
	}{{bridge(), "10.96.0.53 192.0.2.7 fd00:96::53"}, {redirect(), "10.96.0.53 192.0.2.7 fd00:96::53"}, {routed(), ""}, {masquerade(), ""}} {
		var lost []string
		for _, l := range newPlan(t, found, c.spec).Record.Losses {
			lost = append(lost, l.What)
			if l.Kind != "address" || !strings.HasSuffix(l.Why, "any more: add it in the guest, and "+l.What+map[bool]string{true: "/32", false: "/128"}[strings.Contains(l.What, ".")]+" to guard.prefixes") {
				t.Errorf("%s: %v", c.spec.Binding.Kind(), l)
			}
		}
		if slices.Sort(lost); strings.Join(lost, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.spec.Binding.Kind(), lost, c.want)
		}
	}
}

// TestGraveLosses: a binding that loses a family is refused, the Spec can accept the loss, and the record lists it
// then.
func TestGraveLosses(t *testing.T) {
	accept := func(s *asked) { s.AcceptLosses = true }
	for _, spec := range []asked{bridge(), redirect(), routed(), masquerade()} {
		_, err := tryPlan(unnumbered(), spec)
		var r *infra.RefusedError
		if !errors.As(err, &r) || r.Instead != "" || len(r.Losses) != 1 || r.Losses[0].What != "IPv4" || !strings.HasSuffix(err.Error(), `"acceptLosses": true in the configuration takes that`) {
			t.Errorf("%s: %v", spec.Binding.Kind(), err)
		}
		plan := newPlan(t, unnumbered(), withSpec(spec, accept)) // the way out
		if l := plan.Record.Losses; len(l) != 1 || l[0].Kind != "family" || l[0].Keeps != "" {
			t.Errorf("%s, accepted: %v", spec.Binding.Kind(), l)
		}
		again, err := plan.Journal().Plan()
		if err != nil || !reflect.DeepEqual(again.Record, plan.Record) {
			t.Errorf("%s: the journal's plan has another record: %v, %v", spec.Binding.Kind(), again, err)
		}
	}
	_, err := tryPlan(unnumbered(), auto())
	var r *infra.RefusedError
	if !errors.As(err, &r) || r.Instead != "" || !strings.Contains(err.Error(), "no binding works: redirect, bridge, routed, masquerade: the guest would lose family IPv4") {
		t.Errorf("auto: %v", err)
	}
}

// TestServerLosses: a resolver or a time server of the Spec that the guest cannot use is a loss. The ways out work: a
// binding that leads there, and a Spec without servers.
func TestServerLosses(t *testing.T) {
	serving := func(s asked, edit func(*asked), resolvers ...string) asked {
		return withSpec(s, func(s *asked) {
			s.DNS = &cache.DNS{}
			for _, r := range resolvers {
				s.DNS.Servers = append(s.DNS.Servers, ip(r))
			}
			s.Options.NTP = []netip.Addr{ip("10.244.1.123")}
			edit(s)
		})
	}
	same := func(*asked) {}
	noRoute := func(s *netstate.Snapshot) { s.Routes = s.Routes[1:] } // of a second NIC
	for _, c := range []struct {
		name  string
		found netstate.Snapshot
		spec  asked
		want  string
	}{
		{"by the default route", lan4(), serving(bridge(), same, "10.96.0.10"), ""},
		{"on the link", lan4With(noRoute), serving(bridge(), same, "10.244.1.53"), ""},
		{"no route", lan4With(noRoute), serving(redirect(), same, "10.96.0.10"), "10.96.0.10"},
		{"no default route", lan4(), serving(bridge(), noDefaultRoute, "10.96.0.10"), "10.96.0.10"},
		{"no default route behind the namespace", lan4(), serving(masquerade(), noDefaultRoute, "10.96.0.10"), "10.96.0.10 10.244.1.123"},
		{"the namespace leads everywhere", lan4With(noRoute), serving(masquerade(), same, "10.96.0.10"), ""},
		{"the guest's address", lan4(), serving(bridge(), same, "10.244.1.7", "127.0.0.53"), "10.244.1.7 127.0.0.53"},
		{"the other family", lan4(), serving(bridge(), same, "fd00:96::a"), "fd00:96::a"},
		{"a time server", lan4(), serving(bridge(), func(s *asked) { s.Options.NTP = []netip.Addr{ip("fd00::123")} }), "fd00::123"},
		{"no servers", lan4With(noRoute), serving(bridge(), same), ""},
		{"a resolver of the link, and auto", flannel(), serving(auto(), same, "fe80::53%eth0"), ""},
		{"a resolver of the link", flannel(), serving(routed(), same, "fe80::53%eth0"), "fe80::53%eth0"},
		{"no responder", lan4(), serving(bridge(), func(s *asked) { s.Options.NoResponder = true }, "fd00:96::a"), ""},
	} {
		var have []string
		for _, l := range newPlan(t, c.found, c.spec).Record.Losses {
			if l.Kind == "server" {
				have = append(have, l.What)
			}
		}
		if strings.Join(have, " ") != c.want {
			t.Errorf("%s: %q, want %s", c.name, have, c.want)
		}
	}
}

// TestConditionalLosses: a route for some of the guest's packets is lost, one from all of its addresses is not, and one
// from others is none of the guest's. The kernel does not masquerade by each address.
func TestConditionalLosses(t *testing.T) {
	route := func(edit func(*netstate.Route)) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			r := netstate.Route{Link: 2, Table: netstate.TableMain, Type: netstate.RouteUnicast, Destination: pfx("2001:db8:2::/48"), Gateway: ip("fe80::1")}
			edit(&r)
			s.Routes = append(s.Routes, r)
		}
	}
	from := func(source string) func(*netstate.Snapshot) {
		return route(func(r *netstate.Route) { r.Source = pfx(source) })
	}
	second := func(s *netstate.Snapshot) { s.Addresses = append(s.Addresses, address("2001:db8:3::7/64")) }
	deprecated := func(s *netstate.Snapshot) {
		for i := range s.Addresses {
			s.Addresses[i].PreferredSeconds = 0
		}
	}
	scoped := func(s *netstate.Snapshot) {
		for i := range s.Addresses {
			s.Addresses[i].Scope = netstate.ScopeLink
		}
	}
	rule := func(edit func(*netstate.Rule)) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			r := netstate.Rule{Priority: 1000, Table: 100}
			edit(&r)
			s.Rules = append(s.Rules, r)
			s.Routes = append(s.Routes, withRoute(via("0.0.0.0/0", "10.244.1.9"), func(r *netstate.Route) { r.Table = 100 }))
		}
	}
	byOther := func(s *netstate.Snapshot) {
		s.Links = append(s.Links, net1())
		s.Routes = append(s.Routes, netstate.Route{Table: netstate.TableMain, Type: netstate.RouteUnicast, Destination: pfx("192.0.2.0/24"),
			Hops: []netstate.Hop{{Link: 2, Gateway: ip("10.244.1.2")}, {Link: 3, Gateway: ip("10.50.0.1")}}})
	}
	some := func(r *netstate.Rule) { r.Other = true }
	without := func(of int) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool {
				return r.Destination.Bits() == 0 && r.Destination.Addr().Is4() == (of == 4)
			})
		}
	}
	several := func(s *netstate.Snapshot) {
		s.Routes = append(s.Routes, netstate.Route{Table: netstate.TableMain, Type: netstate.RouteUnicast, Destination: pfx("0.0.0.0/0"),
			Hops: []netstate.Hop{{Link: 2, Gateway: ip("10.244.1.1")}, {Link: 2, Gateway: ip("10.244.1.2")}}})
	}
	for _, c := range []struct {
		name  string
		found netstate.Snapshot
		edits []func(*netstate.Snapshot)
		spec  asked
		want  string
	}{
		{"a TOS", lan4(), []func(*netstate.Snapshot){route(func(r *netstate.Route) {
			r.Destination, r.Gateway, r.TOS = pfx("192.0.2.0/24"), ip("10.244.1.2"), 0x10
		})}, bridge(), "route tos 0x10 192.0.2.0/24"},
		{"from the guest's address", lan6("fe80::1"), []func(*netstate.Snapshot){from("2001:db8:1::/64")}, bridge(), ""},
		{"from one of two", lan6("fe80::1"), []func(*netstate.Snapshot){second, from("2001:db8:3::/64")}, bridge(), "route from 2001:db8:3::/64 to 2001:db8:2::/48"},
		{"from no address of the guest", lan6("fe80::1"), []func(*netstate.Snapshot){from("2001:db8:9::/64")}, bridge(), ""},
		{"all are deprecated", lan6("fe80::1"), []func(*netstate.Snapshot){deprecated}, masquerade(), "family IPv6"},
		{"no scope global", lan4(), []func(*netstate.Snapshot){scoped}, masquerade(), "family IPv4"},
		{"passt without a default route", passtWith(unchanged), []func(*netstate.Snapshot){without(4)}, direct(infra.Passt{}), "family IPv4"},
		{"passt without a default route, IPv6", passtWith(unchanged), []func(*netstate.Snapshot){without(6)}, direct(infra.Passt{}), "family IPv6"},
		{"passt with vhost-user without one", passtWith(unchanged), []func(*netstate.Snapshot){without(4)}, direct(infra.Passt{VhostUser: true}), "family IPv4"},
		{"passt with vhost-user without one, IPv6", passtWith(unchanged), []func(*netstate.Snapshot){without(6)}, direct(infra.Passt{VhostUser: true}), ""},
		{"passt with two gateways", passtWith(unchanged), []func(*netstate.Snapshot){without(4), several}, direct(infra.Passt{}), "family IPv4"},
		{"passt with vhost-user with two gateways", passtWith(unchanged), []func(*netstate.Snapshot){without(4), several}, direct(infra.Passt{VhostUser: true}), ""},
		{"a rule for some packets before main", lan4(), []func(*netstate.Snapshot){rule(some)}, masquerade(), "policy-rule table 100"},
		{"a rule that refuses some packets before main", lan4(), []func(*netstate.Snapshot){rule(func(r *netstate.Rule) { r.Other, r.Table = true, 0 })}, masquerade(), "policy-rule preference "},
		{"a rule for some packets after main", lan4(), []func(*netstate.Snapshot){rule(func(r *netstate.Rule) { r.Other, r.Priority = true, 40000 })}, masquerade(), ""},
		{"a rule for some sources before main", lan4(), []func(*netstate.Snapshot){rule(func(r *netstate.Rule) { r.Source = pfx("192.0.2.0/24") })}, masquerade(), "policy-rule table 100"},
		{"a rule for an address of the namespace", lan4(), []func(*netstate.Snapshot){func(s *netstate.Snapshot) { s.Addresses = append(s.Addresses, address("10.244.1.8/24")) },
			rule(func(r *netstate.Rule) { r.Source = pfx("10.244.1.8/32") })}, masquerade(), ""},
		{"a VPN's rules", lan4(), []func(*netstate.Snapshot){rule(func(r *netstate.Rule) { r.Suppress, r.Table = 1, netstate.TableMain }), rule(some)}, masquerade(), ""},
		{"a next hop by another link", lan4(), []func(*netstate.Snapshot){byOther}, masquerade(), "next-hop 192.0.2.0/24"},
		{"a next hop by another link that forwards", lan4(), []func(*netstate.Snapshot){byOther, func(s *netstate.Snapshot) { s.Links[len(s.Links)-1].Forwarding4 = true }}, masquerade(), ""},
		{"a rule for some packets", lan4(), []func(*netstate.Snapshot){rule(some)}, routed(), ""},
		{"an MTU that takes IPv6", flannelWith(func(s *netstate.Snapshot) { s.Routes[0].MTU = 1200 }), nil, bridge(), "mtu 1200 to "},
	} {
		for _, edit := range c.edits {
			edit(&c.found)
		}
		plan := newPlan(t, c.found, withSpec(c.spec, func(s *asked) { s.AcceptLosses = true }))
		var have []string
		for _, l := range plan.Record.Losses {
			have = append(have, l.Kind+" "+l.What)
		}
		if text := strings.Join(have, ", "); text != c.want && (c.want == "" || len(have) != 1 || !strings.HasPrefix(text, c.want)) {
			t.Errorf("%s: %q, want %q", c.name, text, c.want)
		}
	}
}

// TestLossKinds: the kinds of loss that plans and leases add are those that cache.Loss lists, and each of those has a
// row on the page of losses.
func TestLossKinds(t *testing.T) {
	documented := documentedKinds(t, "cache/loss.go", "Loss")
	used := map[string]bool{}
	for _, folder := range []string{".", "../lease", "../served"} {
		files, err := filepath.Glob(folder + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatal(folder, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if field, ok := n.(*ast.KeyValueExpr); ok && types.ExprString(field.Key) == "Kind" {
					if text, ok := field.Value.(*ast.BasicLit); ok && folder == "../served" {
						kind, _ := strconv.Unquote(text.Value)
						used[kind] = true
					}
				}
				call, ok := n.(*ast.CallExpr)
				if !ok || folder == "../served" || !strings.HasSuffix(types.ExprString(call.Fun), "lose") {
					return true
				}
				for _, a := range call.Args[:2] { // the kind comes first, or after the record
					if text, ok := a.(*ast.BasicLit); ok {
						kind, _ := strconv.Unquote(text.Value)
						used[kind] = used[kind] || !strings.Contains(kind, " ") // salvage.go has a lose of its own
						return true
					}
				}
				return true
			})
		}
	}
	maps.DeleteFunc(used, func(_ string, is bool) bool { return !is })
	for kind := range used {
		if !slices.Contains(documented, kind) {
			t.Errorf("a plan loses %q, which cache.Loss does not list", kind)
		}
	}
	page, err := os.ReadFile("../../docs/reference/losses.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range documented {
		if !strings.Contains(string(page), "\n| "+kind+" |") {
			t.Errorf("docs/reference/losses.md has no row for %s", kind)
		}
	}
	for _, kind := range documented {
		if !used[kind] {
			t.Errorf("cache.Loss lists %s, and no plan loses it", kind)
		}
	}
}

// TestUnsent: the plan says what the responder cannot send. auto chooses by what no client gets, and not by what some
// clients do not get.
func TestUnsent(t *testing.T) {
	routes := func(n int) netstate.Snapshot {
		return flannelWith(func(s *netstate.Snapshot) {
			for i := range n {
				s.Routes = append(s.Routes, via(fmt.Sprintf("10.100.%d.0/24", i), "10.244.1.1"))
			}
		})
	}
	routes6 := flannelWith(func(s *netstate.Snapshot) {
		for i := range 100 {
			s.Routes = append(s.Routes, via(fmt.Sprintf("2001:db8:%x::/48", i), "fd00:244:1::1"))
		}
	})
	addresses6 := flannelWith(func(s *netstate.Snapshot) {
		for i := range 30 {
			s.Addresses = append(s.Addresses, address(fmt.Sprintf("fd00:244:1::%x/64", 0x100+i)))
		}
	})
	options := withSpec(bridge(), func(s *asked) {
		s.Options = cache.Options{Hostname: "vm1", BootFileURL: "tftp://x/y", NTP: []netip.Addr{ip("192.0.2.7"), ip("fd00::7")}}
	})
	auto := withSpec(bridge(), func(s *asked) { s.Binding = infra.Auto{} })
	for _, c := range []struct {
		name    string
		found   netstate.Snapshot
		spec    asked
		binding cache.Kind
		losses  int
		first   string // what the text of the first loss ends with
	}{
		{"some routes", routes(20), bridge(), "bridge", 0, ""},
		{"45 routes", routes(45), bridge(), "bridge", 1, "option DHCPv4 option 121 (routes): its 376 octets do not fit into the answer to dhclient, udhcpc, Windows; masquerade keeps it"},
		{"45 routes, auto", routes(45), auto, "redirect", 1, "dhclient, udhcpc, Windows; masquerade keeps it"},
		{"45 routes, masquerade", routes(45), masquerade(), "masquerade", 0, ""},
		{"45 routes, no responder", routes(45), withSpec(bridge(), func(s *asked) { s.Options.NoResponder = true }), "bridge", 0, ""},
		{"180 routes", routes(180), redirect(), "redirect", 1, "to any client; masquerade keeps it"},
		{"180 routes, auto", routes(180), auto, "redirect", 1, "to any client; masquerade keeps it"},
		{"IPv6 routes", routes6, bridge(), "bridge", 16, "route 2001:db8:54::/48: it does not fit into a router advertisement beside the others; routed keeps it"},
		{"IPv6 addresses", addresses6, bridge(), "bridge", 6, "address fd00:244:1::118: DHCPv6 leases 25 addresses, as more do not fit into a message; masquerade keeps it"},
		{"a long search list", flannel(), withSpec(bridge(), func(s *asked) {
			s.DNS = &cache.DNS{}
			for _, c := range "abcde" {
				s.DNS.Search = append(s.DNS.Search, strings.Repeat(string(c), 60)+".example")
			}
		}), "bridge", 1, "do not fit into the answer to dhclient, udhcpc, Windows"},
		{"options of both families", flannel(), options, "bridge", 0, ""},
		{"options without IPv6", lan4(), options, "bridge", 2, "server fd00::7: the guest has no IPv6 address"},
		{"options without IPv4", lan6With(func(*netstate.Snapshot) {}), options, "bridge", 2, "server 192.0.2.7: the guest has no IPv4 address"},
	} {
		r := newPlan(t, c.found, c.spec).Record
		first := ""
		if len(r.Losses) > 0 {
			first = r.Losses[0].String()
		}
		if r.Binding != c.binding || len(r.Losses) != c.losses || !strings.HasSuffix(first, c.first) {
			t.Errorf("%s: %s, %d losses, %q", c.name, r.Binding, len(r.Losses), first)
		}
	}
}

// TestIPv6OnlyRedirect: the DHCPv4 requests of a guest with IPv6 alone reach the responder if it gets IPv6-only mode.
func TestIPv6OnlyRedirect(t *testing.T) {
	for _, spec := range []asked{bridge(), redirect(), masquerade()} {
		filters := func(spec asked) int {
			return strings.Count(newPlan(t, lan6With(func(*netstate.Snapshot) {}), spec).String(), "protocol ip ")
		}
		if without, with := filters(spec), filters(withSpec(spec, ipv6Only)); with != without+1 {
			t.Errorf("%s: %d filters of IPv4, and %d with IPv6-only mode; want one more", spec.Binding.Kind(), without, with)
		}
	}
}

// TestVRFs: a guest of a NIC in a VRF has the routes of the VRF's table, under redirect. A VRF beside the NIC takes no
// rule, route or address from its guest, except what the namespace reaches by that VRF alone.
func TestVRFs(t *testing.T) {
	vrf := func(nicInside bool) netstate.Snapshot {
		return flannelWith(func(s *netstate.Snapshot) {
			s.Links = append(s.Links, netstate.Link{Index: 7, Name: "red", Kind: "vrf", VRF: 10}, netstate.Link{Index: 8, Name: "dummy0", Kind: "dummy", Master: 7})
			for index, a := range map[int]string{7: "10.8.0.1/32", 1: "10.7.0.1/32"} { // as a loopback in red, and as one beside it
				s.Addresses = append(s.Addresses, netstate.Address{Link: index, Prefix: pfx(a), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever})
			}
			s.Rules = []netstate.Rule{{Priority: 1000, VRF: true}, {Priority: 1000, VRF: true, IPv6: true}}
			s.Addresses = append(s.Addresses, netstate.Address{Link: 8, Prefix: pfx("10.9.0.1/24"), ValidSeconds: netstate.Forever, PreferredSeconds: netstate.Forever})
			s.Routes = append(s.Routes, netstate.Route{Link: 8, Table: 10, Destination: pfx("10.9.0.0/24"), Type: netstate.RouteUnicast, Protocol: netstate.ProtocolKernel},
				netstate.Route{Link: 7, Table: netstate.TableMain, Destination: pfx("10.6.0.0/24"), Type: netstate.RouteUnicast}) // leads from main into red
			if !nicInside {
				return
			}
			s.Links[1].Master, s.Links[2].Master = 7, 7
			for i := range s.Routes {
				s.Routes[i].Table = 10
			}
			s.Routes = append(s.Routes, netstate.Route{Link: nic, Table: 10, Destination: pfx("10.244.1.7/32"), Type: netstate.RouteLocal, Protocol: netstate.ProtocolKernel})
		})
	}
	want := newPlan(t, flannel(), redirect()).Record
	for _, c := range []struct {
		inside bool
		spec   asked
		lost   string
	}{
		{true, redirect(), "address 10.8.0.1, address 10.9.0.1, other-link dummy0: 10.9.0.0/24, other-link red: 10.6.0.0/24"},
		{false, redirect(), "address 10.7.0.1, other-link dummy0: 10.9.0.0/24, other-link red: 10.6.0.0/24"},
		{false, bridge(), "address 10.7.0.1, other-link dummy0: 10.9.0.0/24, other-link red: 10.6.0.0/24"},
		{false, masquerade(), "other-link dummy0: 10.9.0.0/24, other-link red: 10.6.0.0/24"},
		{false, routed(), "other-link dummy0: 10.9.0.0/24, other-link red: 10.6.0.0/24"},
	} {
		r := newPlan(t, vrf(c.inside), c.spec).Record
		var lost []string
		for _, l := range r.Losses {
			lost = append(lost, l.Kind+" "+l.What)
			if strings.HasPrefix(l.What, "red: ") {
				if strings.Contains(l.Why, "wired too") {
					t.Errorf("%s: %v", c.spec.Binding.Kind(), l)
				}
				continue
			}
			if l.Kind == "other-link" && !c.inside && l.Why != "dummy0 is in the VRF red, and the guest's packets are not" {
				t.Errorf("%s: %v", c.spec.Binding.Kind(), l)
			}
		}
		if slices.Sort(lost); strings.Join(lost, ", ") != c.lost {
			t.Errorf("%s, inside %t: lost %q, want %q", c.spec.Binding.Kind(), c.inside, lost, c.lost)
		}
		if c.inside && (!reflect.DeepEqual(r.IPv4, want.IPv4) || !reflect.DeepEqual(r.IPv6, want.IPv6)) {
			t.Errorf("in the VRF the guest has\n%+v\n%+v\nand without\n%+v\n%+v", r.IPv4, r.IPv6, want.IPv4, want.IPv6)
		}
	}
}
