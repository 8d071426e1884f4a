package wiring_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/undo"
	"github.com/guestwire/guestwire/internal/wiring"
)

// TestGuardMACs: the guest gets no MAC in addition to its own that the wiring itself answers to.
func TestGuardMACs(t *testing.T) {
	for _, spec := range []asked{bridge(), masquerade()} {
		plan := newPlan(t, flannel(), spec)
		record := plan.Record
		taken := map[string]cache.MAC{"the guest": record.MAC, "the responder": record.ResponderMAC}
		for _, l := range wire(t, plan, flannel()).s.Links {
			if !l.MAC.IsZero() && l.Name != record.ResponderTap { // the tap's own end has any
				taken[l.Name] = l.MAC
			}
		}
		for whose, m := range taken {
			_, err := tryPlan(flannel(), withSpec(spec, func(s *asked) { s.Guard.MACs = []cache.MAC{mac(9), m} }))
			var field *cache.FieldError
			if !errors.As(err, &field) || field.Field != "guard.macs[1]" {
				t.Errorf("%s, %v of %s: have %v, want a FieldError of guard.macs[1]", spec.Binding.Kind(), m, whose, err)
			}
		}
		if len(taken) < 4 {
			t.Errorf("%s: only %v", spec.Binding.Kind(), taken)
		}
	}
}

// TestInherit: of the sysctls that the namespace shares, a second NIC's journal has the values before the first
// NIC was wired, and nothing else of the first one's journal.
func TestInherit(t *testing.T) {
	const call = "net/bridge/bridge-nf-call-iptables"
	earlier := func(spec asked, sysctls map[string]string) *wiring.Plan {
		return newPlan(t, flannelWith(func(s *netstate.Snapshot) { s.Sysctls = sysctls }), spec)
	}
	for _, c := range []struct {
		name    string
		earlier *wiring.Plan
		found   map[string]string
		want    map[string]string
	}{
		{"forwarding was off", earlier(masquerade(), map[string]string{forwarding6: "0"}), map[string]string{forwarding6: "1"}, map[string]string{forwarding6: "0"}},
		{"forwarding was not read", earlier(bridge(), nil), map[string]string{forwarding6: "1"}, map[string]string{forwarding6: "1"}},
		{"not asked for", earlier(masquerade(), map[string]string{forwarding6: "0"}), map[string]string{}, map[string]string{}},
		{"of a link", earlier(masquerade(), map[string]string{"net/ipv6/conf/eth0/accept_ra": "1"}), map[string]string{"net/ipv6/conf/eth0/accept_ra": "2"}, map[string]string{"net/ipv6/conf/eth0/accept_ra": "2"}},
		{"came with the first bridge", earlier(bridge(), nil), map[string]string{call: "0"}, map[string]string{call: "1"}},
		{"was there before the first bridge", earlier(bridge(), map[string]string{call: "0"}), map[string]string{call: "0"}, map[string]string{call: "0"}},
		{"without a bridge", earlier(redirect(), nil), map[string]string{call: "0"}, map[string]string{call: "0"}},
	} {
		before := map[string]string{}
		for path, value := range c.found {
			before[path] = value
		}
		found := netstate.Snapshot{Sysctls: c.found}
		undo.Inherit(&found, c.earlier.Journal().Found, c.earlier.Made())
		for path := range c.want {
			if found.Sysctls[path] != c.want[path] {
				t.Errorf("%s: %s is %q, want %q", c.name, path, found.Sysctls[path], c.want[path])
			}
		}
		if len(found.Sysctls) != len(c.want) {
			t.Errorf("%s: have %v, want %v", c.name, found.Sysctls, c.want)
		}
		for path, value := range before {
			if c.found[path] != value {
				t.Errorf("%s: the caller's own map has changed", c.name)
			}
		}
	}
}

