package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"

	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/infra"
)

// recordsAt is where a launcher's container sees the records of its pod.
const recordsAt = "/run/guestwire"

// The name of the NRI plugin. NRI calls plugins in the order of their two digits.
const (
	nriName  = "guestwire"
	nriIndex = "50"
)

// nriPlugin gives the containers of VM pods their records and devices. It speaks NRI itself, as the stub of
// github.com/containerd/nri waits for ever if the engine ends between registration and configuration.
type nriPlugin struct {
	socket string
	state  podsandbox.State // the same path on the node
	// devices are those of the node that a pod may ask for.
	devices devices
	log     *slog.Logger
	// ready receives whether the engine asks the plugin.
	ready func(bool)
	retry time.Duration
}

// run connects to the engine, again and again, until ctx is done.
func (p *nriPlugin) run(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		err := p.connect(ctx, func() { said = "" })
		p.ready(false)
		if ctx.Err() != nil {
			return
		}
		if text := explainNRI(p.socket, err).Error(); text != said {
			p.log.Warn("NRI", "error", text, "again in", p.retry)
			said = text
		}
		select {
		case <-ctx.Done():
		case <-time.After(p.retry):
		}
	}
}

func explainNRI(socket string, err error) error {
	if removed := checkMounted(filepath.Dir(socket)); removed != nil {
		return removed
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: the engine has no NRI (containerd before 1.7), has it switched off, or does not run; -nri= does without, see guestwire-node help run", err)
	}
	return fmt.Errorf("%s: %w", socket, err)
}

