package phase1_test

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// knownGateway is that of the gateway on both sides.
const knownGateway = "02:00:00:00:00:aa"

// movingGuest wires a guest in a pod, and returns the pod and the record.
func movingGuest(t *testing.T, b infra.Binding) (side, cache.Record) {
	t.Helper()
	n := nstest.NewNetwork(t)
	n.World.IP("link set pod address " + knownGateway)
	s := side{n, config(n, b), settled(t, n)}
	s.c.Options = cache.Options{Hostname: "vm1", LeaseSeconds: 3600}
	s.c.Device = cache.Device{Model: "virtio", PCIAddress: "0000:01:00.0"}
	setup(t, s.c)
	return s, record(t, n)
}

// target is a pod that knows no more than who owns the guest, and what it receives the guest.
func target(t *testing.T, from cache.Record) side {
	t.Helper()
	n := nstest.NewNetwork(t)
	n.World.IP("link set pod address " + knownGateway)
	s := side{n, wired.NIC{NIC: phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}, Moving: phase1.Moving{From: &from}, Spec: infra.Spec{State: n.State, Owner: nstest.Owner()}}, settled(t, n)}
	return s
}

// TestTakeOver: a target has the record of its source, byte for byte, but for the namespace and standby. A later Setup
// needs no From.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	eachMovable(t, func(t *testing.T, b infra.Binding) {
		source, from := movingGuest(t, b)
		s := target(t, from)
		_, planned := s.c.Plan(t.Context())
		if _, err := s.c.Setup(t.Context()); !errors.Is(err, phase1.ErrActive) || !errors.Is(planned, phase1.ErrActive) {
			t.Errorf("Setup: %v, Plan: %v; want ErrActive", err, planned)
		}
		asFound(t, s.Network, s.before)
		if left := journals(t, s.Network); len(left) > 0 {
			t.Errorf("refused, and yet there is %v", left)
		}

		s.c.Standby = true
		s.c.Progress = reportsNothing(t)
		preview, err := s.c.Plan(t.Context())
		if err != nil || len(preview.Changes) > 0 {
			t.Errorf("Plan: %v, %v", preview, err)
		}
		setup(t, s.c)
		s.wantRole(t, cache.RoleStandby, 0)
		same := func(r cache.Record) {
			t.Helper()
			for _, change := range cache.Changes(from, r) {
				t.Errorf("the guest notices: %v", change)
			}
			want := from
			want.Namespace, want.Role, want.Source, want.Turn, want.Warnings, want.Static = r.Namespace, r.Role, r.Source, r.Turn, r.Warnings, r.Static
			if !reflect.DeepEqual(r, want) {
				t.Errorf("the target's record is\n%+v, the source's\n%+v", r, want)
			}
		}
		same(record(t, s.Network))

		// The caller that calls Setup once more has the Spec, and no record of the source.
		later := s.c
		later.From, later.Standby, later.Binding = nil, false, b
		setup(t, later)
		repair(t, later)
		same(record(t, s.Network))
		s.wantRole(t, cache.RoleStandby, 0)

		r := s.activate(t, source.deactivate(t, 1))
		same(*r)
		s.serves(t)
		setup(t, later)
		same(record(t, s.Network))
		s.wantRole(t, cache.RoleActive, 1)
		later.MTU = 1400
		setup(t, later)
		if r := record(t, s.Network); r.MTU != 1400 {
			t.Errorf("a later Setup gives the guest an MTU of %d, want 1400", r.MTU)
		}
		teardown(t, s.Network, s.c, s.before)
		teardown(t, source.Network, source.c, source.before)
	})
}

// reportsNothing is a Progress to which a call says nothing, but what it waits for on a busy machine.
func reportsNothing(t *testing.T) func(text string) {
	return func(text string) {
		if !strings.HasPrefix(text, "asks for ") {
			t.Errorf("Setup reports %s", text)
		}
	}
}

