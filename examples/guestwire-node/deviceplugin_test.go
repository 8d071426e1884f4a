package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// fakeKubelet is the part of a kubelet with which device plugins talk. internal/rig/kubernetes has the real one.
type fakeKubelet struct {
	kubelet.UnimplementedRegistrationServer
	t      *testing.T
	dir    string
	server *grpc.Server
	served chan struct{}

	mu            sync.Mutex
	plugins       map[string]string           // resource -> socket
	clients       map[string]*grpc.ClientConn // resource -> the newest connection
	devices       map[string]int              // resource -> what it has
	registrations int
	refused       int
	refuse        bool
	watching      sync.WaitGroup

	ctx context.Context // of all connections
	end context.CancelFunc
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
	k := &fakeKubelet{t: t, dir: dir, server: grpc.NewServer(grpc.WaitForHandlers(true)), served: make(chan struct{}), plugins: map[string]string{}, clients: map[string]*grpc.ClientConn{}, devices: map[string]int{}}
	k.ctx, k.end = context.WithCancel(context.Background())
	kubelet.RegisterRegistrationServer(k.server, k)
	go func() {
		k.server.Serve(l)
		close(k.served)
	}()
	t.Cleanup(k.stop)
	return k
}

// stop ends the connections of all resources, those of a Register that is at work as well.
func (k *fakeKubelet) stop() {
	k.end()
	k.server.Stop() // no Register begins or is at work after that
	<-k.served
	k.watching.Wait()
}

func (k *fakeKubelet) Register(_ context.Context, r *kubelet.RegisterRequest) (*kubelet.Empty, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refuse {
		k.refused++
		return nil, errors.New("refused")
	}
	if r.GetVersion() != kubelet.Version {
		return nil, fmt.Errorf("version %s", r.GetVersion())
	}
	k.registrations++
	name, socket := r.GetResourceName(), filepath.Join(k.dir, r.GetEndpoint())
	k.plugins[name] = socket
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	k.clients[name] = conn
	k.watching.Go(func() { k.watch(name, conn) })
	return &kubelet.Empty{}, nil
}

// watch follows a device, as runClient in pkg/kubelet/cm/devicemanager/plugin/v1beta1 does (Kubernetes 1.36): the end
// of any connection of a resource ends the newest one.
func (k *fakeKubelet) watch(name string, conn *grpc.ClientConn) {
	defer conn.Close()
	stream, err := kubelet.NewDevicePluginClient(conn).ListAndWatch(k.ctx, &kubelet.Empty{})
	for err == nil {
		var list *kubelet.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.mu.Lock()
			k.devices[name] = len(list.Devices)
			k.mu.Unlock()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if newest := k.clients[name]; newest != nil {
		newest.Close()
		delete(k.clients, name)
		k.devices[name] = 0
	}
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

// TestFakeKubelet: the fake ends with connections of plugins that are still there, also if the newest of a resource is
// another one.
func TestFakeKubelet(t *testing.T) {
	k := startFakeKubelet(t, shortDir(t))
	mute, err := net.Listen("unix", filepath.Join(k.dir, "mute.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	for range 2 {
		if _, err := k.Register(t.Context(), &kubelet.RegisterRequest{Version: kubelet.Version, Endpoint: "mute.sock", ResourceName: "guestwire/tun"}); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan struct{})
	go func() {
		k.stop()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the fake waits for a connection that nothing ends")
	}
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

// TestTwoDevicePlugins: of two processes that offer the same resource, the older one gives way to the newer one and
// says so. It serves again when the newer one ends, also by a kill. The kubelet is not asked all the time.
func TestTwoDevicePlugins(t *testing.T) {
	dir := shortDir(t)
	k := startFakeKubelet(t, dir)
	type process struct {
		log   *nstest.Output
		ready atomic.Bool
		end   func()
	}
	start := func() *process {
		p := &process{log: &nstest.Output{}}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		plugins := &devicePlugins{dir: dir, devices: testDevices(t, ""), log: slog.New(slog.NewTextHandler(p.log, nil)), look: 10 * time.Millisecond, ready: p.ready.Store}
		go func() {
			plugins.run(ctx)
			close(ended)
		}()
		p.end = func() { cancel(); <-ended }
		t.Cleanup(p.end)
		return p
	}
	// serves waits until one process has the resource, and the other one has given way.
	serves := func(k *fakeKubelet, p, other *process) {
		t.Helper()
		const text = "another process has taken it over"
		steady := 0
		eventually(t, func() error {
			k.mu.Lock()
			defer k.mu.Unlock()
			if steady++; k.devices["guestwire/tun"] != pods || !p.ready.Load() || other != nil && (other.ready.Load() || !strings.Contains(other.log.String(), text)) {
				steady = 0
				others := ""
				if other != nil {
					others = fmt.Sprintf("; the other one, ready %v, says\n%s", other.ready.Load(), other.log)
				}
				return fmt.Errorf("%d devices, %d registrations; this process, ready %v, says\n%s%s", k.devices["guestwire/tun"], k.registrations, p.ready.Load(), p.log, others)
			}
			if steady < 20 {
				return errors.New("for a moment alone")
			}
			return nil
		})
	}
	older := start()
	serves(k, older, nil)
	newer := start()
	serves(k, newer, older)
	if _, err := k.allocate("guestwire/tun"); err != nil {
		t.Error(err)
	}
	newer.end()
	serves(k, older, nil)
	newest := start()
	serves(k, newest, older)
	if have := k.registrations; have > 12 {
		t.Errorf("%d registrations", have)
	}
	if count := strings.Count(older.log.String(), "gives way"); count != 2 {
		t.Errorf("the older one says %d times that it gives way:\n%s", count, older.log)
	}
	newest.end()
	serves(k, older, nil)

	// The socket of a process that was killed is another one's.
	older.end()
	l, err := net.Listen("unix", filepath.Join(dir, "guestwire-tun.sock"))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	last := start()
	serves(k, last, nil)
}

// TestRefusingKubelet: what a try changes in the directory is no reason for the next one.
func TestRefusingKubelet(t *testing.T) {
	dir := shortDir(t)
	k := startFakeKubelet(t, dir)
	k.refuse = true
	const look = 50 * time.Millisecond
	p := &devicePlugins{dir: dir, devices: testDevices(t, ""), log: discard(), look: look, ready: func(bool) {}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	begin := time.Now()
	go func() {
		p.run(ctx)
		close(ended)
	}()
	defer func() { cancel(); <-ended }()
	eventually(t, func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if took := time.Since(begin); k.refused > 1+int(took/look) {
			t.Fatalf("asked %d times in %v, want once in %v", k.refused, took, look)
		}
		if k.refused < 6 {
			return fmt.Errorf("asked %d times", k.refused)
		}
		return nil
	})
}
