package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/guestwire/guestwire/examples/directory"
)

const (
	// pods is how many containers can have a device at once: more than a node has.
	pods = 1000
	// kubeletSocket is where device plugins register, in the directory of their own sockets.
	kubeletSocket = "kubelet.sock"
)

// devicePlugins offers each allowed device to the kubelet as guestwire/NAME, for engines without NRI.
type devicePlugins struct {
	dir     string // the kubelet's directory of device plugins
	devices devices
	log     *slog.Logger
	// ready receives whether all devices are registered.
	ready func(bool)
	// look is how often devices and sockets are looked at, in addition to what the kernel reports of the directory.
	look time.Duration
}

// run serves and registers, again and again, until ctx is done. A kubelet that starts removes all files of its
// directory.
func (p *devicePlugins) run(ctx context.Context) {
	var plugins []*devicePlugin
	for _, name := range p.devices.allowed {
		plugins = append(plugins, &devicePlugin{devicePlugins: p, name: name, changed: make(chan struct{})})
	}
	defer func() {
		for _, plugin := range plugins {
			plugin.stop()
		}
	}()
	watch := &dirWatch{what: "device plugins", log: p.log}
	defer watch.close()
	tick := time.NewTicker(p.look)
	defer tick.Stop()
	said := ""
	for {
		watch.add(p.dir) // where it is not there yet, serve says so
		var errs []error
		for _, plugin := range plugins {
			plugin.checkHealth()
			if err := plugin.serve(ctx); err != nil {
				errs = append(errs, fmt.Errorf("guestwire/%s: %w", plugin.name, err))
			}
		}
		text := ""
		if err := errors.Join(errs...); err != nil {
			text = err.Error()
		}
		if text != said && text != "" {
			p.log.Warn("device plugins", "error", text, "again in", p.look)
		}
		said = text
		p.ready(text == "")
		events := watch.events()
		if text != "" {
			events = nil // which a try makes itself
		}
		select {
		case <-ctx.Done():
			return
		case <-events:
		case <-watch.errors():
		case <-tick.C:
		}
	}
}

// devicePlugin serves one device.
type devicePlugin struct {
	kubelet.UnimplementedDevicePluginServer
	*devicePlugins
	name string

	server     *grpc.Server
	served     chan struct{}
	own        os.FileInfo // the socket that the server listens at
	registered os.FileInfo // the kubelet's socket at the time of the registration
	older      bool        // than a process that has the socket now, as it has registered before

	mu      sync.Mutex
	problem string // empty: the device is there
	changed chan struct{}
	streams int       // of a kubelet that watches the device
	since   time.Time // when there was one, or the registration, at last
}

func (p *devicePlugin) socket() string { return filepath.Join(p.dir, "guestwire-"+p.name+".sock") }

// serve listens and registers where this is not done, or was undone: by a start of the kubelet, or by another process
// that served the resource. It gives way to a process that has taken the resource.
func (p *devicePlugin) serve(ctx context.Context) error {
	there, err := os.Lstat(filepath.Join(p.dir, kubeletSocket))
	if removed := checkMounted(p.dir); removed != nil {
		return removed
	}
	if err != nil {
		return fmt.Errorf("%w: no kubelet runs, or its directory of device plugins is another one", err)
	}
	now, err := os.Lstat(p.socket())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	taken := err == nil
	if taken && p.own != nil && os.SameFile(now, p.own) {
		if p.registered != nil && os.SameFile(there, p.registered) && !p.left() {
			return nil
		}
		return p.register(ctx, there)
	}
	p.stop()
	if taken && p.older && isServed(p.socket()) {
		return fmt.Errorf("another process has taken it over at %s, so this one gives way: end one of the two", p.socket())
	}
	if err := p.listen(taken); err != nil {
		return err
	}
	if err := p.register(ctx, there); err != nil {
		p.stop()
		return err
	}
	p.log.Info("device plugin: registered", "resource", "guestwire/"+p.name)
	return nil
}