// TestTakeOverTap: a snapshot of a VMM has the name of its tap. A named one is taken over, also by the source when the
// guest comes back. One that is made of the NIC's name is another at a NIC with another name, which Setup and Plan say.
func TestTakeOverTap(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	source := side{n, config(n, infra.Redirect{}), settled(t, n)}
	source.c.Tap = "vmtap0"
	setup(t, source.c)
	inactive := source.deactivate(t, 1)
	s := target(t, *inactive)
	s.c.Progress = reportsNothing(t)
	setup(t, s.c)
	s.Pod.IP("link show vmtap0")
	setup(t, s.c)
	back := s.deactivate(t, 2)
	c := source.c
	c.From, c.Standby, c.Binding, c.Tap = back, true, nil, ""
	setup(t, c)
	source.activate(t, back)
	teardown(t, s.Network, s.c, s.before)
	inactive = source.deactivate(t, 3)
	teardown(t, source.Network, source.c, source.before)

	inactive.Tap = "eth0-tap"
	s = target(t, *inactive)
	s.Pod.IP("link set eth0 down")
	s.Pod.IP("link set eth0 name net1 up")
	s.Pod.IP("route replace default via 10.244.1.1")
	s.c.Name = "net1"
	const name, tap = "a snapshot of the VMM notices: name: eth0 becomes net1\n", "a snapshot of the VMM notices: tap: eth0-tap becomes net1-tap\n"
	preview, err := s.c.Plan(t.Context())
	if err != nil || !strings.Contains(preview.String(), "# "+name+"# "+tap) {
		t.Errorf("Plan: %v\n%v", err, preview)
	}
	reported := ""
	s.c.Progress = func(text string) { reported += text + "\n" }
	setup(t, s.c)
	if !strings.Contains(reported, name+tap) {
		t.Errorf("Setup reports %q", reported)
	}
	unwire(t, s.c)
}

// TestTakeOverGateway: on standby the guest's IPv6 router is the one that the guest knows. When the gateway has another
// MAC on this node, Activate repairs that.
func TestTakeOverGateway(t *testing.T) {
	t.Parallel()
	source, from := movingGuest(t, infra.Redirect{})
	s := target(t, from)
	const here = "02:00:00:00:00:bb"
	s.World.IP("link set pod address " + here)
	s.c.Standby = true
	setup(t, s.c)
	s.wantRole(t, cache.RoleStandby, 0)
	if r := record(t, s.Network); r.IPv6.Router == nil || r.IPv6.Router.MAC.String() != knownGateway {
		t.Errorf("on standby the router is %+v, want %s", r.IPv6.Router, knownGateway)
	}
	if r := s.activate(t, source.deactivate(t, 1)); r.IPv6.Router == nil || r.IPv6.Router.MAC.String() != here {
		t.Errorf("after Activate the router is %+v, want %s", r.IPv6.Router, here)
	}
	s.serves(t)
}

// TestTakeOverMTU: a guest keeps its MTU, so a NIC with a smaller MTU is refused. The way out is a larger MTU of the
// NIC: the Spec can name no smaller one, and cannot leave it out.
func TestTakeOverMTU(t *testing.T) {
	t.Parallel()
	eachMovable(t, func(t *testing.T, b infra.Binding) {
		_, from := movingGuest(t, b)
		for _, mtu := range []int{0, from.MTU} {
			s := target(t, from)
			s.c.Standby, s.c.MTU = true, mtu
			s.Pod.IP("link set eth0 mtu 1400")
			s.before = settled(t, s.Network)
			var field *cache.FieldError
			_, err := s.c.Setup(t.Context())
			if !errors.As(err, &field) || field.Field != "mtu" || !strings.Contains(err.Error(), fmt.Sprintf("give eth0 at least %d", from.MTU)) {
				t.Errorf("MTU %d: Setup on a NIC with less: %v, want what MTU the NIC needs", mtu, err)
			}
			asFound(t, s.Network, s.before)
		}
	})
}

