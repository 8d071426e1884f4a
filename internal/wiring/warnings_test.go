package wiring_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// TestAddressElsewhere: another link with the NIC's address is a loss, as in a pod of Terway's exclusive ENI:
// packets that arrive there do not reach the guest.
func TestAddressElsewhere(t *testing.T) {
	for _, test := range []struct {
		name     string
		address  string // of the other link
		loopback bool
		alias    string // of a third link
		want     string
	}{
		{"same IPv4", "10.244.1.7/32", false, "", "other-link net1: [10.244.1.7]"},
		{"another IPv4", "10.244.1.8/32", false, "", ""},
		{"loopback", "10.244.1.7/32", true, "", ""},
		{"wired", "10.244.1.7/32", false, netstate.Mark("net1"), ""},
	} {
		found := flannelWith(func(s *netstate.Snapshot) {
			s.Links = append(s.Links,
				netstate.Link{Index: 3, Name: "net1", Kind: "veth", MAC: mac(3), MTU: 1500, Up: true, Ethernet: true, Loopback: test.loopback},
				netstate.Link{Index: 4, Name: "net1-tap", Kind: "tun", MAC: mac(4), MTU: 1500, Up: true, Ethernet: true, Alias: test.alias},
			)
			s.Addresses = append(s.Addresses, netstate.Address{Link: 3, Prefix: pfx(test.address)})
		})
		plan, err := tryPlan(found, bridge())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range plan.Record.Losses {
			if strings.HasPrefix(l.What, "net1: [") {
				got = append(got, l.Kind+" "+l.What)
			}
		}
		if want := slices.DeleteFunc([]string{test.want}, func(w string) bool { return w == "" }); !slices.Equal(got, want) {
			t.Errorf("%s: losses %q, want %q", test.name, got, want)
		}
	}
}

// TestMaxNeighboursWarning: infra.Auto takes guard.maxNeighbours, and can be a binding that limits nothing.
func TestMaxNeighboursWarning(t *testing.T) {
	for order, want := range map[cache.Kind]bool{"redirect": true, "bridge": true, "routed": false, "masquerade": false} {
		plan := newPlan(t, lan4(), withSpec(auto(), func(s *asked) {
			s.Binding, s.Guard.MaxNeighbours = infra.Auto{Order: []cache.Kind{order}}, 5
		}))
		if said := strings.Contains(strings.Join(plan.Record.Warnings, "\n"), "guard.maxNeighbours limits nothing under "+string(order)); said != want {
			t.Errorf("%s: %q; want a warning %t", order, plan.Record.Warnings, want)
		}
	}
}

// TestModelWarnings: what QEMU and libvirt refuse with a model is in the plan. Package domain/qemu has the refusals.
func TestModelWarnings(t *testing.T) {
	passt := withSpec(redirect(), func(s *asked) { s.Binding = infra.Passt{VhostUser: true} })
	for _, c := range []struct {
		spec   asked
		device cache.Device
		queues int
		want   string
	}{
		{redirect(), cache.Device{Model: "e1000e"}, 4, "device.model is e1000e, which QEMU and libvirt refuse together with queues: leave one of them out"},
		{redirect(), cache.Device{Model: "e1000e", Driver: "vhost"}, 1, "together with device.driver vhost"},
		{passt, cache.Device{Model: "e1000e"}, 1, "together with binding.passt.vhostUser"},
		{redirect(), cache.Device{Model: "e1000e"}, 1, ""},
		{redirect(), cache.Device{Model: "virtio-transitional"}, 4, ""},
		{passt, cache.Device{}, 1, ""},
	} {
		plan := newPlan(t, flannel(), withSpec(c.spec, func(s *asked) { s.Device, s.Queues = c.device, c.queues }))
		said := strings.Join(plan.Record.Warnings, "\n")
		if want := c.want != ""; strings.Contains(said, "device.model is") != want || !strings.Contains(said, c.want) {
			t.Errorf("%+v, queues %d: the plan warns of %q, want %q", c.device, c.queues, said, c.want)
		}
	}
}
