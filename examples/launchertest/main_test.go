package main

import (
	"bufio"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
)

func TestMain(m *testing.M) {
	if os.Args[0] == "launcher" { // startLauncher has started this program again
		main()
		return
	}
	guestwiretest.Main(m)
}

// TestLauncher: a guest that the launcher serves is the pod on the network, and the pod gets its network back.
func TestLauncher(t *testing.T) {
	for _, shape := range []guestwiretest.Shape{guestwiretest.Veth, guestwiretest.Calico, guestwiretest.Terway, guestwiretest.Macvlan} {
		t.Run(shape.String(), func(t *testing.T) {
			pod := guestwiretest.NewPod(t, shape)
			before := pod.Dump()
			nic := phase1.NIC{NetNS: pod.NetNS, Name: pod.NIC}
			record, err := nic.Setup(t.Context(), infra.Spec{
				Binding: infra.Redirect{}, Owner: pod.Owner, State: pod.State, Queues: 2,
			})
			if err != nil {
				t.Fatal(err)
			}
			stop := startLauncher(t, pod)

			guest := guestwiretest.NewGuest(t, pod, record)
			if err := guest.Configure(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, to := range []netip.Addr{pod.World.IPv4, pod.World.IPv6} {
				if err := guest.Ping(t.Context(), to); err != nil {
					t.Error(err)
				}
			}
			for _, to := range []netip.Addr{pod.IPv4, pod.IPv6} {
				answer, err := pod.World.Ask(t.Context(), netip.AddrPortFrom(to, guestwiretest.Port))
				if err != nil || !strings.HasPrefix(answer, "guest sees ") {
					t.Errorf("the world asks %v: %q, %v; want the guest", to, answer, err)
				}
			}

			guest.Close()
			stop()
			if err := nic.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil {
				t.Fatal(err)
			}
			if diff := guestwiretest.Diff(before, pod.Dump()); diff != "" {
				t.Errorf("the pod is not as it was:\n%s", diff)
			}
		})
	}
}

// startLauncher starts the launcher without privileges in the pod's namespace, and waits until the launcher answers the
// guest. Stop ends the launcher; else it ends with the test.
func startLauncher(t *testing.T, pod *guestwiretest.Pod) (stop func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", pod.State)
	cmd.Args[0] = "launcher"
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := launch.Start(cmd, pod.NetNS, pod.Owner); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		if cmd.ProcessState != nil {
			return
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("guestwire-launcher: %v", err)
		}
	}
	t.Cleanup(stop)
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "ready\n" {
		t.Fatalf("guestwire-launcher: %q, %v", line, err)
	}
	return stop
}
