package podnet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestRangeSets: two range sets of host-local give the NIC two IPv4 addresses, and DHCP gives the guest the first one.
// Behind a masquerade the guest is reached at both. Under the other bindings no one answers at the second one, as the
// record warns, until the guest is configured with it.
func TestRangeSets(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	for _, b := range bindings {
		t.Run(string(b.Kind()), func(t *testing.T) {
			t.Parallel()
			node, leases := nstest.New(t, "node"), t.TempDir()
			c := newChain(t, node, fmt.Sprintf(`"type": "ptp", "ipam": {"type": "host-local", "dataDir": %q,
				"ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "10.33.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}`, leases))
			c.leases = leases
			a := c.add(t, nstest.New(t, "pod"), "eth0")
			first, second := netip.AddrPortFrom(a.IPv4, Port), netip.AddrPortFrom(a.further.Addr(), Port)
			if first.Addr() != addr("10.22.0.2") || second.Addr() != addr("10.33.0.2") {
				t.Fatalf("CNI's result is %s", a.result)
			}
			w := a.instance().mustSetup(t.Context(), t, b)
			g := w.bootAnswering(t.Context(), t)
			answers := func(at netip.AddrPort) {
				t.Helper()
				nstest.Eventually(t, func() error {
					line, err := node.Ask(at.String())
					if !strings.HasPrefix(line, "guest sees ") {
						return fmt.Errorf("%v answers %q, %v", at, line, err)
					}
					return nil
				})
			}
			answers(first)
			warned := strings.Contains(fmt.Sprint(w.record.Losses), "address "+a.further.Addr().String()+":")
			if translated := b.Kind() == cache.BindingMasquerade; warned == translated {
				t.Errorf("the record's losses: %v", w.record.Losses)
			} else if !translated {
				if line, err := node.Ask(second.String()); err == nil {
					t.Errorf("%v answers %q", second, line)
				}
				if err := g.AddAddress(netip.PrefixFrom(second.Addr(), 32)); err != nil {
					t.Fatal(err)
				}
			}
			answers(second)
			w.end(t.Context(), t)
			a.delete(t)
		})
	}
}
