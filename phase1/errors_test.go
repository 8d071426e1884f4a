package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
)

// TestErrorsNameTheCall: each error names its operation once and the NIC once, and callers can branch on it.
func TestErrorsNameTheCall(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	secondNIC(n, "192.0.2.2/24")
	ctx := t.Context()
	unwired, gone := configOfSecondNIC(n, infra.Bridge{}), config(n, infra.Bridge{})
	gone.Name = "eth7"
	bad := gone
	bad.Name = "a b"
	wired := config(n, infra.Redirect{})
	setup(t, wired)
	defer unwire(t, wired)
	changed := wired
	changed.Binding = infra.Bridge{}
	_, release, err := wired.Hold(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	refused := unwired
	refused.Binding, refused.DNS = infra.Macvtap{}, nil
	ended, cancel := context.WithCancel(ctx)
	cancel()
	var noContext context.Context
	closed := unwired
	if closed.NetNS, err = phase1.OpenNetNS(n.Pod.Path()); err != nil {
		t.Fatal(err)
	}
	closed.NetNS.Close()
	nothing := func(cache.Record) error { return nil }
	relative := phase1.TeardownOptions{State: "vm1"}
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	for _, row := range []struct {
		begin string
		want  func(error) bool
		call  func() error
	}{
		{"setup eth7: no such link; ", is(infra.ErrNoNIC), func() error { _, err := gone.NIC.Setup(ctx, gone.Spec); return err }},
		{"setup eth7: no such link; ", is(fs.ErrNotExist), func() error { _, err := gone.NIC.Setup(ctx, gone.Spec, phase1.Moving{}); return err }},
		{"setup eth0: already wired with the redirect binding", is(infra.ErrWired), func() error { _, err := changed.Setup(ctx); return err }},
		{"setup net1: macvtap binding: ", as[*infra.RefusedError], func() error { _, err := refused.Setup(ctx); return err }},
		{"setup: nic: ", as[*cache.FieldError], func() error { _, err := bad.Setup(ctx); return err }},
		{"setup net1: binding: ", as[*cache.FieldError], func() error { _, err := unwired.NIC.Setup(ctx, infra.Spec{}); return err }},
		{"plan eth7: no such link; ", is(infra.ErrNoNIC), func() error { _, err := gone.NIC.Plan(ctx, gone.Spec); return err }},
		{"plan eth7: no such link; ", is(infra.ErrNoNIC), func() error { _, err := gone.NIC.Plan(ctx, gone.Spec, phase1.Moving{}); return err }},
		{"check net1: not wired ", is(phase1.ErrNotWired), func() error { return unwired.Check(ctx) }},
		{"check net1: ctx: nil", as[*cache.FieldError], func() error { return unwired.Check(noContext) }},
		{"check net1: namespace " + n.Pod.Path() + ": file already closed: ", is(os.ErrClosed), func() error { return closed.Check(ctx) }},
		{"check eth0: differs from what Setup left:\n  ", as[*phase1.DriftError], func() error {
			n.Pod.IP("link set eth0-tap down")
			defer n.Pod.IP("link set eth0-tap up")
			return wired.Check(ctx)
		}},
		{"repair net1: not wired ", is(phase1.ErrNotWired), func() error { _, err := unwired.Repair(ctx); return err }},
		{"status net1: not wired ", is(phase1.ErrNotWired), func() error { _, err := unwired.Status(ctx); return err }},
		{"counters eth0: context canceled", is(context.Canceled), func() error { _, err := wired.Counters(ended); return err }},
		{"drops net1: not wired", is(phase1.ErrNotWired), func() error { return unwired.FollowDrops(ctx, func(phase1.Drop) {}) }},
		{"activate net1: not wired ", is(phase1.ErrNotWired), func() error { _, err := unwired.Activate(ctx, phase1.Other{Gone: true}); return err }},
		{"activate eth0: other: missing", as[*cache.FieldError], func() error { _, err := wired.Activate(ctx, phase1.Other{}); return err }},
		{"deactivate net1: not wired ", is(phase1.ErrNotWired), func() error { _, err := unwired.Deactivate(ctx); return err }},
		{"teardown eth0: held by another process: ", is(phase1.ErrHeld), func() error { return wired.Teardown(ctx) }},
		{"teardown eth0: state: ", as[*cache.FieldError], func() error { return wired.NIC.Teardown(ctx, relative) }},
		{"forced teardown eth0: held by another process: ", is(phase1.ErrHeld), func() error { _, err := wired.ForceTeardown(ctx); return err }},
		{"forced teardown eth0: state: ", as[*cache.FieldError], func() error { o := relative; o.Force = true; return wired.NIC.Teardown(ctx, o) }},
		{"hold eth0: held by another process: ", is(phase1.ErrHeld), func() error { _, _, err := wired.Hold(ctx); return err }},
		{"hold eth0: held by another process: ", is(phase1.ErrHeld), func() error { return wired.While(ctx, wired.Spec, nothing) }},
		{"setup eth7: no such link; ", is(infra.ErrNoNIC), func() error { return gone.While(ctx, gone.Spec, nothing) }},
		{"list: dir: ", as[*cache.FieldError], func() error { _, err := phase1.List(ctx, "here"); return err }},
		{"forget: nic: ", as[*cache.FieldError], func() error { return phase1.Forget(ctx, phase1.Gone{NIC: "eth0"}) }},
		{"forget: NIC eth0: the namespace is not gone: ", is(phase1.ErrAlive), func() error { return phase1.Forget(ctx, phase1.Gone{NIC: "eth0", State: n.State}) }},
		{"open " + n.Pod.Name + ": no such file or directory: want the path " + n.Pod.Path(), is(fs.ErrNotExist), func() error { _, err := phase1.OpenNetNS(n.Pod.Name); return err }},
		{"open a network namespace: no path is named", is(fs.ErrNotExist), func() error { _, err := phase1.OpenNetNS(""); return err }},
		{fmt.Sprintf("start /nowhere as user %d: ", nstest.LauncherUID), is(fs.ErrNotExist), func() error { return launch.Start(exec.Command("/nowhere"), nil, nstest.Owner()) }},
	} {
		err := row.call()
		if err == nil || !row.want(err) || !strings.HasPrefix(err.Error(), row.begin) {
			t.Errorf("%v, want %q", err, row.begin)
			continue
		}
		operation, _, _ := strings.Cut(row.begin, ":")
		words := strings.Fields(operation)
		for _, name := range []string{operation + ":", "NIC " + words[len(words)-1]} {
			if strings.Contains(strings.TrimPrefix(err.Error(), row.begin), name) {
				t.Errorf("%v: %q a second time", err, name)
			}
		}
	}
}

// as reports whether the error has the type.
func as[T error](err error) bool {
	var typed T
	return errors.As(err, &typed)
}
