package podnet

import (
	"context"
	"errors"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// wiring is a pod's network that a guest has, or is about to have.
type wiring struct {
	pod      *Instance
	config   wired.NIC
	record   cache.Record
	launcher *nstest.Process
	guest    *guest.Guest // nil: not booted
}

// setup wires the pod's NIC and starts the launcher. If the binding is refused, State is empty again, and there is no
// launcher.
func (l *Instance) setup(ctx context.Context, t *testing.T, b infra.Binding, guard infra.Guard) (*wiring, *infra.RefusedError) {
	t.Helper()
	n := nstest.Network{Pod: l.Pod, State: nstest.Dir(t)}
	w := &wiring{pod: l, config: wired.NIC{NIC: phase1.NIC{NetNS: l.Pod.File, Name: l.NIC}, Spec: infra.Spec{
		Binding: b, State: n.State, Guard: guard, Owner: nstest.Owner(),
	}}}
	var err error
	w.record, err = w.config.Setup(ctx)
	var refused *infra.RefusedError
	if errors.As(err, &refused) {
		return w, refused
	}
	if err != nil {
		t.Fatal(err)
	}
	w.launcher = n.Serve(t, nstest.LauncherUID)
	return w, nil
}

// mustSetup is setup of a binding that the network does not refuse.
func (l *Instance) mustSetup(ctx context.Context, t *testing.T, b infra.Binding) *wiring {
	t.Helper()
	w, refused := l.setup(ctx, t, b, infra.Guard{})
	if refused != nil {
		t.Fatal(refused)
	}
	return w
}

// boot boots a guest that gets its addresses.
func (w *wiring) boot(ctx context.Context, t *testing.T) *guest.Guest {
	t.Helper()
	w.guest = nstest.Boot(t, w.pod.Pod.File, w.record, "guest")
	if _, err := w.guest.Configure(ctx, guest.Families{IPv4: w.pod.IPv4.IsValid(), IPv6: w.pod.IPv6.IsValid()}); err != nil {
		t.Fatalf("the guest is not configured: %v\nrecord %+v\n%s", err, w.record, w.launcher.Output.String())
	}
	return w.guest
}

// bootAnswering is boot of a guest that answers TCP at Port.
func (w *wiring) bootAnswering(ctx context.Context, t *testing.T) *guest.Guest {
	t.Helper()
	g := w.boot(ctx, t)
	if err := g.ListenTCP(Port); err != nil {
		t.Fatal(err)
	}
	return g
}

// end ends the guest and the launcher, and gives the network back. If Teardown fails, the test ends: what comes next
// would fail too, and say less.
func (w *wiring) end(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := w.guest.Close(); err != nil {
		t.Error(err)
	}
	w.launcher.Stop(t)
	if err := w.config.Teardown(ctx); err != nil {
		t.Fatal(err)
	}
}
