package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestRepairs: -repair repairs the NIC that is not as recorded, and counts and reports it. It leaves one that is whole,
// what came later, and a namespace that is gone.
func TestRepairs(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	n := newNode(t)
	damaged, later, gone := nstest.NewNetwork(t), nstest.NewNetwork(t), nstest.NewNetwork(t)
	for _, p := range []nstest.Network{damaged, later, gone} {
		nic := phase1.NIC{NetNS: p.Pod.File, Name: "eth0", Dir: n.dir}
		if _, err := nic.Setup(t.Context(), infra.Spec{Binding: infra.Redirect{}, Owner: infra.Owner{Root: true}, State: p.State}); err != nil {
			t.Fatal(err)
		}
		if p != gone {
			t.Cleanup(func() {
				if err := nic.Teardown(context.Background(), phase1.TeardownOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	damaged.Pod.IP("link del eth0-tap")
	later.Pod.IP("route add 203.0.113.0/24 via 10.244.1.3 dev eth0")
	gone.Pod.End()
	o, err := parseArgs(n.args("run", "-repair", "5m"))
	if err != nil {
		t.Fatal(err)
	}
	var said nstest.Output
	o.log = slog.New(slog.NewTextHandler(&said, nil))
	for range 2 {
		if err := o.repairOnce(t.Context()); err != nil {
			t.Error(err)
		}
	}
	damaged.Pod.IP("link show eth0-tap")
	if out := said.String(); strings.Count(out, "\n") != 1 || !strings.Contains(out, `nic=eth0 namespace=`) || !strings.Contains(out, `first="tap eth0-tap is gone"`) {
		t.Errorf("said\n%s", out)
	}
	text, err := o.metricsText(t.Context())
	if err != nil || !strings.Contains(string(text), "\nguestwire_repairs_total 1\n") {
		t.Errorf("%v\n%s", err, text)
	}
}
