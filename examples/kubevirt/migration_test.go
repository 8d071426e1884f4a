package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
)

// The MACs of the guest in the recorded requests of a migration's target. There node2 has the pod targetUID, and one
// that a guest has left.
const (
	targetUID = "7c1f5e6f-6d3a-4a1b-8b54-1d2a1e8a3c22"
	runMAC    = "02:73:53:00:b0:0c"
	runBlue   = "02:73:53:00:b0:0d"
)

// TestMigrationTarget: between PreMigrationTarget and the guest nothing passes the target's taps. The guest is there
// with the first frame that its VMM sends, which KubeVirt reports later by PostMigrationTarget: either ends the
// standby. KubeVirt repeats both calls.
func TestMigrationTarget(t *testing.T) {
	nstest.NeedRoot(t, "the node hook is root's")
	for _, reports := range []string{"the first frame", "PostMigrationTarget"} {
		for _, binding := range []string{"redirect", "bridge"} {
			t.Run(binding+", "+reports, func(t *testing.T) {
				pod := newPod(t)
				before := pod.Dump()
				dir := nstest.Dir(t)
				config := filepath.Join(dir, "config.json")
				if err := os.WriteFile(config, fmt.Appendf(nil, `{"binding": {"%s": {}}, "owner": {"uid": %d, "gid": %d}}`, binding, pod.Owner.UID, pod.Owner.GID), 0o644); err != nil {
					t.Fatal(err)
				}
				fake, state := fakeProc(t, dir), filepath.Join(dir, "state")
				if err := os.Mkdir(state, 0o755); err != nil {
					t.Fatal(err)
				}
				fake("1", "/proc/self/ns/net", 0, "0::/init.scope\n")
				process := exec.Command("sleep", "1000")
				if err := launch.Start(process, pod.NetNS, pod.Owner); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					process.Process.Kill()
					process.Wait()
				})
				real := fmt.Sprintf("/proc/%d", process.Process.Pid)
				first := fake("7", real+"/ns/net", 30, strings.ReplaceAll(sliceOfPod, strings.ReplaceAll(podUID, "-", "_"), strings.ReplaceAll(targetUID, "-", "_")))
				if err := os.Symlink(real+"/net", filepath.Join(first, "net")); err != nil {
					t.Fatal(err)
				}
				socket, _ := startServer(t, nil, "-agent", nstest.Program(t, "examples/guestwire-agent"), "-config", config, "-state", state, "-proc", filepath.Join(dir, "proc"))
				hook := func(point string) {
					t.Helper()
					if _, err := call(t, socket, plugins+"NodeHookService/ExecuteNodeHook", recorded(t, "ExecuteNodeHook-"+point)); err != nil {
						t.Fatal(point, err)
					}
				}
				records := func() map[string]cache.Record {
					return map[string]cache.Record{"eth0": nstest.Record(t, filepath.Join(state, targetUID), "eth0"), blue: nstest.Record(t, filepath.Join(state, targetUID), blue)}
				}
				for range 2 {
					hook("PreMigrationTarget")
				}
				waiting := records()
				for name, mac := range map[string]string{"eth0": runMAC, blue: runBlue} {
					if r := waiting[name]; r.Role != cache.RoleStandby || r.MAC.String() != mac || !strings.Contains(pod.Run("ip", "link", "show", r.Tap), "state DOWN") {
						t.Errorf("%s waits for its guest as %+v", name, r)
					}
				}
				sidecar, _ := startServer(t, pod, "-state", filepath.Join(state, targetUID))
				domain, err := call(t, sidecar, plugins+"DomainHookService/MutateDomain", recorded(t, "MutateDomain-target-amd64"))
				if err != nil || strings.Count(domain.get(1), `managed="no"`) < 2 || !strings.Contains(domain.get(1), waiting["eth0"].Tap) {
					t.Errorf("the target's domain: %v, %s", err, domain.get(1))
				}
				guest := guestwiretest.NewGuest(t, pod, waiting["eth0"])
				if reports == "the first frame" {
					_ = guest.Send(make([]byte, 60)) // the tap is down, and takes it nevertheless or not
				} else {
					hook("PostMigrationTarget")
				}
				nstest.Eventually(t, func() error {
					if r := records(); r["eth0"].Role != cache.RoleActive || reports != "the first frame" && r[blue].Role != cache.RoleActive {
						return errors.New("the guest is here, and its tap is down")
					}
					return nil
				})
				if err := guest.Configure(t.Context()); err != nil {
					t.Fatal(err)
				}
				answer, err := pod.World.Ask(t.Context(), netip.AddrPortFrom(pod.IPv4, guestwiretest.Port))
				if err != nil || !strings.HasPrefix(answer, "guest sees ") {
					t.Errorf("the world asks: %q, %v; want the guest", answer, err)
				}
				for range 2 {
					hook("PostMigrationTarget")
				}
				hook("PreMigrationTarget") // too late to matter
				for name, r := range records() {
					if r.Role != cache.RoleActive || r.MAC != waiting[name].MAC {
						t.Errorf("after PostMigrationTarget %s is %+v", name, r)
					}
				}
				guest.Close()
				for range 2 {
					hook("PostVMStop-target")
				}
				if diff := guestwiretest.Diff(before, pod.Dump()); diff != "" && binding != "bridge" { // blue goes down, and so its other end's routes get another order
					t.Errorf("the pod is not as it was:\n%s", diff)
				}
			})
		}
	}
}

// TestMigrationTargetMAC: KubeVirt drops the domain of a migration's target, and the guest keeps its MAC. A pod that is
// wired for another one is refused, and the guest stays at the source.
func TestMigrationTargetMAC(t *testing.T) {
	for mac, want := range map[string]string{
		runMAC: "",
		"":     "network default: the running guest has the MAC " + runMAC + ", and eth0 of this pod is wired for ",
	} {
		pod := newPod(t)
		for name, given := range map[string]string{"eth0": mac, blue: runBlue} {
			var guest cache.MAC
			if given != "" {
				guest, _ = cache.ParseMAC(given)
			}
			spec := infra.Spec{Binding: infra.Redirect{MAC: guest}, Owner: pod.Owner, State: pod.State}
			if _, err := (phase1.NIC{NetNS: pod.NetNS, Name: name}).Setup(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
		}
		socket, _ := startServer(t, pod, "-state", pod.State)
		_, err := call(t, socket, hooks+"OnDefineDomain", recorded(t, "OnDefineDomain-target-amd64"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("MAC %q: %v, want %q", mac, err, want)
		}
	}
}
