package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// nodeHook wires the NICs of the instance's pod on the node before the VM starts, and gives them back when it has
// stopped. KubeVirt repeats the calls.
func (s *server) nodeHook(ctx context.Context, point, vmi, node string) error {
	i, nics, err := bound(vmi, s.binding)
	for uid, on := range i.Status.ActivePods {
		for _, n := range nics {
			if on == node {
				err = errors.Join(err, s.callAgent(ctx, point, uid, n.name))
			}
		}
	}
	return err
}

// callAgent runs the agent for a NIC of a pod, whose records are in the directory -state/UID.
func (s *server) callAgent(ctx context.Context, point, uid, nic string) error {
	state := filepath.Join(s.state, uid)
	if filepath.Dir(state) != filepath.Clean(s.state) {
		return fmt.Errorf("%q is no pod's UID", uid)
	}
	args, ok := map[string][]string{
		"PreVMStart": {"setup", "-netns", "/proc/self/fd/3", "-state", state, "-config", s.config},
		"PostVMStop": {"teardown", "-netns", "/proc/self/fd/3", "-cut-off"},
	}[point]
	if !ok {
		return fmt.Errorf("hook point %s: permittedHooks of the Plugin are PreVMStart and PostVMStop", point)
	}
	ns, err := s.openNetNS(uid)
	if errors.Is(err, fs.ErrNotExist) && point == "PostVMStop" {
		args = []string{"forget", "-state", state}
	} else if err != nil {
		return err
	}
	defer ns.Close()
	cmd := exec.CommandContext(ctx, s.agent, append(args, "-nic", nic)...)
	cmd.ExtraFiles = []*os.File{ns}
	said, err := cmd.CombinedOutput()
	s.log.Info("agent", "call", cmd.Args[1:], "said", string(said), "error", err)
	if err != nil {
		return fmt.Errorf("agent %s of NIC %s: %w: %s", args[0], nic, err, said)
	}
	if point == "PostVMStop" {
		_ = os.Remove(state) // unless another NIC's record is there
	}
	return nil
}

// openNetNS opens the network namespace of a pod: that of a process in the pod's cgroup. The error is fs.ErrNotExist if
// there is none.
func (s *server) openNetNS(uid string) (*os.File, error) {
	ofPod := func(cgroup string) bool { // systemd writes the UID with _ in the place of -
		text, err := os.ReadFile(cgroup)
		return err == nil && strings.Contains(strings.ReplaceAll(string(text), "_", "-"), "pod"+uid)
	}
	cgroups, _ := filepath.Glob(filepath.Join(s.proc, "[0-9]*", "cgroup"))
	for _, cgroup := range cgroups {
		if !ofPod(cgroup) {
			continue
		}
		ns, err := os.Open(filepath.Join(filepath.Dir(cgroup), "ns", "net"))
		if err == nil && ofPod(cgroup) { // it is the same process still
			return ns, nil
		}
		if err == nil {
			ns.Close()
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("pod %s: no process on this node: %w", uid, fs.ErrNotExist)
}
