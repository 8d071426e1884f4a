package wiring_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

const (
	portStart  = "net/ipv4/ip_unprivileged_port_start"
	pingGroups = "net/ipv4/ping_group_range"
)

// direct wants the binding of flannel's NIC.
func direct(b infra.Binding) asked {
	return eth0(infra.Spec{Binding: b, Owner: launcher})
}

func macvtapWith(edit func(*netstate.Snapshot)) netstate.Snapshot {
	s := flannel()
	s.Links[1].Kind, s.Links[1].Mode = "macvtap", "bridge"
	edit(&s)
	return s
}

func function() netstate.Snapshot {
	return flannelWith(func(s *netstate.Snapshot) { s.Links[1].Kind, s.Links[1].PCI = "", "0000:03:10.1" })
}

func passtWith(edit func(*netstate.Snapshot)) netstate.Snapshot {
	return flannelWith(func(s *netstate.Snapshot) {
		s.Sysctls = map[string]string{portStart: "1024", pingGroups: "1 0"}
		edit(s)
	})
}

func unchanged(*netstate.Snapshot) {}

// directCases are those of bindings with which nothing of ours lies between the guest and its network.
var directCases = []testCase{
	{"macvtap", macvtapWith(unchanged), direct(infra.Macvtap{})},
	{"macvtap-down", macvtapWith(func(s *netstate.Snapshot) {
		s.Links[1].Up, s.Links[1].MTU, s.Addresses, s.Routes = false, 9000, nil, nil
	}), eth0(infra.Spec{Binding: infra.Macvtap{}, Owner: launcher, Queues: 4, Guard: infra.Guard{Off: true},
		Device: cache.Device{Driver: "vhost", BootOrder: 1},
	})},
	{"sriov", function(), direct(infra.SRIOV{})},
	{"sriov-managed", function(), withSpec(direct(infra.SRIOV{PCI: "0000:03:10.1", MAC: mac(7), VLAN: 42, Managed: true}), func(s *asked) {
		s.Guard.Off, s.Options.NoResponder = true, true
		s.Device = cache.Device{BootOrder: 1, PCIAddress: "0000:01:00.0", ACPIIndex: 7, Alias: "ua-eth0"}
	})},
	{"sriov-bound", lan4(), withSpec(direct(infra.SRIOV{PCI: "0000:03:10.2", MAC: mac(7)}), func(s *asked) { s.NIC = "net1" })},
	{"passt", passtWith(unchanged), direct(infra.Passt{})},
	{"passt-ports", passtWith(func(s *netstate.Snapshot) {
		s.Addresses = append(s.Addresses, address("10.244.1.8/24"))
		s.Listeners = []netstate.Listener{
			{Protocol: "tcp", Address: netip.IPv4Unspecified(), Port: 8001}, {Protocol: "udp", Address: netip.IPv4Unspecified(), Port: 8001},
		}
	}), direct(infra.Passt{MAC: mac(7), Ports: []infra.Ports{{First: 80}, {First: 8000, Last: 8010, Guest: 9000}, {Protocol: "udp", First: 53}}})},
	{"passt-high-ports", passtWith(unchanged), withSpec(direct(infra.Passt{Ports: []infra.Ports{{First: 1024, Guest: 80}}}), func(s *asked) { s.Guard.Off = true })},
	{"passt-allowed", passtWith(func(s *netstate.Snapshot) { s.Sysctls = map[string]string{portStart: "80", pingGroups: "100 200"} }),
		direct(infra.Passt{Ports: []infra.Ports{{First: 80}}})},
	{"slirp", passtWith(unchanged), withSpec(direct(infra.Slirp{}), func(s *asked) { s.DNS = &cache.DNS{Search: []string{"pod.example"}} })},
	{"slirp-ports", passtWith(func(s *netstate.Snapshot) {
		s.Listeners = []netstate.Listener{
			{Protocol: "tcp", Address: netip.IPv4Unspecified(), Port: 8001}, {Protocol: "tcp", Address: netip.IPv6Loopback(), Port: 8002},
			{Protocol: "tcp", Address: netip.IPv6Unspecified(), Port: 8003},
		}
	}), direct(infra.Slirp{MAC: mac(7), IPv4: pfx("10.9.0.0/27"), IPv6: pfx("fd09::/64"), Ports: []infra.Ports{{First: 80}, {First: 8000, Last: 8010, Guest: 9000}, {Protocol: "udp", First: 53}}})},
	{"slirp-4", func() netstate.Snapshot {
		s := lan4()
		s.Sysctls = map[string]string{portStart: "1024", pingGroups: "100 200"}
		return s
	}(), withSpec(direct(infra.Slirp{Ports: []infra.Ports{{First: 1024}}}), func(s *asked) { s.Guard.Off = true })},
	{"passt-other-groups", passtWith(func(s *netstate.Snapshot) { s.Sysctls[pingGroups] = "65534 65534" }), direct(infra.Passt{})},
}

