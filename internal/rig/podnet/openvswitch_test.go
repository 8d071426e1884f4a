package podnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// wire4 is what the test's guest uses on a port without addresses.
var wire4 = addr("10.16.0.7")

// TestOffload: the checksums and segments that a guest leaves to its device are complete at a switch that does no
// offload. In a pod without addresses the guest configures an IPv4 address itself. IPv6 cannot be tested there: a
// port without addresses drops neighbour advertisements (OVN 23.03 wants a hop limit of 225 in them).
func TestOffload(t *testing.T) {
	for _, network := range []Network{openShiftSDN, kubeOVN, kubeOVNWire} {
		t.Run(network.Name, func(t *testing.T) {
			t.Parallel()
			l := network.Create(t)
			// Kube-OVN's node gives its own address to what leaves the cluster, and knows no port without addresses.
			l.Stations = slices.DeleteFunc(l.Stations, func(s Station) bool { return s.Name == "outside" && network.Name != openShiftSDN.Name })
			l.listen()
			l.Pod.Listen("a process", fmt.Sprint(":", Port))
			before := l.Pod.Settled()
			for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}} {
				t.Run(string(b.Kind()), func(t *testing.T) { l.checkOffload(t, b, before) })
			}
		})
	}
}

// listen has each station answer at its own addresses. A namespace can be several stations.
func (l *Instance) listen() {
	for _, s := range l.Stations {
		for _, a := range []netip.Addr{s.IPv4, s.IPv6} {
			if a.IsValid() {
				s.Namespace.Listen(s.Name, netip.AddrPortFrom(a, stationPort).String())
			}
		}
	}
}

func (l *Instance) checkOffload(t *testing.T, b infra.Binding, before string) {
	n := nstest.Network{Pod: l.Pod, State: nstest.Dir(t)}
	c := wired.NIC{NIC: phase1.NIC{NetNS: l.Pod.File, Name: l.NIC}, Spec: infra.Spec{
		Binding: b, State: n.State,
		Owner: nstest.Owner(),
	}}
	var refused *infra.RefusedError
	_, err := c.Setup(t.Context())
	if errors.As(err, &refused) && !l.IPv4.IsValid() {
		if b.Kind() == cache.BindingBridge || refused.Instead != cache.BindingRedirect {
			t.Errorf("%v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	r := nstest.Record(t, n.State, l.NIC)
	launcher := n.Serve(t, nstest.LauncherUID)
	g := n.Guest(t, r)
	g.IP(fmt.Sprintf("link set eth0 mtu %d up", r.MTU))
	own := []netip.Addr{l.IPv4, l.IPv6}
	if !l.IPv4.IsValid() {
		own[0] = wire4
		addAddresses(g, "eth0", wire4.String()+"/16")
		g.IP("route add default via 10.16.0.1")
	}
	if r.IPv4 != nil {
		addAddresses(g, "eth0", r.IPv4.Address.String())
		for _, route := range r.IPv4.Routes {
			line := "route add " + route.Destination.String() + " dev eth0"
			if route.Gateway.IsValid() {
				line += " onlink via " + route.Gateway.String()
			}
			g.IP(line)
		}
	}
	if r.IPv6 != nil {
		addAddresses(g, "eth0", r.IPv6.Address.String()+"/128")
	}
	g.Listen("guest", fmt.Sprint(":", Port))
	for _, s := range l.Stations {
		for i, to := range []netip.Addr{s.IPv4, s.IPv6} {
			if !to.IsValid() || !own[i].IsValid() {
				continue
			}
			checkTalk(t, Station{Namespace: g}.dial, netip.AddrPortFrom(to, stationPort), s.Name+" sees "+own[i].String())
			checkTalk(t, s.dial, netip.AddrPortFrom(own[i], Port), "guest sees "+to.String())
		}
	}
	launcher.Stop(t)
	c.Down.CutOff = true // the guest lasts as long as the test
	if err := c.Teardown(t.Context()); err != nil {
		t.Error(err)
	}
	nstest.Eventually(t, func() error { return nstest.Difference(before, l.Pod.Dump()) })
}

// checkTalk connects until the wanted answer comes, and checks that some segments are echoed.
func checkTalk(t *testing.T, dial dialer, to netip.AddrPort, want string) {
	t.Helper()
	nstest.Eventually(t, func() error {
		answer, err := converseTCP(t.Context(), dial, to, 100_000)
		if err != nil || answer != want {
			return fmt.Errorf("to %v: %q, %v; want %q", to, answer, err, want)
		}
		return nil
	})
}
