package tap_test

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestQueues: a tap is opened once and with its own kind of queues, also where the kernel does not report how many
// queues there are, and how many of them are open.
func TestQueues(t *testing.T) {
	nstest.KernelDecides(t, "the errors are the same where the kernel does not report a tap's queues")
	nstest.Need(t)
	nstest.NeedTaps(t)
	ns := nstest.New(t, "tap")
	in := func(f func() error) error { return netns.Do(ns.File, f) }
	open := func(name string, queues int) (files []*os.File, err error) {
		err = in(func() (err error) {
			files, err = tap.OpenQueues(name, queues)
			return err
		})
		t.Cleanup(func() {
			for _, f := range files {
				f.Close()
			}
		})
		return files, err
	}
	for _, c := range []struct {
		name, options             string
		queues, otherQueues, most int
	}{
		{"single", "", 1, 2, 1},
		{"wide", "multi_queue", 3, 1, 256},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns.IP("tuntap add " + c.name + " mode tap vnet_hdr " + c.options)
			ns.IP("link set " + c.name + " addrgenmode none up")
			queues := func(want int) {
				t.Helper()
				var most, attached int
				err := in(func() (err error) {
					most, attached, err = tap.Queues(c.name)
					return err
				})
				if err != nil || most != 0 && (most != c.most || attached != want) || most == 0 && attached != 0 {
					t.Errorf("%d of %d queues, %v, want %d of %d, or 0 of 0", attached, most, err, want, c.most)
				}
				t.Logf("the kernel reports the queues: %t", most != 0)
			}
			queues(0)
			if files, err := open(c.name, c.otherQueues); !errors.Is(err, unix.EINVAL) || files != nil {
				t.Errorf("%d queues: %d files, %v, want unix.EINVAL", c.otherQueues, len(files), err)
			}
			first, err := open(c.name, c.queues)
			if err != nil || len(first) != c.queues {
				t.Fatalf("%d files, %v, want %d", len(first), err, c.queues)
			}
			queues(c.queues)
			if files, err := open(c.name, c.queues); !errors.Is(err, unix.EBUSY) || files != nil {
				t.Errorf("a second time: %d files, %v, want unix.EBUSY", len(files), err)
			}
			queues(c.queues)
			for _, f := range first {
				f.Close()
			}
			queues(0)
			if _, err := open(c.name, c.queues); err != nil {
				t.Errorf("after the first one has closed its files: %v", err)
			}
		})
	}
}

// TestOpenWaits: a process that has the tap only for a moment, as one that resets it, makes no attempt to open it fail.
// One that keeps it does, after a number of attempts.
func TestOpenWaits(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	ns := nstest.New(t, "tap")
	ns.IP("tuntap add single mode tap vnet_hdr")
	ns.IP("tuntap add wide mode tap vnet_hdr multi_queue")
	ns.IP("tuntap add plain mode tap")
	for _, name := range []string{"single", "wide", "plain"} {
		ns.IP("link set " + name + " addrgenmode none up")
	}
	queues := func(name string, n int) func() ([]*os.File, error) {
		return func() ([]*os.File, error) { return tap.OpenQueues(name, n) }
	}
	before := *tap.Sleep
	defer func() { *tap.Sleep = before }()
	for name, open := range map[string]func() ([]*os.File, error){
		"single": queues("single", 1),
		"wide":   queues("wide", 2),
		"plain": func() ([]*os.File, error) {
			f, err := tap.Open("plain")
			return []*os.File{f}, err
		},
	} {
		for _, keeps := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, the other process keeps it: %t", name, keeps), func(t *testing.T) {
				var had, have []*os.File
				closeAll := func(files []*os.File) {
					for _, f := range files {
						f.Close()
					}
				}
				var slept time.Duration
				*tap.Sleep = func(d time.Duration) {
					if slept += d; !keeps {
						closeAll(had)
					}
				}
				err := netns.Do(ns.File, func() (err error) {
					if had, err = open(); err != nil {
						t.Errorf("the first process: %v", err)
					}
					have, err = open()
					return err
				})
				defer closeAll(had)
				if keeps {
					if !errors.Is(err, unix.EBUSY) || slept < 100*time.Millisecond || slept > 200*time.Millisecond {
						t.Errorf("%v after %v, want unix.EBUSY after 0.1 s", err, slept)
					}
					return
				}
				if err != nil || slept == 0 {
					t.Errorf("%v after %v, want none", err, slept)
				}
				closeAll(have)
			})
		}
	}
}

// TestClearBeside: a VMM attaches after Clear's look at who has the tap open. What the VMM has set stays.
func TestClearBeside(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	ns := nstest.New(t, "tap")
	for name, queues := range map[string]int{"single": 1, "wide": 2} {
		t.Run(name, func(t *testing.T) {
			ns.IP("tuntap add " + name + " mode tap vnet_hdr" + map[bool]string{true: " multi_queue"}[queues > 1])
			most := 0
			var vmm []*os.File
			err := netns.Do(ns.File, func() (err error) {
				if most, _, err = tap.Queues(name); err != nil {
					return err
				}
				if vmm, err = tap.OpenQueues(name, queues); err != nil {
					return err
				}
				return unix.IoctlSetInt(int(vmm[0].Fd()), unix.TUNSETOFFLOAD, unix.TUN_F_CSUM)
			})
			if err != nil {
				t.Fatal(err)
			}
			closeVMM := func() {
				for _, f := range vmm {
					f.Close()
				}
			}
			defer closeVMM()
			clear := func(when string, want bool) {
				t.Helper()
				err := netns.Do(ns.File, func() error {
					err := tap.ClearUnlessShared(name, queues)
					if have := tap.Offloads(name); have != want {
						t.Errorf("%s the offloads are there: %t, want %t", when, have, want)
					}
					return err
				})
				if err != nil {
					t.Errorf("%s: %v", when, err)
				}
			}
			if most == 0 && queues > 1 {
				nstest.Skip(t, "the kernel does not report a tap's queues")
			}
			clear("with a VMM", true)
			closeVMM()
			clear("when the VMM has ended", false)
		})
	}
}

// TestQueuesAtOnce: of two that open a tap at once, at most one gets it, and the other leaves no queue open.
func TestQueuesAtOnce(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	ns := nstest.New(t, "tap")
	ns.IP("tuntap add wide mode tap vnet_hdr multi_queue")
	refused := 0
	for range 20 {
		var opened [2][]*os.File
		var errs [2]error
		var both sync.WaitGroup
		for i := range opened {
			both.Go(func() {
				errs[i] = netns.Do(ns.File, func() (err error) {
					opened[i], err = tap.OpenQueues("wide", 64)
					return err
				})
			})
		}
		both.Wait()
		var most, attached int
		err := netns.Do(ns.File, func() (err error) {
			most, attached, err = tap.Queues("wide")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if most == 0 {
			nstest.Skip(t, "the kernel does not report a tap's queues")
		}
		if n := len(opened[0]) + len(opened[1]); attached != n || n > 64 {
			t.Errorf("%d and %d files, and %d queues of the tap are open (%v; %v)", len(opened[0]), len(opened[1]), attached, errs[0], errs[1])
		}
		for i, err := range errs {
			if err != nil {
				refused++
				if !errors.Is(err, unix.EBUSY) {
					t.Error(err)
				}
			}
			for _, f := range opened[i] {
				f.Close()
			}
		}
	}
	t.Logf("%d of 40 are refused", refused)
}
