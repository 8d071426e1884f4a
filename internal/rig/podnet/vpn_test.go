package podnet

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestVPN wires a NIC of a pod that reaches a host by WireGuard, whose link forwards. The peer takes the pod's tunnel
// address alone, so the guest reaches the host under masquerade, which auto takes, and not under routed, which loses
// it.
func TestVPN(t *testing.T) {
	nstest.Need(t, "wg", "ping")
	nstest.NeedTaps(t)
	nstest.KernelDecides(t, "not every kernel has WireGuard")
	if !hasKind(t, "wireguard") {
		nstest.LeaveOut(t, "this machine has no WireGuard: the test runs under the stock kernel")
		return
	}
	for _, c := range []struct {
		binding infra.Binding
		is      cache.Kind
		reaches bool
	}{
		{infra.Auto{}, cache.BindingMasquerade, true},
		{infra.Routed{}, cache.BindingRouted, false},
	} {
		t.Run(string(c.binding.Kind()), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			pod, peer := nstest.New(t, "pod"), nstest.New(t, "peer")
			connectNamespaces(pod, "ens3", peer, "ens3")
			addAddresses(pod, "ens3", "10.25.0.1/24")
			addAddresses(peer, "ens3", "10.25.0.2/24")
			pod.IP("route add default via 10.25.0.2")
			joinWireguard(t, pod, peer, "10.66.0.2/32", "198.51.100.0/24")
			addAddresses(pod, "wg0", "10.66.0.2/32")
			addAddresses(peer, "lo", "198.51.100.9/32")
			for _, n := range []*nstest.Namespace{pod, peer} {
				n.IP("link set wg0 up")
			}
			pod.IP("route add 198.51.100.0/24 dev wg0")
			peer.IP("route add 10.66.0.2/32 dev wg0")
			shakeHands(pod, "198.51.100.9")
			pod.Exec("sysctl", "-qw", "net.ipv4.conf.wg0.forwarding=1")
			far := netip.MustParseAddrPort("198.51.100.9:7")
			peer.Listen("far", far.String())

			l := &Instance{Pod: pod, NIC: "ens3", IPv4: addr("10.25.0.1")}
			w := l.mustSetup(ctx, t, c.binding)
			lost := slices.ContainsFunc(w.record.Losses, func(l cache.Finding) bool { return l.Kind == "other-link" })
			if w.record.Binding != c.is || lost == c.reaches {
				t.Errorf("%s, losses %v", w.record.Binding, w.record.Losses)
			}
			g := w.boot(ctx, t)
			dialed, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			conn, err := g.DialTCP(dialed, far)
			if err == nil {
				_, err = nstest.Answer(conn)
				conn.Close()
			}
			if (err == nil) != c.reaches {
				t.Errorf("the guest dials the host by the VPN: %v", err)
			}
			shakeHands(pod, "198.51.100.9")
			if err := w.config.Check(ctx); err != nil {
				t.Error(err)
			}
			w.end(ctx, t)
		})
	}
}