// TestNewLinksGetIPv6: where a container engine has switched IPv6 on for the NIC alone, the links that need it
// get it too.
func TestNewLinksGetIPv6(t *testing.T) {
	const path = "net/ipv6/conf/default/disable_ipv6"
	for _, c := range []struct {
		spec  asked
		found netstate.Snapshot
		want  bool
	}{
		{bridge(), flannel(), true}, {masquerade(), flannel(), true}, {masquerade(), lan4(), false},
		{bridge(), lan4With(func(s *netstate.Snapshot) { s.Addresses = s.Addresses[:1] }), false},
	} {
		c.found.Sysctls = map[string]string{path: "1", forwarding6: "0"}
		plan := newPlan(t, c.found, c.spec)
		if have := strings.Contains(plan.String(), "sysctl -w "+path+"=0"); have != c.want {
			t.Errorf("%s of %v: have %t\n%v", c.spec.Binding.Kind(), c.found.Addresses, have, plan)
		}
	}
}

// TestRestoresAddresses: a NIC behind which a guest is hidden, or through which it is reached, keeps its addresses and
// routes. Those that come and go by a lease or an advertisement are not ours to keep.
func TestRestoresAddresses(t *testing.T) {
	noAddress := func(s *netstate.Snapshot) {
		s.Addresses = slices.DeleteFunc(s.Addresses, func(a netstate.Address) bool { return a.Prefix == pfx("10.244.1.7/24") })
	}
	without := func(destination string) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			s.Routes = slices.DeleteFunc(s.Routes, func(r netstate.Route) bool { return r.Destination == pfx(destination) })
		}
	}
	noDefault4, noDefault6 := without("0.0.0.0/0"), without("::/0")
	lease := func(s *netstate.Snapshot) { s.Addresses[0].ValidSeconds = 3600 }
	for _, c := range []struct {
		name     string
		spec     asked
		found    netstate.Snapshot
		damage   func(*netstate.Snapshot)
		setup    string // what Setup does about that
		teardown string // and Teardown
	}{
		{"masquerade, IPv4 address", masquerade(), lan4(), noAddress, "ip addr add 10.244.1.7/24 dev eth0", ""},
		{"redirect, IPv4 address", redirect(), lan4(), noAddress, "ip addr add 10.244.1.7/24 dev eth0", "ip addr add 10.244.1.7/24 dev eth0"},
		{"macvtap, IPv4 address", direct(infra.Macvtap{}), macvtapWith(unchanged), noAddress, "", "ip addr add 10.244.1.7/24 broadcast 10.244.1.255 dev eth0"},
		{"masquerade, route", masquerade(), lan4(), noDefault4, "ip route add default via 10.244.1.1 dev eth0", ""},
		{"redirect, route", redirect(), lan4(), noDefault4, "ip route add default via 10.244.1.1 dev eth0", "ip route add default via 10.244.1.1 dev eth0"},
		{"redirect, IPv6 route", redirect(), flannel(), noDefault6, "ip route add ::/0 via fd00:244:1::1 dev eth0 metric 1024", "ip route add ::/0 via fd00:244:1::1 dev eth0 metric 1024"},
		{"masquerade, leased address", masquerade(), lan4With(lease), noAddress, "", ""},
		{"masquerade, route beside a leased address", masquerade(), lan4With(lease), noDefault4, "", ""},
		{"masquerade, IPv6 beside a leased IPv4 address", masquerade(), flannelWith(lease), noDefault6, "ip route add ::/0 via fd00:244:1::1 dev eth0 metric 1024", ""},
		{"masquerade, advertised route", masquerade(), flannelWith(func(s *netstate.Snapshot) { s.Routes[5].Protocol = netstate.ProtocolRA }), noDefault6, "", ""},
		{"masquerade, route that ends", masquerade(), flannelWith(func(s *netstate.Snapshot) { s.Routes[5].ExpiresSeconds = 60 }), noDefault6, "", ""},
		{"masquerade, others' addresses", masquerade(), lan4(), func(s *netstate.Snapshot) { s.Addresses = append(s.Addresses, address("192.0.2.7/24")) }, "", ""},
		{"redirect, others' addresses", redirect(), lan4(), func(s *netstate.Snapshot) { s.Addresses = append(s.Addresses, address("192.0.2.7/24")) }, "", ""},
	} {
		plan := newPlan(t, c.found, c.spec)
		k := wire(t, plan, c.found)
		c.damage(&k.s)
		if have := strings.TrimSpace(netstate.Text(mustSteps(t, plan, k))); have != c.setup {
			t.Errorf("%s: Setup does\n%s\nwant\n%s", c.name, have, c.setup)
		}
		undo := netstate.Text(mustUndo(t, plan, k))
		for _, command := range []string{"ip addr", "ip route add", "ip route del"} {
			for line := range strings.Lines(undo) {
				line = strings.TrimSpace(line)
				if strings.HasPrefix(line, command) && strings.Contains(line, " dev eth0") && !strings.Contains(line, "eth0-tap") && line != c.teardown {
					t.Errorf("%s: Teardown does %s, want %q", c.name, line, c.teardown)
				}
			}
		}
		if !strings.Contains(undo, c.teardown) {
			t.Errorf("%s: Teardown does not do %s, but\n%s", c.name, c.teardown, undo)
		}
	}
}

