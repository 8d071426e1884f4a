package phase1_test

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// atOnce is how many callers there are.
const atOnce = 16

// together calls f of all callers at the same time and returns their errors.
func together(f func(caller int) error) error {
	var group sync.WaitGroup
	start := make(chan struct{})
	errs := make([]error, atOnce)
	for i := range atOnce {
		group.Go(func() {
			<-start
			if err := f(i); err != nil {
				errs[i] = fmt.Errorf("caller %d: %w", i, err)
			}
		})
	}
	close(start)
	group.Wait()
	return errors.Join(errs...)
}

// TestAtOnce calls Setup, Check and Teardown of one NIC at the same time, from this process and from
// others: each finds the NIC wired or not, and never half.
func TestAtOnce(t *testing.T) {
	nstest.Long(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		c.DNS = nil // as the agent's flags say
		before := settled(t, n)
		common := []string{"-netns", n.Pod.Path(), "-nic", "eth0"}
		process := func(verb string, more ...string) error {
			out, err := exec.Command(agent, append(append([]string{verb}, common...), more...)...).CombinedOutput()
			if err != nil && verb == "check" && strings.Contains(string(out), "not wired") {
				return nil
			}
			if err != nil {
				return fmt.Errorf("agent %s: %w: %s", verb, err, out)
			}
			return nil
		}
		owner := append(nstest.OwnerFlags(), "-state", n.State, "-binding", string(b.Kind()))
		nstest.NothingHeld(t, func() {
			for range 3 {
				err := together(func(caller int) error {
					switch caller % 6 {
					case 0:
						_, err := c.Setup(t.Context())
						return err
					case 1:
						return process("setup", owner...)
					case 2:
						return c.Teardown(t.Context())
					case 3:
						return process("teardown")
					case 4:
						return process("check")
					}
					err := c.Check(t.Context())
					if errors.Is(err, phase1.ErrNotWired) {
						return nil
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			setup(t, c)
			check(t, c)
			teardown(t, n, c, before)
		})
	})
}

// TestManyAtOnce wires sixteen namespaces at the same time, and gives them back.
func TestManyAtOnce(t *testing.T) {
	networks := make([]nstest.Network, atOnce)
	befores := make([]string, atOnce)
	for i := range networks {
		networks[i] = nstest.NewNetwork(t)
	}
	for i, n := range networks {
		befores[i] = settled(t, n)
	}
	for range 2 {
		nstest.NothingHeld(t, func() {
			err := together(func(caller int) error {
				c := config(networks[caller], bindings[caller%len(bindings)])
				if _, err := c.Setup(t.Context()); err != nil {
					return err
				}
				err := c.Check(t.Context())
				return errors.Join(err, c.Teardown(t.Context()))
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for i, n := range networks {
		asFound(t, n, befores[i])
	}
}
