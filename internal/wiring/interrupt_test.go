package wiring_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/undo"
	"github.com/guestwire/guestwire/internal/wiring"
)

// undoRounds is how often a way back is computed and tried: the kernel makes addresses of its own
// when a link comes up.
const undoRounds = 4

func newPlan(t *testing.T, found netstate.Snapshot, spec asked) *wiring.Plan {
	t.Helper()
	plan, err := tryPlan(found, spec)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func mustSteps(t *testing.T, plan *wiring.Plan, k *fakeKernel) []netstate.Op {
	t.Helper()
	ops, err := plan.Steps(k.snapshot())
	if err != nil {
		t.Fatal(err)
	}
	return ops
}

// undoOf is the way back from the plan.
func undoOf(plan *wiring.Plan, now netstate.Snapshot) ([]netstate.Op, error) {
	return undo.Steps(plan.Journal().Found, now, plan.Made())
}

func mustUndo(t *testing.T, plan *wiring.Plan, k *fakeKernel) []netstate.Op {
	t.Helper()
	ops, err := undoOf(plan, k.snapshot())
	if err != nil {
		t.Fatal(err)
	}
	return ops
}

func mustApply(t *testing.T, k *fakeKernel, ops []netstate.Op) {
	t.Helper()
	for i, op := range ops {
		if err := k.apply(op); err != nil {
			t.Fatalf("step %d of %d: %v: %v\nthe steps:\n%s\nthe namespace:\n%s", i+1, len(ops), op, err, netstate.Text(ops), text(t, k.s))
		}
	}
}

func same(t *testing.T, what, want, have string) {
	t.Helper()
	if want != have {
		t.Fatalf("%s:\n%s", what, golden.Diff(want, have))
	}
}

// wire carries the plan out undisturbed and returns the namespace.
func wire(t *testing.T, plan *wiring.Plan, found netstate.Snapshot) *fakeKernel {
	t.Helper()
	k := boot(found)
	mustApply(t, k, mustSteps(t, plan, k))
	if ops := mustSteps(t, plan, k); len(ops) > 0 {
		t.Fatalf("wired, and yet there is something to do:\n%s", netstate.Text(ops))
	}
	return k
}

// finish goes on to wire, which must take one round.
func finish(t *testing.T, plan *wiring.Plan, k *fakeKernel, want string) {
	t.Helper()
	mustApply(t, k, mustSteps(t, plan, k))
	same(t, "finished, but not as an undisturbed run", want, text(t, k.s))
	if ops := mustSteps(t, plan, k); len(ops) > 0 {
		t.Fatalf("finished, and yet there is something to do:\n%s", netstate.Text(ops))
	}
}

// giveBack goes back to the namespace as it was found.
func giveBack(t *testing.T, plan *wiring.Plan, k *fakeKernel, want string) {
	t.Helper()
	for range undoRounds {
		ops := mustUndo(t, plan, k)
		if len(ops) == 0 {
			break
		}
		mustApply(t, k, ops)
	}
	same(t, "given back, but not as found", want, text(t, k.s))
	if ops := mustUndo(t, plan, k); len(ops) > 0 {
		t.Fatalf("given back, and yet there is something to do:\n%s", netstate.Text(ops))
	}
}

// shapes are the cases that differ in more of their steps than in the rules of tables. A table is set by one operation,
// whatever its rules are, so cases that differ in nothing else are interrupted in the same places.
func shapes(t *testing.T, list []testCase) []testCase {
	t.Helper()
	known := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(list), func(c testCase) bool {
		plan := newPlan(t, c.found, c.spec)
		var shape strings.Builder
		for _, op := range slices.Concat(mustSteps(t, plan, boot(c.found)), mustUndo(t, plan, wire(t, plan, c.found))) {
			if set, is := op.(netstate.TableSet); is {
				op = netstate.TableDel{Family: set.Table.Family, Name: set.Table.Name}
			}
			fmt.Fprintln(&shape, op)
		}
		before := known[shape.String()]
		known[shape.String()] = true
		return before
	})
}

// TestInterrupted ends a Setup after every step, and a Teardown after every step: calling Setup
// again, or Teardown, gives what an undisturbed run gives.
func TestInterrupted(t *testing.T) {
	for _, c := range shapes(t, slices.Concat(cases, directCases)) {
		t.Run(c.name, func(t *testing.T) {
			plan := newPlan(t, c.found, c.spec)
			found := text(t, boot(c.found).s)
			wired := wire(t, plan, c.found)
			want := text(t, wired.s)
			interrupt := func(name string, k *fakeKernel, ops []netstate.Op) {
				for n := range len(ops) + 1 {
					t.Logf("%s ends after %d of %d steps", name, n, len(ops))
					giveBack(t, plan, k.copy(), found)
					// What hangs on the NIC is not masquerade's to restore, and the routes that an advertisement
					// gave are back with the next one.
					finish(t, plan, k.copy(), want)
					if n < len(ops) {
						mustApply(t, k, ops[n:n+1])
					}
				}
			}
			interrupt("Setup", boot(c.found), mustSteps(t, plan, boot(c.found)))
			interrupt("Teardown", wired.copy(), mustUndo(t, plan, wired))
		})
	}
}

// batched reports whether the operation goes with others in one message to the kernel, which goes on
// after one that failed.
func batched(op netstate.Op) bool {
	switch op.(type) {
	case netstate.TapAdd, netstate.TapReset, netstate.SysctlSet, netstate.TableSet, netstate.TableChange, netstate.TableDel:
		return false
	}
	return true
}