// connect serves one connection until it ends, and returns why.
func (p *nriPlugin) connect(ctx context.Context, connected func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	trunk, err := (&net.Dialer{}).DialContext(ctx, "unix", p.socket)
	if err != nil {
		return err
	}
	mux := multiplex.Multiplex(trunk)
	defer mux.Close()
	calls, err := mux.Listen(multiplex.PluginServiceConn)
	if err != nil {
		return err
	}
	defer calls.Close()
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	defer server.Close()
	c := &nriConnection{nriPlugin: p, configured: make(chan struct{})}
	server.RegisterService("nri.pkg.api.v1alpha1.Plugin", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{ // those that the engine calls
		"Configure": answering(c.Configure), "Synchronize": answering(c.Synchronize), "CreateContainer": answering(c.CreateContainer), "Shutdown": answering(c.Shutdown),
	}})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, calls) }()
	defer func() { // in the order in which nothing waits for another
		mux.Close()
		server.Close()
		<-ended
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ended = true
	}()

	engine, err := mux.Open(multiplex.RuntimeServiceConn)
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(engine)
	defer client.Close()
	register, stop := context.WithTimeout(ctx, api.DefaultPluginRegistrationTimeout)
	defer stop()
	_, err = api.NewRuntimeClient(client).RegisterPlugin(register, &api.RegisterPluginRequest{PluginName: nriName, PluginIdx: nriIndex})
	if err != nil {
		return fmt.Errorf("registration: %w", err)
	}
	closed := make(chan struct{})
	go func() {
		client.UserOnCloseWait(ctx)
		close(closed)
	}()
	defer func() {
		cancel()
		<-closed
	}()
	select {
	case <-c.configured:
	case <-closed:
		return errors.New("connection closed by the engine before it configured the plugin")
	case <-register.Done():
		return errors.New("the engine did not configure the plugin")
	}
	p.log.Info("NRI: connected", "socket", p.socket, "engine", c.engine)
	connected()
	select {
	case <-closed:
		return errors.New("connection closed by the engine")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answering is the method of a call. For one that no subscription asks for, the engine gets the error that there is
// none.
func answering[Question, Answer any](answer func(context.Context, *Question) (*Answer, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		question := new(Question)
		if err := unmarshal(question); err != nil {
			return nil, err
		}
		return answer(ctx, question)
	}
}

// nriConnection answers the engine, for a plugin that subscribes to Event_CREATE_CONTAINER alone.
type nriConnection struct {
	*nriPlugin
	configured chan struct{}
	engine     string

	mu    sync.Mutex
	ended bool // an answer that is late says nothing of the next connection
}

func (c *nriConnection) Configure(_ context.Context, r *api.ConfigureRequest) (*api.ConfigureResponse, error) {
	select {
	case <-c.configured:
		return nil, errors.New("configured already")
	default:
	}
	c.engine = r.GetRuntimeName() + " " + r.GetRuntimeVersion()
	close(c.configured)
	var events api.EventMask
	events.Set(api.Event_CREATE_CONTAINER)
	return &api.ConfigureResponse{Events: int32(events)}, nil
}

// Synchronize is the last thing that the engine asks before it asks for containers.
func (c *nriConnection) Synchronize(_ context.Context, r *api.SynchronizeRequest) (*api.SynchronizeResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !r.GetMore() && !c.ended {
		c.ready(true)
	}
	return &api.SynchronizeResponse{More: r.GetMore()}, nil
}

func (c *nriConnection) CreateContainer(_ context.Context, r *api.CreateContainerRequest) (*api.CreateContainerResponse, error) {
	adjust, err := c.adjust(r.GetPod(), r.GetContainer())
	if err != nil {
		err = fmt.Errorf("guestwire: container %s of pod %s/%s: %w", r.GetContainer().GetName(), r.GetPod().GetNamespace(), r.GetPod().GetName(), err)
		c.log.Warn("NRI: container refused", "error", err)
		return nil, err
	}
	return &api.CreateContainerResponse{Adjust: adjust}, nil
}

func (c *nriConnection) Shutdown(context.Context, *api.Empty) (*api.Empty, error) {
	return &api.Empty{}, nil
}

// adjust returns what the container gets in addition to what its pod says, nil for a container that is none of
// guestwire's. A mount that the container has at /run/guestwire already, from a hostPath, stays.
func (p *nriPlugin) adjust(pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, error) {
	wants, err := podsandbox.Read(pod.GetAnnotations())
	if err != nil {
		return nil, err
	}
	dir, err := p.state.Dir(pod.GetId())
	if err != nil {
		return nil, err
	}
	records, err := p.state.NICs(pod.GetId())
	if err != nil {
		return nil, err
	}
	records = slices.DeleteFunc(records, func(n podsandbox.NIC) bool { return !n.Record })
	if len(records) == 0 && len(wants.Named()) == 0 && len(wants.Devices) == 0 {
		return nil, nil
	}
	if wants.Container != "" && wants.Container != container.GetName() {
		return nil, nil
	}
	for _, nic := range wants.Named() {
		if !slices.ContainsFunc(records, func(r podsandbox.NIC) bool { return r.Name == nic }) {
			return nil, fmt.Errorf("annotation %s%s: NIC %[2]s is not wired: is guestwire in the node's CNI list (guestwire-node on this node), has the pod a NIC of this name and a network of its own (hostNetwork: false), and the runtimeClassName, if guestwire was installed for one? A pod that was started before guestwire came has to be created again", podsandbox.NICPrefix, nic)
		}
	}
	a := &api.ContainerAdjustment{}
	if len(records) > 0 && !slices.ContainsFunc(container.GetMounts(), func(m *api.Mount) bool { return m.GetDestination() == recordsAt }) {
		a.AddMount(&api.Mount{Source: dir, Destination: recordsAt, Type: "bind", Options: []string{"rbind", "ro", "nosuid", "nodev", "noexec"}})
	}
	given := slices.DeleteFunc(slices.Sorted(maps.Keys(devicePaths)), func(name string) bool {
		return !slices.ContainsFunc(container.GetLinux().GetDevices(), func(d *api.LinuxDevice) bool { return d.GetPath() == devicePaths[name] })
	})
	for _, name := range append([]string{"tun"}, wants.Devices...) {
		d, err := p.devices.find(name)
		if err != nil {
			return nil, err
		}
		if inUserNamespace(container) {
			if err := checkUserNamespaceDevice(d); err != nil {
				return nil, err
			}
		}
		a.AddDevice(d.forContainer())
	}
	// A device plugin's device has the mode that it has on the node, and the launcher's user is in no group of the
	// node.
	for _, name := range given {
		if d, err := p.devices.find(name); err == nil && name != "tun" && !slices.Contains(wants.Devices, name) {
			a.AddDevice(d.forContainer())
		}
	}
	return a, nil
}

func inUserNamespace(c *api.Container) bool {
	return slices.ContainsFunc(c.GetLinux().GetNamespaces(), func(n *api.LinuxNamespace) bool { return n.GetType() == "user" })
}

// forContainer is the device as any user of the container can open it. It takes the place of one at the same path.
func (d device) forContainer() *api.LinuxDevice {
	return &api.LinuxDevice{
		Path: d.path, Type: "c", Major: int64(d.major), Minor: int64(d.minor),
		FileMode: api.FileMode(uint32(0o666)), Uid: api.UInt32(uint32(0)), Gid: api.UInt32(uint32(0)),
	}
}

// checkUserNamespaceDevice refuses a device that no user of a user namespace can open: a low-level runtime cannot
// create devices there, and shows the node's own file instead.
func checkUserNamespaceDevice(d device) error {
	if d.mode&0o006 == 0o006 {
		return nil
	}
	return fmt.Errorf("%s has mode %04o on the node: in a pod with hostUsers: false the container gets the node's own file, which its users cannot open: chmod 0666 %s on the node, or hostUsers: true", d.path, d.mode, infra.ShellWord(d.path))
}
