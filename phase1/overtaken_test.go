package phase1_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestOvertaken: while Setup waits for its State directory, its plan is made and nothing is carried out. What the
// kernel or another program does meanwhile of the plan is no error.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		binding infra.Binding
		// before is how the namespace is as Setup reads it; repair: after an earlier Setup.
		repair            bool
		before, meanwhile []string
	}{
		{"routes come", infra.Redirect{}, true,
			[]string{"route del fd78::1 dev eth0", "route del default", "-6 route del default"},
			[]string{"route add fd78::1 dev eth0 proto kernel metric 256", "route add default via 10.244.1.1", "-6 route add default via fd00:244:1::1"}},
		{"an address comes", infra.Redirect{}, true,
			[]string{"addr del 10.244.1.7/24 dev eth0"},
			[]string{"addr add 10.244.1.7/24 brd 10.244.1.255 dev eth0"}},
		{"addresses and routes go", infra.Bridge{}, false,
			[]string{"addr add 10.77.0.7/24 dev eth0", "route add 10.99.0.0/16 via 10.244.1.1"},
			[]string{"route del 10.99.0.0/16", "addr del 10.77.0.7/24 dev eth0", "addr del fd77::7 peer fd78::1/64 dev eth0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			n.Pod.IP("addr add fd77::7 peer fd78::1/64 dev eth0 nodad")
			found := settled(t, n)
			config := config(n, c.binding)
			config.Dir = filepath.Join(nstest.Dir(t), "node")
			if err := os.Mkdir(config.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if c.repair {
				setup(t, config)
			}
			for _, line := range c.before {
				n.Pod.IP(line)
			}
			before := settled(t, n)
			digest := sha256.Sum256([]byte(n.State))
			lock, err := os.Create(filepath.Join(config.Dir, "state-"+hex.EncodeToString(digest[:8])))
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			flock(t, lock)
			waited := false
			config.Progress = func(string) {
				for _, line := range c.meanwhile {
					n.Pod.IP(line)
				}
				waited = true
				lock.Close()
			}
			setup(t, config)
			if !waited {
				t.Fatal("Setup did not wait for the State directory")
			}
			check(t, config)
			config.Progress = nil
			if c.repair {
				before = found
			}
			unwire(t, config)
			asFound(t, n, before)
		})
	}
}

// TestLateRoute: the kernel adds the route to an IPv6 address's peer some time after the address, and one to the peer's
// network when the address gets other flags. Teardown of a namespace that has deleted the first one is no error; the
// route is back if the kernel was late.
func TestLateRoute(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"", "nodad"} {
		for _, deleted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, deleted %t", flag, deleted), func(t *testing.T) {
				t.Parallel()
				n := nstest.NewNetwork(t)
				n.Pod.IP("addr add fd77::7 peer fd78::1/64 dev eth0 " + flag)
				found := settled(t, n)
				if deleted {
					nstest.Eventually(t, func() error { // the kernel adds it in its own time
						if n.Pod.IP("-6 route show fd78::1 dev eth0") == "" {
							return errors.New("no route to the peer")
						}
						return nil
					})
					n.Pod.IP("route del fd78::1 dev eth0")
				}
				before := settled(t, n)
				c := config(n, infra.Bridge{})
				setup(t, c)
				unwire(t, c)
				nstest.Eventually(t, func() error {
					dump := n.Pod.Dump()
					if difference(found, dump) == nil {
						return nil
					}
					return difference(before, dump)
				})
			})
		}
	}
}
