package main

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"libvirt.org/go/libvirtxml"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestwiretest"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
)

func TestMain(m *testing.M) {
	if os.Args[0] == "kubevirt" { // started again by startServer
		main()
		return
	}
	guestwiretest.Main(m)
}

const (
	hooks   = "/kubevirt.hooks.v1alpha3.Callbacks/"
	plugins = "/kubevirt.hooks.plugins.v1alpha1."
	info    = "/kubevirt.hooks.info.Info/Info"
	// blue is the NIC of the network blue.
	blue = "pod16477688c0e"
	// podUID is the pod's in the recorded requests.
	podUID = "6b0e4d5e-5c2f-4f0e-9a43-0c1f0c7f2b11"
)

// newPod is the pod of the recorded VirtualMachineInstance, where default and blue have the binding.
func newPod(t *testing.T) *guestwiretest.Pod {
	pod := guestwiretest.NewPod(t, guestwiretest.Veth)
	pod.Run("ip", "link", "add", blue, "type", "veth", "peer", "name", "peer")
	pod.Run("ip", "link", "set", "peer", "up")
	pod.Run("ip", "link", "set", blue, "up")
	pod.Run("ip", "addr", "add", "10.99.0.7/24", "dev", blue)
	return pod
}

// startServer starts the program in the pod as KubeVirt's sidecar runs, or as root in the test's own namespace.
func startServer(t *testing.T, pod *guestwiretest.Pod, args ...string) (socket string, cmd *exec.Cmd) {
	t.Helper()
	dir := nstest.Dir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "hook.sock")
	cmd = exec.Command("/proc/self/exe", append(args, "-socket", socket)...)
	cmd.Args[0] = "kubevirt"
	output, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if pod != nil {
		err = launch.Start(cmd, pod.NetNS, pod.Owner)
	} else {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(output)
	if !lines.Scan() || !strings.Contains(lines.Text(), "listens") {
		t.Fatalf("the server says %q", lines.Text())
	}
	go func() {
		for lines.Scan() { // else the server would wait
		}
	}()
	return socket, cmd
}

// raw is a codec of messages that are encoded.
type raw struct{}

func (raw) Name() string                       { return "proto" }
func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(text []byte, v any) error { *v.(*[]byte) = text; return nil }

// call sends a request of these bytes.
func call(t *testing.T, socket, method string, request []byte) (message, error) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var answer []byte
	if err := conn.Invoke(context.Background(), method, &request, &answer); err != nil {
		return nil, err
	}
	m, err := decode(answer)
	if err != nil {
		t.Fatal(err)
	}
	return m, nil
}

