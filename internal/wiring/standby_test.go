package wiring_test

import (
	"errors"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// setStandby is SetTurn of a binding with a tap.
func setStandby(t *testing.T, plan *wiring.Plan, standby bool) {
	t.Helper()
	turn := wiring.Turn{Turn: plan.Record.Turn + 1}
	if standby {
		turn.Role, turn.Source = cache.RoleStandby, "elsewhere"
	}
	if err := plan.SetTurn(turn); err != nil {
		t.Fatal(err)
	}
}

// forwards reports whether the network learns that the namespace or the NIC forwards, or that the NIC has a group.
func forwards(op netstate.Op) bool {
	set, isSysctl := op.(netstate.SysctlSet)
	conf, isConf := op.(netstate.ConfSet)
	link, isLink := op.(netstate.LinkSet)
	return isLink && link.Have.Name == "eth0" && link.Have.Group != link.Want.Group || isSysctl && set.Path == netstate.Forwarding6 || isConf && conf.Link == "eth0" && conf.Name == "forwarding"
}

// announces reports whether the kernel can announce with the step that the NIC has the guest's MAC (arp_notify).
func announces(op netstate.Op, plan *wiring.Plan) bool {
	set, isSet := op.(netstate.LinkSet)
	return isSet && set.Have.Name == "eth0" && set.Have.MAC != set.Want.MAC && set.Want.MAC == plan.Record.MAC
}

// TestStandby: no step of a Setup on standby brings the guest's tap up, nor lets the NIC forward or take the guest's
// MAC, which empties the neighbour table; these are the steps of Activate, the tap's the last, or before what lies at
// the tap. To be on standby again takes one step, and Teardown comes from there as well.
func TestStandby(t *testing.T) {
	deferred, taken := 0, 0
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			found := text(t, boot(c.found).s)
			plan := newPlan(t, c.found, c.spec)
			if plan.Record.Binding == cache.BindingRouted {
				var bad *cache.FieldError
				if err := plan.SetTurn(wiring.Turn{Role: cache.RoleStandby}); !errors.As(err, &bad) || bad.Field != "standby" {
					t.Errorf("%v, want a FieldError of standby", err)
				}
				return
			}
			tap := plan.Record.Tap
			want := text(t, wire(t, plan, c.found).s)
			setStandby(t, plan, true)
			k := boot(c.found)
			for _, op := range mustSteps(t, plan, k) {
				k.applyAll([]netstate.Op{op})
				if now, _ := k.s.Named(tap); now.Up {
					t.Fatalf("%v brings the tap up", op)
				}
				if forwards(op) || announces(op, plan) {
					t.Errorf("%v", op)
				}
			}
			if ops := mustSteps(t, plan, k); len(ops) > 0 {
				t.Fatalf("on standby, and yet there is something to do:\n%s", netstate.Text(ops))
			}
			standby := k.snapshot()

			setStandby(t, plan, false)
			ops := mustSteps(t, plan, k)
			for i, op := range ops {
				up, isLink := op.(netstate.LinkSet)
				neighbour, isNeighbour := op.(netstate.NeighbourAdd)
				last := i == len(ops)-1
				routes := plan.Record.Binding == cache.BindingMasquerade // which need the tap up
				switch {
				case (last || routes) && isLink && up.Want.Name == tap && !up.Have.Up && up.Want.Up:
				case routes && netstate.Step(op).Link == tap && !isLink:
				case !last && forwards(op):
					deferred++
				case !last && announces(op, plan):
					taken++
				case !last && taken > 0 && isNeighbour && neighbour.Link == "eth0":
				default:
					t.Errorf("step %d of Activate is %v", i+1, op)
				}
			}
			finish(t, plan, k, want)

			setStandby(t, plan, true)
			ops = mustSteps(t, plan, k)
			if down := "ip link set " + tap + " down\n"; netstate.Text(ops) != down || netstate.Text(plan.Deactivate(k.s)) != down {
				t.Errorf("on standby again by\n%s and\n%s", netstate.Text(ops), netstate.Text(plan.Deactivate(k.s)))
			}
			k.applyAll(ops)
			if left := plan.Deactivate(k.s); len(left) > 0 {
				t.Errorf("inactive, and yet there is something to do:\n%s", netstate.Text(left))
			}
			giveBack(t, plan, k, found)
			k.s = standby
			giveBack(t, plan, k, found)

			again, err := plan.Journal().Plan()
			if err != nil || again.Record.Role != plan.Record.Role || again.Record.Source != plan.Record.Source || again.Record.Turn != plan.Record.Turn {
				t.Errorf("the journal's plan has the role %q, source %q, turn %d, %v", again.Record.Role, again.Record.Source, again.Record.Turn, err)
			}
			for _, g := range plan.Gateways() {
				g.MAC[5]++
				if other, err := plan.WithGateway(g); err != nil || other.Record.Role != plan.Record.Role || other.Record.Turn != plan.Record.Turn {
					t.Errorf("with another gateway the plan has the role %q, turn %d, %v", other.Record.Role, other.Record.Turn, err)
				}
			}
		})
	}
	if deferred == 0 {
		t.Error("no case forwards IPv6 in the whole namespace")
	}
	if taken == 0 {
		t.Error("no case takes the guest's MAC")
	}
}