// TestWhoseLink: Teardown deletes a link that carries one of the marks, and no other link, whatever it is called.
func TestWhoseLink(t *testing.T) {
	group := netstate.Group(nic)
	for _, c := range []struct {
		name string
		link netstate.Link
		ours bool
	}{
		{"marked", netstate.Link{Name: "other", Alias: "guestwire eth0"}, true},
		{"in the group", netstate.Link{Name: "other", Group: group}, true},
		{"of another NIC", netstate.Link{Name: "other", Alias: "guestwire eth1", Group: netstate.Group(3)}, false},
		{"in the group, with another alias", netstate.Link{Name: "other", Alias: "other", Group: group}, false},
		{"in the group, with another alias and a name of ours", netstate.Link{Name: "eth0-br", Alias: "other", Group: group}, true},
		{"in the group, with another alias and the NIC's name", netstate.Link{Name: "eth0", Alias: "other", Group: group}, true},
		{"with a name of ours", netstate.Link{Name: "eth0-br"}, false},
		{"with the NIC's name", netstate.Link{Name: "eth0"}, false},
		{"a new tap", netstate.Link{Name: "eth0-tap", Tap: &netstate.Tap{}}, true},
		{"a new tap of the responder", netstate.Link{Name: "eth0-dhcp", Tap: &netstate.Tap{}}, true},
		{"a tap with another alias", netstate.Link{Name: "eth0-tap", Alias: "other", Tap: &netstate.Tap{}}, false},
		{"another tap", netstate.Link{Name: "tap0", Tap: &netstate.Tap{}}, false},
		{"no tap, with a tap's name", netstate.Link{Name: "eth0-tap"}, false},
	} {
		plan := newPlan(t, flannel(), bridge())
		k := boot(flannel())
		k.s.Links[1].Name = "eth0-nic" // an interrupted Setup has renamed the NIC
		k.s.Links[1].Group = group     // and another program has put it into the group
		c.link.Index, c.link.MTU = 90, 1500
		k.s.Links = append(k.s.Links, c.link)
		deleted := false
		ops, err := undoOf(plan, k.snapshot())
		if refused := !c.ours && c.link.Name == "eth0"; errors.Is(err, infra.ErrWired) != refused || err != nil && !refused {
			t.Errorf("%s: undo says %v", c.name, err) // the NIC needs its name
		}
		for _, op := range ops {
			switch o := op.(type) {
			case netstate.LinkDel:
				if o.Index == nic {
					t.Errorf("%s: steps delete the NIC", c.name)
				}
				deleted = deleted || o.Index == c.link.Index
			case netstate.GroupDel:
				t.Errorf("%s: steps delete the group, and the NIC with it", c.name)
			}
		}
		if deleted != c.ours {
			t.Errorf("%s: deleted %t", c.name, deleted)
		}
	}
}

