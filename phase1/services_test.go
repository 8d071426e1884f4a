package phase1_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestServiceEnded: each binding that asks for services warns of one whose port the guest takes. Status and Plan warn
// of it for as long as it is there, and Check does not.
func TestServiceEnded(t *testing.T) {
	t.Parallel()
	port := []infra.Ports{{First: 8000}}
	for _, b := range []infra.Binding{infra.Masquerade{}, infra.Routed{}, infra.Passt{Ports: port}, infra.Slirp{Ports: port}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			service := listen(t, n.Pod, netip.MustParseAddrPort("0.0.0.0:8000"))
			listen(t, n.Pod, netip.MustParseAddrPort("0.0.0.0:9000"))
			c := config(n, b)
			c.DNS = nil
			warned := func(list []string) bool {
				return slices.ContainsFunc(list, func(w string) bool { return strings.HasPrefix(w, "the namespace serves tcp port 8000 ") })
			}
			r, err := c.Setup(t.Context())
			if err != nil || !warned(r.Warnings) {
				t.Fatalf("Setup warns of %q, %v", r.Warnings, err)
			}
			for _, there := range []bool{true, false} {
				report, err := c.Status(t.Context())
				if err != nil || report.Drift != nil || warned(report.Record.Warnings) != there {
					t.Errorf("service %t: Status warns of %q: %v, %v", there, report.Record.Warnings, report.Drift, err)
				}
				preview, err := c.Plan(t.Context())
				if err != nil || len(preview.Steps) > 0 || warned(preview.Record.Warnings) != there {
					t.Errorf("service %t: Plan warns of %q, and would do %v: %v", there, preview.Record.Warnings, preview.Steps, err)
				}
				check(t, c)
				service.Close()
				nstest.Eventually(t, func() error { // a process that another test forks has the socket until its exec
					if have := n.Pod.Exec("ss", "-Hltn", "sport = :8000"); have != "" {
						return errors.New(have)
					}
					return nil
				})
			}
		})
	}
}
