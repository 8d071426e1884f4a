package phase1_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/nstest"
	"github.com/guestwire/guestwire/phase1"
)

func flock(t *testing.T, f *os.File) {
	t.Helper()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// mutating are the system calls by which Setup changes anything.
var mutating = []string{"sendto", "ioctl", "renameat", "renameat2", "fsync", "write", "unlinkat"}

// inject runs the agent's setup with strace doing harm at the k-th call of a kind, and says whether
// it got so far.
func inject(t *testing.T, n nstest.Network, agent, binding, call, harm string, k int) (reached bool, err error) {
	t.Helper()
	log := t.TempDir() + "/strace"
	cmd := exec.Command("strace", "-f", "-o", log, "-e", "trace="+call,
		"-e", fmt.Sprintf("inject=%s:%s:when=%d", call, harm, k),
		agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-binding", binding, "-state", n.State)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	trace, readErr := os.ReadFile(log)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return strings.Contains(string(trace), "INJECTED") || strings.Contains(string(trace), "killed by SIGKILL"), err
}

// TestInterrupted fails or kills Setup at each of its mutating system calls. After an error the
// namespace is as found; after a kill a second Setup ends in the same state as an undisturbed one,
// and Teardown gives everything back.
func TestInterrupted(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 20 // a part of them
	}
	nstest.Need(t, "strace")
	agent := nstest.Program(t, "agent")
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		before := n.Pod.Dump()
		c := config(n, b)
		c.Owner, c.DNS = infra.Owner{}, nil // as the agent's flags say
		errored, killed := 0, 0
		for _, call := range mutating {
			for k := 1; ; k += step {
				reached, err := inject(t, n, agent, b.Kind(), call, "error=ENOMEM", k)
				if !reached {
					teardown(t, n, c, before)
					break
				}
				errored++
				if err == nil {
					// Not a call that mattered: then everything is there.
					if err := phase1.Check(t.Context(), c); err != nil {
						t.Errorf("%s %d: no error from Setup, and Check says %v", call, k, err)
					}
				} else if strings.Contains(err.Error(), "give the namespace back") {
					t.Errorf("%s %d: not undone: %v", call, k, err)
				} else {
					asFound(t, n, before)
				}
				teardown(t, n, c, before)
			}
			for k := 1; ; k += step {
				reached, err := inject(t, n, agent, b.Kind(), call, "signal=SIGKILL", k)
				if !reached {
					teardown(t, n, c, before)
					break
				}
				killed++
				if err == nil {
					t.Errorf("%s %d: Setup was not killed", call, k)
				}
				if killed%2 == 0 { // straight back
					teardown(t, n, c, before)
					continue
				}
				if err := phase1.Setup(t.Context(), c); err != nil {
					t.Errorf("%s %d: after a kill: %v", call, k, err)
				}
				if err := phase1.Check(t.Context(), c); err != nil {
					t.Errorf("%s %d: after a kill: %v", call, k, err)
				}
				teardown(t, n, c, before)
			}
		}
		if errored < 30/step || killed < 30/step {
			t.Errorf("%d errors and %d kills: there are more system calls than that", errored, killed)
		}
		t.Logf("%d errors, %d kills", errored, killed)
	})
}
