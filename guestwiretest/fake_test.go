package guestwiretest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

var owner = infra.Owner{UID: 107, GID: 107}

// TestFakeMethods: the fake has each method of phase1.NIC with the same signature, and two of its own.
func TestFakeMethods(t *testing.T) {
	nic, fake := reflect.TypeFor[phase1.NIC](), reflect.TypeFor[*guestwiretest.FakeNIC]()
	zero := reflect.New(fake.Elem())
	for i := range nic.NumMethod() {
		m := nic.Method(i)
		have := zero.MethodByName(m.Name)
		if !have.IsValid() || have.Type() != reflect.Zero(nic).Method(i).Type() {
			t.Errorf("FakeNIC lacks %s %v", m.Name, m.Type)
		}
	}
	if have := fake.NumMethod(); have != nic.NumMethod()+2 {
		t.Errorf("FakeNIC has %d methods, want those of phase1.NIC, Calls and Fail", have)
	}
}

// TestFakeRecords: the fake's record of each binding is valid, and Setup writes the same for such a pod. This machine
// may have no virtual function.
func TestFakeRecords(t *testing.T) {
	for _, b := range []infra.Binding{infra.Auto{}, infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}, infra.Macvtap{}, infra.SRIOV{}, infra.Passt{}, infra.Slirp{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			t.Parallel()
			spec := infra.Spec{Binding: b, Owner: owner, State: t.TempDir() + "/vm"}
			fake := &guestwiretest.FakeNIC{}
			have, err := fake.Setup(t.Context(), spec)
			if err == nil {
				err = have.Validate()
			}
			if err != nil {
				t.Fatal(err)
			}
			vm, err := phase2.Open(spec.State)
			if err != nil {
				t.Fatal(err)
			}
			if r := vm.Records(); len(r) != 1 || !reflect.DeepEqual(r[0], have) {
				t.Errorf("State has %v, want %v", r, have)
			}
			if b.Kind() == cache.BindingSRIOV {
				return
			}
			pod := guestwiretest.NewPod(t, guestwiretest.Veth)
			if b.Kind() == cache.BindingMacvtap {
				pod = guestwiretest.NewPod(t, guestwiretest.Macvlan)
				pod.Run("ip", "link", "del", pod.NIC)
				pod.World.Run("ip", "link", "add", "link", "lower", "name", pod.NIC, "netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), pod.NetNS.Fd()), "type", "macvtap", "mode", "bridge")
				for _, line := range [][]string{
					{"link", "set", pod.NIC, "up"}, {"addr", "add", "10.244.1.7/24", "brd", "+", "dev", pod.NIC}, {"addr", "add", "fd00:244:1::7/64", "dev", pod.NIC},
					{"route", "add", "default", "via", "10.244.1.1"}, {"route", "add", "default", "via", "fd00:244:1::1"},
				} {
					pod.Run("ip", line...)
				}
				pod.Dump() // which waits for the kernel
			}
			spec.State, spec.Owner = pod.State, pod.Owner
			nic := phase1.NIC{NetNS: pod.NetNS, Name: pod.NIC}
			want, err := nic.Setup(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			if err := nic.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil {
				t.Error(err)
			}
			want.Warnings = slices.DeleteFunc(want.Warnings, func(w string) bool { return strings.Contains(w, onlyOverflow) })
			if diff := guestwiretest.Diff(own(t, want), own(t, have)); diff != "" {
				t.Errorf("Setup's record and the fake's:\n%s", diff)
			}
		})
	}
}

// onlyOverflow is in a warning that an ordinary user's namespace adds, which has no name for the groups 1 and 0 of "no
// group" (net.ipv4.ping_group_range, user_namespaces(7)).
const onlyOverflow = "the groups 65534 to 65534"

// own is the record's text without what each pod has of its own.
func own(t *testing.T, r cache.Record) string {
	t.Helper()
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	return pods.ReplaceAllString(string(text), "...")
}

// pods are MACs, the addresses that come from them, and names of namespaces.
var pods = regexp.MustCompile(`\b([0-9a-f]{2}:){5}[0-9a-f]{2}|fe80:[0-9a-f:]*[0-9a-f]|[0-9a-f]{8}-[0-9]+-[0-9]+`)

