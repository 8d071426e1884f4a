package tap_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// link is a tap, and a socket by which the kernel sends frames to the tap.
type link struct {
	ns     *nstest.Namespace
	socket int
}

func newLink(t *testing.T) link {
	nstest.Need(t)
	nstest.NeedTaps(t)
	return newLinkOf(t, nstest.New(t, "tap"), "")
}

// newLinkOf has the options of ip-tuntap(8).
func newLinkOf(t *testing.T, ns *nstest.Namespace, options string) link {
	l := link{ns: ns}
	l.ns.IP("tuntap add tap0 mode tap " + options)
	l.ns.IP("link set tap0 addrgenmode none up")
	err := netns.Do(l.ns.File, func() (err error) {
		ifr, err := unix.NewIfreq("tap0")
		if err != nil {
			return err
		}
		if l.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(l.socket, unix.SIOCGIFINDEX, ifr); err != nil {
			return err
		}
		return unix.Bind(l.socket, &unix.SockaddrLinklayer{Ifindex: int(ifr.Uint32())})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(l.socket) })
	return l
}

func (l link) open(t *testing.T) *os.File {
	t.Helper()
	var f *os.File
	err := netns.Do(l.ns.File, func() (err error) {
		f, err = tap.Open("tap0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// frameTo returns a frame whose last octet is the number.
func frameTo(dst byte, number byte) []byte {
	return append([]byte{2, 0, 0, 0, 0, dst, 2, 0, 0, 0, 0, 9, 0x88, 0xb5}, append(make([]byte, 49), number)...)
}

// receives reports whether the frame arrives at the process that has the tap open.
func (l link) receives(t *testing.T, f *os.File, frame []byte, wait time.Duration) bool {
	t.Helper()
	if _, err := unix.Write(l.socket, frame); err != nil {
		t.Fatal(err)
	}
	if err := f.SetReadDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 2000)
	for {
		n, err := f.Read(got)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(got[:n], frame) {
			return true
		}
	}
}

// TestOpenRemovesFilter: an earlier process set a filter that passes one address, and ended. The next process receives
// everything.
func TestOpenRemovesFilter(t *testing.T) {
	l := newLink(t)
	earlier := l.open(t)
	defer earlier.Close()
	l.setFilter(t, earlier)
	earlier.Close()

	next := l.open(t)
	defer next.Close()
	if !l.receives(t, next, frameTo(2, 3), 10*time.Second) {
		t.Error("the next process does not receive what the filter of the earlier one drops")
	}
}

// setFilter lets only frames to 02:00:00:00:00:01 pass.
func (l link) setFilter(t *testing.T, f *os.File) {
	t.Helper()
	nstest.FilterTap(t, f)
	if l.receives(t, f, frameTo(2, 1), 100*time.Millisecond) || !l.receives(t, f, frameTo(1, 2), 10*time.Second) {
		t.Fatal("the filter does not work")
	}
}

// vmm opens the tap as a VMM does, which knows nothing of filters.
func (l link) vmm(t *testing.T, flags uint16) *os.File {
	t.Helper()
	var fd int
	err := netns.Do(l.ns.File, func() (err error) {
		if fd, err = unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		ifr, err := unix.NewIfreq("tap0")
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | flags)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	})
	if err != nil {
		t.Fatal(err)
	}
	l.ns.Exec("ip", "link", "show", "tap0")
	return os.NewFile(uintptr(fd), "tap0")
}

// TestClear removes the filter of a VMM that has ended, and leaves that of one that runs.
func TestClear(t *testing.T) {
	for name, flags := range map[string]uint16{"one queue": 0, "several queues": unix.IFF_MULTI_QUEUE} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t)
			if flags != 0 {
				l.ns.IP("link del tap0")
				l = newLinkOf(t, l.ns, "multi_queue")
			}
			clear := func() {
				t.Helper()
				if err := netns.Do(l.ns.File, func() error { return tap.Clear("tap0", flags != 0) }); err != nil {
					t.Fatal(err)
				}
			}
			running := l.vmm(t, flags)
			nstest.Eventually(t, func() error { // the kernel notices the process in its own time
				if !l.receives(t, running, frameTo(2, 0), 100*time.Millisecond) {
					return errors.New("the VMM receives nothing")
				}
				return nil
			})
			l.setFilter(t, running)
			clear()
			if l.receives(t, running, frameTo(2, 3), 100*time.Millisecond) {
				t.Error("the filter of a VMM that runs is removed")
			}
			running.Close() // and has sent no frame
			clear()
			next := l.vmm(t, flags)
			defer next.Close()
			nstest.Eventually(t, func() error {
				if !l.receives(t, next, frameTo(2, 4), 100*time.Millisecond) {
					return errors.New("the next VMM receives nothing")
				}
				return nil
			})
		})
	}
}

// TestOpenReceivesAtOnce: no frame after Open is lost, although the kernel notices in its own time that a process is
// attached.
func TestOpenReceivesAtOnce(t *testing.T) {
	l := newLink(t)
	lost := 0
	const times = 100
	for i := range times {
		f := l.open(t)
		if !l.receives(t, f, frameTo(1, byte(i)), 100*time.Millisecond) {
			lost++
		}
		f.Close()
		l.ns.IP("link show tap0") // the kernel notices the end
	}
	if lost > 0 {
		t.Errorf("%d of %d first frames are lost", lost, times)
	}
}

// TestClearBesideForks: when Clear has returned, no program that the process starts meanwhile has the tap open, which
// would keep a multi-queue tap as Clear had opened it.
func TestClearBesideForks(t *testing.T) {
	l := newLink(t)
	l.ns.IP("link del tap0")
	l = newLinkOf(t, l.ns, "multi_queue vnet_hdr")
	stop := make(chan struct{})
	var starting sync.WaitGroup
	for range 4 {
		starting.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	defer starting.Wait()
	defer close(stop)
	for range 500 {
		err := netns.Do(l.ns.File, func() error {
			if err := tap.Clear("tap0", true); err != nil {
				return err
			}
			_, attached, err := tap.Queues("tap0")
			if attached > 0 {
				err = fmt.Errorf("%d queues are open", attached)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestClearAtOnce: who opens the tap while Clear has it open gets it afterwards.
func TestClearAtOnce(t *testing.T) {
	l := newLink(t)
	l.ns.IP("link del tap0")
	l.ns.IP("tuntap add tap0 mode tap vnet_hdr")
	for range 200 {
		var cleared sync.WaitGroup
		cleared.Go(func() {
			if err := netns.Do(l.ns.File, func() error { return tap.Clear("tap0", false) }); err != nil {
				t.Error(err)
			}
		})
		err := netns.Do(l.ns.File, func() error {
			files, err := tap.OpenQueues("tap0", 1)
			for _, f := range files {
				f.Close()
			}
			return err
		})
		cleared.Wait()
		if err != nil {
			t.Fatal(err)
		}
	}
}
