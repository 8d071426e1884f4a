package podnet

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestSnooping: a bridge of the network that snoops learns from the guest's IGMP and MLD that the guest has joined a
// group. Without them a network with a querier forwards no packet of the group to the guest. In TestMatrix no bridge
// has a querier, and a process in the pod has joined the groups.
func TestSnooping(t *testing.T) {
	nstest.Need(t, "bridge")
	nstest.NeedTaps(t)
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			t.Parallel()
			l := onNode(bridgePlugin)(t)
			node := l.Stations[0].Namespace
			port := strings.TrimSpace(l.Pod.Exec("cat", "/sys/class/net/"+l.NIC+"/iflink"))
			learnt := func(group netip.Addr) bool {
				for line := range strings.Lines(node.Exec("bridge", "-d", "mdb", "show", "dev", "cni0")) {
					words := strings.Fields(line)
					if len(words) < 6 || words[5] != group.String() {
						continue
					}
					if at := strings.TrimSpace(node.Exec("cat", "/sys/class/net/"+words[3]+"/ifindex")); at == port {
						return true
					}
				}
				return false
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			g := l.mustSetup(ctx, t, b).boot(ctx, t)
			if learnt(groups[0]) || learnt(groups[1]) {
				t.Fatalf("the bridge has %v at the pod's port before the guest joins", groups)
			}
			hostOf(t, g).listen(t, "guest", Port)
			for _, group := range groups {
				nstest.Eventually(t, func() error {
					if !learnt(group) {
						return fmt.Errorf("the bridge has not learnt that the guest has joined %v:\n%s", group, node.Exec("bridge", "-d", "mdb", "show", "dev", "cni0"))
					}
					return nil
				})
			}
		})
	}
}
