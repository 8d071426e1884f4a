package migration

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestMigrationKubeVirt moves a guest as KubeVirt does: nobody is called at the switch, and the source stays wired
// until its pod ends. The program kubevirt, as the node hook of the target's node, is called before the migration. It
// sees the guest come by the frames that QEMU sends, and connects it, without PostMigrationTarget.
func TestMigrationKubeVirt(t *testing.T) {
	const uid = "7c1f5e6f-6d3a-4a1b-8b54-1d2a1e8a3c22"
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, program := range []string{"examples/kubevirt", "examples/guestwire-agent"} { // while they are built, the pod's own kernel would send
		nstest.Program(t, program)
	}
	l := newLAN(t)
	from := source(ctx, l.pod(guestMAC, podAddresses...), infra.Redirect{})
	traffic := l.traffic(ctx, from.guest, nstest.Pod6)

	p := l.pod(otherMAC, podAddresses...)
	watcher := p.watch(nil)
	before := watcher.settled()
	state := nstest.Dir(t)
	p.State = filepath.Join(state, uid)
	to := &node{pod: p, t: t, binding: from.binding, uid: from.uid, gid: from.gid}
	hook := to.nodeHook(ctx, state, uid)
	hook("PreMigrationTarget")
	to.record = nstest.Record(t, p.State, "eth0")
	to.launcher = to.Serve(t, to.uid)
	p.connect()
	to.await(ctx)
	onePasses(t, "before the move", from, to)
	m, err := vm.NewMigration(ctx, from.guest, to.guest, true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	gap := traffic.gap(func() {
		if err := m.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		preSwitchover(ctx, t, m)
		if frames := watcher.count()[before:]; len(frames) > 0 {
			t.Errorf("before the switch the target has sent %d frames: %q", len(frames), frames)
		}
		watcher.end()
		if err := m.Continue(ctx); err != nil {
			t.Fatal(err)
		}
		if err := m.Finish(ctx); err != nil {
			t.Fatal(err)
		}
	})
	if gap > gapLimit {
		t.Errorf("the longest gap is %v, want at most %v", gap, gapLimit)
	}
	t.Logf("the longest gap is %v", gap)
	hook("PostMigrationTarget")
	if to.record = nstest.Record(t, p.State, "eth0"); to.record.Role != cache.RoleActive || to.record.MAC != guestMAC {
		t.Errorf("after the move the target's record is %+v", to.record)
	}
	renews(ctx, t, to)
	from.end(ctx)
	if m := traffic.end(); m.pings.Twice > 0 {
		t.Errorf("%d frames came twice", m.pings.Twice)
	}
	to.end(ctx)
}

// nodeHook starts the program kubevirt as the node hook of the pod's node, with a /proc of the pod's processes alone.
// It returns what calls the hook as KubeVirt does.
func (n *node) nodeHook(ctx context.Context, state, uid string) (call func(point string)) {
	t, dir := n.t, nstest.Dir(n.t)
	t.Helper()
	config := filepath.Join(dir, "config.json")
	inside := n.Pod.Start(n.uid, "sleep", "1000")
	t.Cleanup(func() { inside.Kill(t) })
	nstest.Eventually(t, func() error { // until then it may be in the test's namespace
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", inside.Process.Pid)); err != nil || string(name) != "sleep\n" {
			return fmt.Errorf("the pod's process is %q, %v", name, err)
		}
		return nil
	})
	write := func(file, text string) {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(config, fmt.Sprintf(`{"binding": {"%s": {}}, "owner": {"uid": %d, "gid": %d}}`, n.binding.Kind(), n.uid, n.gid))
	for number, c := range map[string]struct{ real, cgroup string }{
		"1": {"/proc/self", "0::/init.scope\n"},
		"7": {fmt.Sprintf("/proc/%d", inside.Process.Pid), "0::/kubepods/pod" + uid + "\n"},
	} {
		process := filepath.Join(dir, "proc", number)
		write(filepath.Join(process, "cgroup"), c.cgroup)
		write(filepath.Join(process, "stat"), number+" (a) S"+strings.Repeat(" 0", 18)+" 7 0\n")
		for _, name := range []string{"ns", "net"} {
			if err := os.Symlink(c.real+"/"+name, filepath.Join(process, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	socket := filepath.Join(dir, "hook.sock")
	server := exec.Command(nstest.Program(t, "examples/kubevirt"), "-socket", socket,
		"-agent", nstest.Program(t, "examples/guestwire-agent"), "-config", config, "-state", state, "-proc", filepath.Join(dir, "proc"))
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(octets{}), grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	vmi, err := json.Marshal(map[string]any{
		"spec": map[string]any{
			"domain":   map[string]any{"devices": map[string]any{"interfaces": []any{map[string]any{"name": "default", "binding": map[string]any{"name": "guestwire"}}}}},
			"networks": []any{map[string]any{"name": "default", "pod": map[string]any{}}},
		},
		"status": map[string]any{
			"activePods": map[string]any{uid: "node2"},
			"interfaces": []any{map[string]any{"name": "default", "podInterfaceName": "eth0", "mac": guestMAC}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	field := func(number byte, text string) []byte { // as Protocol Buffers have it
		return append(binary.AppendUvarint([]byte{number<<3 | 2}, uint64(len(text))), text...)
	}
	return func(point string) {
		t.Helper()
		request, answer := append(append(field(1, point), field(2, string(vmi))...), field(3, string(field(1, "node2")))...), []byte(nil)
		if err := conn.Invoke(ctx, "/kubevirt.hooks.plugins.v1alpha1.NodeHookService/ExecuteNodeHook", &request, &answer); err != nil {
			t.Fatal(point, err)
		}
	}
}

// octets is gRPC's codec of messages that are encoded.
type octets struct{}

func (octets) Name() string                       { return "proto" }
func (octets) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (octets) Unmarshal(text []byte, v any) error { *v.(*[]byte) = text; return nil }
