package guestwiretest_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// A test gives a pod's network to a guest, and wants the pod to get it back. The file needs a TestMain that calls
// guestwiretest.Main.
func Example() {
	_ = func(t *testing.T) {
		pod := guestwiretest.NewPod(t, guestwiretest.Calico)
		before := pod.Dump()
		nic := phase1.NIC{NetNS: pod.NetNS, Name: pod.NIC}
		record, err := nic.Setup(t.Context(), infra.Spec{Binding: infra.Auto{}, Owner: pod.Owner, State: pod.State})
		if err != nil {
			t.Fatal(err)
		}
		pod.Serve() // or the launcher that is tested, by launch.Start

		guest := guestwiretest.NewGuest(t, pod, record)
		if err := guest.Configure(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := guest.Ping(t.Context(), pod.World.IPv6); err != nil {
			t.Error(err)
		}
		answer, err := pod.World.Ask(t.Context(), netip.AddrPortFrom(pod.IPv4, guestwiretest.Port))
		t.Logf("%s, %v", answer, err) // guest sees 10.244.1.1:36918, <nil>

		guest.Close() // Teardown refuses while the tap is open
		if err := nic.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil {
			t.Fatal(err)
		}
		if diff := guestwiretest.Diff(before, pod.Dump()); diff != "" {
			t.Errorf("the pod is not as it was:\n%s", diff)
		}
	}
}

// The test file has a TestMain.
func ExampleMain() {
	_ = func(m *testing.M) { // TestMain
		guestwiretest.Main(m)
	}
}

// A frame with a MAC that is not the guest's does not leave the pod.
func ExampleGuest_Send() {
	_ = func(t *testing.T, pod *guestwiretest.Pod, guest *guestwiretest.Guest) {
		outside := pod.World.Capture("pod")
		spoofed := append([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 9, 8, 6}, make([]byte, 46)...)
		if err := guest.Send(spoofed); err != nil {
			t.Fatal(err)
		}
		if err := guest.Ping(t.Context(), pod.World.IPv4); err != nil { // later than the frame
			t.Error(err)
		}
		frame, err := outside.Next(t.Context(), func(frame []byte) bool {
			return frame[11] == 9 || frame[12] == 8 && frame[13] == 0 // the spoofed one, or IPv4
		})
		if err == nil && frame[11] == 9 {
			t.Error("the guest sends with another MAC")
		}
	}
}

// A launcher takes the methods that it calls from an interface. Its test runs without root, and gives it an error that
// is hard to come by.
func ExampleFakeNIC() {
	type setter interface {
		Setup(context.Context, infra.Spec, ...phase1.SetupOption) (cache.Record, error)
	}
	launch := func(nic setter, s infra.Spec) string {
		record, err := nic.Setup(context.Background(), s)
		if errors.Is(err, infra.ErrWired) {
			return "another VM has the pod's network"
		}
		return "tap " + record.Tap
	}
	nic := &guestwiretest.FakeNIC{}
	nic.Fail("Setup", infra.ErrWired)
	spec := infra.Spec{Binding: infra.Bridge{}, Owner: infra.Owner{UID: 107, GID: 107}}
	fmt.Println(launch(nic, spec))
	fmt.Println(launch(nic, spec))
	fmt.Println(nic.Calls()[1].Method)
	// Output:
	// another VM has the pod's network
	// tap eth0-tap
	// Setup
}
