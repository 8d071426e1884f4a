package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/directory"
)

// nodeHook wires the NICs of the instance's pod on the node before the VM starts, and gives them back when it has
// stopped. In a pod that waits for a migrating guest the NICs are on standby until the guest is there. KubeVirt repeats
// the calls.
func (s *server) nodeHook(ctx context.Context, point, vmi, node string) error {
	i, nics, err := bound(vmi, s.binding)
	if err != nil || len(nics) == 0 {
		return err
	}
	starts := point == "PreVMStart" || point == "PreMigrationTarget"
	pods, done, ended := 0, 0, error(nil)
	for uid, on := range i.Status.ActivePods {
		if on != node {
			continue
		}
		pods++
		for _, n := range nics {
			switch failed := s.callAgent(ctx, point, uid, n); {
			case n.name == "" && starts: // later there is nothing to give back
				err = errors.Join(err, n.errUnnamed())
			case n.name == "":
			case errors.Is(failed, fs.ErrNotExist): // a pod that a guest has left stays in activePods until it is deleted
				ended = failed
			default:
				done++
				err = errors.Join(err, failed)
			}
		}
	}
	switch {
	case pods == 0 && starts:
		return fmt.Errorf("status.activePods has no pod on node %s", node)
	case pods == 0: // deleted by force. After an error KubeVirt would repeat the call for ever
		s.log.Warn("status.activePods has no pod on this node: the records of a pod that is gone stay", "node", node, "in", s.state)
	case done == 0:
		err = errors.Join(err, ended)
	}
	return err
}

// callAgent runs the agent for a NIC of a pod, whose records are in the directory -state/UID. The error is
// fs.ErrNotExist if the pod has no process.
func (s *server) callAgent(ctx context.Context, point, uid string, n nic) error {
	if n.name == "" {
		return nil
	}
	state := filepath.Join(s.state, uid)
	if filepath.Dir(state) != filepath.Clean(s.state) {
		return fmt.Errorf("%q is no pod's UID", uid)
	}
	args, ok := map[string][]string{
		"PreVMStart":          {"setup", "-state", state, "-config", s.config},
		"PreMigrationTarget":  {"setup", "-state", state, "-config", "-", "-standby"},
		"PostMigrationTarget": {"activate", "-gone"},                     // the source's QEMU has ended
		"PostVMStop":          {"teardown", "-state", state, "-cut-off"}, // by the journal: the pod's processes may have ended
	}[point]
	if !ok {
		return fmt.Errorf("hook point %s: permittedHooks of the Plugin are PreVMStart, PreMigrationTarget, PostMigrationTarget and PostVMStop", point)
	}
	cmd := exec.CommandContext(ctx, s.agent, append(args, "-nic", n.name)...)
	process := ""
	if point != "PostVMStop" {
		ns, err := s.openNetNS(uid)
		if err != nil {
			return err
		}
		defer ns.Close()
		cmd.Args, cmd.ExtraFiles = append(cmd.Args, "-netns", "/proc/self/fd/3"), []*os.File{ns}
		process = filepath.Dir(filepath.Dir(ns.Name()))
	}
	if point == "PreMigrationTarget" {
		spec, err := s.specOf(n)
		if err != nil {
			return err
		}
		cmd.Stdin = bytes.NewReader(spec)
	}
	said, err := cmd.CombinedOutput()
	s.log.Info("agent", "call", cmd.Args[1:], "said", string(said), "error", err)
	if err != nil {
		return fmt.Errorf("guestwire-agent %s of NIC %s: %w: %s", args[0], n.name, err, said)
	}
	key := uid + "/" + n.name
	switch point {
	case "PreMigrationTarget":
		return s.arrive(key, state, process, n)
	case "PostMigrationTarget", "PostVMStop":
		if end, ok := s.arriving.Load(key); ok {
			end.(context.CancelFunc)()
		}
	}
	if point == "PostVMStop" {
		if dir, err := directory.Open(s.state); err == nil {
			_ = dir.Remove(uid) // unless another NIC's record is there
			dir.Close()
		}
	}
	return nil
}

// specOf is the configuration of -config with the MAC of the running guest, which stays the same in each pod.
func (s *server) specOf(n nic) ([]byte, error) {
	if n.running == "" {
		return nil, fmt.Errorf("network %s: status.interfaces has no mac of it, so the guest's is not known", n.network)
	}
	text, err := os.ReadFile(s.config)
	if err != nil {
		return nil, err
	}
	spec, binding := map[string]json.RawMessage{}, map[string]map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", s.config, err)
	}
	if err := json.Unmarshal(spec["binding"], &binding); err != nil {
		return nil, fmt.Errorf("configuration %s: binding: %w", s.config, err)
	}
	for kind, of := range binding {
		if of == nil {
			of = map[string]json.RawMessage{}
		}
		of["mac"], binding[kind] = json.RawMessage(strconv.Quote(n.running)), of
	}
	if spec["binding"], err = json.Marshal(binding); err != nil {
		return nil, err
	}
	return json.Marshal(spec)
}