// TestTakeOverInactive: the record that Deactivate returned lets the target be active at once, or on standby until the
// same record is shown to Activate.
func TestTakeOverInactive(t *testing.T) {
	t.Parallel()
	source, _ := movingGuest(t, infra.Masquerade{})
	first := source.deactivate(t, 1)
	s := target(t, *first)
	setup(t, s.c)
	s.wantRole(t, cache.RoleActive, 1)
	setup(t, s.c)
	s.wantRole(t, cache.RoleActive, 1)
	// The source is wired already, and is asked to take the guest over, as any target.
	back := s.deactivate(t, 2)
	for _, b := range []infra.Binding{nil, infra.Masquerade{}} {
		c := source.c
		c.From, c.Standby, c.Binding = back, true, b
		setup(t, c)
		source.wantRole(t, cache.RoleInactive, 1)
	}
	source.activate(t, back)
	other := *back
	other.MAC[5]++
	for _, side := range []side{source, s} { // without From at the first Setup, and with another one
		c := side.c
		c.From, c.Standby, c.Binding = &other, true, infra.Masquerade{}
		_, planned := c.Plan(t.Context())
		_, err := c.Setup(t.Context())
		if !errors.Is(err, infra.ErrWired) || !errors.Is(planned, infra.ErrWired) || !strings.Contains(err.Error(), other.MAC.String()) {
			t.Errorf("Setup with the record of another guest: %v, Plan: %v; want ErrWired and its MAC", err, planned)
		}
	}
	teardown(t, s.Network, s.c, s.before)

	inactive := source.deactivate(t, 3)
	s = target(t, *inactive)
	s.c.Standby = true
	setup(t, s.c)
	s.wantRole(t, cache.RoleStandby, 2)
	s.refuses(t, first, "call Deactivate there until")
	s.activate(t, inactive)
	source.activate(t, s.deactivate(t, 4))

	// The guest of this very namespace is nobody else's.
	from := record(t, source.Network)
	teardown(t, source.Network, source.c, source.before)
	source.c.From = &from
	setup(t, source.c)
	source.wantRole(t, cache.RoleActive, 4)
}

// TestTurnBounds: the turn of another node's record does not wrap, neither at once nor by the next Deactivate, which
// changes nothing where the turn would be too high.
func TestTurnBounds(t *testing.T) {
	t.Parallel()
	const last = 1<<53 - 1
	source, _ := movingGuest(t, infra.Masquerade{})
	inactive := source.deactivate(t, 1)
	s := target(t, *inactive)
	s.c.Standby = true
	for _, turn := range []uint64{0, last + 1, 1<<64 - 1} {
		bad := *inactive
		bad.Turn = turn
		c, field := s.c, (*cache.FieldError)(nil)
		c.From = &bad
		if _, err := c.Setup(t.Context()); !errors.As(err, &field) || field.Field != "from.turn" {
			t.Errorf("Setup from turn %d: %v", turn, err)
		}
	}
	asFound(t, s.Network, s.before)
	inactive.Turn, s.c.From = last, inactive
	setup(t, s.c)
	s.wantRole(t, cache.RoleStandby, last-1)
	for range 2 {
		var field *cache.FieldError
		if r, err := s.c.Deactivate(t.Context()); !errors.As(err, &field) || field.Field != "turn" {
			t.Errorf("Deactivate: turn %d, %v", r.Turn, err)
		}
		s.wantRole(t, cache.RoleStandby, last-1)
	}
	for _, turn := range []uint64{0, 1<<64 - 1} {
		bad := *inactive
		bad.Turn = turn
		var field *cache.FieldError
		if _, err := s.c.Activate(t.Context(), phase1.Other{Inactive: &bad}); !errors.As(err, &field) || field.Field != "other.inactive.turn" {
			t.Errorf("Activate by turn %d: %v", turn, err)
		}
	}
	s.activate(t, inactive)
	teardown(t, s.Network, s.c, s.before)
}

