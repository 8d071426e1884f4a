package main

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestManagedTap: what docs/how-to/choose-a-binding.md says to who has KubeVirt's managedTap. With noResponder the
// guest asks the DHCP server of the network, and connects with the address that it gives. If the pod's NIC has
// addresses, the guest filter holds the guest to them, until the guard names the network.
func TestManagedTap(t *testing.T) {
	nstest.SkipUndecided(t)
	given, gateway := netip.MustParsePrefix("10.244.1.99/24"), netip.MustParseAddr("10.244.1.1")
	for name, c := range map[string]struct {
		addresses bool
		guard     infra.Guard
		connected bool
	}{
		"no addresses":               {false, infra.Guard{}, true},
		"the pod's addresses":        {true, infra.Guard{}, false},
		"the network's, by a prefix": {true, infra.Guard{Prefixes: []netip.Prefix{given.Masked()}}, true},
	} {
		for _, binding := range []infra.Binding{infra.Redirect{}, infra.Bridge{}} {
			t.Run(string(binding.Kind())+", "+name, func(t *testing.T) {
				t.Parallel()
				pod := newPod(t)
				if !c.addresses {
					pod.Run("ip", "addr", "flush", "dev", "eth0")
				}
				serveDHCP(t, pod.World, given)
				spec := infra.Spec{Binding: binding, Owner: pod.Owner, State: pod.State, Guard: c.guard, Options: cache.Options{NoResponder: true}}
				var r cache.Record
				for _, nic := range []string{blue, "eth0"} {
					var err error
					if r, err = (phase1.NIC{NetNS: pod.NetNS, Name: nic}).Setup(t.Context(), spec); err != nil {
						t.Fatal(err)
					}
				}
				socket, _ := startServer(t, pod, "-state", pod.State)
				answer, err := call(t, socket, hooks+"OnDefineDomain", recorded(t, "OnDefineDomain-amd64"))
				if err != nil || !strings.Contains(answer.get(1), `<target dev="`+r.Tap+`" managed="no">`) {
					t.Errorf("the domain: %v, %s", err, answer.get(1))
				}
				guest := guestwiretest.NewGuest(t, pod, r)
				if l, err := guest.DHCPv4(t.Context()); err != nil || l.Address != given {
					t.Errorf("the network's server gives %v, %v; want %v", l.Address, err, given)
				}
				ctx, cancel := t.Context(), func() {}
				if !c.connected {
					ctx, cancel = context.WithTimeout(ctx, time.Second)
				}
				defer cancel()
				if err := guest.Ping(ctx, gateway); (err == nil) != c.connected {
					t.Errorf("ping %v: %v", gateway, err)
				}
			})
		}
	}
}

// serveDHCP gives an address to the first client of the network, from a server in the world.
func serveDHCP(t *testing.T, world *guestwiretest.Namespace, given netip.Prefix) {
	t.Helper()
	self := net.IPv4(10, 244, 1, 1)
	var s *server4.Server
	err := world.Do(func() (err error) {
		s, err = server4.NewServer("pod", nil, func(conn net.PacketConn, _ net.Addr, m *dhcpv4.DHCPv4) {
			kind := dhcpv4.MessageTypeOffer
			if m.MessageType() == dhcpv4.MessageTypeRequest {
				kind = dhcpv4.MessageTypeAck
			}
			reply, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(given.Addr().AsSlice()),
				dhcpv4.WithOption(dhcpv4.OptServerIdentifier(self)), dhcpv4.WithNetmask(net.CIDRMask(given.Bits(), 32)), dhcpv4.WithLeaseTime(3600))
			if err == nil {
				_, err = conn.WriteTo(reply.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ClientPort})
			}
			if err != nil {
				t.Error("the network's DHCP server:", err)
			}
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve() // until Close
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
}