// TestDirect: what others do to the NIC is their affair, and Undo gives back only what Setup
// changed.
func TestDirect(t *testing.T) {
	for _, c := range directCases {
		t.Run(c.name, func(t *testing.T) {
			plan := newPlan(t, c.found, c.spec)
			k := wire(t, plan, c.found)
			k.applyAll([]netstate.Op{netstate.AddressAdd{Link: "eth0", Address: address("192.0.2.7/24")}})
			if ops := mustSteps(t, plan, k); len(ops) > 0 {
				t.Errorf("steps change an address of another program:\n%s", netstate.Text(ops))
			}
			k.applyAll(mustUndo(t, plan, k))
			found := boot(c.found)
			found.applyAll([]netstate.Op{netstate.AddressAdd{Link: "eth0", Address: address("192.0.2.7/24")}})
			same(t, "given back", text(t, found.s), text(t, k.s))
		})
	}
}

// TestNothingOfOurs: such a wiring has no link and no table, so links and tables with its names belong to other
// programs.
func TestNothingOfOurs(t *testing.T) {
	for _, c := range directCases {
		plan := newPlan(t, c.found, c.spec)
		now := wire(t, plan, c.found).snapshot()
		now.Links = append(now.Links,
			netstate.Link{Index: 71, Name: "eth0-tap", Kind: "tun", Tap: &netstate.Tap{}},
			netstate.Link{Index: 72, Name: "eth0-br", Kind: "bridge", Alias: netstate.Mark("eth0"), Group: netstate.Group(nic)})
		now.Tables = []firewall.Image{{Family: firewall.NetDev, Name: "guestwire-eth0"}}
		undo, err := undoOf(plan, now)
		if err != nil {
			t.Fatal(err)
		}
		steps, err := plan.Steps(now)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range append(undo, steps...) {
			switch op.(type) {
			case netstate.LinkDel, netstate.GroupDel, netstate.TableDel:
				t.Errorf("%s: %v", c.name, op)
			}
		}
	}
}

// TestIndexUsedAgain: the NIC has gone, and another link has its index. That one is left alone.
func TestIndexUsedAgain(t *testing.T) {
	for _, c := range cases {
		plan := newPlan(t, c.found, c.spec)
		now := wire(t, plan, c.found).snapshot()
		at := slices.IndexFunc(now.Links, func(l netstate.Link) bool { return l.Index == nic })
		now.Links[at].Name, now.Links[at].MAC, now.Links[at].Master = "stranger", mac(0x99), 0
		undo, gone := undoOf(plan, now)
		if !errors.Is(gone, infra.ErrNoNIC) {
			t.Errorf("%s: %v, want ErrNoNIC", c.name, gone)
		}
		for _, op := range undo {
			if set, is := op.(netstate.LinkSet); is && set.Want.Index == nic {
				t.Errorf("%s: %v", c.name, op)
			}
		}
	}
}
