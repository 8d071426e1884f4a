package phase1_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// openTap opens the queues of the guest's tap as a VMM does. close closes them, also if the test has ended.
func openTap(t *testing.T, n nstest.Network, name string, queues int) (files []*os.File, close func()) {
	t.Helper()
	nstest.Attach(t, n.Pod.File, func() (err error) {
		files, err = tap.OpenQueues(name, queues)
		return err
	})
	close = func() {
		for _, f := range files {
			f.Close()
		}
	}
	t.Cleanup(close)
	return files, close
}

func takeCarrier(t *testing.T, f *os.File) {
	t.Helper()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.TUNSETCARRIER, 0); err != nil {
		t.Fatal(err)
	}
}

// disable switches a queue off: no frames come to it, and it stays attached.
func disable(t *testing.T, f *os.File) {
	t.Helper()
	const detachQueue = 0x0400 // IFF_DETACH_QUEUE, linux/if_tun.h
	ifr, err := unix.NewIfreq("")
	if err != nil {
		t.Fatal(err)
	}
	ifr.SetUint16(detachQueue)
	if err := unix.IoctlIfreq(int(f.Fd()), unix.TUNSETQUEUE, ifr); err != nil {
		t.Fatal(err)
	}
}

// TestInUse: as long as a process has the guest's tap open, in whatever state the tap is, Teardown and ForceTeardown
// refuse and change nothing. When the process has closed the tap, both work.
func TestInUse(t *testing.T) {
	t.Parallel()
	down := func(t *testing.T, n nstest.Network, _ []*os.File) { n.Pod.IP("link set eth0-tap down") }
	for _, c := range []struct {
		name    string
		binding infra.Binding
		queues  int
		do      func(*testing.T, nstest.Network, []*os.File)
	}{
		{"one queue, bridge", infra.Bridge{}, 1, nil},
		{"one queue, redirect", infra.Redirect{}, 1, nil},
		{"one queue, masquerade", infra.Masquerade{}, 1, nil},
		{"three queues", infra.Redirect{}, 3, nil},
		{"one queue, down", infra.Bridge{}, 1, down},
		{"three queues, down", infra.Bridge{}, 3, down},
		{"one queue, no carrier", infra.Redirect{}, 1, func(t *testing.T, _ nstest.Network, f []*os.File) { takeCarrier(t, f[0]) }},
		{"three queues, no carrier", infra.Redirect{}, 3, func(t *testing.T, _ nstest.Network, f []*os.File) { takeCarrier(t, f[2]) }},
		{"one queue, down and no carrier", infra.Masquerade{}, 1, func(t *testing.T, n nstest.Network, f []*os.File) {
			takeCarrier(t, f[0])
			down(t, n, f)
		}},
		{"two queues, both switched off, no carrier", infra.Bridge{}, 2, func(t *testing.T, n nstest.Network, f []*os.File) {
			takeCarrier(t, f[0])
			disable(t, f[0])
			disable(t, f[1])
		}},
		{"two queues, one closed", infra.Bridge{}, 2, func(t *testing.T, _ nstest.Network, f []*os.File) { f[0].Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // a tap counts as in use after two seconds
			if c.name == "two queues, both switched off, no carrier" || c.name == "one queue, down and no carrier" {
				nstest.KernelDecides(t, "whether the kernel reports a tap's queues")
			}
			n := nstest.NewNetwork(t)
			before := settled(t, n)
			config := config(n, c.binding)
			config.Queues = c.queues
			setup(t, config)
			files, closeTap := openTap(t, n, "eth0-tap", c.queues)
			if c.do != nil {
				c.do(t, n, files)
			}
			wired := settled(t, n)
			_, journalBefore := journal(t, n)
			for verb, err := range map[string]error{"Teardown": config.Teardown(t.Context()), "ForceTeardown": second(config.ForceTeardown(t.Context()))} {
				who := fmt.Sprintf("process %d (phase1.test, this one)", os.Getpid())
				if !errors.Is(err, phase1.ErrInUse) || !strings.Contains(err.Error(), who) || !strings.Contains(err.Error(), "eth0-tap") || !strings.Contains(err.Error(), "-cut-off") {
					t.Errorf("%s: %v, want ErrInUse that names the process, the tap and the way out", verb, err)
				}
			}
			if err := difference(wired, settled(t, n)); err != nil {
				t.Error(err)
			}
			record(t, n)
			if _, now := journal(t, n); now != journalBefore {
				t.Error("the journal has changed")
			}
			closeTap()
			teardown(t, n, config, before)
		})
	}
}

// TestInUseWithoutJournal: ForceTeardown without a journal refuses before it writes one.
func TestInUseWithoutJournal(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		c := config(n, b)
		setup(t, c)
		harmJournal(t, n, "removed")
		_, closeTap := openTap(t, n, "eth0-tap", 1)
		wired := settled(t, n)
		if _, err := c.ForceTeardown(t.Context()); !errors.Is(err, phase1.ErrInUse) {
			t.Errorf("%v, want ErrInUse", err)
		}
		if err := difference(wired, settled(t, n)); err != nil {
			t.Error(err)
		}
		record(t, n)
		if left := journals(t, n); len(left) > 0 {
			t.Errorf("the journal directory has %v; want nothing", left)
		}
		closeTap()
		if _, err := c.ForceTeardown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := nothingOfOurs(n); err != nil {
			t.Error(err)
		}
	})
}

