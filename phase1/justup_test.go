package phase1_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestJustUp: the NIC came up a moment before Setup, so that the kernel has not made its link-local address yet. The
// namespace has the address after Teardown: without it the namespace cannot ask for an IPv6 gateway.
func TestJustUp(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}, infra.Routed{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			t.Parallel()
			world, pod := nstest.New(t, "world"), nstest.New(t, "pod")
			// The kernel notices a link at once if its index is not that of the link it lies on.
			world.IP("link add pod index 77 type veth peer name eth0 index 77 netns " + pod.Name)
			world.IP("link set pod up")
			pod.IP("addr add 10.244.1.7/24 dev eth0")
			linkLocal := func() bool { return strings.Contains(pod.Exec("cat", "/proc/net/if_inet6"), "fe80") }
			nstest.Eventually(t, func() error {
				pod.IP("link set eth0 down")
				pod.IP("link set eth0 up")
				if linkLocal() {
					return errors.New("the kernel has made the address already")
				}
				return nil
			})
			c := phase1.NIC{NetNS: pod.File, Name: "eth0"}
			if _, err := c.Setup(t.Context(), infra.Spec{Binding: b, Owner: nstest.Owner()}); err != nil {
				t.Fatal(err)
			}
			if err := c.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil {
				t.Fatal(err)
			}
			nstest.Eventually(t, func() error {
				if !linkLocal() {
					return errors.New("eth0 has no link-local address")
				}
				return nil
			})
		})
	}
}

// TestDuplicate: another station has the NIC's IPv6 address, which the kernel has found out (dadfailed). Each Setup
// says so, and after Teardown the address is still a duplicate.
func TestDuplicate(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}, infra.Routed{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			n.World.IP("addr add " + nstest.Pod6.String() + "/64 dev pod nodad")
			n.Pod.Exec("sysctl", "-qw", "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.eth0.accept_dad=1", "net.ipv6.conf.eth0.dad_transmits=1")
			n.Pod.IP("addr add fd00:244:1::70/64 dev eth0 nodad") // the kernel lists it after one that comes later
			n.Pod.IP("addr del " + nstest.Pod6.String() + "/64 dev eth0")
			n.Pod.IP("addr add " + nstest.Pod6.String() + "/64 dev eth0")
			n.Pod.IP("-6 route replace default via " + nstest.Gateway6.String() + " dev eth0")
			nstest.Eventually(t, func() error {
				if shown := n.Pod.IP("addr show dadfailed dev eth0"); !strings.Contains(shown, nstest.Pod6.String()) {
					return errors.New("the pod still has the address")
				}
				return nil
			})
			before := settled(t, n)
			c := config(n, b)
			for range 2 {
				setup(t, c)
				if v6 := record(t, n).IPv6; b.Kind() != cache.BindingMasquerade && v6.Address != netip.MustParseAddr("fd00:244:1::70") {
					t.Errorf("the guest's first address is %v", v6.Address)
				}
				if said := strings.Join(record(t, n).Warnings, "\n"); !strings.Contains(said, nstest.Pod6.String()+" of eth0 is a duplicate (dadfailed)") {
					t.Errorf("warnings: %s", said)
				}
				check(t, c)
			}
			teardown(t, n, c, before)
		})
	}
}

// TestLateCarrier: the NIC gets a carrier while it is wired. After Teardown the namespace is as one that was not wired
// at that time.
func TestLateCarrier(t *testing.T) {
	t.Parallel()
	mac := cache.MAC{2, 0, 0, 0, 0, 7}
	bindings := map[string]infra.Binding{
		"bridge": infra.Bridge{}, "bridge with a MAC": infra.Bridge{MAC: mac}, "redirect": infra.Redirect{}, "redirect with a MAC": infra.Redirect{MAC: mac},
		"masquerade": infra.Masquerade{}, "routed": infra.Routed{},
	}
	for _, mode := range []string{"eui64", "stable_secret", "none"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			if mode == "eui64" {
				nstest.KernelDecides(t, "when it makes a link-local address")
			}
			create := func(name string) (world, pod *nstest.Namespace) {
				world, pod = nstest.New(t, "world"), nstest.New(t, name)
				world.IP("link add pod index 99 type veth peer name eth0 index 77 address 02:00:00:00:01:07 netns " + pod.Name)
				if mode == "stable_secret" {
					pod.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.stable_secret=2001:db8::7")
				}
				pod.IP("link set eth0 addrgenmode " + mode)
				pod.IP("link set eth0 up")
				for _, line := range []string{"addr add 10.244.1.7/24 dev eth0", "addr add fd00:244:1::7/64 dev eth0 nodad", "addr add fd00:244:1::8/64 dev eth0 nodad",
					"route add default via 10.244.1.1 dev eth0", "route add default via fd00:244:1::1 dev eth0", "neigh add fd00:244:1::1 lladdr 02:00:00:00:01:01 dev eth0"} {
					pod.IP(line)
				}
				return world, pod
			}
			world, pod := create("untouched")
			world.IP("link set pod up")
			want := pod.Settled()
			for name, b := range bindings {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					world, pod := create("pod")
					before := pod.Settled()
					c := phase1.NIC{NetNS: pod.File, Name: "eth0"}
					wire := func() {
						t.Helper()
						if _, err := c.Setup(t.Context(), infra.Spec{Binding: b, Owner: nstest.Owner()}); err != nil {
							t.Fatal(err)
						}
					}
					unwire := func(want string) {
						t.Helper()
						if err := c.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil {
							t.Fatal(err)
						}
						nstest.Eventually(t, func() error { return nstest.Difference(want, pod.Dump()) })
					}
					wire()
					unwire(before)
					wire()
					world.IP("link set pod up")
					wire()
					unwire(want)
				})
			}
		})
	}
}
