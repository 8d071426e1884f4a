package phase1_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestResponderAsGuest sends from the responder's tap everything that a guest could send from its own. A launcher that
// a guest has taken over can send there. What has the guest's MAC passes the guest filter, is counted for the same
// reasons and leaves by the NIC; under masquerade, and with another MAC, nothing leaves.
func TestResponderAsGuest(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		setup(t, c)
		w := attach(t, n, true, true)
		responder := openPort(t, n, "eth0-dhcp")
		hostile, legitimate := frames.Hostile(w.link), frames.Legitimate(w.link)
		before := w.settledState()
		foreign := func(k frames.Kind) bool {
			return slices.ContainsFunc(k.Frames, func(f []byte) bool { return cache.MAC(f[6:12]) != w.link.MAC })
		}
		guest := w.port
		leaves := func(kinds []frames.Kind) (leaked []string) {
			for _, k := range kinds {
				for _, f := range k.Frames {
					if _, err := responder.Write(f); err != nil {
						t.Fatal(err)
					}
				}
				if world, pod := w.send(); len(world)+len(pod) > 0 {
					leaked = append(leaked, k.Name)
				}
			}
			return leaked
		}
		counted := dropped(t, n.Pod)
		if w.masquerade {
			for _, name := range leaves(slices.Concat(hostile, legitimate)) {
				t.Errorf("left from the responder's tap: %s", name)
			}
		} else {
			others := slices.DeleteFunc(slices.Clone(hostile), func(k frames.Kind) bool { return !foreign(k) })
			if len(others) < 5 {
				t.Fatalf("%d kinds have another MAC", len(others))
			}
			for _, name := range leaves(others) {
				t.Errorf("left from the responder's tap: %s", name)
			}
		}
		// What goes to the guest is no matter of a rule.
		if have := more(counted, dropped(t, n.Pod)); have != "" {
			t.Errorf("dropped on the way from the responder to the guest: %s", have)
		}
		if !w.masquerade {
			w.port = responder
			w.send()
			for _, name := range w.hostile(slices.DeleteFunc(slices.Clone(hostile), foreign)) {
				t.Errorf("leaked: %s", name)
			}
			w.legitimate(legitimate)
			w.port = guest
		}
		if err := difference(before, w.state()); err != nil {
			t.Errorf("the namespace's state: %v", err)
		}
		guestIsItself(t, w)
		check(t, c)
	})
}

// TestResponderAsksForGuest: the guest receives the answer to what the responder asks in the guest's name.
func TestResponderAsksForGuest(t *testing.T) {
	t.Parallel()
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			setup(t, config(n, b))
			w := attach(t, n, true, true)
			responder := openPort(t, n, "eth0-dhcp")
			for _, name := range []string{"ARP request", "neighbour solicitation from its address"} {
				ask := kind(frames.Legitimate(w.link), name)[0]
				nstest.Eventually(t, func() error {
					if _, err := responder.Write(ask); err != nil {
						return err
					}
					if err := w.port.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
						return err
					}
					for f := make([]byte, 1<<16); ; {
						if _, err := w.port.Read(f); err != nil {
							return fmt.Errorf("no answer: %w", err)
						}
						if cache.MAC(f) == w.link.MAC && cache.MAC(f[6:]) == w.router && bytes.Equal(f[12:14], ask[12:14]) {
							return nil
						}
					}
				})
			}
		})
	}
}