// TestAsk: a first plan is made of all that its binding depends on.
func TestAsk(t *testing.T) {
	calls := []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables", "net/bridge/bridge-nf-call-arptables"}
	const newLinks = "net/ipv6/conf/default/disable_ipv6"
	bridged := append(calls, newLinks)
	routing := []string{newLinks, "net/ipv6/conf/all/forwarding", "net/ipv6/conf/eth0/accept_ra", "net/ipv6/conf/eth0/force_forwarding",
		"net/ipv6/conf/default/seg6_enabled", "net/ipv6/conf/default/rpl_seg_enabled"}
	forwarding := append(slices.Clone(routing), "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports")
	within := infra.Masquerade{IPv4: pfx("10.244.1.0/24"), Guest: []netip.Addr{ip("10.244.1.9")}}
	for _, c := range []struct {
		binding infra.Binding
		want    wiring.Questions
	}{
		{infra.Bridge{}, wiring.Questions{Sysctls: bridged, Dummy: true, Gateways: true, Log: true}},
		{infra.Redirect{}, wiring.Questions{Sysctls: []string{newLinks}, Gateways: true, Log: true}},
		{infra.Masquerade{}, wiring.Questions{Sysctls: forwarding, Listeners: true, Connections: true, Log: true, FlowTables: true}},
		{within, wiring.Questions{Sysctls: append(slices.Clone(forwarding), "net/ipv4/conf/all/proxy_arp", "net/ipv4/neigh/eth0/proxy_delay"), Listeners: true, Connections: true, Log: true, FlowTables: true}},
		{infra.Routed{}, wiring.Questions{Sysctls: routing, Listeners: true, Log: true}},
		{infra.Auto{Order: []cache.Kind{"redirect"}}, wiring.Questions{Sysctls: []string{newLinks}, Gateways: true, Log: true}},
		{infra.Auto{}, wiring.Questions{Sysctls: append(calls, forwarding...), Listeners: true, Connections: true, Dummy: true, Gateways: true, Log: true, FlowTables: true}},
		{infra.Macvtap{}, wiring.Questions{}},
		{infra.SRIOV{}, wiring.Questions{}},
		{infra.Passt{}, wiring.Questions{Sysctls: []string{portStart, pingGroups}, Listeners: true}},
		{infra.Slirp{}, wiring.Questions{Sysctls: []string{portStart, pingGroups}, Listeners: true}},
	} {
		have := wiring.Ask("eth0", infra.Spec{Binding: c.binding})
		if routes := have.Listeners && c.binding.Kind() != "passt" && c.binding.Kind() != "slirp"; routes != (len(have.Hinders) > 0) {
			t.Errorf("%s: %d sysctls by which a router is refused", c.binding.Kind(), len(have.Hinders))
		}
		slices.Sort(have.Sysctls)
		want := slices.Sorted(slices.Values(c.want.Sysctls))
		if !slices.Equal(have.Sysctls, want) || have.Listeners != c.want.Listeners || have.Connections != c.want.Connections || have.Dummy != c.want.Dummy || have.Gateways != c.want.Gateways || have.Log != c.want.Log || have.FlowTables != c.want.FlowTables {
			t.Errorf("%s: have %+v, want %+v", c.binding.Kind(), have, c.want)
		}
		if _, direct := map[string]bool{"macvtap": true, "sriov": true, "passt": true, "slirp": true}[string(c.binding.Kind())]; wiring.MakesTaps(c.binding) == direct {
			t.Errorf("%s: makes taps %t", c.binding.Kind(), !direct)
		}
	}
}

