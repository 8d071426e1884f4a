package node

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase2"
)

// state is the plugin's directory if the list names none, and journals that of Phase1.
const (
	state    = "/run/guestwire"
	journals = "/run/guestwire.lock"
)

// port is where guests answer.
const port = 8000

// list is a CNI list with a bridge of its own, and addresses of 10.244.SUBNET.0/24. Chained are the entries after it.
func list(name string, subnet int, chained ...string) string {
	bridge := fmt.Sprintf(`{"type": "bridge", "bridge": "cni-%s", "isGateway": true, "ipam": {"type": "host-local", "dataDir": "/run/cni/ipam",
		"ranges": [[{"subnet": "10.244.%d.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}`, name, subnet)
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [%s]}`, name, strings.Join(append([]string{bridge}, chained...), ",\n"))
}

// entry is the plugin's, as docs/how-to/kubernetes.md has it.
const entry = `{"type": "guestwire", "capabilities": {"io.kubernetes.cri.pod-annotations": true}}`

// redirect is what a pod says that wants its first NIC for a guest.
var redirect = map[string]string{"guestwire/nic.eth0": "redirect"}

// newer is the directory of a newer containerd and runc, and of CRI-O, which "make kubernetes" has; empty: Debian's.
var newer = os.Getenv("GUESTWIRE_KUBERNETES")

// engine is a node with an engine in it, and the plugin in the node's CNIBin.
type engine struct {
	*Engine
	t       *testing.T
	state   string            // the plugin's directory
	network *nstest.Namespace // the node's
}

// eachRuntime runs a test with containerd and with CRI-O.
func eachRuntime(t *testing.T, f func(*testing.T, *Runtime)) {
	for _, r := range []*Runtime{Containerd, CRIO} {
		t.Run(r.Name, func(t *testing.T) {
			if r == CRIO && newer == "" {
				nstest.LeaveOut(t, "only make kubernetes has CRI-O")
			}
			f(t, r)
		})
	}
}

// newEngine starts a node and an engine. The lists are those of CNIConf by their files; a file with a directory is one
// of /etc/cni.
func newEngine(t *testing.T, n Config, c EngineConfig, lists map[string]string) *engine {
	t.Helper()
	if newer != "" {
		c.Programs, c.Runc = newer, filepath.Join(newer, "runc")
	}
	x := &engine{t: t, state: state}
	node := New(t, n)
	x.network = node.Network(t)
	plugin, err := os.ReadFile(nstest.Program(t, "examples/guestwire"))
	if err == nil {
		err = node.WriteFile(CNIBin+"/guestwire", string(plugin), 0o755)
	}
	for file, list := range lists {
		if err == nil {
			err = node.WriteFile(filepath.Join(CNIConf, file), list, 0o644)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	x.Engine = node.StartEngine(t, c)
	return x
}

// as is the engine in a subtest.
func (x engine) as(t *testing.T) *engine {
	x.t = t
	return &x
}

func (x *engine) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

// pod runs a pod's sandbox.
func (x *engine) pod(c PodConfig) *Pod {
	x.t.Helper()
	if c.UID == "" {
		c.UID = "uid-of-" + c.Name
	}
	p, err := x.RunPod(c)
	x.must(err)
	return p
}

// launcher starts the launcher, and checks that it has no privileges.
func (x *engine) launcher(p *Pod, attempt uint32) *Container {
	x.t.Helper()
	config := p.Launcher(x.state)
	config.Attempt = attempt
	c, err := p.StartContainer(config)
	x.must(err)
	status, err := x.Node.Run("cat", fmt.Sprintf("/proc/%d/status", c.Pid))
	x.must(err)
	uid := fmt.Sprint(p.UserNamespace + 107)
	for _, want := range []string{"Uid:" + strings.Repeat("\t"+uid, 4) + "\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
		if !strings.Contains(status, want) {
			x.t.Errorf("launcher of %s: %q is not in\n%s", p.Name, want, status)
		}
	}
	mounts, err := x.Node.Run("cat", fmt.Sprintf("/proc/%d/mounts", c.Pid))
	x.must(err)
	if root, _, _ := strings.Cut(mounts, "\n"); !strings.Contains(root, " / overlay ro,") {
		x.t.Errorf("launcher of %s has the root %q, want one that is read-only", p.Name, root)
	}
	return c
}

// record reads a record through the pod's name in the plugin's directory.
func (x *engine) record(p *Pod, nic string) cache.Record {
	x.t.Helper()
	return nstest.Record(x.t, x.Node.Path(filepath.Join(x.state, "pods", p.UID)), nic)
}

// guest attaches a guest to the tap of a NIC, has it ask for its address, and answer at port. The guest is called as
// the pod.
func (x *engine) guest(p *Pod, nic string) *guest.Guest {
	x.t.Helper()
	r := x.record(p, nic)
	var files []*os.File
	nstest.Eventually(x.t, func() error { // a launcher that is not ready yet may have it open, to clear it
		return p.Do(func() (err error) {
			files, err = phase2.OpenTap(r)
			return err
		})
	})
	queues := guest.Queues(files)
	g, err := guest.Start(guest.Config{Port: queues, MAC: r.MAC, Name: p.Name})
	if err != nil {
		queues.Close()
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { g.Close() }) // the second time at most
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := g.Configure(ctx, guest.Families{IPv4: true}); err != nil {
		x.t.Fatalf("guest of %s: %v", p.Name, err)
	}
	x.must(g.ListenTCP(port))
	return g
}

// stream is a TCP connection from the node to a guest.
type stream struct {
	net.Conn
	*bufio.Reader
}

func (s stream) Read(b []byte) (int, error) { return s.Reader.Read(b) }

// dial connects from the node to the guest behind an address, and checks which guest answers.
func (x *engine) dial(name string, a netip.Addr) stream {
	x.t.Helper()
	var s stream
	nstest.Eventually(x.t, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		c, err := lab.Namespace{File: x.network.File}.DialTCP(ctx, netip.AddrPortFrom(a, port).String())
		s = stream{c, bufio.NewReader(c)}
		return err
	})
	x.t.Cleanup(func() { s.Close() })
	s.SetDeadline(time.Now().Add(time.Minute))
	line, err := s.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, name+" sees ") {
		x.t.Fatalf("%v answers %q (%v), want the guest of %s", a, line, err, name)
	}
	return s
}

// echo checks that the connection works.
func (x *engine) echo(s stream) {
	x.t.Helper()
	s.SetDeadline(time.Now().Add(time.Minute))
	_, err := s.Write([]byte("still there\n"))
	x.must(err)
	line, err := s.ReadString('\n')
	if err != nil || line != "still there\n" {
		x.t.Fatalf("the connection says %q: %v", line, err)
	}
}

// listLeftovers prints what pods have left, a line each, with the plugin's directory as $0: addresses are host-local's
// files, results those of libcni's cache.
const listLeftovers = `
ls -A /run/netns | sed 's/^/namespace: /'
ip -brief link | awk '$1 != "lo" && $1 !~ /^cni-/ { print "link: " $1 }'
find "$0" ` + journals + ` -mindepth 1 ! -path "$0"/pods ! -name cni-calls 2>/dev/null | sed 's/^/file: /'
find /run/cni/ipam -type f ! -name lock ! -name 'last_reserved_ip.*' 2>/dev/null | sed 's/^/address: /'
find /var/lib/cni/results -type f 2>/dev/null | sed 's/^/result: /'
nft list ruleset | sed 's/^/rule: /'`

// leftovers is what pods have left in the node, a line each.
func (x *engine) leftovers() []string {
	x.t.Helper()
	out := x.Node.MustRun(x.t, "sh", "-c", listLeftovers, x.state)
	return slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool { return line == "" })
}

// nothingLeft checks that pods have left nothing. The kernel removes the links of a namespace that has ended some time
// later.
func (x *engine) nothingLeft() {
	x.t.Helper()
	nstest.Eventually(x.t, func() error {
		if left := x.leftovers(); len(left) > 0 {
			return fmt.Errorf("left:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
}

// dump is what an administrator sees of the pod's namespace.
func (x *engine) dump(p *Pod) string {
	x.t.Helper()
	ns, err := os.Open(x.Node.Path(p.NetNS))
	x.must(err)
	defer ns.Close()
	return x.settled(ns)
}

func (x *engine) settled(ns *os.File) string {
	x.t.Helper()
	text, err := lab.Namespace{File: ns}.Settled()
	x.must(err)
	return lab.Stable(text)
}

// attachment is what an engine keeps of a successful ADD (libcni's cache).
type attachment struct {
	Config         []byte // the list
	ContainerID    string
	IfName         string
	NetworkName    string
	CNIArgs        [][2]string
	CapabilityArgs map[string]json.RawMessage
	Result         json.RawMessage

	netns string
}

// attachment reads the engine's cache of a pod's NIC.
func (x *engine) attachment(p *Pod, network, nic string) attachment {
	x.t.Helper()
	text, err := os.ReadFile(x.Node.Path(fmt.Sprintf("/var/lib/cni/results/%s-%s-%s", network, p.ID, nic)))
	x.must(err)
	a := attachment{netns: p.NetNS}
	x.must(json.Unmarshal(text, &a))
	return a
}

// address is the first one of the result.
func (a attachment) address(t *testing.T) netip.Addr {
	t.Helper()
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(a.Result, &result); err != nil || len(result.IPs) == 0 {
		t.Fatalf("%s: %v", a.Result, err)
	}
	return result.IPs[0].Address.Addr()
}

// plugins calls the plugins of an attachment's list, as libcni does: in order, DEL in reverse order. Only names one
// plugin; empty: all. The error is the first one's, with its answer.
func (x *engine) plugins(command string, a attachment, only string, more map[string]any) error {
	x.t.Helper()
	var l struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	x.must(json.Unmarshal(a.Config, &l))
	if command == "DEL" {
		slices.Reverse(l.Plugins)
	}
	for _, c := range l.Plugins {
		kind := c["type"].(string)
		if only != "" && only != kind {
			continue
		}
		c["cniVersion"], c["name"] = l.CNIVersion, l.Name
		if a.Result != nil {
			c["prevResult"] = a.Result
		}
		asked, _ := c["capabilities"].(map[string]any)
		given := map[string]json.RawMessage{}
		for name, value := range a.CapabilityArgs {
			if asked[name] == true {
				given[name] = value
			}
		}
		c["runtimeConfig"] = given
		for name, value := range more {
			c[name] = value
		}
		if err := x.plugin(command, kind, a, c); err != nil {
			return err
		}
	}
	return nil
}

// gc calls the plugin of an attachment's list as an engine does whose only pod is the given one.
func (x *engine) gc(a attachment, valid *Pod) {
	x.t.Helper()
	a.Result, a.ContainerID, a.IfName, a.netns, a.CNIArgs = nil, "", "", "", nil
	x.must(x.plugins("GC", a, "guestwire", map[string]any{
		"cniVersion": "1.1.0", "cni.dev/valid-attachments": []map[string]string{{"containerID": valid.ID, "ifname": "eth0"}},
	}))
}

func (x *engine) plugin(command, kind string, a attachment, config any) error {
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	var args []string
	for _, arg := range a.CNIArgs {
		args = append(args, arg[0]+"="+arg[1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), runTime)
	defer cancel()
	cmd := x.Node.Command(ctx, filepath.Join(CNIBin, kind))
	cmd.Env = append(cmd.Env, "CNI_COMMAND="+command, "CNI_CONTAINERID="+a.ContainerID, "CNI_IFNAME="+a.IfName, "CNI_NETNS="+a.netns,
		"CNI_PATH="+CNIBin, "CNI_ARGS="+strings.Join(args, ";"))
	cmd.Stdin = strings.NewReader(string(text))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s of %s: %w: %s", command, kind, err, out)
	}
	return nil
}

// kill sends SIGKILL to a process of the node.
func (x *engine) kill(pid int) {
	x.t.Helper()
	x.Node.MustRun(x.t, "kill", "-KILL", fmt.Sprint(pid))
}

// awaitNotReady waits until the engine has noticed that a sandbox has ended.
func (x *engine) awaitNotReady(p *Pod) {
	x.t.Helper()
	const notReady = 1 // SANDBOX_NOTREADY
	x.await("PodSandboxStatus", map[string]string{"pod_sandbox_id": p.ID}, notReady)
}

// awaitExited waits until the engine has noticed that a container has ended. StopPodSandbox fails while the engine
// does.
func (x *engine) awaitExited(c *Container) {
	x.t.Helper()
	const exited = 2 // CONTAINER_EXITED
	x.await("ContainerStatus", map[string]string{"container_id": c.ID}, exited)
}

func (x *engine) await(method string, request any, state int) {
	x.t.Helper()
	nstest.Eventually(x.t, func() error {
		var answer struct{ Status struct{ State int } }
		err := x.CRI(method, request, &answer)
		if err == nil && answer.Status.State != state {
			err = fmt.Errorf("%s: state %d, want %d", method, answer.Status.State, state)
		}
		return err
	})
}

// leases checks that the launcher answers the guest.
func (x *engine) leases(g *guest.Guest) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := g.Renew4(ctx); err != nil {
		x.t.Fatalf("lease: %v", err)
	}
}
