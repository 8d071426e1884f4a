package wiring_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/wiring"
)

var guestMAC = cache.MAC{0x02, 0, 0, 0, 0, 0x77}

// TestSameGuest: under a running guest that can change which does not change who the guest is.
func TestSameGuest(t *testing.T) {
	mine := func(edit func(*infra.Spec)) infra.Spec {
		s := infra.Spec{Binding: infra.Bridge{}}
		edit(&s)
		return s
	}
	bound := func(b infra.Binding) infra.Spec { return mine(func(s *infra.Spec) { s.Binding = b }) }
	known := func(b infra.Binding, guest string) infra.Spec {
		return mine(func(s *infra.Spec) { s.Binding, s.Guest = b, guest })
	}
	ports := func(first ...uint16) infra.Passt {
		var p infra.Passt
		for _, n := range first {
			p.Ports = append(p.Ports, infra.Ports{First: n})
		}
		return p
	}
	for _, c := range []struct {
		a, b infra.Spec
		same bool
	}{
		{bound(infra.Bridge{}), bound(infra.Bridge{}), true},
		{bound(infra.Bridge{}), mine(func(s *infra.Spec) { s.Owner.OwnDevices = true }), true},
		{bound(infra.Bridge{}), bound(infra.Redirect{}), false},
		{bound(infra.Bridge{}), bound(infra.Masquerade{}), false},
		{bound(infra.Bridge{}), bound(infra.Macvtap{}), false},
		{bound(infra.Redirect{}), bound(infra.Redirect{}), true},
		{bound(infra.Bridge{}), bound(infra.Bridge{MAC: guestMAC}), false},
		{bound(infra.Bridge{MAC: guestMAC}), bound(infra.Bridge{MAC: guestMAC}), true},
		{bound(infra.Redirect{}), bound(infra.Redirect{MAC: guestMAC}), false},
		{bound(infra.Redirect{MAC: guestMAC}), bound(infra.Redirect{MAC: guestMAC}), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{GatewayMAC: cache.MAC{2}}), false},
		{bound(infra.Macvtap{}), bound(infra.Macvtap{}), true},
		{bound(infra.Bridge{}), mine(func(s *infra.Spec) { s.Tap = "eth0-tap" }), true},
		{bound(infra.Bridge{}), mine(func(s *infra.Spec) { s.Tap = "tap0" }), false},
		{known(infra.Masquerade{}, ""), known(infra.Masquerade{}, "vm1"), false},
		{known(infra.Masquerade{}, "vm2"), known(infra.Masquerade{}, "vm1"), false},
		{known(infra.Masquerade{}, "vm1"), known(infra.Masquerade{}, "vm1"), true},
		{known(infra.Masquerade{MAC: guestMAC}, ""), known(infra.Masquerade{MAC: guestMAC}, "vm1"), true},
		{known(infra.Passt{}, ""), known(infra.Passt{}, "vm1"), false},
		{known(infra.Passt{MAC: guestMAC}, ""), known(infra.Passt{MAC: guestMAC}, "vm1"), true},
		{known(infra.Bridge{}, ""), known(infra.Bridge{}, "vm1"), true},
		{known(infra.Redirect{}, ""), known(infra.Redirect{}, "vm1"), true},
		{known(infra.Macvtap{}, ""), known(infra.Macvtap{}, "vm1"), true},
		{known(infra.SRIOV{}, ""), known(infra.SRIOV{}, "vm1"), true},
		{bound(infra.SRIOV{}), bound(infra.SRIOV{}), true},
		{bound(infra.SRIOV{}), bound(infra.SRIOV{VLAN: 1}), false},
		{bound(infra.SRIOV{}), bound(infra.Passt{}), false},
		{bound(ports()), bound(ports()), true},
		{bound(ports(80)), bound(ports(80)), true},
		{bound(ports(80)), bound(ports(81)), false},
		{bound(ports(80)), bound(ports()), false},
		{bound(infra.Passt{}), bound(infra.Passt{MAC: guestMAC}), false},
		{bound(infra.Slirp{}), bound(infra.Passt{}), false},
		{bound(infra.Slirp{}), bound(infra.Slirp{MAC: guestMAC}), false},
		{bound(infra.Slirp{}), bound(infra.Slirp{IPv4: pfx("10.0.2.0/24"), IPv6: pfx("fd10:0:2::/64")}), true},
		{bound(infra.Slirp{}), bound(infra.Slirp{IPv4: pfx("10.0.3.0/24")}), false},
		{bound(infra.Slirp{}), bound(infra.Slirp{IPv6: pfx("fd10:0:3::/64")}), false},
		{bound(infra.Slirp{Ports: []infra.Ports{{First: 80}}}), bound(infra.Slirp{Ports: []infra.Ports{{Protocol: "tcp", First: 80, Guest: 80}}}), true},
		{bound(infra.Slirp{Ports: []infra.Ports{{First: 80}}}), bound(infra.Slirp{}), false},
		{bound(infra.Passt{Ports: []infra.Ports{{Protocol: "tcp", First: 80, Guest: 80}}}), bound(ports(80)), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{Ports: []infra.Ports{}, Loopback: true, MaxConnections: 9}), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{IPv4: netip.MustParsePrefix("10.0.2.0/24"), IPv6: netip.MustParsePrefix("fd10:0:2::/120")}), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{IPv4: netip.MustParsePrefix("10.7.0.0/24")}), false},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{IPv6: netip.MustParsePrefix("fd77::/120")}), false},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{Guest: addresses("10.0.2.2", "fd10:0:2::2"), Gateway: addresses("10.0.2.1")}), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{Guest: addresses("10.0.2.10")}), false},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{Gateway: addresses("fd10:0:2::a")}), false},
		{bound(infra.Masquerade{Guest: addresses("10.0.2.1")}), bound(infra.Masquerade{Gateway: addresses("10.0.2.2")}), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{MAC: guestMAC}), false},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{NICMAC: true}), false},
		{known(infra.Masquerade{NICMAC: true}, ""), known(infra.Masquerade{NICMAC: true}, "vm1"), true},
		{bound(infra.Masquerade{}), bound(infra.Masquerade{Firewall: cache.FirewallIPTablesNFT}), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Queues = 1 }), true},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Queues = 2 }), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Owner.UID = 107 }), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Owner.GID = 107 }), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Owner.SELinux = "u:r:vmm_t" }), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) { s.Owner.Inside = true }), false},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) {
			s.Guard.Off, s.DNS, s.Options.Hostname, s.Device.Model, s.MTU = true, &cache.DNS{}, "vm", "e1000", 1400
			s.Limits.FromGuest.BitsPerSecond = 8000
		}), true},
		{mine(func(*infra.Spec) {}), mine(func(s *infra.Spec) {
			s.Guard.EtherTypes, s.Guard.VLANs = []infra.EtherType{0x8863}, []uint16{5}
		}), true},
	} {
		for _, pair := range [][2]infra.Spec{{c.a, c.b}, {c.b, c.a}} {
			kept, err := wiring.SameGuest("eth0", pair[0], pair[1])
			if (err == nil) != c.same || err != nil && !errors.Is(err, infra.ErrWired) {
				t.Errorf("%+v and then %+v: %v", pair[0], pair[1], err)
			}
			was, _ := pair[0].Binding.(infra.Masquerade)
			if is, _ := kept.Binding.(infra.Masquerade); c.same && (kept.Tap != pair[0].Tap || !slices.Equal(is.Guest, was.Guest) || !slices.Equal(is.Gateway, was.Gateway)) {
				t.Errorf("%+v and then %+v: became %+v, want tap and addresses named as at first", pair[0], pair[1], kept)
			}
		}
	}
}