// TestOpenedPorts: passt's privileged ports and ping sockets are opened to its user where they are closed, and
// where another NIC's wiring has opened them, which may be the first to go.
func TestOpenedPorts(t *testing.T) {
	for _, c := range []struct {
		start, groups string
		port          uint16
		want          string // the sysctls, by path and value
	}{
		{"1024", "1 0", 1023, portStart + "=0 " + pingGroups + "=0 2147483647"},
		{"1024", "1 0", 1024, pingGroups + "=0 2147483647"},
		{"80", "1 0", 79, portStart + "=0 " + pingGroups + "=0 2147483647"},
		{"80", "1 0", 80, pingGroups + "=0 2147483647"},
		{"2000", "1 0", 1999, portStart + "=0 " + pingGroups + "=0 2147483647"},
		{"0", "0 2147483647", 80, portStart + "=0 " + pingGroups + "=0 2147483647"},
		{"0", "0 2147483647", 1024, pingGroups + "=0 2147483647"},
		{"1024", "100 200", 1024, ""},
		{"", "100 200", 80, ""},
	} {
		found := passtWith(func(s *netstate.Snapshot) { s.Sysctls = map[string]string{portStart: c.start, pingGroups: c.groups} })
		plan := newPlan(t, found, direct(infra.Passt{Ports: []infra.Ports{{First: c.port}}}))
		now := netstate.Snapshot{Links: found.Links, Sysctls: map[string]string{portStart: "closed", pingGroups: "closed"}}
		ops, err := plan.Steps(now)
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, op := range ops {
			if set, is := op.(netstate.SysctlSet); is {
				have = append(have, set.Path+"="+set.Value)
			}
		}
		if strings.Join(have, " ") != c.want {
			t.Errorf("%+v: have %q", c, have)
		}
	}
}

// TestChildren: what lies on the NIC would receive nothing any more, and keeps the binding from being wired.
func TestChildren(t *testing.T) {
	for kind, refusedBy := range map[string][]cache.Kind{
		"macvlan": {"bridge", "redirect"}, "macvtap": {"bridge", "redirect"}, "ipvlan": {"bridge", "redirect"}, "vlan": {"bridge", "redirect"}, "ipvtap": {"bridge", "redirect"}, "macsec": {"bridge", "redirect"}, "rmnet": {"bridge", "redirect"}, "veth": {},
	} {
		for _, spec := range []asked{bridge(), redirect(), masquerade()} {
			found := flannelWith(func(s *netstate.Snapshot) {
				s.Links = append(s.Links, netstate.Link{Index: 7, Name: "child", Kind: kind, Parent: nic, Up: true})
			})
			_, err := tryPlan(found, spec)
			want := slices.Contains(refusedBy, spec.Binding.Kind())
			if (err != nil) != want || want && !strings.Contains(err.Error(), "child lies on it") {
				t.Errorf("%s below a %s: %v, want a refusal %t", spec.Binding.Kind(), kind, err, want)
			}
		}
	}
}

// TestFenced: where the NIC did not forward before, it forwards for the guest alone: what comes in there and was not
// forwarded to the guest is dropped, for each version of IP.
func TestFenced(t *testing.T) {
	const fence4, fence6 = `iifname "eth0" meta nfproto ipv4 goto drop-not-forwarded`, `iifname "eth0" meta nfproto ipv6 goto drop-not-forwarded`
	const force = "net/ipv6/conf/eth0/force_forwarding"
	for _, c := range []struct {
		name      string
		edit      func(*netstate.Snapshot)
		four, six bool
	}{
		{"nothing forwards", unchanged, true, true},
		{"IPv4 forwards", func(s *netstate.Snapshot) { s.Links[1].Forwarding4 = true }, false, true},
		{"IPv6 forwards", func(s *netstate.Snapshot) { s.Sysctls[forwarding6] = "1" }, true, false},
		{"IPv6 forwards here", func(s *netstate.Snapshot) { s.Sysctls[force] = "1" }, true, false},
		{"IPv6 could forward here", func(s *netstate.Snapshot) { s.Sysctls[force] = "0" }, true, true},
		{"both forward", func(s *netstate.Snapshot) { s.Links[1].Forwarding4, s.Sysctls[forwarding6] = true, "1" }, false, false},
	} {
		text := newPlan(t, flannelWith(c.edit), masquerade()).String()
		if four, six := strings.Contains(text, fence4), strings.Contains(text, fence6); four != c.four || six != c.six {
			t.Errorf("%s: IPv4 is fenced: %t, IPv6: %t; want %t, %t", c.name, four, six, c.four, c.six)
		}
	}
}

