package podnet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestLinux gives some of the networks to a Linux guest. The guest must reach the same stations, and be reached by
// the same stations, as a process in the namespace.
func TestLinux(t *testing.T) {
	uid, gid := vm.NeedGuest(t)
	for _, test := range []struct {
		network string
		binding infra.Binding
	}{
		{"Calico, VXLAN", infra.Bridge{}},
		{"Terway ENI multi-IP, veth", infra.Redirect{}},
		{"Podman's bridge", infra.Masquerade{}},
	} {
		t.Run(test.network+", "+test.binding.Kind(), func(t *testing.T) {
			t.Parallel()
			l := Networks[slices.IndexFunc(Networks, func(n Network) bool { return n.Name == test.network })].Lay(t)
			known := l.ready(t).askProcess(t, tcp).answeredBy("guest1")
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
			defer cancel()
			n := nstest.Network{Pod: l.Pod, State: nstest.Dir(t)}
			if _, err := phase1.Setup(ctx, phase1.Config{NetNS: l.Pod.File, Spec: infra.Spec{
				NIC: l.NIC, Binding: test.binding, State: n.State,
				Owner: infra.Owner{UID: uint32(uid), GID: uint32(gid)},
			}}); err != nil {
				t.Fatal(err)
			}
			launcher := n.Serve(t, uid)
			r := nstest.Record(t, n.State, l.NIC)
			nic, err := qemu.NewNIC(&r, qemu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			g, err := vm.BootQEMU(ctx, vm.Config{NetNS: l.Pod.File, UID: uid, GID: gid, Name: "guest1"}, nic)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := g.Destroy(); err != nil {
					t.Error(err)
				}
			}()
			_, err4 := g.Lease4(ctx, "eth0")
			_, err6 := g.Lease6(ctx, "eth0")
			if err := errors.Join(err4, err6); err != nil {
				t.Fatalf("%v\n%s", err, launcher.Output.String())
			}
			for q, want := range known {
				got, err := l.askLinux(ctx, g, q)
				for err != nil && want != "" && ctx.Err() == nil {
					got, err = l.askLinux(ctx, g, q)
				}
				if got != want {
					t.Errorf("%s to %s (%v): %q, %v; want %q", q.from, q.to, q.at, got, err, want)
				}
			}
		})
	}
}

// askLinux asks a question once, from the guest or from a station.
func (l *Laid) askLinux(ctx context.Context, g *vm.Guest, q question) (string, error) {
	if q.from == pod {
		line, err := g.Run(ctx, fmt.Sprintf("nc -w 3 %v %d </dev/null", q.at.Addr(), q.at.Port()))
		if err != nil {
			return "", err
		}
		return withoutPort(line)
	}
	station := l.Stations[slices.IndexFunc(l.Stations, func(s Station) bool { return s.Name == q.from })]
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := station.dial(ctx, q.at)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	answer, err := vm.ReadAnswer(conn)
	return fmt.Sprintf("%s sees %v", answer.Guest, answer.Peer.Addr()), err
}
