package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// asking calls a function whenever a call asks the context, with the functions that ask. The function runs on another
// thread: that of the call is in the pod's network.
type asking struct {
	context.Context
	ask func(by string)
}

func (a asking) Err() error            { a.asks(callers()); return a.Context.Err() }
func (a asking) Done() <-chan struct{} { a.asks(callers()); return a.Context.Done() }

func (a asking) asks(by string) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.ask(by)
	}()
	<-done
}

func callers() string {
	var places [64]uintptr
	var names strings.Builder
	frames := runtime.CallersFrames(places[:runtime.Callers(3, places[:])])
	for {
		frame, more := frames.Next()
		names.WriteString(frame.Function + "\n")
		if !more {
			return names.String()
		}
	}
}

// readers are the calls that change nothing that others plan by, and that do not take the journal alone, with where
// they ask the context without the lock.
var readers = map[string]struct {
	read   func(context.Context, wired.NIC) error
	places []string
}{
	"check":  {func(ctx context.Context, c wired.NIC) error { return c.Check(ctx) }, []string{later, askGateways}},
	"status": {func(ctx context.Context, c wired.NIC) error { _, err := c.Status(ctx); return err }, []string{later, askGateways, processes}},
	"plan":   {func(ctx context.Context, c wired.NIC) error { _, err := c.Plan(ctx); return err }, []string{later, askGateways}},
	"cut":    {func(ctx context.Context, c wired.NIC) error { _, err := c.CutRefused(ctx); return err }, []string{judges}},
}

const (
	later       = "wiring.(*Plan).Later"
	askGateways = "phase1.(*session).askGateways"
	processes   = "holders.Of"
	judges      = "kernel.listRefused"
)

// readNIC is a wired NIC for a reader. For cut, it has a policy and a connection that is refused.
func readNIC(t *testing.T, reader string) wired.NIC {
	if reader != "cut" {
		return laterNIC(t)
	}
	n := nstest.NewNetwork(t)
	c := config(n, infra.Masquerade{})
	c.Egress = policy(t, "refuse all")
	setup(t, c)
	guest, to := net.IPv4(10, 0, 2, 2).To4(), net.IPv4(198, 51, 100, 1).To4()
	in(t, n.Pod, func() error {
		return netlink.ConntrackCreate(netlink.ConntrackTable, netlink.FAMILY_V4, &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET, TimeOut: 3600,
			Forward: netlink.IPTuple{SrcIP: guest, DstIP: to, Protocol: unix.IPPROTO_UDP, SrcPort: 1000, DstPort: 9},
			Reverse: netlink.IPTuple{SrcIP: to, DstIP: guest, Protocol: unix.IPPROTO_UDP, SrcPort: 9, DstPort: 1000},
		})
	})
	return c
}

// laterNIC is a wired NIC for whose gateway Setup asks, and that got a route afterwards.
func laterNIC(t *testing.T) wired.NIC {
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	n.Pod.IP("route add 203.0.113.0/24 via 10.244.1.3 dev eth0")
	return c
}

// unlessDrift is nil for an error that says what differs.
func unlessDrift(err error) error {
	var drift *phase1.DriftError
	if errors.As(err, &drift) {
		return nil
	}
	return err
}

// TestReaderGivesWay: while a reader computes, asks the network or searches the node, another call gets the lock of the
// namespace. So how long that takes is nothing to a Teardown.
func TestReaderGivesWay(t *testing.T) {
	for name, reader := range readers {
		c := readNIC(t, name)
		seen := map[string]int{}
		var failed error
		ctx := asking{t.Context(), func(by string) {
			for _, place := range []string{later, askGateways, processes, judges} {
				if strings.Contains(by, place) {
					seen[place]++
				}
			}
			if strings.Contains(by, "phase1.(*session).look") || failed != nil {
				return
			}
			// Hold takes the same lock as Teardown, and leaves the wiring.
			soon, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			_, release, err := c.Hold(soon)
			if failed = err; err == nil {
				release()
			} else {
				t.Errorf("%s keeps another call waiting: %v, in %s", name, err, by)
			}
		}}
		if err := unlessDrift(reader.read(ctx, c)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if asked := slices.Sorted(maps.Keys(seen)); !slices.Equal(asked, slices.Sorted(slices.Values(reader.places))) {
			t.Errorf("%s asks its context in %v, want %v", name, asked, reader.places)
		}
	}
}

// TestTeardownBesideReader: a Teardown that comes while a reader computes ends before the reader. A reader that looks
// again after the Teardown begins again, and finds no wiring.
func TestTeardownBesideReader(t *testing.T) {
	for name, reader := range readers {
		for _, place := range reader.places {
			want := place == later || name == "plan" // after the reader's last look
			c := readNIC(t, name)
			done := false
			ctx := asking{t.Context(), func(by string) {
				if !done && strings.Contains(by, place) && !strings.Contains(by, "phase1.(*session).look") {
					done = true
					unwire(t, c)
				}
			}}
			err := unlessDrift(reader.read(ctx, c))
			if !done {
				t.Errorf("%s: no Teardown in %s", name, place)
			}
			if want && err != nil || !want && !errors.Is(err, phase1.ErrNotWired) {
				t.Errorf("%s, torn down in %s: %v", name, place, err)
			}
		}
	}
}

// TestReaderEnds: a reader whose context ends at any of the moments at which it asks ends with the context's error, and
// asks only a few times more: once in each call that is open.
func TestReaderEnds(t *testing.T) {
	for name, reader := range readers {
		c := readNIC(t, name)
		const more = 12
		reason := errors.New("the scrape has ended")
		for moment, ended := 0, true; ended; moment++ {
			ctx, cancel := context.WithCancelCause(t.Context())
			asks := 0
			err := unlessDrift(reader.read(asking{ctx, func(string) {
				if asks++; asks > moment {
					cancel(reason)
				}
			}}, c))
			cancel(nil)
			switch ended = asks > moment; {
			case !ended && err != nil:
				t.Errorf("%s: %v", name, err)
			case ended && !errors.Is(err, reason):
				t.Errorf("%s, ended at question %d: %v, want %v", name, moment, err, reason)
			case asks > moment+1+more:
				t.Errorf("%s, ended at question %d, asks %d times more", name, moment, asks-moment-1)
			}
			if !ended && moment < 5 {
				t.Errorf("%s asks its context %d times", name, moment)
			}
		}
		unwire(t, c)
	}
}

// TestMostRead: a call that may not read as much as a namespace has says so, and does not take the NIC for another one.
func TestMostRead(t *testing.T) {
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	setup(t, c)
	var lines strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&lines, "route add 198.18.%d.%d via 10.244.1.1 dev eth0\n", i/250, i%250)
	}
	file := filepath.Join(t.TempDir(), "routes")
	writeFile(t, file, lines.String())
	n.Pod.Exec("ip", "-batch", file)
	for name, reader := range readers {
		if name == "cut" {
			continue
		}
		c.MostRead = 64 << 10
		if err := reader.read(t.Context(), c); !errors.Is(err, syscall.E2BIG) || !strings.Contains(err.Error(), "raise it (MostRead)") {
			t.Errorf("%s: %v", name, err)
		}
		c.MostRead = 1 << 20
		if err := unlessDrift(reader.read(t.Context(), c)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.MostRead = 64 << 10
	if _, err := c.Setup(t.Context()); !errors.Is(err, syscall.E2BIG) {
		t.Errorf("Setup: %v", err)
	}
	c.MostRead = 0
	unwire(t, c)
}
