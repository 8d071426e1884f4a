package tap_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestPort: a Port reads and writes frames without allocation, and its errors are those of os.File.
func TestPort(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	ns := nstest.New(t, "tap")
	ns.IP("tuntap add tap0 mode tap")
	ns.IP("link set tap0 addrgenmode none up")
	ns.IP("addr add 10.9.0.1/24 dev tap0")
	ns.IP("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 nud permanent dev tap0")
	var p *tap.Responder
	err := netns.Do(ns.File, func() (err error) {
		p, err = tap.OpenResponder("tap0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()

	request := append(bytes.Repeat([]byte{255}, 6), 2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1,
		2, 0, 0, 0, 0, 2, 10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1)
	in := make([]byte, 2000)
	exchange := func() {
		if n, err := p.Write(request); err != nil || n != len(request) {
			t.Fatalf("write: %d, %v", n, err)
		}
		n, err := p.Read(in)
		if err != nil || n < 42 || !bytes.Equal(in[28:32], []byte{10, 9, 0, 1}) {
			t.Fatalf("read: %x, %v, want an ARP reply of 10.9.0.1", in[:n], err)
		}
	}
	// The kernel drops its answers until it has noticed the carrier.
	nstest.Eventually(t, func() error {
		if _, err := p.Write(request); err != nil {
			return err
		}
		p.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := p.Read(in)
		return err
	})
	for {
		p.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := p.Read(in); err != nil { // a late answer to one of the requests above
			break
		}
	}
	p.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n := testing.AllocsPerRun(100, exchange); n != 0 {
		t.Errorf("%v allocations for a frame each way", n)
	}
	if n, err := p.Read(nil); n != 0 || err != nil {
		t.Errorf("read of nothing: %d, %v", n, err)
	}

	time.AfterFunc(50*time.Millisecond, func() { p.SetReadDeadline(time.Unix(1, 0)) })
	if _, err := p.Read(in); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the deadline: %v", err)
	}
	if err := p.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() {
		if out, err := exec.Command("ip", "-n", ns.Name, "link", "del", "tap0").CombinedOutput(); err != nil {
			t.Errorf("delete the tap: %v: %s", err, out)
		}
	})
	if _, err := p.Read(in); !errors.Is(err, unix.EBADFD) {
		t.Errorf("read from a tap that is deleted meanwhile: %v", err)
	}
	if _, err := p.Write(request); !errors.Is(err, unix.EBADFD) {
		t.Errorf("write to a tap that was deleted: %v", err)
	}
	p.Close()
	if _, err := p.Read(in); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read from a closed tap: %v", err)
	}
	if _, err := p.Write(request); !errors.Is(err, os.ErrClosed) {
		t.Errorf("write to a closed tap: %v", err)
	}
}

// TestDeletedTap: whoever reads learns that the tap was deleted, also if no read was waiting when that happened. The
// runtime's poller then calls the file "not pollable", for good, and a server that takes that for a passing failure
// would read for ever.
func TestDeletedTap(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	ns := nstest.New(t, "tap")
	ns.IP("tuntap add tap0 mode tap")
	ns.IP("link set tap0 up")
	var p *tap.Responder
	err := netns.Do(ns.File, func() (err error) {
		p, err = tap.OpenResponder("tap0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ns.IP("link del tap0")
	for range 100 { // the poller looks when it has time
		time.Sleep(time.Millisecond)
		p.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := p.Read(make([]byte, 2000)); !errors.Is(err, unix.EBADFD) {
			t.Fatalf("read of a deleted tap: %v, want EBADFD", err)
		}
		if _, err := p.Write(make([]byte, 60)); !errors.Is(err, unix.EBADFD) {
			t.Fatalf("write to a deleted tap: %v, want EBADFD", err)
		}
	}
}
