package wiring_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/golden"
)

// TestMadeUpMACs: a MAC is that of the guest's identity and the NIC's name, and no other guest's or NIC's.
func TestMadeUpMACs(t *testing.T) {
	seen := map[cache.MAC]string{}
	for name, spec := range map[string]asked{
		"no identity": eth0(infra.Spec{}), "vm1": eth0(infra.Spec{Guest: "vm1"}), "vm2": eth0(infra.Spec{Guest: "vm2"}), "vm1 net1": {"net1", infra.Spec{Guest: "vm1", Owner: launcher}},
	} {
		found := flannelWith(func(s *netstate.Snapshot) { s.Links[1].Name = spec.NIC })
		spec.Binding = infra.Masquerade{}
		r := newPlan(t, found, spec).Record
		if other, taken := seen[r.MAC]; taken || !r.MAC.Unicast() || r.MAC[0]&2 == 0 {
			t.Errorf("%s: the MAC %v, which is that of %q, or is not locally administered", name, r.MAC, other)
		}
		seen[r.MAC] = name
		if r.GatewayMAC != (cache.MAC{2}) || r.IPv6.Router.MAC != r.GatewayMAC || r.IPv6.Router.Address != ip("fe80::ff:fe00:0") {
			t.Errorf("%s: gateway %v, router %+v", name, r.GatewayMAC, r.IPv6.Router)
		}
	}
}

// TestOtherMACWarnings: the record warns where the network seems to know the NIC's MAC, and the guest has another one.
func TestOtherMACWarnings(t *testing.T) {
	unnamed := mac(5) // made of nothing
	of := func(s netstate.Snapshot, edit func(*netstate.Link)) netstate.Snapshot {
		s.Links = slices.Clone(s.Links)
		edit(&s.Links[1])
		return s
	}
	for name, c := range map[string]struct {
		found netstate.Snapshot
		mac   cache.MAC
		words string // of the warning; empty: there is none
	}{
		"OVN-Kubernetes":          {flannel(), mac(7), "port security"},
		"OVN-Kubernetes, the NIC": {flannel(), podMAC, ""},
		"OVN-Kubernetes, left":    {flannel(), cache.MAC{}, ""},
		"Kube-OVN":                {of(flannel(), func(l *netstate.Link) { l.MAC = cache.MAC{0, 0, 0, 0x5b, 0x1f, 0xc4} }), mac(7), "Kube-OVN"},
		"Kube-OVN, left":          {of(flannel(), func(l *netstate.Link) { l.MAC = cache.MAC{0, 0, 0, 0x5b, 0x1f, 0xc4} }), cache.MAC{}, ""},
		"Cilium":                  {of(cilium(), func(l *netstate.Link) { l.MAC = unnamed }), mac(7), "Cilium"},
		"Cilium, left":            {of(cilium(), func(l *netstate.Link) { l.MAC = unnamed }), cache.MAC{}, ""},
		"card":                    {of(flannel(), func(l *netstate.Link) { l.MAC, l.Kind = unnamed, "" }), mac(7), "no virtual link"},
		"card, left":              {of(flannel(), func(l *netstate.Link) { l.MAC, l.Kind = unnamed, "" }), unnamed, ""},
		"a veth":                  {of(flannel(), func(l *netstate.Link) { l.MAC = unnamed }), mac(7), ""},
	} {
		for _, b := range []infra.Binding{infra.Bridge{MAC: c.mac}, infra.Redirect{MAC: c.mac}} {
			warnings := newPlan(t, c.found, eth0(infra.Spec{Binding: b})).Record.Warnings
			is := func(w string) bool {
				return strings.Contains(w, "port security") || strings.Contains(w, "Cilium")
			}
			if c.words == "" && slices.ContainsFunc(warnings, is) || c.words != "" && !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, c.words) }) {
				t.Errorf("%s, %s: warnings %q, want one with %q", name, b.Kind(), warnings, c.words)
			}
		}
	}
}

