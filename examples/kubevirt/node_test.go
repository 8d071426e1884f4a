package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestNodeHook: PreVMStart wires the pod whose cgroup a process is in, and PostVMStop gives it back, also if no process
// is left, or the pod is gone by then. A namespace that a user of the pod made is neither wired nor in the way.
// KubeVirt repeats both.
func TestNodeHook(t *testing.T) {
	nstest.NeedRoot(t, "the node hook is root's")
	pod := newPod(t)
	before := pod.Dump()
	dir := nstest.Dir(t)
	config := filepath.Join(dir, "config.json")
	if err := os.WriteFile(config, fmt.Appendf(nil, `{"binding": {"redirect": {}}, "owner": {"uid": %d, "gid": %d}}`, pod.Owner.UID, pod.Owner.GID), 0o644); err != nil {
		t.Fatal(err)
	}
	fake, slice := fakeProc(t, dir), sliceOfPod
	fake("1", "/proc/self/ns/net", 0, "0::/init.scope\n")
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o755); err != nil {
		t.Fatal(err)
	}
	socket, _ := startServer(t, nil, "-agent", nstest.Program(t, "examples/guestwire-agent"), "-config", config, "-state", state, "-proc", filepath.Join(dir, "proc"))
	hook := func(point string) error {
		_, err := call(t, socket, plugins+"NodeHookService/ExecuteNodeHook", recorded(t, "ExecuteNodeHook-"+point))
		return err
	}
	if err := hook("PreVMStart"); err == nil || !strings.Contains(err.Error(), "pod "+podUID+": no process on this node") {
		t.Errorf("without a pod: %v", err)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"no active pod":     {`"node1"`, `"node2"`, "status.activePods has no pod on node node1"},
		"a claim's network": {`"multus":{"networkName":"blue-net"}`, `"resourceClaim":{"claimName":"nic","requestName":"dev"}`, "network blue: its source is neither pod nor multus"},
	} {
		for _, point := range []string{"PreVMStart", "PostVMStop"} { // the VM can end nevertheless
			in, err := decode(recorded(t, "ExecuteNodeHook-"+point))
			if err != nil {
				t.Fatal(err)
			}
			in[2][0] = strings.ReplaceAll(in[2][0], c.old, c.new)
			_, err = call(t, socket, plugins+"NodeHookService/ExecuteNodeHook", encode(in))
			if point == "PreVMStart" && (err == nil || !strings.Contains(err.Error(), c.want)) || point == "PostVMStop" && err != nil {
				t.Errorf("%s, %s: %v", name, point, err)
			}
		}
	}
	fake("2", "/proc/self/ns/net", 10, slice) // in the pod's cgroup, as CRI-O's conmon can be, and in the node's network
	attacker := func(number string, command ...string) {
		fake(number, fmt.Sprintf("/proc/%d/ns/net", started(t, 1000, command...)), 20, slice)
	}
	attacker("3", "unshare", "-Urn")
	attacker("4", "unshare", "-Ur", "unshare", "-Urn")
	if err := hook("PreVMStart"); err == nil || !strings.Contains(err.Error(), "is in a network namespace that a process of the pod has made") {
		t.Errorf("with namespaces of a user alone: %v", err)
	}
	hostUsers := fake("5", fmt.Sprintf("/proc/%d/ns/net", started(t, 0, "unshare", "-Un")), 25, slice)
	s := &server{proc: filepath.Join(dir, "proc")}
	if ns, err := s.openNetNS(podUID); err != nil || ns.Name() != filepath.Join(hostUsers, "ns", "net") {
		t.Errorf("with hostUsers: false the namespace is %v, %v", ns, err)
	}
	first := fake("7", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), pod.NetNS.Fd()), 30, slice)
	for range 2 {
		if err := hook("PreVMStart"); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"eth0", blue} {
		r := nstest.Record(t, filepath.Join(state, podUID), name)
		pod.Run("ip", "link", "show", r.Tap)
	}
	if err := os.RemoveAll(first); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := hook("PostVMStop"); err != nil {
			t.Fatal(err)
		}
	}
	if diff := guestwiretest.Diff(before, pod.Dump()); diff != "" {
		t.Errorf("the pod is not as it was:\n%s", diff)
	}
	if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	wirings, err := phase1.List(t.Context(), "")
	if slices.ContainsFunc(wirings, func(w phase1.Wiring) bool { return strings.HasPrefix(w.State, state) }) || err != nil {
		t.Errorf("%v are left, %v", wirings, err)
	}
}

// sliceOfPod is the /proc/PID/cgroup of a process of the pod.
var sliceOfPod = "0::/kubepods.slice/kubepods-burstable-pod" + strings.ReplaceAll(podUID, "-", "_") + ".slice/cri-1.scope\n"

// fakeProc makes processes in DIR/proc, the directory for -proc.
func fakeProc(t *testing.T, dir string) func(number, network string, started int, cgroup string) (process string) {
	return func(number, network string, started int, cgroup string) (process string) {
		process = filepath.Join(dir, "proc", number)
		if err := os.MkdirAll(filepath.Join(process, "ns"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, target := range map[string]string{"net": network, "user": "/proc/self/ns/user"} {
			if err := os.Symlink(target, filepath.Join(process, "ns", name)); err != nil {
				t.Fatal(err)
			}
		}
		stat := fmt.Sprintf("%s (a) b) S%s %d 0 0\n", number, strings.Repeat(" 0", 18), started)
		for name, text := range map[string]string{"stat": stat, "cgroup": cgroup} {
			if err := os.WriteFile(filepath.Join(process, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return process
	}
}

// started starts a command as a user and returns its number, once it is where it wants to be.
func started(t *testing.T, uid uint32, command ...string) (pid int) {
	t.Helper()
	cmd := exec.Command(command[0], append(command[1:], "sh", "-c", "echo; exec sleep 1000")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(command, err)
	}
	return cmd.Process.Pid
}

// TestPodOf: the first cgroup of a pod decides, not one below it, which the pod can make.
func TestPodOf(t *testing.T) {
	const other = "11111111-2222-3333-4444-555555555555"
	for cgroup, want := range map[string]string{
		"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(podUID, "-", "_") + ".slice/cri-containerd-1.scope": podUID,
		"12:pids:/system.slice\n11:cpu:/kubepods/burstable/pod" + podUID + "/0123":                                                                      podUID,
		"0::/kubepods/pod" + podUID:                            podUID,
		"0::/kubepods/pod" + other + "/0123/pod" + podUID:      other,
		"0::/kubepods/pod" + other + "/my-pod" + podUID + "/x": other,
		"0::/system.slice/kubelet.service":                     "",
	} {
		if have := podOf(cgroup); have != want {
			t.Errorf("%s: %q, want %q", cgroup, have, want)
		}
	}
}
