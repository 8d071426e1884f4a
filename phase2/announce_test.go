package phase2_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/dhcp"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

// TestAnnounce captures who receives what. Stations of the network that have the guest under another MAC learn the
// guest's, and the guest learns its gateway's. Under masquerade the network receives nothing. A guest on standby is not
// announced, until Activate lets it go: then Serve announces it. Package dhcp's tests have the frames.
func TestAnnounce(t *testing.T) {
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			t.Parallel()
			waits := b.Kind() != cache.BindingMasquerade
			s := newAnnounced(t, b, waits)
			s.forget()
			world := s.n.World.Sniff(t)
			received := func() map[string]int {
				names := map[string]int{}
				for seen, ok := world.Next(); ok; seen, ok = world.Next() {
					if seen.Link == s.pod && !seen.Outgoing && cache.MAC(seen.Frame[6:]) == s.r.MAC {
						names[nameOf(seen.Frame)]++
					}
				}
				return names
			}
			err := s.vm.Announce(t.Context())
			want := map[string]int{}
			if waits {
				if silent := received(); !errors.Is(err, dhcp.ErrStandby) || !strings.Contains(err.Error(), "eth0: ") || len(silent) > 0 {
					t.Errorf("on standby: %v, and the network received %v", err, silent)
				}
				_, err = s.c.Activate(t.Context(), phase1.Other{Gone: true})
				want = map[string]int{"ARP 1 announces": 2, "ARP 2 announces": 2, "ARP 1 asks": 2, "RARP 3": 5, "ND 135": 3}
				for _, a := range s.r.Static.Addresses { // the link-local address, too
					if a.Address.Addr().Is6() {
						want["ND 136"] += 3
					}
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			s.events.wait(t, "eth0 announced")
			have := received()
			if waits {
				have["ND 135"] = min(have["ND 135"], want["ND 135"]) // Activate asks for the gateway, too
			}
			if !maps.Equal(have, want) {
				t.Errorf("the network received %v, want %v", have, want)
			}
			s.learned(waits)
		})
	}
}

// TestAnnounceUnserved: without a Serve there is nothing that could announce.
func TestAnnounceUnserved(t *testing.T) {
	n := nstest.NewNetwork(t)
	vm := wire(t, n)
	if err := vm.Announce(t.Context()); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("without Serve: %v", err)
	}
}

// announcedGuest is a guest whose tap is open, and its network, in which the world has the guest under another MAC.
type announcedGuest struct {
	t      *testing.T
	n      nstest.Network
	c      wired.NIC
	r      cache.Record
	vm     *phase2.VM
	events *eventLog
	tap    *os.File
	pod    int // the world's end of the NIC
}

func newAnnounced(t *testing.T, b infra.Binding, standby bool) *announcedGuest {
	t.Helper()
	n := nstest.NewNetwork(t)
	s := &announcedGuest{t: t, n: n, events: &eventLog{}, c: wired.NIC{NIC: phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}, Moving: phase1.Moving{Standby: standby}, Spec: infra.Spec{Binding: b, Owner: infra.Owner{Root: true}, State: n.State, DNS: &cache.DNS{Servers: []netip.Addr{nstest.Beyond4}}}}}
	var err error
	if s.r, err = s.c.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.vm, err = phase2.Open(n.State); err != nil {
		t.Fatal(err)
	}
	s.tap = openTap(t, n, s.r.Tap)
	err = netns.Do(n.World.File, func() error {
		link, err := net.InterfaceByName("pod")
		if err == nil {
			s.pod = link.Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.vm.Notify = s.events.add
	serveInBackground(t, n, s.vm)
	s.events.wait(t, "eth0 attached", " ready")
	if !standby {
		nstest.Eventually(t, func() error {
			if state := n.Pod.IP("-br link show dev " + s.r.Tap); !strings.Contains(state, " UP ") {
				return fmt.Errorf("%s is not up: %s", s.r.Tap, state)
			}
			return nil
		})
	}
	return s
}

const formerMAC = "02:00:00:00:00:99"

// forget lets the world have the guest's addresses at another MAC.
func (s *announcedGuest) forget() {
	for _, a := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
		s.n.World.IP(fmt.Sprintf("neigh replace %v lladdr %s dev pod nud stale", a, formerMAC))
	}
}

// learned says that the world has the guest at its MAC, if it could receive that, and that the guest has learned its
// gateway's MAC.
func (s *announcedGuest) learned(network bool) {
	s.t.Helper()
	mac := formerMAC
	gateway := s.r.GatewayMAC
	if network {
		mac, gateway = s.r.MAC.String(), s.macOf(s.n.World, "pod")
	}
	nstest.Eventually(s.t, func() error {
		for _, a := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
			if entry := s.n.World.IP(fmt.Sprintf("neigh show %v dev pod", a)); !strings.Contains(entry, mac) {
				return fmt.Errorf("the network has the guest at %s, want %s", entry, mac)
			}
		}
		return nil
	})
	received := map[string]bool{}
	if err := s.tap.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		s.t.Fatal(err)
	}
	for f := make([]byte, 1<<16); ; {
		size, err := s.tap.Read(f)
		if err != nil {
			break
		}
		if cache.MAC(f[6:]) == gateway {
			received[nameOf(f[:size])] = true
		}
	}
	for _, want := range [][]string{{"ARP 2", "ARP 2 announces"}, {"ND 136"}} {
		found := false
		for _, name := range want {
			found = found || received[name]
		}
		if !found {
			s.t.Errorf("the guest received %v of its gateway %v, want one of %q", received, gateway, want)
		}
	}
}

func (s *announcedGuest) macOf(ns *nstest.Namespace, name string) (mac cache.MAC) {
	s.t.Helper()
	err := netns.Do(ns.File, func() error {
		link, err := net.InterfaceByName(name)
		if err == nil {
			mac = cache.MAC(link.HardwareAddr)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return mac
}

// nameOf names a frame by its protocol and its type.
func nameOf(f []byte) string {
	switch kind := binary.BigEndian.Uint16(f[12:]); kind {
	case 0x0806:
		name := fmt.Sprintf("ARP %d", f[21])
		if string(f[28:32]) == string(f[38:42]) {
			return name + " announces"
		} else if f[21] == 1 {
			return name + " asks"
		}
		return name
	case 0x8035:
		return fmt.Sprintf("RARP %d", f[21])
	case 0x86dd:
		if f[20] == 58 {
			return fmt.Sprintf("ND %d", f[54])
		}
	}
	return fmt.Sprintf("%#x", f[12:14])
}
