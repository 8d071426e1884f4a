package podnet

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestNetkitPolicy: a netkit that lets nothing pass, as no program is attached to it, is given back as it was found. It
// keeps its policy, which ip(8) does not show, meanwhile.
func TestNetkitPolicy(t *testing.T) {
	nstest.KernelDecides(t, "not every kernel has netkit")
	nstest.Need(t)
	nstest.NeedTaps(t)
	if !hasKind(t, "netkit") {
		nstest.LeaveOut(t, "this machine has no links of the kind netkit")
	}
	for mode, refuses := range map[netlink.NetkitMode]bool{netlink.NETKIT_MODE_L2: false, netlink.NETKIT_MODE_L3: true} {
		t.Run(map[bool]string{false: "L2", true: "L3"}[refuses], func(t *testing.T) {
			t.Parallel()
			node, pod := nstest.New(t, "node"), nstest.New(t, "pod")
			addNetkit(t, node, pod, mode, netlink.NETKIT_POLICY_BLACKHOLE)
			node.IP("link set lxc0 up")
			pod.IP("link set eth0 up")
			addAddresses(node, "lxc0", "10.22.0.1/24", "fd00:22::1/64")
			addAddresses(pod, "eth0", "10.22.0.10/24", "fd00:22::10/64")
			if out, err := exec.Command("ip", "netns", "exec", pod.Name, "ping", "-qc1", "-W2", "10.22.0.1").CombinedOutput(); err == nil {
				t.Errorf("a packet passed:\n%s", out)
			}
			before, policy := pod.Settled(), policyOf(t, node)
			for _, b := range bindings {
				c := phase1.NIC{NetNS: pod.File, Name: "eth0"}
				_, err := c.Setup(t.Context(), infra.Spec{Binding: b, Owner: nstest.Owner()})
				var refused *infra.RefusedError
				switch {
				case refuses && errors.As(err, &refused) && b.Kind() != "masquerade" && b.Kind() != "routed":
				case err != nil:
					t.Errorf("%s: %v", b.Kind(), err)
					continue
				}
				if have := policyOf(t, node); have != policy {
					t.Errorf("%s: the netkit is %v, and was %v", b.Kind(), have, policy)
				}
				if err := c.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil {
					t.Errorf("%s: %v", b.Kind(), err)
				}
				nstest.Eventually(t, func() error { return nstest.Difference(before, pod.Dump()) })
				if have := policyOf(t, node); have != policy {
					t.Errorf("after %s: the netkit is %v, and was %v", b.Kind(), have, policy)
				}
			}
		})
	}
}

// policyOf is what decides at the netkit lxc0, at both ends, about packets and their marks.
func policyOf(t *testing.T, node *nstest.Namespace) (policy [5]uint32) {
	t.Helper()
	err := netns.Do(node.File, func() error {
		link, err := netlink.LinkByName("lxc0")
		if n, is := link.(*netlink.Netkit); is {
			policy = [5]uint32{uint32(n.Mode), uint32(n.Policy), uint32(n.PeerPolicy), uint32(n.Scrub), uint32(n.PeerScrub)}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return policy
}