// TestCutOff: with CutOff both calls delete a tap that a process has open.
func TestCutOff(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		before := settled(t, n)
		c := config(n, b)
		c.Down.CutOff = true
		for _, journalIs := range []string{"there", "removed"} {
			setup(t, c)
			files, _ := openTap(t, n, "eth0-tap", 1)
			if journalIs == "there" {
				teardown(t, n, c, before)
			} else {
				harmJournal(t, n, journalIs)
				if _, err := c.ForceTeardown(t.Context()); err != nil {
					t.Error(err)
				}
				if err := nothingOfOurs(n); err != nil {
					t.Error(err)
				}
			}
			if _, err := files[0].Write(make([]byte, 70)); !errors.Is(err, unix.EBADFD) {
				t.Errorf("the VMM's tap: %v, want EBADFD", err)
			}
		}
	})
}

// TestInUseByOthers: a tap that Teardown does not delete, and the responder's, which Serve has open, are no hindrance.
func TestInUseByOthers(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	n.Pod.IP("tuntap add dev vpn0 mode tap vnet_hdr")
	openTap(t, n, "vpn0", 1)
	c := config(n, infra.Redirect{})
	setup(t, c)
	openTap(t, n, "eth0-dhcp", 1)
	if err := c.Teardown(t.Context()); err != nil {
		t.Error(err)
	}
	if links := n.Pod.IP("-br link"); strings.Contains(links, "eth0-") || !strings.Contains(links, "vpn0") {
		t.Errorf("links are\n%s\nwant vpn0 and nothing of eth0's wiring", links)
	}
}

// TestSetupWhileForking: when Setup returns, no program that this process is starting has a copy of the tap's
// descriptor, which a Teardown by another process would take for a VMM's.
func TestSetupWhileForking(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	c := config(n, infra.Redirect{})
	syscall.ForkLock.Lock()
	done := make(chan error, 1)
	go func() {
		_, err := c.Setup(t.Context())
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("Setup while a program is being started: %v; want it to wait", err)
		done <- nil
	case <-time.After(200 * time.Millisecond): // without the wait Setup takes some milliseconds
	}
	syscall.ForkLock.Unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	unwire(t, c)
}

// TestInUseByFork: a program that this process is starting has a copy of the tap's descriptor until its exec has closed
// it, which is after the fork. Teardown waits for that. The test holds the lock that a fork holds, and such a copy,
// which it closes after the fork.
func TestInUseByFork(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	before := settled(t, n)
	c := config(n, infra.Redirect{})
	setup(t, c)
	files, closeTap := openTap(t, n, "eth0-tap", 1)
	syscall.ForkLock.Lock()
	copied, err := unix.FcntlInt(files[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	closeTap()
	done := make(chan error, 1)
	go func() { done <- c.Teardown(t.Context()) }()
	for _, has := range []string{"is being started", "has not closed its copy"} {
		select {
		case err := <-done:
			t.Errorf("Teardown while a program %s: %v; want it to wait", has, err)
			done <- nil
		case <-time.After(200 * time.Millisecond): // without the wait Teardown takes some milliseconds
		}
		if has == "is being started" {
			syscall.ForkLock.Unlock()
		}
	}
	unix.Close(copied)
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	if err := difference(before, settled(t, n)); err != nil {
		t.Error(err)
	}
}

// TestAttached: Status and Counters report whether the two taps are open. Status names the process.
func TestAttached(t *testing.T) {
	t.Parallel()
	nstest.KernelDecides(t, "whether a process has a tap open, and in which namespace the tap is")
	want := func(t *testing.T, c wired.NIC, when, vmm, responder string) {
		t.Helper()
		nstest.Eventually(t, func() error { // a child of another test has copies of files until its exec has closed them
			report, err := c.Status(t.Context())
			if err != nil {
				return fmt.Errorf("%s: %w", when, err)
			}
			for from, counted := range map[string]*phase1.Counters{"Status": &report.Counters, "Counters": counters(t, c)} {
				have := map[string]string{}
				for _, a := range counted.Attached {
					have[a.Side] = a.Tap + " " + a.State
					named := len(a.Processes) == 1 && a.Processes[0].PID == os.Getpid() && a.Processes[0].Command == "phase1.test"
					if named != (from == "Status" && a.State == "attached") || !named && len(a.Processes) > 0 {
						return fmt.Errorf("%s, %s, %s: processes %v", when, from, a.Side, a.Processes)
					}
				}
				if have["vmm"] != vmm || have["responder"] != responder {
					return fmt.Errorf("%s: %s reports %v, want vmm %q, responder %q", when, from, have, vmm, responder)
				}
			}
			return nil
		})
	}
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		for _, queues := range []int{1, 2} {
			n := nstest.NewNetwork(t)
			c := config(n, b)
			c.Queues = queues
			setup(t, c)
			want(t, c, "no process", "eth0-tap none", "eth0-dhcp none")
			_, closeResponder := openTap(t, n, "eth0-dhcp", 1)
			want(t, c, "a responder", "eth0-tap none", "eth0-dhcp attached")
			files, closeTap := openTap(t, n, "eth0-tap", queues)
			want(t, c, "both", "eth0-tap attached", "eth0-dhcp attached")
			closeResponder()
			want(t, c, "a VMM", "eth0-tap attached", "eth0-dhcp none")
			if queues > 1 {
				files[0].Close()
				want(t, c, "a VMM with a queue less", "eth0-tap attached", "eth0-dhcp none")
			}
			closeTap()
			want(t, c, "none again", "eth0-tap none", "eth0-dhcp none")
			unwire(t, c)
		}
	})
}