// listen serves at the socket, or at one that takes its place in one step: where there is none for a moment, another
// process would serve.
func (p *devicePlugin) listen(taken bool) error {
	dir, err := directory.Open(p.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	name := filepath.Base(p.socket())
	if taken {
		name = "." + rand.Text()
	}
	listener, err := directory.Listen(dir, name)
	if err != nil {
		return err
	}
	own, err := dir.Lstat(name)
	if err == nil && taken {
		err = dir.Rename(name, filepath.Base(p.socket()))
	}
	if err != nil {
		return errors.Join(err, listener.Close(), dir.Remove(name))
	}
	p.own, p.server, p.served = own, grpc.NewServer(), make(chan struct{})
	kubelet.RegisterDevicePluginServer(p.server, p)
	go func() {
		p.server.Serve(listener)
		close(p.served)
	}()
	return nil
}

// isServed reports whether a process listens at the socket. Who is killed leaves one at which nobody does.
func isServed(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err == nil {
		conn.Close()
	}
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
}

// left reports whether the kubelet does not watch the device, though it has had the time. When any connection of a
// resource ends, a kubelet ends the newest one, which may be that of another process.
func (p *devicePlugin) left() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams == 0 && time.Since(p.since) > 5*p.look
}

func (p *devicePlugin) count(streams int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams += streams
	p.since = time.Now()
}

// register registers with the kubelet of that socket.
func (p *devicePlugin) register(ctx context.Context, at os.FileInfo) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.dir, kubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err = kubelet.NewRegistrationClient(conn).Register(ctx, &kubelet.RegisterRequest{
		Version: kubelet.Version, Endpoint: filepath.Base(p.socket()), ResourceName: "guestwire/" + p.name,
	})
	if err != nil {
		return err
	}
	p.count(0)
	p.registered, p.older = at, true
	return nil
}

// stop ends the server, if there is one, and removes its socket.
func (p *devicePlugin) stop() {
	if p.server == nil {
		return
	}
	p.server.Stop()
	<-p.served
	if dir, err := directory.Open(p.dir); err == nil {
		name := filepath.Base(p.socket())
		if now, err := dir.Lstat(name); err == nil && p.own != nil && os.SameFile(now, p.own) {
			dir.Remove(name)
		}
		dir.Close()
	}
	p.server, p.own, p.registered = nil, nil, nil
}

// checkHealth looks whether the node has the device.
func (p *devicePlugin) checkHealth() {
	problem := ""
	if _, err := p.devices.find(p.name); err != nil {
		problem = err.Error()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if problem == p.problem {
		return
	}
	if problem != "" {
		p.log.Warn("device plugin: unhealthy", "error", problem)
	} else {
		p.log.Info("device plugin: healthy again", "resource", "guestwire/"+p.name)
	}
	p.problem = problem
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *devicePlugin) health() (problem string, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem, p.changed
}

func (p *devicePlugin) GetDevicePluginOptions(context.Context, *kubelet.Empty) (*kubelet.DevicePluginOptions, error) {
	return &kubelet.DevicePluginOptions{}, nil
}

func (p *devicePlugin) ListAndWatch(_ *kubelet.Empty, stream grpc.ServerStreamingServer[kubelet.ListAndWatchResponse]) error {
	p.count(1)
	defer p.count(-1)
	for {
		problem, changed := p.health()
		health := kubelet.Healthy
		if problem != "" {
			health = kubelet.Unhealthy
		}
		list := &kubelet.ListAndWatchResponse{}
		for i := range pods {
			list.Devices = append(list.Devices, &kubelet.Device{ID: strconv.Itoa(i), Health: health})
		}
		if err := stream.Send(list); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *devicePlugin) Allocate(_ context.Context, r *kubelet.AllocateRequest) (*kubelet.AllocateResponse, error) {
	d, err := p.devices.find(p.name)
	if err != nil {
		return nil, err
	}
	answer := &kubelet.AllocateResponse{}
	for range r.GetContainerRequests() {
		answer.ContainerResponses = append(answer.ContainerResponses, &kubelet.ContainerAllocateResponse{
			Devices: []*kubelet.DeviceSpec{{ContainerPath: d.path, HostPath: d.path, Permissions: "rw"}},
		})
	}
	return answer, nil
}
