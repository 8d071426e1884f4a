package wiring_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// undoRounds is how often a way back is computed and tried: the kernel makes addresses of its own
// when a link comes up.
const undoRounds = 4

func newPlan(t *testing.T, found netstate.Snapshot, spec infra.Spec) *wiring.Plan {
	t.Helper()
	plan, err := wiring.NewPlan(found, spec)
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

func mustUndo(t *testing.T, plan *wiring.Plan, k *fakeKernel) []netstate.Op {
	t.Helper()
	ops, err := plan.Undo(k.snapshot())
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
		t.Fatalf("%s:\n%s", what, diff(want, have))
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

// shapes are the cases that differ in more of their steps than in the rules of tables. A table is set by one operation, whatever
// its rules are, so cases that differ in nothing else are interrupted in the same places.
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

// batched says whether the operation goes with others in one message to the kernel, which goes on
// after one that failed.
func batched(op netstate.Op) bool {
	switch op.(type) {
	case netstate.TapAdd, netstate.SysctlSet, netstate.TableSet, netstate.TableDel:
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

// TestDamage takes one thing after the other away from a wired NIC, or changes it: Steps repairs it.
func TestDamage(t *testing.T) {
	for _, c := range shapes(t, cases) {
		t.Run(c.name, func(t *testing.T) {
			plan := newPlan(t, c.found, c.spec)
			wired := wire(t, plan, c.found)
			want := text(t, wired.s)
			found := text(t, boot(c.found).s)
			damaged := 0
			try := func(name string, op netstate.Op) {
				damaged++
				t.Log(name)
				k := wired.copy()
				mustApply(t, k, []netstate.Op{op})
				if text(t, k.s) == want {
					t.Fatalf("%v changes nothing", op)
				}
				finish(t, plan, k.copy(), want)
				giveBack(t, plan, k, found)
			}
			off, zero := new(bool), new(int)
			for _, l := range wired.s.Links {
				ours := strings.HasPrefix(l.Alias, netstate.Mark(""))
				if ours {
					try("delete-"+l.Name, netstate.LinkDel{Index: l.Index, Link: l.Name})
					try("mtu-"+l.Name, netstate.LinkSet{Index: l.Index, Link: l.Name, MTU: 1300})
					if l.Tap == nil {
						try("mac-"+l.Name, netstate.LinkSet{Index: l.Index, Link: l.Name, MAC: mac(0x99)})
					}
					if l.AddrGen != netstate.AddrGenNoIPv6 {
						try("addrgen-"+l.Name, netstate.LinkSet{Index: l.Index, Link: l.Name, AddrGen: zero})
					}
					if l.Up {
						try("down-"+l.Name, netstate.LinkSet{Index: l.Index, Link: l.Name, Up: off})
					}
				}
				if l.Master != 0 {
					try("release-"+l.Name, netstate.LinkSet{Index: l.Index, Link: l.Name, Master: zero})
				}
			}
			for _, a := range wired.s.Addresses {
				l, err := wired.link(a.Link)
				if err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(l.Alias, netstate.Mark("")) {
					try(fmt.Sprintf("address-%v", a.Prefix.Addr()), netstate.AddressDel{Link: l.Name, Address: a})
				}
			}
			for _, f := range wired.s.Filters {
				try(fmt.Sprintf("filter-%d-%d", f.Link, f.Priority), netstate.FilterDel{Filter: f})
			}
			for _, i := range wired.s.Tables {
				try("table", netstate.TableDel{Family: i.Family, Name: i.Name})
			}
			for path, value := range wired.s.Sysctls {
				if value != c.found.Sysctls[path] {
					try("sysctl-"+path, netstate.SysctlSet{Path: path, Value: c.found.Sysctls[path]})
				}
			}
			if damaged < 5 {
				t.Errorf("only %d damages were tried", damaged)
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

// TestForeignLinks: a link that another program made in the meantime stays, whatever its name and group
// are.
func TestForeignLinks(t *testing.T) {
	plan := newPlan(t, flannel(), bridge())
	k := wire(t, plan, flannel())
	foreign := []netstate.Link{
		{Index: 90, Name: "other", Kind: "veth", MAC: mac(0x90), MTU: 1500, Ethernet: true, Group: netstate.Group(nic), Alias: "other"},
		{Index: 91, Name: "eth1-tap", Kind: "tun", MAC: mac(0x91), MTU: 1500, Ethernet: true, Tap: &netstate.Tap{}},
		{Index: 92, Name: "eth1-br", Kind: "bridge", MAC: mac(0x92), MTU: 1500, Ethernet: true, Group: netstate.Group(93), Alias: netstate.Mark("eth1")},
	}
	k.s.Links = append(k.s.Links, foreign...)
	if ops := mustSteps(t, plan, k); len(ops) > 0 {
		t.Errorf("steps with foreign links:\n%s", netstate.Text(ops))
	}
	for range undoRounds {
		mustApply(t, k, mustUndo(t, plan, k))
	}
	want := flannel()
	want.Links = append(want.Links, foreign...)
	same(t, "given back beside foreign links", text(t, want), text(t, k.s))
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
					mustApply(t, k, []netstate.Op{netstate.LinkSet{Index: l.Index, Master: &foreign.Index}, netstate.BridgePortSet{Index: l.Index, Settings: netstate.Settings{"learning": 0}}})
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
			if _, err := plan.Steps(k.snapshot()); !errors.Is(err, infra.ErrNoNIC) || !strings.Contains(err.Error(), c.spec.NIC) {
				t.Errorf("Steps without the NIC: %v, want ErrNoNIC and its name", err)
			}
			ops, err := plan.Undo(k.snapshot())
			if !errors.Is(err, infra.ErrNoNIC) {
				t.Errorf("Undo without the NIC: %v, want ErrNoNIC", err)
			}
			mustApply(t, k, ops)
			ours := func(l netstate.Link) bool { return strings.HasPrefix(l.Alias, netstate.Mark("")) }
			if slices.ContainsFunc(k.s.Links, ours) || len(k.s.Tables) > 0 {
				t.Errorf("left behind:\n%s", text(t, k.s))
			}
			if ops, err := plan.Undo(k.snapshot()); len(ops) > 0 || !errors.Is(err, infra.ErrNoNIC) {
				t.Errorf("Undo again: %v, %v; want nothing and ErrNoNIC", ops, err)
			}
		})
	}
}

// TestFakeKernel keeps the fake honest where a plan depends on it.
func TestFakeKernel(t *testing.T) {
	k := boot(flannel())
	off := new(bool)
	if err := k.apply(netstate.LinkSet{Index: nic, Name: "other"}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("rename of a link that is up: %v, want EBUSY", err)
	}
	mustApply(t, k, []netstate.Op{netstate.LinkSet{Index: nic, Up: off}})
	for _, r := range k.s.Routes {
		t.Errorf("a link that is down kept the route %v", r)
	}
	for _, a := range k.s.Addresses {
		if a.Prefix.Addr().Is6() {
			t.Errorf("a link that is down kept the address %v", a.Prefix)
		}
	}
	on := true
	mustApply(t, k, []netstate.Op{netstate.LinkSet{Index: nic, Up: &on}})
	if have := len(k.s.Routes); have != 2 || !k.has(nic, podMAC.LinkLocal()) {
		t.Errorf("a link that came up has %d routes, want the connected ones of its IPv4 and link-local addresses", have)
	}
	if err := k.apply(netstate.RouteAdd{Route: via("0.0.0.0/0", "10.9.9.9")}); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("a route by way of nowhere: %v, want ENETUNREACH", err)
	}
	if err := k.apply(netstate.AddressDel{Address: address("10.9.9.9/24")}); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("an address that is not there: %v, want EADDRNOTAVAIL", err)
	}
	mustApply(t, k, []netstate.Op{netstate.AddressAdd{Address: address("10.244.1.8/24")}, netstate.AddressDel{Address: flannel().Addresses[0]}})
	if have := len(k.s.Addresses); have != 1 {
		t.Errorf("%d addresses are left, want the link-local one: a primary takes its secondary ones along", have)
	}
}

// TestTapMadeAnew: a launcher can give its tap to another user, so it is made anew; its filter, which
// goes with it in older kernels, comes before it is up.
func TestTapMadeAnew(t *testing.T) {
	for _, spec := range []infra.Spec{bridge(), masquerade()} {
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
			return is && o.Link == "eth0-tap" && o.Up != nil && *o.Up
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
