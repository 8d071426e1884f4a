package podnet

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// TestWire: in a namespace without addresses, the guest gets its configuration from OVN.
func TestWire(t *testing.T) {
	t.Parallel()
	l := ovnKubernetesVM.Create(t)
	for _, s := range l.Stations {
		s.Namespace.Listen(s.Name, ":9000")
	}
	before := l.Pod.Settled()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			n := nstest.Network{Pod: l.Pod, State: nstest.Dir(t)}
			c := wired.NIC{NIC: phase1.NIC{NetNS: l.Pod.File, Name: l.NIC}, Spec: infra.Spec{
				Binding: b, State: n.State,
				Owner: nstest.Owner(),
			}}
			_, err := c.Setup(ctx)
			var refused *infra.RefusedError
			if b.Kind() == cache.BindingMasquerade {
				if !errors.As(err, &refused) || refused.Instead != cache.BindingRedirect {
					t.Errorf("Setup: %v; want it to be refused, and redirect instead", err)
				}
				if err := nstest.Difference(before, l.Pod.Dump()); err != nil {
					t.Error(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			g := nstest.Boot(t, l.Pod.File, nstest.Record(t, n.State, l.NIC), "guest")
			if _, err := g.Configure(ctx, guest.Families{IPv4: true, IPv6: true}); err != nil {
				t.Fatal(err)
			}
			if err := g.ListenTCP(Port); err != nil {
				t.Fatal(err)
			}
			for _, s := range l.Stations {
				for _, pair := range [][2]netip.Addr{{l.IPv4, s.IPv4}, {l.IPv6, s.IPv6}} {
					conn, err := g.DialTCP(ctx, netip.AddrPortFrom(pair[1], 9000))
					if err != nil {
						t.Errorf("guest to %s: %v", s.Name, err)
						continue
					}
					answer, err := nstest.Answer(conn)
					conn.Close()
					if err != nil || !strings.HasPrefix(answer, s.Name+" sees ") || !strings.Contains(answer, pair[0].String()) {
						t.Errorf("guest to %s: %q, %v", s.Name, answer, err)
					}
					answer, err = s.Namespace.Ask(netip.AddrPortFrom(pair[0], Port).String())
					if err != nil || !strings.HasPrefix(answer, "guest sees ") || !strings.Contains(answer, pair[1].String()) {
						t.Errorf("%s to the guest: %q, %v", s.Name, answer, err)
					}
				}
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			if err := c.Teardown(ctx); err != nil {
				t.Error(err)
			}
			nstest.Eventually(t, func() error { return nstest.Difference(before, l.Pod.Dump()) })
		})
	}
}

// TestPortSecurity: OVN drops what a guest with another MAC than the port's sends, and the record has said so.
func TestPortSecurity(t *testing.T) {
	for _, n := range []Network{kubeOVN, ovnKubernetes} {
		t.Run(n.Name, func(t *testing.T) {
			t.Parallel()
			l := n.Create(t)
			state := nstest.Dir(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			reaches := func(mac cache.MAC) (r cache.Record, err error) {
				c := wired.NIC{NIC: phase1.NIC{NetNS: l.Pod.File, Name: l.NIC}, Spec: infra.Spec{Binding: infra.Bridge{MAC: mac}, State: state, Owner: nstest.Owner()}}
				if r, err = c.Setup(ctx); err != nil {
					t.Fatal(err)
				}
				launcher := nstest.Network{Pod: l.Pod, State: state}.Serve(t, nstest.LauncherUID)
				g := nstest.Boot(t, l.Pod.File, r, "guest")
				if _, err := g.DHCPv4(ctx); err != nil {
					t.Fatal(err)
				}
				launcher.Stop(t)
				soon, cancel := context.WithTimeout(ctx, 5*time.Second)
				defer cancel()
				_, err = g.Ping(soon, r.IPv4.Gateway())
				if err := errors.Join(g.Close(), c.Teardown(ctx)); err != nil {
					t.Error(err)
				}
				return r, err
			}
			warned := func(r cache.Record) bool { return strings.Contains(strings.Join(r.Warnings, "\n"), "port security") }
			if r, err := reaches(cache.MAC{}); err != nil || warned(r) {
				t.Errorf("with the NIC's MAC: %v, warnings %q; want an answer, and no word of port security", err, r.Warnings)
			}
			if r, err := reaches(cache.MAC{0x02, 0, 0, 0, 0, 0x70}); err == nil || !warned(r) {
				t.Errorf("with another MAC: %v, warnings %q; want no answer, and a warning of port security", err, r.Warnings)
			}
		})
	}
}