// TestBusyNIC: a NIC that takes no MAC while it is up goes down for Teardown, and comes up again if another program
// brought it up. TestMACOfKinds of phase1 has a NIC that is up before Setup.
func TestBusyNIC(t *testing.T) {
	found := flannelWith(func(s *netstate.Snapshot) {
		s.Links[1].Kind, s.Links[1].Up, s.Routes, s.Addresses = "", false, nil, s.Addresses[:1]
	})
	p := newPlan(t, found, withSpec(redirect(), func(s *asked) { s.Binding = infra.Redirect{MAC: mac(0x77)} }))
	k := wire(t, p, found)
	k.applyAll([]netstate.Op{netstate.LinkSet{Have: netstate.Link{Index: nic}, Want: netstate.Link{Index: nic, Up: true}}})
	for range rounds {
		k.applyAll(mustUndo(t, p, k))
	}
	if l, _ := k.s.Named("eth0"); l.MAC != podMAC || !l.Up {
		t.Errorf("given back as %+v, want it up, with %v", l, podMAC)
	}
}

// TestSameRecordElsewhere: the record depends on the configuration, and not on the MAC of the NIC. Without a MAC and an
// identity, it does.
func TestSameRecordElsewhere(t *testing.T) {
	named := func(guest string, b infra.Binding) asked {
		return eth0(infra.Spec{Binding: b, Guest: guest, Owner: launcher})
	}
	for name, c := range map[string]struct {
		spec asked
		same bool
	}{
		"bridge":                 {named("", infra.Bridge{}), false},
		"bridge, guest":          {named("vm1", infra.Bridge{}), false},
		"bridge, MAC":            {named("", infra.Bridge{MAC: mac(7)}), true},
		"redirect":               {named("", infra.Redirect{}), false},
		"redirect, MAC":          {named("", infra.Redirect{MAC: mac(7)}), true},
		"masquerade":             {named("", infra.Masquerade{}), false},
		"masquerade, guest":      {named("vm1", infra.Masquerade{}), true},
		"masquerade, MAC":        {named("", infra.Masquerade{MAC: mac(7)}), true},
		"masquerade, NIC's MAC":  {named("vm1", infra.Masquerade{NICMAC: true}), false},
		"masquerade, both MACs":  {named("", infra.Masquerade{MAC: mac(7), GatewayMAC: mac(8)}), true},
		"passt":                  {named("", infra.Passt{}), false},
		"passt, guest":           {named("vm1", infra.Passt{}), true},
		"slirp":                  {named("", infra.Slirp{}), false},
		"slirp, guest":           {named("vm1", infra.Slirp{}), true},
		"auto of redirect, MAC":  {named("", infra.Auto{Order: []cache.Kind{"redirect"}, MAC: mac(7)}), true},
		"auto as a masquerade":   {named("vm1", infra.Auto{Order: []cache.Kind{"masquerade"}}), true},
		"auto, guest, no MAC":    {named("vm1", infra.Auto{}), false},
		"bridge, no responder":   {withSpec(named("", infra.Bridge{MAC: mac(7)}), func(s *asked) { s.Options.NoResponder = true }), true},
		"masquerade, another":    {named("", infra.Masquerade{GatewayMAC: mac(8)}), false},
		"redirect, IPv6 of MACs": {named("", infra.Redirect{MAC: mac(7)}), true},
	} {
		here, there := newPlan(t, flannel(), c.spec).Record, newPlan(t, flannelElsewhere(), c.spec).Record
		here.Warnings, there.Warnings = nil, nil // flannel's MAC is one of OVN-Kubernetes
		texts := [2]string{}
		for i, r := range []cache.Record{here, there} {
			text, err := cache.Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			texts[i] = string(text)
		}
		if (texts[0] == texts[1]) != c.same {
			t.Errorf("%s: the same record %v, want %v:\n%s", name, !c.same, c.same, golden.Diff(texts[0], texts[1]))
		}
	}
}

// flannelElsewhere is flannel in a namespace whose NIC has another MAC.
func flannelElsewhere() netstate.Snapshot {
	other := cache.MAC{0xfe, 0x10, 0, 0, 0, 5}
	return flannelWith(func(s *netstate.Snapshot) {
		s.Links[1].MAC, s.Links[1].Index = other, 9
		for i, a := range s.Addresses {
			s.Addresses[i].Link = 9
			if a.Prefix.Addr() == eui64.LinkLocal(podMAC) {
				s.Addresses[i].Prefix = pfx(eui64.LinkLocal(other).String() + "/64")
			}
		}
		for i := range s.Routes {
			s.Routes[i].Link = 9
		}
		for i := range s.Neighbours {
			s.Neighbours[i].Link = 9
		}
	})
}