// TestFakeCalls: a method returns the errors that the test has chosen, one a call, and then works as phase1 does. Each
// call is noted.
func TestFakeCalls(t *testing.T) {
	spec := infra.Spec{Binding: infra.Bridge{}, Owner: owner, State: t.TempDir()}
	other, routed, theirs := spec, spec, spec
	other.Binding, routed.Binding, theirs.For = infra.Redirect{}, infra.Routed{}, "c2"
	n := &guestwiretest.FakeNIC{Name: "net1", Cut: 3, Dropped: []phase1.Drop{{Reason: "arp"}}}
	drift := &phase1.DriftError{}
	n.Fail("Setup", infra.ErrWired, nil, os.ErrPermission)
	n.Fail("Check", drift)
	over, cancel := context.WithCancelCause(t.Context())
	cancel(os.ErrClosed)
	setup := func(ctx context.Context, s infra.Spec) error {
		r, err := n.Setup(ctx, s)
		if err == nil && r.Name != "net1" {
			t.Errorf("the record of %s", r.Name)
		}
		return err
	}
	teardown := func(ctx context.Context, _ infra.Spec) error { return n.Teardown(ctx, phase1.TeardownOptions{}) }
	check := func(ctx context.Context, _ infra.Spec) error { return n.Check(ctx) }
	var said error // of a function that While has called
	for i, c := range []struct {
		method string
		call   func(context.Context, infra.Spec) error
		ctx    context.Context
		spec   infra.Spec
		want   error
	}{
		{"Check", check, over, spec, os.ErrClosed},
		{"Status", func(ctx context.Context, _ infra.Spec) error { _, err := n.Status(ctx); return err }, t.Context(), spec, phase1.ErrNotWired},
		{"Setup", setup, t.Context(), spec, infra.ErrWired},
		{"Setup", setup, t.Context(), spec, nil},
		{"Setup", setup, t.Context(), spec, os.ErrPermission},
		{"Setup", setup, t.Context(), spec, nil},
		{"Setup", setup, t.Context(), other, infra.ErrWired},
		{"Setup", setup, t.Context(), theirs, phase1.ErrForAnother},
		{"While", func(ctx context.Context, s infra.Spec) error { return n.While(ctx, s, nil) }, t.Context(), spec, phase1.ErrForAnother},
		{"Teardown", func(ctx context.Context, s infra.Spec) error {
			return n.Teardown(ctx, phase1.TeardownOptions{For: s.For})
		}, t.Context(), theirs, phase1.ErrForAnother},
		{"Check", check, t.Context(), spec, drift},
		{"Check", check, t.Context(), spec, nil},
		{"CutRefused", func(ctx context.Context, _ infra.Spec) error {
			if cut, err := n.CutRefused(ctx); cut != 3 || err != nil {
				return fmt.Errorf("%d, %w", cut, err)
			}
			return nil
		}, t.Context(), spec, nil},
		{"Deactivate", func(ctx context.Context, _ infra.Spec) error {
			r, err := n.Deactivate(ctx)
			if err == nil && r.Role != cache.RoleInactive {
				return errors.New("active")
			}
			return err
		}, t.Context(), spec, nil},
		{"Activate", func(ctx context.Context, _ infra.Spec) error {
			r, err := n.Activate(ctx, phase1.Other{Gone: true})
			if err == nil && (r.Role != cache.RoleActive || r.Turn != 1) {
				return fmt.Errorf("%v", r)
			}
			return err
		}, t.Context(), spec, nil},
		{"Teardown", teardown, t.Context(), spec, nil},
		{"Teardown", teardown, t.Context(), spec, nil},
		{"Repair", func(ctx context.Context, _ infra.Spec) error { _, err := n.Repair(ctx); return err }, t.Context(), spec, phase1.ErrNotWired},
		{"While", func(ctx context.Context, s infra.Spec) error {
			return n.While(ctx, s, func(cache.Record) error {
				dropping, stop := context.WithCancel(ctx)
				said = n.FollowDrops(dropping, func(d phase1.Drop) { stop() })
				return os.ErrExist
			})
		}, t.Context(), routed, os.ErrExist},
		{"Check", check, t.Context(), spec, phase1.ErrNotWired},
	} {
		before := len(n.Calls())
		if err := c.call(c.ctx, c.spec); !errors.Is(err, c.want) {
			t.Errorf("call %d: %v, want %v", i, err, c.want)
		}
		calls := n.Calls()[before:]
		if calls[0].Method != c.method || c.method == "Setup" && !reflect.DeepEqual(calls[0].Args, []any{c.spec}) {
			t.Errorf("call %d is noted as %v", i, calls)
		}
	}
	if said != nil {
		t.Error(said)
	}
	left, err := os.ReadDir(spec.State)
	if err != nil || len(left) > 0 {
		t.Errorf("State has %v, %v", left, err)
	}
	defer func() {
		if text, want := recover(), `phase1.NIC has no method "Stup"`; text != want {
			t.Errorf("%v, want %s", text, want)
		}
	}()
	n.Fail("Stup", infra.ErrWired)
}

