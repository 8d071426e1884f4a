package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// TestDriver: what becomes of a NIC that its driver takes out of the pod by the name, as dranet does, while it is
// wired. docs/explanation/cluster.md says so.
func TestDriver(t *testing.T) {
	type left struct{ group, allmulticast bool }
	for name, c := range map[string]struct {
		shape   guestwiretest.Shape
		binding infra.Binding
		left    left
	}{
		"redirect":            {guestwiretest.Veth, infra.Redirect{}, left{}},
		"redirect of macvlan": {guestwiretest.Macvlan, infra.Redirect{}, left{allmulticast: true}},
		"routed":              {guestwiretest.Veth, infra.Routed{}, left{group: true}},
		"masquerade":          {guestwiretest.Veth, infra.Masquerade{}, left{group: true}},
		"bridge":              {guestwiretest.Veth, infra.Bridge{}, left{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, after := range []string{"Teardown", "nothing"} {
				pod := guestwiretest.NewPod(t, c.shape)
				nic := phase1.NIC{NetNS: pod.NetNS, Name: pod.NIC}
				if _, err := nic.Setup(t.Context(), infra.Spec{Binding: c.binding, Owner: pod.Owner, State: pod.State}); err != nil {
					t.Fatal(err)
				}
				if after == "Teardown" {
					if err := nic.Teardown(t.Context(), phase1.TeardownOptions{State: pod.State}); err != nil {
						t.Fatal(err)
					}
				}
				pod.Run("ip", "link", "set", pod.NIC, "down")
				world := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), pod.World.NetNS.Fd())
				pod.Run("sh", "-c", "ip link set "+pod.NIC+" netns "+world+" name nic7 || true") // no kernel moves a bridge
				link := pod.World.Run("sh", "-c", "ip -d -o link show nic7 || true")
				if c.binding.Kind() == "bridge" && after == "nothing" {
					if regexp.MustCompile(` veth `).MatchString(link) || !strings.Contains(pod.Run("ip", "link"), "eth0-nic") {
						t.Errorf("the driver finds the NIC: %s", link)
					}
					continue
				}
				has, want := left{regexp.MustCompile(` group (1735786496|0x67760000) `).MatchString(link), regexp.MustCompile(`[<,]ALLMULTI[,>]`).MatchString(link)}, left{}
				if after == "nothing" {
					want = c.left
				}
				if has != want || link == "" {
					t.Errorf("after %s: %+v, want %+v: %s", after, has, want, link)
				}
				err := nic.Teardown(t.Context(), phase1.TeardownOptions{State: pod.State})
				if after == "nothing" && (err == nil || !strings.HasSuffix(err.Error(), "no such link any more in this namespace: everything else is removed")) || after != "nothing" && err != nil {
					t.Errorf("after %s: Teardown: %v", after, err)
				}
			}
		})
	}
}