// TestFailedMessages lets some operations of a batch fail, by chance and reproducibly. What the
// others made of the namespace is given back, and can be wired as well.
func TestFailedMessages(t *testing.T) {
	for _, c := range shapes(t, cases) {
		t.Run(c.name, func(t *testing.T) {
			plan := newPlan(t, c.found, c.spec)
			found := text(t, boot(c.found).s)
			want := text(t, wire(t, plan, c.found).s)
			setup := mustSteps(t, plan, boot(c.found))
			for seed := range uint64(40) {
				t.Logf("seed %d", seed)
				random := rand.New(rand.NewPCG(seed, 1))
				k := boot(c.found)
				failures := 0
				for _, op := range setup {
					if batched(op) && random.IntN(8) == 0 {
						failures++
						t.Logf("fails: %v", op)
						continue
					}
					// It may depend on one that failed.
					if err := k.apply(op); err != nil && failures == 0 {
						t.Fatalf("%v: %v", op, err)
					} else if err != nil {
						t.Logf("fails in consequence: %v: %v", op, err)
					}
				}
				giveBack(t, plan, k.copy(), found)
				finish(t, plan, k, want)
			}
		})
	}
}

// TestOtherOwner: a tap that another user may open is not the one that is wanted.
func TestOtherOwner(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			k := wire(t, newPlan(t, c.found, c.spec), c.found)
			spec := c.spec
			spec.Owner.UID++
			spec.Queues = 9
			plan := newPlan(t, c.found, spec)
			finish(t, plan, k, text(t, wire(t, plan, c.found).s))
			giveBack(t, plan, k, text(t, boot(c.found).s))
		})
	}
}

// TestTakenPort: another program made the ports another bridge's, with learning off as well.
func TestTakenPort(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			plan := newPlan(t, c.found, c.spec)
			k := wire(t, plan, c.found)
			foreign := netstate.Link{Index: 90, Name: "br90", Kind: "bridge", MAC: mac(0x90), MTU: 1500, Ethernet: true}
			k.s.Links = append(k.s.Links, foreign)
			k.mtuChosen[foreign.Index] = true
			want := text(t, k.s)
			for _, l := range k.s.Links {
				if l.Master != 0 {
					port := l
					port.Master = foreign.Index
					mustApply(t, k, []netstate.Op{netstate.LinkSet{Have: l, Want: port}, netstate.BridgePortSet{Index: l.Index, Settings: netstate.Settings{"learning": 0}}})
				}
			}
			taken := k.snapshot()
			finish(t, plan, k, want)
			k.s = taken
			found := clone(c.found)
			found.Links = append(found.Links, foreign)
			giveBack(t, plan, k, text(t, found))
		})
	}
}

// TestNICGone: without its NIC a wiring can only be removed.
func TestNICGone(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			plan := newPlan(t, c.found, c.spec)
			k := wire(t, plan, c.found)
			mustApply(t, k, []netstate.Op{netstate.LinkDel{Index: nic}})
			if _, err := plan.Steps(k.snapshot()); !errors.Is(err, infra.ErrNoNIC) {
				t.Errorf("Steps without the NIC: %v, want ErrNoNIC", err)
			}
			ops, err := undoOf(plan, k.snapshot())
			if !errors.Is(err, infra.ErrNoNIC) {
				t.Errorf("Undo without the NIC: %v, want ErrNoNIC", err)
			}
			mustApply(t, k, ops)
			ours := func(l netstate.Link) bool { return strings.HasPrefix(l.Alias, netstate.Mark("")) }
			if slices.ContainsFunc(k.s.Links, ours) || len(k.s.Tables) > 0 {
				t.Errorf("left behind:\n%s", text(t, k.s))
			}
			if ops, err := undoOf(plan, k.snapshot()); len(ops) > 0 || !errors.Is(err, infra.ErrNoNIC) {
				t.Errorf("Undo again: %v, %v; want nothing and ErrNoNIC", ops, err)
			}
		})
	}
}

// TestTapMadeAnew: a launcher can give its tap to another user, so it is made anew; its filter, which
// goes with it in older kernels, comes before it is up.
func TestTapMadeAnew(t *testing.T) {
	for _, spec := range []asked{bridge(), masquerade()} {
		plan := newPlan(t, flannel(), spec)
		k := boot(flannel())
		mustApply(t, k, mustSteps(t, plan, k))
		for i, l := range k.s.Links {
			if l.Name == "eth0-tap" {
				k.s.Links[i].Tap = &netstate.Tap{Owner: infra.Owner{UID: 4711}}
			}
		}
		ops := mustSteps(t, plan, k)
		set := slices.IndexFunc(ops, func(op netstate.Op) bool {
			o, is := op.(netstate.TableSet)
			return is && o.Table.Family == firewall.NetDev
		})
		made := slices.IndexFunc(ops, func(op netstate.Op) bool {
			o, is := op.(netstate.TapAdd)
			return is && o.Link == "eth0-tap"
		})
		up := slices.IndexFunc(ops, func(op netstate.Op) bool {
			o, is := op.(netstate.LinkSet)
			return is && o.Want.Name == "eth0-tap" && !o.Have.Up && o.Want.Up
		})
		if made < 0 || set < made || up < set {
			t.Errorf("%s: the tap is made by step %d, its filter by %d, and it is up by %d:\n%s", spec.Binding.Kind(), made, set, up, netstate.Text(ops))
		}
		mustApply(t, k, ops)
		if ops := mustSteps(t, plan, k); len(ops) > 0 {
			t.Errorf("%s: left to do:\n%s", spec.Binding.Kind(), netstate.Text(ops))
		}
	}
}
