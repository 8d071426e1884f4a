package guests_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// renewalLease is how long the lease before a move is, in seconds. A client asks again after half of that time.
const renewalLease = 20

// TestRenewal: which DHCP clients take another address after a move, as a guest does that moves under bridge to a pod with
// another address: with a short lease before, and with an infinite one when the link goes down and up.
func TestRenewal(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	launcher := nstest.Program(t, "examples/launcher")
	for _, sys := range systems {
		// NetworkManager is left out: after the refusal of its earlier address it asks for that address again, with pauses that
		// grow, and has not taken the other one within a minute.
		if !slices.Contains([]string{"udhcpc", "dhclient", "dhcpcd", "networkd"}, sys.name) {
			continue // as one of these
		}
		sys.lease = renewalLease
		t.Run(sys.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, sys, networks[0])
			s.serve(t, launcher)
			s.boot(t)
			s.hasOne(t, "10.244.1.7/24")
			s.moveTo(t, "10.244.1.8/24")
			s.hasOne(t, "10.244.1.8/24")
			if sys.name == "dhclient" {
				return // it takes no notice of the link, and cannot be made to ask
			}
			s.moveTo(t, "10.244.1.9/24")
			s.guest.IP("link set eth0 carrier off")
			time.Sleep(500 * time.Millisecond) // a client that polls the link has to see it down
			s.guest.IP("link set eth0 carrier on")
			if sys.name == "udhcpc" { // the others ask by themselves
				if _, err := s.clients[0].machine.Run(s.clients[0].program.renew); err != nil {
					t.Fatal(err)
				}
			}
			s.hasOne(t, "10.244.1.9/24")
		})
	}
}

// moveTo gives the guest's record another address, and an infinite lease.
func (s *scene) moveTo(t *testing.T, address string) {
	t.Helper()
	root, err := os.OpenRoot(s.State)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	r := nstest.Record(t, s.State, "eth0")
	r.IPv4.Address, r.Options.LeaseSeconds = netip.MustParsePrefix(address), 0
	if err := cache.Write(root, r); err != nil {
		t.Fatal(err)
	}
}

// hasOne waits until the guest has the IPv4 address, and no other one.
func (s *scene) hasOne(t *testing.T, address string) {
	t.Helper()
	start := time.Now()
	nstest.Eventually(t, func() error {
		if out := s.guest.IP("-4 -o addr show dev eth0"); !strings.Contains(out, "inet "+address) || strings.Count(out, "inet ") != 1 {
			return fmt.Errorf("the guest has %q, want %s alone", out, address)
		}
		return nil
	})
	t.Logf("%s after %.1f s", address, time.Since(start).Seconds())
}