// arrive activates a NIC on standby when the guest is there. KubeVirt calls PostMigrationTarget seconds later. QEMU
// announces the guest by the tap once it has all of the guest and the source's has stopped: into a tap that is down,
// which counts that as dropped.
func (s *server) arrive(key, state, process string, n nic) error {
	dir, err := directory.Open(state)
	if err != nil {
		return err
	}
	defer dir.Close()
	r, err := cache.Read(dir, n.name)
	if err != nil || r.Role == cache.RoleActive {
		return err
	}
	ctx, end := context.WithCancel(s.ctx)
	if _, waits := s.arriving.LoadOrStore(key, end); waits {
		end()
		return nil
	}
	s.waits.Go(func() {
		defer s.arriving.Delete(key)
		defer end()
		dropped := regexp.MustCompile(`(?m)^ *` + regexp.QuoteMeta(r.Tap) + `:(?: *\d+){3} +[1-9]`) // proc_pid_net(5), dev
		for tick := time.Tick(20 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick:
			}
			links, err := os.ReadFile(filepath.Join(process, "net", "dev"))
			if err != nil || !strings.Contains(string(links), r.Tap+":") {
				return // the pod has ended
			}
			if dropped.Match(links) {
				uid, _, _ := strings.Cut(key, "/")
				if err := s.callAgent(context.WithoutCancel(ctx), "PostMigrationTarget", uid, n); err != nil {
					s.log.Error("the guest is here, and its NIC waits for PostMigrationTarget", "NIC", n.name, "error", err)
				}
				return
			}
		}
	})
	return nil
}

// openNetNS opens the network namespace of a pod: that of the oldest process in the pod's cgroup which is in the pod's
// own. A process without privileges can make others (unshare -Urn), each in a user namespace that it makes as well. So
// the namespace has to belong to the node's user namespace. If none does, as in a pod with hostUsers: false, it has to
// belong to one that root made directly below, as the engine does, and no process of such a pod can. The error is
// fs.ErrNotExist if there is no process.
func (s *server) openNetNS(uid string) (*os.File, error) {
	network, err := os.Stat(filepath.Join(s.proc, "1", "ns", "net"))
	if err != nil {
		return nil, err
	}
	user, err := os.Stat(filepath.Join(s.proc, "1", "ns", "user"))
	if err != nil {
		return nil, err
	}
	var below *os.File
	refused := ""
	for _, pid := range s.processesOf(uid) {
		ns, err := os.Open(filepath.Join(s.proc, pid, "ns", "net"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		its, err := ns.Stat()
		if err != nil || os.SameFile(its, network) || !s.inPod(pid, uid) { // an engine's own process (CRI-O's conmon), or another one by now
			ns.Close()
			continue
		}
		switch depth, err := depthBelow(user, ns); {
		case err != nil:
			ns.Close()
			return nil, fmt.Errorf("pod %s: owner of the network namespace of process %s: %w", uid, pid, err)
		case depth == 0:
			if below != nil {
				below.Close()
			}
			return ns, nil
		case depth == 1 && below == nil:
			below = ns
			continue
		}
		refused = pid
		ns.Close()
	}
	switch {
	case below != nil:
		return below, nil
	case refused != "":
		return nil, fmt.Errorf("pod %s: process %s is in a network namespace that a process of the pod has made, and none is in the pod's own: start the VM again, or wire the NIC by the CNI plugin, to which the engine names the namespace", uid, refused)
	}
	return nil, fmt.Errorf("pod %s: no process on this node: %w", uid, fs.ErrNotExist)
}

// depthBelow is how far below the user namespace the owner of a network namespace is: 0, 1, or 2 for more, and for one
// that another user than root made.
func depthBelow(user os.FileInfo, ns *os.File) (depth int, err error) {
	fd, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_USERNS)
	for err == nil {
		owner := os.NewFile(uintptr(fd), "user namespace")
		its, failed := owner.Stat()
		if failed != nil || os.SameFile(its, user) || depth == 2 {
			owner.Close()
			return depth, failed
		}
		depth++
		maker, failed := unix.IoctlGetUint32(int(owner.Fd()), unix.NS_GET_OWNER_UID)
		if failed != nil || maker != 0 {
			owner.Close()
			return 2, failed
		}
		fd, err = unix.IoctlRetInt(int(owner.Fd()), unix.NS_GET_PARENT)
		owner.Close()
	}
	return depth, err
}

// processesOf are the numbers of the processes in the pod's cgroup, the oldest one first.
func (s *server) processesOf(uid string) []string {
	started := map[string]int{}
	all, _ := filepath.Glob(filepath.Join(s.proc, "[0-9]*"))
	for _, process := range all {
		if pid := filepath.Base(process); s.inPod(pid, uid) {
			text, _ := os.ReadFile(filepath.Join(process, "stat"))
			fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // proc_pid_stat(5), from the third one
			if len(fields) > 19 {
				started[pid], _ = strconv.Atoi(fields[19])
			}
		}
	}
	return slices.SortedFunc(maps.Keys(started), func(a, b string) int { return cmp.Compare(started[a], started[b]) })
}

func (s *server) inPod(pid, uid string) bool {
	text, err := os.ReadFile(filepath.Join(s.proc, pid, "cgroup"))
	return err == nil && podOf(string(text)) == uid
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
