package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/guestwire/guestwire/internal/netns"
)

// PodConfig is what a kubelet says of a pod.
type PodConfig struct {
	// Name and UID; the namespace is default.
	Name, UID string
	// Attempt counts the sandboxes of the same pod.
	Attempt     uint32
	Annotations map[string]string
	// Servers and Searches are the name servers and search domains of the containers' resolv.conf; none: the node's
	// file.
	Servers, Searches []string
	// Handler is the runtime handler; empty: the default one.
	Handler string
	// UserNamespace gives the pod the users 0 to 65535 as the node's users from this number on; 0: the node's users. It
	// needs containerd 2 or CRI-O, and runc 1.2.
	UserNamespace uint32
}

func (c PodConfig) sandbox() map[string]any {
	namespaces := map[string]any{"pid": 1} // a PID namespace for each container
	if c.UserNamespace != 0 {
		ids := []any{map[string]any{"host_id": c.UserNamespace, "container_id": 0, "length": 65536}}
		namespaces["userns_options"] = map[string]any{"mode": 0, "uids": ids, "gids": ids}
	}
	sandbox := map[string]any{
		"metadata":      map[string]any{"name": c.Name, "namespace": "default", "uid": c.UID, "attempt": c.Attempt},
		"annotations":   c.Annotations,
		"log_directory": "/var/log/pods/" + c.Name,
		"linux": map[string]any{
			"cgroup_parent":    "/pods",
			"security_context": map[string]any{"namespace_options": namespaces},
		},
	}
	if c.Servers != nil {
		sandbox["dns_config"] = map[string]any{"servers": c.Servers, "searches": c.Searches, "options": []string{"ndots:5"}}
	}
	return sandbox
}

// Pod is a sandbox of a pod.
type Pod struct {
	PodConfig
	// ID is the sandbox's.
	ID string
	// Pid is the sandbox's first process, in the node.
	Pid int
	// NetNS is the path of the network namespace in the node.
	NetNS string
	// Addresses are those that the engine reports to the kubelet.
	Addresses []netip.Addr

	engine *Engine
}

// RunPod starts a pod's sandbox (RunPodSandbox).
func (e *Engine) RunPod(c PodConfig) (*Pod, error) {
	p := &Pod{PodConfig: c, engine: e}
	var made struct {
		ID string `json:"pod_sandbox_id"`
	}
	if err := e.CRI("RunPodSandbox", map[string]any{"config": c.sandbox(), "runtime_handler": c.Handler}, &made); err != nil {
		return nil, err
	}
	p.ID = made.ID
	return p, p.inspect()
}

func (p *Pod) inspect() error {
	type address struct{ IP netip.Addr }
	var answer struct {
		Status struct {
			Network struct {
				IP         netip.Addr
				Additional []address `json:"additional_ips"`
			}
		}
		Info map[string]string
	}
	if err := p.engine.CRI("PodSandboxStatus", map[string]any{"pod_sandbox_id": p.ID, "verbose": true}, &answer); err != nil {
		return err
	}
	var info struct {
		Pid         int
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
	}
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil {
		return err
	}
	p.Pid = info.Pid
	for _, n := range info.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" {
			p.NetNS = n.Path
		}
	}
	p.Addresses = []netip.Addr{answer.Status.Network.IP}
	for _, a := range answer.Status.Network.Additional {
		p.Addresses = append(p.Addresses, a.IP)
	}
	return nil
}

// Do runs a function in the pod's network namespace, on a thread of its own.
func (p *Pod) Do(f func() error) error {
	ns, err := os.Open(p.engine.Node.Path(p.NetNS))
	if err != nil {
		return err
	}
	defer ns.Close()
	return netns.Do(ns, f)
}

// Stop stops the sandbox and its containers (StopPodSandbox).
func (p *Pod) Stop() error {
	return p.engine.CRI("StopPodSandbox", map[string]string{"pod_sandbox_id": p.ID}, nil)
}

// Remove removes the containers and then the sandbox (RemoveContainer, RemovePodSandbox), as a kubelet does. containerd
// 2 stops answering for ever if an NRI plugin connects while RemovePodSandbox removes containers: the call takes a lock
// a second time, and the plugin waits for the lock in between.
func (p *Pod) Remove() error {
	var answer struct{ Containers []struct{ ID string } }
	filter := map[string]any{"filter": map[string]string{"pod_sandbox_id": p.ID}}
	if err := p.engine.CRI("ListContainers", filter, &answer); err != nil {
		return err
	}
	for _, c := range answer.Containers {
		if err := (&Container{ID: c.ID, engine: p.engine}).Remove(); err != nil {
			return err
		}
	}
	return p.engine.CRI("RemovePodSandbox", map[string]string{"pod_sandbox_id": p.ID}, nil)
}