// recorded reads a request that KubeVirt's own code sent: its domain from its converter, the request by its
// hooks.Manager, plugins.ApplyDomainHooks and NodeHookManager. Without a release in its name it is that of commit
// d923fdb. The sidecar's requests of KubeVirt 1.8.4 and 1.9.0 have the same octets.
func recorded(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".pb"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var element = regexp.MustCompile(`(?s)<interface .*?</interface>`)

// TestDomains: of the domains that KubeVirt makes for an architecture, the two interfaces with the binding change, and
// no other octet.
func TestDomains(t *testing.T) {
	pod := newPod(t)
	records := wire(t, pod)
	socket, _ := startServer(t, pod, "-state", pod.State)
	for arch, want := range map[string]struct {
		model string
		rom   *libvirtxml.DomainROM
	}{
		"amd64": {"virtio-non-transitional", &libvirtxml.DomainROM{Enabled: "no"}},
		"arm64": {"virtio-non-transitional", &libvirtxml.DomainROM{Enabled: "no"}},
		"s390x": {"virtio", nil},
	} {
		for _, hook := range []struct {
			method, file string
			domain       protowire.Number
		}{
			{hooks + "OnDefineDomain", "OnDefineDomain-", 1},
			{hooks + "OnDefineDomain", "OnDefineDomain-v1.5.0-", 1},
			{plugins + "DomainHookService/MutateDomain", "MutateDomain-", 2},
		} {
			t.Run(hook.file+arch, func(t *testing.T) {
				request := recorded(t, hook.file+arch)
				in, err := decode(request)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := call(t, socket, hook.method, request)
				if err != nil {
					t.Fatal(err)
				}
				before, after := in[hook.domain][0], answer[1][0]
				if a, b := element.Split(before, -1), element.Split(after, -1); strings.Join(a, "|") != strings.Join(b, "|") {
					t.Errorf("more than interfaces has changed:\n%s\nbefore\n%s", after, before)
				}
				was, is := element.FindAllString(before, -1), element.FindAllString(after, -1)
				if len(is) != 3 || is[2] != was[2] {
					t.Fatalf("interfaces:\n%s", strings.Join(is, "\n"))
				}
				for i, name := range []string{"eth0", blue} {
					var wanted, got libvirtxml.DomainInterface
					if err := wanted.Unmarshal(was[i]); err != nil {
						t.Fatal(err)
					}
					if err := got.Unmarshal(is[i]); err != nil {
						t.Fatal(err)
					}
					r := records[name]
					wanted.Target.Dev, wanted.MAC.Address, wanted.MTU.Size = r.Tap, r.MAC.String(), uint(r.MTU)
					wanted.Driver.Queues = []uint{1, 2}[i]
					a, _ := wanted.Marshal()
					if b, _ := got.Marshal(); a != b {
						t.Errorf("%s:\n%s\nwant\n%s", name, b, a)
					}
					if got.Model.Type != want.model || (got.ROM == nil) != (want.rom == nil) || got.ROM != nil && *got.ROM != *want.rom {
						t.Errorf("%s: model %s, ROM %+v", name, got.Model.Type, got.ROM)
					}
				}
				in[hook.domain][0] = after
				if again, err := call(t, socket, hook.method, encode(in)); err != nil || again[1][0] != after {
					t.Errorf("again: %v, %s", err, again[1])
				}
			})
		}
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"another MAC":          {`"name":"default"`, `"macAddress":"02:00:00:00:00:77","name":"default"`, "network default: macAddress is 02:00:00:00:00:77, and the guest of eth0 has " + records["eth0"].MAC.String()},
		"a NIC without a tap":  {`"podInterfaceName":"eth0"`, `"podInterfaceName":"peer"`, "network default: NIC peer has no record in " + pod.State},
		"without tap":          {"ua-blue", "ua-green", "network blue: the domain has no interface with the alias ua-blue: in KubeVirt's configuration the binding needs domainAttachmentType: tap"},
		"no VM":                {`{"`, `["`, "VirtualMachineInstance: "},
		"a claim's network":    {`"multus":{"networkName":"blue-net"}`, `"resourceClaim":{"claimName":"nic","requestName":"dev"}`, "network blue: its source is neither pod nor multus, so KubeVirt does not say which NIC it is: give it one of these"},
		"absent, or of others": {`"binding":{"name":"guestwire"}`, `"binding":{"name":"passt"}`, ""},
	} {
		in, err := decode(recorded(t, "OnDefineDomain-amd64"))
		if err != nil {
			t.Fatal(err)
		}
		for n := range in {
			in[n][0] = strings.ReplaceAll(in[n][0], c.old, c.new)
		}
		answer, err := call(t, socket, hooks+"OnDefineDomain", encode(in))
		if c.want == "" && (err != nil || answer[1][0] != in[1][0]) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// wire wires both NICs: eth0 by redirect, and blue by masquerade with two queues.
func wire(t *testing.T, pod *guestwiretest.Pod) map[string]cache.Record {
	t.Helper()
	records := map[string]cache.Record{}
	for name, spec := range map[string]infra.Spec{"eth0": {Binding: infra.Redirect{}}, blue: {Binding: infra.Masquerade{}, Queues: 2}} {
		spec.Owner, spec.State = pod.Owner, pod.State
		r, err := phase1.NIC{NetNS: pod.NetNS, Name: name}.Setup(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		records[name] = r
	}
	return records
}

// harmless are the signals that do nothing, as docs/reference/signals.md says.
func harmless(t *testing.T) (signals []syscall.Signal) {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/signals.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-Z0-9, ]+) \|.*\| nothing \|$`).FindAllStringSubmatch(string(text), -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			signals = append(signals, unix.SignalNum("SIG"+name))
		}
	}
	if !slices.Contains(signals, syscall.SIGTERM) || !slices.Contains(signals, syscall.SIGHUP) || slices.Contains(signals, 0) {
		t.Fatalf("the table says that %v do nothing", signals)
	}
	return signals
}

// TestSidecarReaders: what reads the log can close it and stop. The guest is answered until Shutdown.
func TestSidecarReaders(t *testing.T) {
	for name, full := range map[string]bool{"closed": false, "full": true} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(t)
			records := wire(t, pod)
			dir := nstest.Dir(t)
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			socket := filepath.Join(dir, "hook.sock")
			var log [2]int
			if err := unix.Pipe2(log[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(log[0])
			for full {
				if _, err := unix.Write(log[1], []byte{'.'}); err != nil {
					break
				}
			}
			if err := unix.SetNonblock(log[1], false); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/proc/self/exe", "-state", pod.State, "-socket", socket)
			cmd.Args[0] = "kubevirt"
			cmd.Stderr = os.NewFile(uintptr(log[1]), "log")
			if err := launch.Start(cmd, pod.NetNS, pod.Owner); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill() // if it is still there
			cmd.Stderr.(*os.File).Close()
			if !full {
				unix.Close(log[0])
				log[0] = -1
			}
			nstest.Eventually(t, func() error {
				_, err := os.Stat(socket)
				return err
			})
			if _, err := call(t, socket, hooks+"OnDefineDomain", recorded(t, "OnDefineDomain-amd64")); err != nil {
				t.Fatal(err)
			}
			if _, err := guestwiretest.NewGuest(t, pod, records["eth0"]).DHCPv4(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := call(t, socket, hooks+"Shutdown", nil); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSidecar: the calls of a VM's life. The guest is answered from OnDefineDomain on, also after the SIGTERM that a
// pod's containers get when the pod is deleted, until Shutdown.
func TestSidecar(t *testing.T) {
	pod := newPod(t)
	records := wire(t, pod)
	socket, cmd := startServer(t, pod, "-state", pod.State)
	m, err := call(t, socket, info, nil)
	if err != nil || m.get(1) != "guestwire" || m.get(4) != "v1alpha3" || strings.Join(m[3], "") != "\n\x0eOnDefineDomain\n\bShutdown" {
		t.Fatalf("Info: %q, %v", m, err)
	}
	for _, release := range []string{"", "v1.5.0-"} {
		request := recorded(t, "PreCloudInitIso-"+release+"amd64")
		in, err := decode(request)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := call(t, socket, hooks+"PreCloudInitIso", request); err != nil || m.get(1) != in.get(1) || m[2] != nil || m.get(3) != in.get(3) || m.get(3) == "" {
			t.Errorf("PreCloudInitIso: %q, %v", m, err)
		}
	}
	for _, signal := range harmless(t) {
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatalf("%v: %v", signal, err)
		}
	}
	if _, err := call(t, socket, hooks+"OnDefineDomain", recorded(t, "OnDefineDomain-amd64")); err != nil {
		t.Fatal(err)
	}
	guest := guestwiretest.NewGuest(t, pod, records["eth0"])
	if err := guest.Configure(t.Context()); err != nil {
		t.Fatal(err)
	}
	answer, err := pod.World.Ask(t.Context(), netip.AddrPortFrom(pod.IPv4, guestwiretest.Port))
	if err != nil || !strings.HasPrefix(answer, "guest sees ") {
		t.Errorf("the world asks: %q, %v; want the guest", answer, err)
	}
	if _, err := call(t, socket, hooks+"Shutdown", nil); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestTwoSidecars: KubeVirt starts a sidecar for each binding of a VM, and knows their sockets by the names alone. Only
// one can answer the guest: the other one says so, and the VM does not start.
func TestTwoSidecars(t *testing.T) {
	for container, want := range map[string]string{"": "guestwire", "hook-sidecar-1": "hook-sidecar-1"} {
		cmd := exec.Command("/proc/self/exe", "-h")
		cmd.Args[0], cmd.Env = "kubevirt", append(os.Environ(), "CONTAINER_NAME="+container)
		if said, _ := cmd.CombinedOutput(); !strings.Contains(string(said), `"/var/run/kubevirt-hooks/`+want+`.sock"`) {
			t.Errorf("in container %q the usage is\n%s", container, said)
		}
	}
	pod := newPod(t)
	wire(t, pod)
	in, err := decode(recorded(t, "OnDefineDomain-amd64"))
	if err != nil {
		t.Fatal(err)
	}
	in[2][0] = strings.Replace(in[2][0], `"name":"blue","binding":{"name":"guestwire"}`, `"name":"blue","binding":{"name":"other"}`, 1)
	first, _ := startServer(t, pod, "-state", pod.State)
	if _, err := call(t, first, hooks+"OnDefineDomain", encode(in)); err != nil {
		t.Fatal(err)
	}
	second, _ := startServer(t, pod, "-state", pod.State, "-binding", "other")
	if _, err := call(t, second, hooks+"OnDefineDomain", encode(in)); err == nil || !strings.Contains(err.Error(), "give all interfaces of the VM the same binding") {
		t.Errorf("the second sidecar: %v", err)
	}
	in[2][0] = strings.ReplaceAll(in[2][0], `"binding":{"name":"guestwire"}`, `"binding":{"name":"other"}`)
	if _, err := call(t, first, hooks+"Shutdown", nil); err != nil { // as in a VM without the first binding
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		_, err := call(t, second, hooks+"OnDefineDomain", encode(in))
		return err
	})
}

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
	slice := "0::/kubepods.slice/kubepods-burstable-pod" + strings.ReplaceAll(podUID, "-", "_") + ".slice/cri-1.scope\n"
	fake := func(number, network string, started int, cgroup string) (process string) {
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
	fake("1", "/proc/self/ns/net", 0, "0::/init.scope\n")
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o755); err != nil {
		t.Fatal(err)
	}
	socket, _ := startServer(t, nil, "-agent", nstest.Program(t, "examples/agent"), "-config", config, "-state", state, "-proc", filepath.Join(dir, "proc"))
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