// TestFakeRefuses: the refusals are those of the planner, and Plan has the steps.
func TestFakeRefuses(t *testing.T) {
	var n guestwiretest.FakeNIC
	spec := infra.Spec{Binding: infra.Bridge{}, Owner: owner, MTU: 9000}
	var field *cache.FieldError
	if _, err := n.Setup(t.Context(), spec); !errors.As(err, &field) || field.Field != "mtu" {
		t.Errorf("an MTU that the NIC has not: %v", err)
	}
	spec.MTU = 0
	preview, err := n.Plan(t.Context(), spec)
	if err != nil || len(preview.Steps) < 5 || preview.Record.Binding != cache.BindingBridge {
		t.Fatalf("%v, %v", preview, err)
	}
	spec.Binding = infra.SRIOV{}
	var refused *infra.RefusedError
	if _, err := n.Setup(t.Context(), spec, phase1.Moving{Standby: true}); !errors.As(err, &refused) {
		t.Errorf("a virtual function on standby: %v", err)
	}
	force := phase1.TeardownOptions{Force: true}
	if err := n.Teardown(t.Context(), force); !errors.Is(err, phase1.ErrNotWired) {
		t.Errorf("Force before Setup: %v", err)
	}
	spec.Binding = infra.Bridge{}
	if r, err := n.Setup(t.Context(), spec, &phase1.Moving{Standby: true}); err != nil || r.Role != cache.RoleStandby {
		t.Fatalf("a pointer to Moving: %v, %v", r, err)
	}
	active, err := (&guestwiretest.FakeNIC{Namespace: "elsewhere"}).Setup(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		call  func() error
		field string // empty: ErrActive
	}{
		"Activate without a word of elsewhere": {func() error { _, err := n.Activate(t.Context(), phase1.Other{}); return err }, "other"},
		"Activate with two": {func() error {
			_, err := n.Activate(t.Context(), phase1.Other{Inactive: &active, Gone: true})
			return err
		}, "other"},
		"Activate with an active one's record": {func() error { _, err := n.Activate(t.Context(), phase1.Other{Inactive: &active}); return err }, ""},
		"Force with Discard":                   {func() error { o := force; o.Discard = true; return n.Teardown(t.Context(), o) }, "discard"},
		"another State":                        {func() error { return n.Teardown(t.Context(), phase1.TeardownOptions{State: "/elsewhere"}) }, "state"},
	} {
		err := c.call()
		if field = nil; errors.As(err, &field) && field.Field != c.field || field == nil && (c.field != "" || !errors.Is(err, phase1.ErrActive)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := n.Teardown(t.Context(), force); err != nil {
		t.Error(err)
	}
}

// TestFakeMoves: two fakes are the sides of a move, by the rules of phase1. A third one is not active by the record of
// a target where the guest never was.
func TestFakeMoves(t *testing.T) {
	source, target, third := guestwiretest.FakeNIC{}, guestwiretest.FakeNIC{Namespace: "target"}, guestwiretest.FakeNIC{Namespace: "third"}
	spec := infra.Spec{Binding: infra.Redirect{}, Owner: owner}
	active, err := source.Setup(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := target.Setup(t.Context(), spec, phase1.Moving{From: &active}); !errors.Is(err, phase1.ErrActive) {
		t.Errorf("Setup from an active guest: %v, want ErrActive", err)
	}
	waiting, err := target.Setup(t.Context(), spec, phase1.Moving{From: &active, Standby: true})
	if err != nil || waiting.Role != cache.RoleStandby || waiting.Source != active.Namespace {
		t.Fatalf("%+v, %v", waiting, err)
	}
	if waiting, err = target.Deactivate(t.Context()); err != nil || waiting.Role != cache.RoleStandby || waiting.Turn != 2 {
		t.Errorf("Deactivate on standby: %+v, %v", waiting, err)
	}
	if _, err := third.Setup(t.Context(), spec, phase1.Moving{From: &waiting}); !errors.Is(err, phase1.ErrActive) {
		t.Errorf("Setup from a NIC where the guest never was: %v, want ErrActive", err)
	}
	for range 2 {
		if active, err = source.Deactivate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := target.Activate(t.Context(), phase1.Other{Inactive: &active}); err != nil || r.Role != cache.RoleActive || r.Turn != 3 {
		t.Errorf("Activate: %+v, %v", r, err)
	}
}