// End is Stop and Remove.
func (p *Pod) End() error { return errors.Join(p.Stop(), p.Remove()) }

// ContainerConfig is a container of a pod.
type ContainerConfig struct {
	Name, Image string
	Attempt     uint32
	// Command replaces the image's entry point.
	Command []string
	// Mounts are directories of the node by their paths in the container; read only.
	Mounts map[string]string
	// Devices are paths in the node, which are the same in the container.
	Devices []string
	// Root leaves the container the user root with the engine's default capabilities. Else the container has user and
	// group 107, no capabilities, no_new_privs and a read-only root, as Pod Security's "restricted" wants it.
	Root bool
}

// Container is a running container.
type Container struct {
	ID string
	// Pid is the first process, in the node.
	Pid int
	// Log is the file with what the container prints, in the node; each line begins with time, stream and a tag.
	Log string

	engine *Engine
}

// StartContainer creates and starts a container (CreateContainer, StartContainer).
func (p *Pod) StartContainer(c ContainerConfig) (*Container, error) {
	security := map[string]any{
		"run_as_user":     map[string]any{"value": 107},
		"run_as_group":    map[string]any{"value": 107},
		"readonly_rootfs": true, "no_new_privs": true,
		"capabilities": map[string]any{"drop_capabilities": []string{"ALL"}},
	}
	if c.Root {
		security = map[string]any{}
	}
	sandbox := p.sandbox()
	security["namespace_options"] = sandbox["linux"].(map[string]any)["security_context"].(map[string]any)["namespace_options"]
	log := fmt.Sprintf("%s.%d.log", c.Name, c.Attempt)
	mounts, devices := []any{}, []any{}
	for container, host := range c.Mounts {
		mounts = append(mounts, map[string]any{"container_path": container, "host_path": host, "readonly": true})
	}
	for _, path := range c.Devices {
		devices = append(devices, map[string]any{"container_path": path, "host_path": path, "permissions": "rw"})
	}
	k := &Container{Log: filepath.Join("/var/log/pods", p.Name, log), engine: p.engine}
	var made struct {
		ID string `json:"container_id"`
	}
	err := p.engine.CRI("CreateContainer", map[string]any{"pod_sandbox_id": p.ID, "sandbox_config": sandbox, "config": map[string]any{
		"metadata": map[string]any{"name": c.Name, "attempt": c.Attempt}, "command": c.Command,
		"image":    map[string]any{"image": c.Image, "user_specified_image": c.Image},
		"labels":   map[string]string{"io.kubernetes.container.name": c.Name}, // by a kubelet; CRI-O passes it on as the name to NRI
		"log_path": log, "mounts": mounts, "devices": devices, "linux": map[string]any{"security_context": security},
	}}, &made)
	if err != nil {
		return nil, err
	}
	k.ID = made.ID
	if err := p.engine.CRI("StartContainer", map[string]string{"container_id": k.ID}, nil); err != nil {
		return nil, err
	}
	var status struct{ Info map[string]string }
	if err := p.engine.CRI("ContainerStatus", map[string]any{"container_id": k.ID, "verbose": true}, &status); err != nil {
		return nil, err
	}
	var info struct{ Pid int }
	err = json.Unmarshal([]byte(status.Info["info"]), &info)
	k.Pid = info.Pid
	return k, err
}

// Launcher is a container with "guestwire-launcher serve" as docs/how-to/kubernetes.md describes it without NRI: the
// newest records of the pod by a mount, and /dev/net/tun as a device. State is the CNI plugin's directory.
func (p *Pod) Launcher(state string) ContainerConfig {
	return ContainerConfig{Name: "launcher", Image: LauncherImage,
		Command: []string{"/bin/guestwire-launcher", "serve", "-state", "/run/guestwire", "-events"},
		Mounts:  map[string]string{"/run/guestwire": filepath.Join(state, "pods", p.UID)},
		Devices: []string{"/dev/net/tun"}}
}

// Stop stops the container by SIGTERM, and by SIGKILL after ten seconds (StopContainer).
func (c *Container) Stop() error {
	return c.engine.CRI("StopContainer", map[string]any{"container_id": c.ID, "timeout": 10}, nil)
}

// Remove removes the container (RemoveContainer).
func (c *Container) Remove() error {
	return c.engine.CRI("RemoveContainer", map[string]any{"container_id": c.ID}, nil)
}

// Pods are the identifiers of the engine's sandboxes.
func (e *Engine) Pods() ([]string, error) {
	var answer struct{ Items []struct{ ID string } }
	err := e.CRI("ListPodSandbox", nil, &answer)
	var ids []string
	for _, item := range answer.Items {
		ids = append(ids, item.ID)
	}
	slices.Sort(ids)
	return ids, err
}