// TestTakeOverWaiting: the record of a target that waits says nothing of the source, which is active: a second target
// from that record has to wait, too.
func TestTakeOverWaiting(t *testing.T) {
	t.Parallel()
	source, from := movingGuest(t, infra.Masquerade{})
	first := target(t, from)
	first.c.Standby = true
	setup(t, first.c)
	second := target(t, record(t, first.Network))
	if _, err := second.c.Setup(t.Context()); !errors.Is(err, phase1.ErrActive) {
		t.Errorf("Setup from the record of a target that waits: %v, want ErrActive", err)
	}
	asFound(t, second.Network, second.before)
	second.c.Standby = true
	setup(t, second.c)
	waiting := record(t, first.Network)
	second.refuses(t, &waiting, "waits for its own Activate")

	waiting = *first.deactivate(t, 2) // where the guest never was
	third := target(t, waiting)
	if _, err := third.c.Setup(t.Context()); !errors.Is(err, phase1.ErrActive) {
		t.Errorf("Setup from the record that Deactivate returns where the guest never was: %v, want ErrActive", err)
	}
	second.refuses(t, &waiting, "waits for its own Activate")
	second.activate(t, source.deactivate(t, 1))
}

// TestTakeOverOtherSource: a guest has moved from a first pod to a second one, and will move to a third. That the
// first one is inactive proves nothing: the second one is active.
func TestTakeOverOtherSource(t *testing.T) {
	t.Parallel()
	first, _ := movingGuest(t, infra.Masquerade{})
	second := target(t, *first.deactivate(t, 1))
	setup(t, second.c)
	third := target(t, record(t, second.Network))
	third.c.Standby = true
	setup(t, third.c)
	third.refuses(t, first.deactivate(t, 3), "comes from")
	third.activate(t, second.deactivate(t, 2))
	// Later the guest may come from anywhere.
	inactive := third.deactivate(t, 3)
	second.activate(t, inactive)
	second.deactivate(t, 4)
}

// TestTakeOverChanges: what the guest will notice is reported before anything is changed, by Plan and by Setup.
func TestTakeOverChanges(t *testing.T) {
	t.Parallel()
	source, from := movingGuest(t, infra.Bridge{})
	source.deactivate(t, 1)
	s := target(t, from)
	s.Pod.IP("addr del 10.244.1.7/24 dev eth0")
	s.Pod.IP("addr add 10.244.1.8/24 dev eth0")
	s.Pod.IP("route replace default via 10.244.1.1")
	s.before = settled(t, s.Network)
	s.c.Standby = true
	const change = "ipv4.address: 10.244.1.7/24 becomes 10.244.1.8/24"
	preview, err := s.c.Plan(t.Context())
	if err != nil || len(preview.Changes) == 0 || preview.Changes[0].String() != change || !strings.Contains(preview.String(), "# the guest notices: "+change+"\n") {
		t.Errorf("Plan: %v\n%v", err, preview)
	}
	reported := ""
	s.c.Progress = func(text string) {
		reported += text + "\n"
		if err := difference(s.before, s.Pod.Dump()); err != nil {
			t.Errorf("%q is reported after a change: %v", text, err)
		}
		if _, err := os.Stat(s.State + "/eth0.json"); err == nil {
			t.Errorf("%q is reported when the record is there", text)
		}
	}
	setup(t, s.c)
	if !strings.Contains(reported, "the guest notices: "+change+"\n") {
		t.Errorf("Setup reports %q", reported)
	}
	s.c.Progress = nil
	if preview, err := s.c.Plan(t.Context()); err != nil || len(preview.Changes) == 0 || len(preview.Steps) > 0 {
		t.Errorf("Plan afterwards: %v, %v", preview, err)
	}
	teardown(t, s.Network, s.c, s.before)

	for field, edit := range map[string]func(c *wired.NIC){
		"mtu":                func(c *wired.NIC) { c.MTU = 1400 },
		"queues":             func(c *wired.NIC) { c.Queues = 2 },
		"binding.bridge.mac": func(c *wired.NIC) { c.Binding = infra.Bridge{MAC: movedMAC} },
		"from.mac":           func(c *wired.NIC) { other := from; other.MAC = cache.MAC{}; c.From = &other },
	} {
		c := s.c
		edit(&c)
		var bad *cache.FieldError
		if _, err := c.Setup(t.Context()); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	asFound(t, s.Network, s.before)
}
