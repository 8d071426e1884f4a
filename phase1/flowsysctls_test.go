package phase1_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

// flowSysctls are the values of nf_conntrack_acct, _events and _timestamp in the namespace.
func flowSysctls(n *nstest.Namespace) string {
	return strings.Join(strings.Fields(n.Exec("sysctl", "-n", "net.netfilter.nf_conntrack_acct", "net.netfilter.nf_conntrack_events", "net.netfilter.nf_conntrack_timestamp")), " ")
}

// loadTracking has the kernel load connection tracking, with which the sysctls come.
func loadTracking(n *nstest.Namespace) {
	n.Exec("nft", "add table inet track; add chain inet track c; add rule inet track c ct state new; delete table inet track")
}

// TestFlowSysctls: a Spec with Flows sets the sysctls of the namespace, Check and Repair keep them, and a Setup without
// Flows gives them back, as Teardown does.
func TestFlowSysctls(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Masquerade{}, infra.Routed{}, infra.Auto{Order: []cache.Kind{cache.BindingBridge, cache.BindingRouted}}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			loadTracking(n.Pod)
			n.Pod.Exec("sysctl", "-qw", "net.netfilter.nf_conntrack_events=0")
			found, before := flowSysctls(n.Pod), settled(t, n)
			want := func(when, want string) {
				t.Helper()
				if have := flowSysctls(n.Pod); have != want {
					t.Errorf("%s: %s, want %s", when, have, want)
				}
			}
			c := config(n, b)
			if _, auto := b.(infra.Auto); !auto {
				setup(t, c)
				want("without Flows", found)
			}
			c.Spec.Flows = true
			setup(t, c)
			want("with Flows", "1 1 1")
			check(t, c)
			n.Pod.Exec("sysctl", "-qw", "net.netfilter.nf_conntrack_acct=0")
			if err := c.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "nf_conntrack_acct is 0, not 1") {
				t.Errorf("Check says %v", err)
			}
			if _, err := c.Repair(t.Context()); err != nil {
				t.Error(err)
			}
			want("repaired", "1 1 1")
			c.Spec.Flows = false
			setup(t, c)
			want("without Flows again", found)
			check(t, c)
			c.Spec.Flows = true
			setup(t, c)
			want("with Flows again", "1 1 1")
			teardown(t, n, c, before)
			want("after Teardown", found)
		})
	}
}

// TestFlowSysctlsShared: two NICs of a namespace share the sysctls. Whichever goes first, they are there for the other
// one, and in the end as they were found.
func TestFlowSysctlsShared(t *testing.T) {
	t.Parallel()
	for _, ending := range []string{"Setup without Flows", "Teardown"} {
		t.Run(ending, func(t *testing.T) {
			n := nstest.NewNetwork(t)
			secondNIC(n, "192.0.2.7/24")
			loadTracking(n.Pod)
			n.Pod.Exec("sysctl", "-qw", "net.netfilter.nf_conntrack_timestamp=1")
			found := flowSysctls(n.Pod)
			first, second := config(n, infra.Masquerade{}), configOfSecondNIC(n, infra.Routed{})
			setup(t, second) // which wants none yet
			first.Spec.Flows = true
			setup(t, first)
			second.Spec.Flows = true
			setup(t, second)
			end := func(c *wired.NIC) {
				if ending == "Teardown" {
					unwire(t, *c)
					return
				}
				c.Spec.Flows = false
				setup(t, *c)
			}
			end(&first)
			if have := flowSysctls(n.Pod); have != "1 1 1" {
				t.Errorf("the second NIC has %s", have)
			}
			check(t, second)
			end(&second)
			if have := flowSysctls(n.Pod); have != found {
				t.Errorf("in the end %s, found %s", have, found)
			}
			unwire(t, first)
			unwire(t, second)
			if have := flowSysctls(n.Pod); have != found {
				t.Errorf("after Teardown %s, found %s", have, found)
			}
		})
	}
}

// TestFlowSysctlsGivenBack: when a Setup without Flows has given the sysctls back, the NIC has nothing to do with them
// any more: what another program sets stays, and what another NIC sets goes with that.
func TestFlowSysctlsGivenBack(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	secondNIC(n, "192.0.2.7/24")
	n.Pod.Exec("sysctl", "-qw", "net.netfilter.nf_conntrack_events=0")
	found := flowSysctls(n.Pod)
	want := func(when, want string) {
		t.Helper()
		if have := flowSysctls(n.Pod); have != want {
			t.Errorf("%s: %s, want %s", when, have, want)
		}
	}
	first, second := config(n, infra.Masquerade{}), configOfSecondNIC(n, infra.Routed{})
	flows := func(c *wired.NIC, is bool) {
		t.Helper()
		c.Spec.Flows = is
		setup(t, *c)
	}
	flows(&first, true)
	flows(&first, false)
	want("given back", found)
	flows(&second, true)
	unwire(t, second)
	want("after the other NIC's Teardown", found)
	flows(&first, true)
	flows(&second, true)
	flows(&first, false)
	want("needed by the other NIC", "1 1 1")
	unwire(t, second)
	want("needed by the other NIC, until its Teardown", found)

	n.Pod.Exec("sysctl", "-qw", "net.netfilter.nf_conntrack_acct=1")
	changed := flowSysctls(n.Pod)
	flows(&first, false)
	want("changed by another program", changed)
	flows(&first, true)
	flows(&first, false)
	want("changed by another program, and given back", changed)
	flows(&first, true)
	unwire(t, first)
	want("changed by another program, and after Teardown", changed)
}

// TestFlowsRefused: bindings under which nobody tracks the guest's connections, and sysctls that cannot be written.
func TestFlowsRefused(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	var field *cache.FieldError
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Macvtap{}, infra.Passt{}, infra.Auto{Order: []cache.Kind{cache.BindingBridge}}} {
		c := config(n, b)
		c.Spec.Flows, c.DNS = true, nil
		if _, err := c.Setup(t.Context()); !errors.As(err, &field) || field.Field != "flows" {
			t.Errorf("%s: %v", b.Kind(), err)
		}
	}
}