// TestSameGuestSays: the error says how the NIC is wired, so that its reader can ask for the same.
func TestSameGuestSays(t *testing.T) {
	wanted := infra.Spec{Binding: infra.Slirp{}}
	for want, wired := range map[string]infra.Spec{
		`asks for tap ""`:                       {Binding: infra.Bridge{}, Tap: "tap0", Queues: 2, Owner: infra.Owner{UID: 1}},
		"asks for queues 2":                     {Binding: infra.Bridge{}, Owner: infra.Owner{UID: 1}},
		"asks for user 1 (no group named)":      {Binding: infra.Bridge{}, Queues: 2},
		"asks for the bridge binding, queues 2": {Binding: infra.Redirect{}, Owner: infra.Owner{UID: 1}},
	} {
		if _, err := wiring.SameGuest("eth0", wired, infra.Spec{Binding: infra.Bridge{}, Queues: 2, Owner: infra.Owner{UID: 1}}); err == nil || !strings.HasSuffix(err.Error(), want+": ask for the same, or Teardown first (guestwire-agent teardown)") {
			t.Errorf("%v does not end with %s and the way out", err, want)
		}
	}
	_, other := wiring.SameGuest("eth0", infra.Spec{Binding: infra.Passt{}, Guest: "vm1"}, infra.Spec{Binding: infra.Passt{}, Guest: "vm2"})
	if other == nil || !strings.HasSuffix(other.Error(), `, guest "vm1", queues 1, for user 0 (no group named); this call asks for guest "vm2": ask for the same, or Teardown first (guestwire-agent teardown)`) {
		t.Errorf("%v does not name the wired guest and the wanted one", other)
	}
	for want, wired := range map[string]infra.Spec{
		"already wired with the bridge binding, queues 1, for user 0 (no group named); this call asks": {Binding: infra.Bridge{}},
		"already wired with the bridge binding, queues 4, for user 1, group 2; this call asks":         {Binding: infra.Bridge{}, Queues: 4, Owner: infra.Owner{UID: 1, GID: 2}},
		"for user 1, group 2 inside; this call asks":                                                   {Binding: infra.Bridge{}, Owner: infra.Owner{UID: 1, GID: 2, Inside: true}},
		"for user 1, group 2, context u:r:vmm_t:s0; this call asks":                                    {Binding: infra.Bridge{}, Owner: infra.Owner{UID: 1, GID: 2, SELinux: "u:r:vmm_t:s0"}},
		`already wired with the masquerade binding (ipv6 fd77::/120, gateway fd77::9 10.0.2.9, mac 02:00:00:00:00:77, firewall nftables), queues 1,`: {
			Binding: infra.Masquerade{IPv6: netip.MustParsePrefix("fd77::/120"), Gateway: addresses("fd77::9", "10.0.2.9"), MAC: guestMAC, Firewall: cache.FirewallNFTables}},
		"already wired with the bridge binding (mac 02:00:00:00:00:77), queues 1,": {Binding: infra.Bridge{MAC: guestMAC}, Guest: "unused"},
		"binding (nicMAC true), queues 1,":                                         {Binding: infra.Masquerade{NICMAC: true}},
		`the masquerade binding, guest "vm1", queues 1, for user 0`:                {Binding: infra.Masquerade{}, Guest: "vm1"},
		"already wired with the sriov binding {PCI:0000:03:10.1 ":                  {Binding: infra.SRIOV{PCI: "0000:03:10.1"}},
	} {
		if _, err := wiring.SameGuest("eth0", wired, wanted); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}

// TestCanBecome: which binding an Auto may have become, so that a later Setup with Auto keeps it.
func TestCanBecome(t *testing.T) {
	other := cache.MAC{2, 0, 0, 0, 0, 0x78}
	for _, c := range []struct {
		auto infra.Auto
		b    infra.Binding
		can  bool
	}{
		{infra.Auto{}, infra.Bridge{}, true},
		{infra.Auto{}, infra.Bridge{MAC: guestMAC}, true},
		{infra.Auto{}, infra.Routed{}, true},
		{infra.Auto{}, infra.Passt{}, false},
		{infra.Auto{}, infra.Auto{}, false},
		{infra.Auto{Order: []cache.Kind{"redirect"}}, infra.Bridge{}, false},
		{infra.Auto{MAC: guestMAC}, infra.Redirect{MAC: guestMAC}, true},
		{infra.Auto{MAC: guestMAC}, infra.Masquerade{MAC: other}, false},
		{infra.Auto{MAC: guestMAC}, infra.Bridge{}, false},
		{infra.Auto{MAC: guestMAC}, infra.Routed{}, false},
	} {
		if have := wiring.CanBecome(c.auto, c.b); have != c.can {
			t.Errorf("%+v, %T%+[2]v: %v, want %v", c.auto, c.b, have, c.can)
		}
	}
}
