package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// fakeKubelet is the part of a kubelet with which device plugins talk. internal/rig/kubernetes has the real one.
type fakeKubelet struct {
	kubelet.UnimplementedRegistrationServer
	t      *testing.T
	dir    string
	server *grpc.Server
	served chan struct{}

	mu      sync.Mutex
	plugins map[string]string // resource -> socket
	refuse  bool
}

// startFakeKubelet does what a kubelet does at its start: it removes what is in the directory, and listens.
func startFakeKubelet(t *testing.T, dir string) *fakeKubelet {
	t.Helper()
	for _, name := range names(t, dir) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", filepath.Join(dir, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	k := &fakeKubelet{t: t, dir: dir, server: grpc.NewServer(), served: make(chan struct{}), plugins: map[string]string{}}
	kubelet.RegisterRegistrationServer(k.server, k)
	go func() {
		k.server.Serve(l)
		close(k.served)
	}()
	t.Cleanup(k.stop)
	return k
}

func (k *fakeKubelet) stop() {
	k.server.Stop()
	<-k.served
}

func (k *fakeKubelet) Register(_ context.Context, r *kubelet.RegisterRequest) (*kubelet.Empty, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refuse {
		return nil, errors.New("refused")
	}
	if r.GetVersion() != kubelet.Version {
		return nil, fmt.Errorf("version %s", r.GetVersion())
	}
	k.plugins[r.GetResourceName()] = filepath.Join(k.dir, r.GetEndpoint())
	return &kubelet.Empty{}, nil
}

// registered waits until these resources are registered, and no others.
func (k *fakeKubelet) registered(want ...string) {
	k.t.Helper()
	eventually(k.t, func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		var have []string
		for name := range k.plugins {
			have = append(have, name)
		}
		slices.Sort(have)
		if !slices.Equal(have, want) {
			return fmt.Errorf("%q are registered, want %q", have, want)
		}
		return nil
	})
}

// client calls a plugin.
func (k *fakeKubelet) client(resource string) (c kubelet.DevicePluginClient, done func()) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	conn, err := grpc.NewClient("unix://"+k.plugins[resource], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		k.t.Fatal(err)
	}
	return kubelet.NewDevicePluginClient(conn), func() { conn.Close() }
}

// allocate returns what one container gets.
func (k *fakeKubelet) allocate(resource string) (string, error) {
	c, done := k.client(resource)
	defer done()
	answer, err := c.Allocate(k.t.Context(), &kubelet.AllocateRequest{ContainerRequests: []*kubelet.ContainerAllocateRequest{{DevicesIds: []string{"0"}}}})
	if err != nil {
		return "", err
	}
	d := answer.ContainerResponses[0].Devices
	return fmt.Sprintf("%d of %d: %s at %s, %s", len(d), len(answer.ContainerResponses), d[0].HostPath, d[0].ContainerPath, d[0].Permissions), nil
}

// TestDevicePlugin: devices are registered, watched and given, and registered again with each kubelet that starts. The
// kubelet is a fake.
func TestDevicePlugin(t *testing.T) {
	dir := shortDir(t)
	var ready struct {
		sync.Mutex
		is bool
	}
	p := &devicePlugins{dir: dir, devices: testDevices(t, "kvm"), log: discard(), look: 10 * time.Millisecond, ready: func(ok bool) {
		ready.Lock()
		defer ready.Unlock()
		ready.is = ok
	}}
	isReady := func(want bool) {
		t.Helper()
		eventually(t, func() error {
			ready.Lock()
			defer ready.Unlock()
			if ready.is != want {
				return fmt.Errorf("ready: %v", ready.is)
			}
			return nil
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		p.run(ctx)
		close(ended)
	}()
	defer func() { cancel(); <-ended }()
	isReady(false) // there is no kubelet yet

	k := startFakeKubelet(t, dir)
	k.registered("guestwire/kvm", "guestwire/tun")
	isReady(true)
	for resource, want := range map[string]string{"guestwire/tun": "1 of 1: /dev/net/tun at /dev/net/tun, rw", "guestwire/kvm": "1 of 1: /dev/kvm at /dev/kvm, rw"} {
		if have, err := k.allocate(resource); err != nil || have != want {
			t.Errorf("%s: %q, %v, want %q", resource, have, err, want)
		}
	}

	// The device goes and comes.
	c, done := k.client("guestwire/kvm")
	defer done()
	stream, err := c.ListAndWatch(ctx, &kubelet.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	healthy := func(want string) {
		t.Helper()
		list, err := stream.Recv()
		if err != nil || len(list.Devices) != pods || list.Devices[0].Health != want || list.Devices[pods-1].Health != want {
			t.Fatalf("%d devices, %v, want %s", len(list.GetDevices()), err, want)
		}
	}
	healthy(kubelet.Healthy)
	kvm := filepath.Join(p.devices.dev, "kvm")
	if err := os.Remove(kvm); err != nil {
		t.Fatal(err)
	}
	healthy(kubelet.Unhealthy)
	if _, err := k.allocate("guestwire/kvm"); err == nil {
		t.Error("a device that is gone is given")
	}
	if err := os.Symlink("/dev/null", kvm); err != nil {
		t.Fatal(err)
	}
	healthy(kubelet.Healthy)

	// The kubelet starts again, with and without a pause, and also refuses for a while.
	for i := range 3 {
		k.stop()
		if i == 1 {
			isReady(false)
		}
		k = startFakeKubelet(t, dir)
		k.registered("guestwire/kvm", "guestwire/tun")
		isReady(true)
		if _, err := k.allocate("guestwire/tun"); err != nil {
			t.Error(err)
		}
	}
	k.stop()
	isReady(false)
	k = startFakeKubelet(t, dir)
	k.mu.Lock()
	k.refuse = true
	k.mu.Unlock()
	isReady(false)
	k.mu.Lock()
	k.refuse = false
	k.mu.Unlock()
	k.registered("guestwire/kvm", "guestwire/tun")

	cancel()
	<-ended
	if have := names(t, dir); !slices.Equal(have, []string{kubeletSocket}) {
		t.Errorf("%q is left", have)
	}
}
