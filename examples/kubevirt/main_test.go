package main

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
)

func TestMain(m *testing.M) {
	if os.Args[0] == "kubevirt" { // started again by startServer
		main()
		return
	}
	guestwiretest.Main(m)
}

const (
	hooks   = "/kubevirt.hooks.v1alpha3.Callbacks/"
	plugins = "/kubevirt.hooks.plugins.v1alpha1."
	info    = "/kubevirt.hooks.info.Info/Info"
	// blue is the NIC of the network blue.
	blue = "pod16477688c0e"
	// podUID is the pod's in the recorded requests.
	podUID = "6b0e4d5e-5c2f-4f0e-9a43-0c1f0c7f2b11"
)

// newPod is the pod of the recorded VirtualMachineInstance, where default and blue have the binding.
func newPod(t *testing.T) *guestwiretest.Pod {
	pod := guestwiretest.NewPod(t, guestwiretest.Veth)
	pod.Run("ip", "link", "add", blue, "type", "veth", "peer", "name", "peer")
	pod.Run("ip", "link", "set", "peer", "up")
	pod.Run("ip", "link", "set", blue, "up")
	pod.Run("ip", "addr", "add", "10.99.0.7/24", "dev", blue)
	return pod
}

// startServer starts the program in the pod as KubeVirt's sidecar runs, or as root in the test's own namespace.
func startServer(t *testing.T, pod *guestwiretest.Pod, args ...string) (socket string, cmd *exec.Cmd) {
	t.Helper()
	dir := nstest.Dir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "hook.sock")
	cmd = exec.Command("/proc/self/exe", append(args, "-socket", socket)...)
	cmd.Args[0] = "kubevirt"
	output, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if pod != nil {
		err = launch.Start(cmd, pod.NetNS, pod.Owner)
	} else {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(output)
	if !lines.Scan() || !strings.Contains(lines.Text(), "listens") {
		t.Fatalf("the server says %q", lines.Text())
	}
	go func() {
		for lines.Scan() { // else the server would wait
		}
	}()
	return socket, cmd
}

// raw is a codec of messages that are encoded.
type raw struct{}

func (raw) Name() string                       { return "proto" }
func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(text []byte, v any) error { *v.(*[]byte) = text; return nil }

// call sends a request of these bytes.
func call(t *testing.T, socket, method string, request []byte) (message, error) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var answer []byte
	if err := conn.Invoke(context.Background(), method, &request, &answer); err != nil {
		return nil, err
	}
	m, err := decode(answer)
	if err != nil {
		t.Fatal(err)
	}
	return m, nil
}

// recorded reads a request that KubeVirt's own code sent: its domain from its converter, the request by its
// hooks.Manager, plugins.ApplyDomainHooks and NodeHookManager. Without a release in its name it is that of commit
// d923fdb. The sidecar's requests of KubeVirt 1.8.4 and 1.9.0 have the same octets.
func recorded(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".pb"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// wire wires both NICs: eth0 by redirect, and blue by masquerade with two queues.
func wire(t *testing.T, pod *guestwiretest.Pod) map[string]cache.Record {
	t.Helper()
	records := map[string]cache.Record{}
	for name, spec := range map[string]infra.Spec{"eth0": {Binding: infra.Redirect{}}, blue: {Binding: infra.Masquerade{}, Queues: 2}} {
		spec.Owner, spec.State = pod.Owner, pod.State
		r, err := phase1.NIC{NetNS: pod.NetNS, Name: name}.Setup(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		records[name] = r
	}
	return records
}

// TestOthersLink: where another user has put a symbolic link in the place of the socket's directory, nothing is made or
// removed where the link leads.
func TestOthersLink(t *testing.T) {
	link := nstest.OthersLink(t)
	s := &server{log: slog.New(slog.DiscardHandler)}
	if err := s.serve(filepath.Join(link, "file")); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), link) {
		t.Errorf("serve: %v", err)
	}
}