// TestOwnGateway: bridge gives a route back only if the kernel takes its gateway again. The kernel refuses it where the
// most specific route to the gateway says that the address is the namespace's own.
func TestOwnGateway(t *testing.T) {
	special := func(kind uint8, table uint32, destination string) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			s.Routes = append(s.Routes, netstate.Route{Link: nic, Table: table, Type: kind, Scope: 254, Destination: pfx(destination)})
		}
	}
	both := func(edits ...func(*netstate.Snapshot)) func(*netstate.Snapshot) {
		return func(s *netstate.Snapshot) {
			for _, edit := range edits {
				edit(s)
			}
		}
	}
	const main, local = netstate.TableMain, netstate.TableLocal
	for _, c := range []struct {
		name    string
		edit    func(*netstate.Snapshot)
		refused bool
	}{
		{"as usual", unchanged, false},
		{"own address", special(2, main, "10.244.1.1/32"), true},
		{"own address in the table local", special(2, local, "10.244.1.1/32"), true},
		{"own address in another table", special(2, 77, "10.244.1.1/32"), false},
		{"broadcast address", special(3, main, "10.244.1.1/32"), true},
		{"group", special(5, main, "10.244.1.1/32"), true},
		{"blackhole", special(6, main, "10.244.1.1/32"), false},
		{"another address", special(2, main, "10.244.1.2/32"), false},
		{"as specific as the connected route", special(2, main, "10.244.1.0/24"), true},
		{"more specific than the connected route", special(2, main, "10.244.1.0/25"), true},
		{"less specific than the connected route", special(2, main, "10.244.0.0/23"), false},
		{"more and less specific", both(special(2, main, "10.244.0.0/23"), special(2, main, "10.244.1.0/30")), true},
		{"more specific again", both(special(2, main, "10.244.1.0/30"), func(s *netstate.Snapshot) { s.Routes = append(s.Routes, onLink("10.244.1.1/32")) }), false},
		{"on the link all the same", both(special(2, main, "10.244.1.1/32"), func(s *netstate.Snapshot) { s.Routes[0].OnLink, s.Routes[1].OnLink = true, true }), false},
		{"of a next hop", both(special(2, main, "10.244.1.2/32"), func(s *netstate.Snapshot) {
			s.Routes = append(s.Routes, multipath("10.7.0.0/16", "10.244.1.1", "10.244.1.2"))
		}), true},
		{"of another NIC's route", both(special(2, main, "10.50.0.1/32"), func(s *netstate.Snapshot) {
			s.Links = append(s.Links, net1())
			r := via("10.60.0.0/16", "10.50.0.1")
			r.Link = 3
			s.Routes = append(s.Routes, r)
		}), false},
	} {
		_, err := tryPlan(flannelWith(c.edit), bridge())
		if (err != nil) != c.refused || c.refused && !strings.Contains(err.Error(), "which another route gives to the namespace itself") {
			t.Errorf("%s: %v, want a refusal %t", c.name, err, c.refused)
		}
		plan, err := tryPlan(flannelWith(c.edit), eth0(infra.Spec{Binding: infra.Routed{}, Owner: launcher}))
		if err != nil {
			t.Errorf("%s: routed: %v", c.name, err)
		} else if warned := strings.Contains(fmt.Sprint(plan.Record.Warnings), "the namespace itself, and stays as it is"); warned != c.refused {
			t.Errorf("%s: routed: warnings %q, want one of the route %t", c.name, plan.Record.Warnings, c.refused)
		}
	}
}

// TestDefaultBridgeCalls: a sysctl that came with the wiring's bridge, the kernel's first one, has the kernel's default
// after Teardown.
func TestDefaultBridgeCalls(t *testing.T) {
	for _, path := range netstate.BridgeCalls() {
		plan := newPlan(t, flannel(), bridge())
		k := wire(t, plan, flannel())
		k.s.Sysctls[path] = "0"
		if undo := netstate.Text(mustUndo(t, plan, k)); !strings.Contains(undo, "sysctl -w "+path+"=1\n") {
			t.Errorf("%s stays 0:\n%s", path, undo)
		}
	}
}
