package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
)

// testDevices is a /dev with tun and kvm, which are /dev/null by other names; vhost-net is missing.
func testDevices(t *testing.T, names string) devices {
	t.Helper()
	dev := t.TempDir()
	if err := os.Mkdir(filepath.Join(dev, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"net/tun", "kvm"} {
		if err := os.Symlink("/dev/null", filepath.Join(dev, name)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := newDevices(dev, names)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// engine is NRI's own part of a container engine, at a socket.
func engine(socket, plugins string) (*adaptation.Adaptation, error) {
	sync := func(ctx context.Context, cb adaptation.SyncCB) error {
		_, err := cb(ctx, []*api.PodSandbox{{Id: "old"}}, nil)
		return err
	}
	a, err := adaptation.New("engine", "1", sync, func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(plugins), adaptation.WithPluginConfigPath(plugins))
	if err == nil {
		err = a.Start()
	}
	return a, err
}

const engineAt = "GUESTWIRE_NODE_TEST_ENGINE"

// engineUntilKilled is an engine that can be killed.
func engineUntilKilled(socket string) {
	if _, err := engine(socket, socket+".plugins"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

// startEngine starts one in a process of its own.
func startEngine(t *testing.T, socket string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), engineAt+"="+socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return kill
}

func request(annotations map[string]string, container *api.Container) *api.CreateContainerRequest {
	if container.Name == "" {
		container.Name = "vm"
	}
	return &api.CreateContainerRequest{Pod: &api.PodSandbox{Id: "sandbox1", Name: "pod1", Namespace: "default", Annotations: annotations}, Container: container}
}

// TestNRI: what a container gets, and which ones are refused. NRI's own code is the engine.
func TestNRI(t *testing.T) {
	socket := filepath.Join(shortDir(t), "nri.sock")
	a, err := engine(socket, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Stop()
	state := t.TempDir()
	connected := make(chan bool, 10)
	p := &nriPlugin{socket: socket, state: podsandbox.State(state), devices: testDevices(t, "kvm,vhost-net"), log: discard(), ready: func(ok bool) { connected <- ok }, retry: time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		p.run(ctx)
		close(ended)
	}()
	defer func() { cancel(); <-ended }()
	if !<-connected {
		t.Fatal("not connected")
	}

	eth0 := map[string]string{"guestwire/nic.eth0": "redirect", "other": "x"}
	eventually(t, func() error { // the engine asks the plugin a moment after it has sent it the pods
		if _, err := a.CreateContainer(t.Context(), request(eth0, &api.Container{})); err == nil {
			return errors.New("the plugin is not asked")
		}
		return nil
	})
	with := func(more ...string) map[string]string {
		m := map[string]string{"guestwire/nic.eth0": "redirect"}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	userns := &api.LinuxContainer{Namespaces: []*api.LinuxNamespace{{Type: "user"}}}
	records := "mount " + state + "/sandbox1 /run/guestwire rbind,ro,nosuid,nodev,noexec"
	const tun, kvm = "device /dev/net/tun c 1:3 0666 0:0", "device /dev/kvm c 1:3 0666 0:0"
	for name, c := range map[string]struct {
		wired       string // its record is there
		annotations map[string]string
		container   *api.Container
		want        string
	}{
		"no pod of ours":     {"", map[string]string{"other": "x"}, &api.Container{}, ""},
		"annotated":          {"eth0", eth0, &api.Container{}, records + "; " + tun},
		"by the list alone":  {"eth0", nil, &api.Container{}, records + "; " + tun},
		"kvm":                {"eth0", with("guestwire/devices", "kvm"), &api.Container{}, records + "; " + tun + "; " + kvm},
		"kvm without a NIC":  {"", map[string]string{"guestwire/devices": "kvm"}, &api.Container{}, tun + "; " + kvm},
		"none":               {"", map[string]string{"guestwire/nic.eth0": "none"}, &api.Container{}, ""},
		"its container":      {"eth0", with("guestwire/container", "vm"), &api.Container{}, records + "; " + tun},
		"another container":  {"eth0", with("guestwire/container", "vm"), &api.Container{Name: "sidecar"}, ""},
		"mounted by the pod": {"eth0", eth0, &api.Container{Mounts: []*api.Mount{{Destination: "/run/guestwire", Source: "/x", Type: "bind"}}}, tun},
		"a device plugin's":  {"eth0", eth0, &api.Container{Linux: &api.LinuxContainer{Devices: []*api.LinuxDevice{{Path: "/dev/net/tun"}, {Path: "/dev/kvm", FileMode: api.FileMode(uint32(0o660))}, {Path: "/dev/fuse"}}}}, records + "; " + tun + "; " + kvm},
		"both":               {"eth0", with("guestwire/devices", "kvm"), &api.Container{Linux: &api.LinuxContainer{Devices: []*api.LinuxDevice{{Path: "/dev/kvm"}}}}, records + "; " + tun + "; " + kvm},
		"user namespace":     {"eth0", eth0, &api.Container{Linux: userns}, records + "; " + tun},

		"not wired":         {"", eth0, &api.Container{}, "guestwire: container vm of pod default/pod1: annotation guestwire/nic.eth0: NIC eth0 is not wired: is guestwire in the node's CNI list"},
		"another NIC":       {"net1", eth0, &api.Container{}, "guestwire: container vm of pod default/pod1: annotation guestwire/nic.eth0: NIC eth0 is not wired"},
		"a mistyped key":    {"eth0", with("guestwire/device", "kvm"), &api.Container{}, "guestwire: container vm of pod default/pod1: annotation guestwire/device: no such annotation, want guestwire/nic."},
		"a missing device":  {"eth0", with("guestwire/devices", "vhost-net"), &api.Container{}, "the node has no /dev/vhost-net: modprobe vhost_net"},
		"an unknown device": {"eth0", with("guestwire/devices", "fuse"), &api.Container{}, `"fuse", want kvm, vhost-net`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(state, "sandbox1")
			defer os.RemoveAll(dir)
			if c.wired != "" {
				write(t, filepath.Join(dir, c.wired+".json"), "{}")
			}
			answer, err := a.CreateContainer(t.Context(), request(c.annotations, proto.Clone(c.container).(*api.Container)))
			have := adjustment(answer.GetAdjust(), err)
			if ok := have == c.want; !ok && (err == nil || c.want == "" || !strings.Contains(have, c.want)) {
				t.Errorf("have %s\nwant %s", have, c.want)
			}
		})
	}
}

// adjustment is what a container gets, in a line.
func adjustment(a *api.ContainerAdjustment, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	var parts []string
	for _, m := range a.GetMounts() {
		parts = append(parts, "mount "+m.Source+" "+m.Destination+" "+strings.Join(m.Options, ","))
	}
	for _, d := range a.GetLinux().GetDevices() {
		parts = append(parts, fmt.Sprintf("device %s %s %d:%d %04o %d:%d", d.Path, d.Type, d.Major, d.Minor, d.FileMode.GetValue(), d.Uid.GetValue(), d.Gid.GetValue()))
	}
	return strings.Join(parts, "; ")
}

// TestDevicesRefused: a device that is not allowed on the node, and one that the users of a user namespace cannot open.
func TestDevicesRefused(t *testing.T) {
	state := t.TempDir()
	write(t, filepath.Join(state, "sandbox1", "eth0.json"), "{}")
	kvm := map[string]string{"guestwire/nic.eth0": "redirect", "guestwire/devices": "kvm"}
	p := &nriPlugin{state: podsandbox.State(state), devices: testDevices(t, ""), log: discard()}
	r := request(kvm, &api.Container{})
	if have := adjustment(p.adjust(r.Pod, r.Container)); !strings.Contains(have, "device kvm: not allowed on this node (-devices of guestwire-node has tun)") {
		t.Error(have)
	}
	p.devices = testDevices(t, "kvm")
	path := filepath.Join(p.devices.dev, "kvm")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, "")
	if have := adjustment(p.adjust(r.Pod, r.Container)); !strings.Contains(have, "/dev/kvm is no character device") {
		t.Error(have)
	}
	if err := checkUserNamespaceDevice(device{path: "/dev/kvm", mode: 0o660}); err == nil || !strings.Contains(err.Error(), "/dev/kvm has mode 0660 on the node: in a pod with hostUsers: false") {
		t.Error(err)
	}
	if err := checkUserNamespaceDevice(device{path: "/dev/kvm", mode: 0o666}); err != nil {
		t.Error(err)
	}
}

// TestReconnect: the plugin waits for an engine, and connects again after each restart, also if the engine ends while
// the plugin registers.
func TestReconnect(t *testing.T) {
	socket := filepath.Join(shortDir(t), "nri", "nri.sock")
	connected := make(chan bool, 1000)
	var said strings.Builder
	p := &nriPlugin{socket: socket, state: podsandbox.State(t.TempDir()), devices: testDevices(t, ""), log: slog.New(slog.NewTextHandler(&said, nil)), ready: func(ok bool) { connected <- ok }, retry: 10 * time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		p.run(ctx)
		close(ended)
	}()
	defer func() { cancel(); <-ended }()
	wait := func(want bool) {
		t.Helper()
		limit := time.After(patience)
		for {
			select {
			case ok := <-connected:
				if ok == want {
					return
				}
			case <-limit:
				t.Fatalf("connected: %v does not come", want)
			}
		}
	}
	wait(false)
	for range 3 {
		kill := startEngine(t, socket)
		wait(true)
		kill()
		wait(false)
	}

	// An engine that takes the registration and dies.
	os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 8)); err != nil {
			t.Error(err)
		}
		c.Close()
		wait(false)
	}
	l.Close()
	startEngine(t, socket)
	wait(true)
	cancel()
	<-ended
	// Each state is reported once, not at each try.
	text := said.String()
	if n := strings.Count(text, "no such file"); n < 1 || n > 5 || !strings.Contains(text, "NRI: connected") || !strings.Contains(text, "the engine has no NRI") {
		t.Errorf("%d times in\n%s", n, text)
	}
}
