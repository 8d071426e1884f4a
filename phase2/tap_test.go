package phase2_test

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestServeEndClearsTap: a VMM ends, and then Serve: Check finds nothing of the VMM.
func TestServeEndClearsTap(t *testing.T) {
	n := nstest.NewNetwork(t)
	vm := wire(t, n)
	pod := phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}
	var events eventLog
	vm.Notify = events.add
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- netns.Do(n.Pod.File, func() error { return vm.Serve(ctx) }) }()
	events.wait(t, " ready")
	guest := openTap(t, n, vm.Records()[0].Tap)
	if err := unix.IoctlSetInt(int(guest.Fd()), unix.TUNSETOFFLOAD, unix.TUN_F_CSUM); err != nil {
		t.Fatal(err)
	}
	if err := pod.Check(t.Context()); err != nil {
		t.Errorf("while the VMM runs: %v", err)
	}
	guest.Close()
	if err := pod.Check(t.Context()); err == nil {
		t.Error("the VMM left nothing: this test shows nothing")
	}
	stop()
	if err := errors.Join(<-served, pod.Check(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestServeClearsTap: a VMM that ended has left an address filter at the guest's tap. The next guest receives its
// network once Serve is ready, and nothing without Serve.
func TestServeClearsTap(t *testing.T) {
	n := nstest.NewNetwork(t)
	vm := wire(t, n)
	record := vm.Records()[0]
	earlier := openTap(t, n, record.Tap)
	nstest.FilterTap(t, earlier)
	if _, err := earlier.Write(append(append(bytes.Repeat([]byte{255}, 6), record.MAC[:]...), make([]byte, 48)...)); err != nil {
		t.Fatal(err)
	}
	earlier.Close()

	reaches := func(t *testing.T) error {
		guest := n.Guest(t, record)
		guest.IP("link set eth0 up")
		guest.IP("addr add 10.244.1.7/24 dev eth0")
		var last error
		for range 3 { // the first frames are lost until the kernel has noticed the guest
			if last = netns.Do(guest.File, exec.Command("ping", "-c1", "-W1", "10.244.1.1").Run); last == nil {
				return nil
			}
		}
		return last
	}
	t.Run("without Serve", func(t *testing.T) {
		if err := reaches(t); err == nil {
			t.Error("the filter of the earlier VMM does not work: this test shows nothing")
		}
	})
	var events eventLog
	vm.Notify = events.add
	serveInBackground(t, n, vm)
	events.wait(t, " ready")
	if err := reaches(t); err != nil {
		t.Errorf("the guest does not reach its gateway: %v", err)
	}
}
