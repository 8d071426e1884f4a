package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	ofPod := func(cgroup string) bool {
		text, err := os.ReadFile(cgroup)
		return err == nil && podOf(string(text)) == uid
	}
	node, err := os.Stat(filepath.Join(s.proc, "1", "ns", "net"))
	if err != nil {
		return nil, err
	}
	cgroups, _ := filepath.Glob(filepath.Join(s.proc, "[0-9]*", "cgroup"))
	for _, cgroup := range cgroups {
		if !ofPod(cgroup) {
			continue
		}
		ns, err := os.Open(filepath.Join(filepath.Dir(cgroup), "ns", "net"))
		if err == nil {
			// It is the same process still, and none of an engine's own with the node's network (CRI-O's conmon).
			if its, err := ns.Stat(); err == nil && ofPod(cgroup) && !os.SameFile(its, node) {
				return ns, nil
			}
			ns.Close()
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("pod %s: no process on this node: %w", uid, fs.ErrNotExist)
}

// cgroupOfPod is the first cgroup of a pod in a path; systemd writes the UID with _ in the place of -.
var cgroupOfPod = regexp.MustCompile(`/(?:[a-z-]*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?(?:/|$)`)

// podOf returns the UID of the pod in whose cgroup a process is, by its /proc/PID/cgroup; empty: it is in none.
func podOf(cgroups string) string {
	for line := range strings.Lines(cgroups) {
		if found := cgroupOfPod.FindStringSubmatch(strings.TrimSpace(line)); found != nil {
			return strings.ReplaceAll(found[1], "_", "-")
		}
	}
	return ""
}
