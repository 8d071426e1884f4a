package phase2_test

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

// TestServeClearsTap: a VMM that ended has left an address filter at the guest's tap. The next guest hears its network
// once Serve is ready, and nothing without Serve.
func TestServeClearsTap(t *testing.T) {
	n := nstest.NewNetwork(t)
	record, err := phase1.Setup(t.Context(), phase1.Config{NetNS: n.Pod.File, Spec: infra.Spec{NIC: "eth0", Binding: infra.Bridge{}, State: n.State}})
	if err != nil {
		t.Fatal(err)
	}
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
	vm, err := phase2.Open(n.State)
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	vm.Notify = func(e phase2.Event) {
		if e.Kind == phase2.Ready {
			close(ready)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- netns.Do(n.Pod.File, func() error { return vm.Serve(ctx) }) }()
	select {
	case <-ready:
		if err := reaches(t); err != nil {
			t.Errorf("the guest does not reach its gateway: %v", err)
		}
	case err := <-served:
		t.Fatal(errors.Join(errors.New("Serve has ended"), err))
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
