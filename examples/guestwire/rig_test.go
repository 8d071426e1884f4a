package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// cniDir is where Debian puts the reference plugins.
const cniDir = "/usr/lib/cni"

// node is a Kubernetes node: a namespace with a CNI list, which libcni runs there as container engines do.
type node struct {
	testing.TB
	ns               *nstest.Namespace
	leases           string // of host-local
	state, dir       string // of guestwire
	plugins, scripts string // where guestwire is, and where the own plugins of tests are
	cni              *libcni.CNIConfig
	mutex            sync.Mutex
	complaints       strings.Builder // what guestwire printed to standard error
	wrapper          []string        // strace(1), for the crash test
}

func newNode(t testing.TB) *node {
	t.Helper()
	nstest.Need(t, "nsenter")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "guestwire gives taps to another user")
	if _, err := os.Stat(cniDir); err != nil {
		nstest.Skip(t, "no CNI plugins in "+cniDir+": install containernetworking-plugins")
	}
	base := nstest.Dir(t)
	n := &node{TB: t, ns: nstest.New(t, "node"), leases: filepath.Join(base, "leases"), state: filepath.Join(base, "state"), dir: filepath.Join(base, "journals"),
		plugins: filepath.Dir(nstest.Program(t, "examples/guestwire")), scripts: t.TempDir()}
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{cniDir, n.plugins, n.scripts}, filepath.Join(base, "cache"), n)
	return n
}

// ExecPlugin runs a plugin in the node's namespace, as invoke.RawExec does.
func (n *node) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	args := []string{"--net=" + n.ns.Path(), path}
	if filepath.Base(path) == "guestwire" && n.wrapper != nil {
		args = append(append([]string{args[0]}, n.wrapper...), path)
	}
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env, cmd.Stdin = environ, bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	n.mutex.Lock()
	n.complaints.Write(stderr.Bytes())
	n.mutex.Unlock()
	if err == nil {
		return stdout.Bytes(), nil
	}
	var reported types.Error
	if json.Unmarshal(stdout.Bytes(), &reported) == nil && reported.Msg != "" {
		return nil, &reported
	}
	return nil, fmt.Errorf("%w: %s%s", err, &stdout, &stderr)
}

func (n *node) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

func (n *node) Decode(b []byte) (version.PluginInfo, error) {
	return (&version.PluginDecoder{}).Decode(b)
}

// said returns what guestwire has printed to standard error since the last call.
func (n *node) said() string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	text := n.complaints.String()
	n.complaints.Reset()
	return text
}

// bridge is a plugin that creates a veth to a bridge, with addresses of host-local.
func (n *node) bridge(name, v4, v6 string) string {
	return fmt.Sprintf(`{"type": "bridge", "bridge": %q, "isGateway": true, "ipam": {"type": "host-local", "dataDir": %q,
		"ranges": [[{"subnet": %q}], [{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`, name, n.leases, v4, v6)
}

func (n *node) flannel() string { return n.bridge("cni0", "10.22.0.0/16", "fd00:22::/64") }

// guestwire is the list's entry, with further members.
func (n *node) guestwire(more string) string {
	entry := fmt.Sprintf(`{"type": "guestwire", "capabilities": {"io.kubernetes.cri.pod-annotations": true}, "state": %q, "dir": %q`, n.state, n.dir)
	if more != "" {
		entry += ", " + more
	}
	return entry + "}"
}

// list is a CNI list.
func (n *node) list(cniVersion, name string, plugins ...string) *libcni.NetworkConfigList {
	n.Helper()
	list, err := libcni.ConfListFromBytes([]byte(fmt.Sprintf(`{"cniVersion": %q, "name": %q, "plugins": [%s]}`, cniVersion, name, strings.Join(plugins, ", "))))
	if err != nil {
		n.Fatal(err)
	}
	return list
}

// usual is a bridge and guestwire, in the newest version that Debian's plugins know.
func (n *node) usual() *libcni.NetworkConfigList {
	return n.list("1.0.0", "podnet", n.flannel(), n.guestwire(owner("")))
}

// owner is the entry's member spec, with the tests' launcher as the owner, and further members of the Spec.
func owner(more string) string {
	return fmt.Sprintf(`"spec": {"owner": {"uid": %d, "gid": %[1]d}%s}`, nstest.LauncherUID, more)
}

// plugin makes a plugin of the node: a script of sh(1).
func (n *node) plugin(name, script string) {
	n.Helper()
	if err := os.WriteFile(filepath.Join(n.scripts, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		n.Fatal(err)
	}
}

// guestwireCalled calls guestwire as an engine does, without libcni: with these variables and this input. It returns
// the output, and the error that was printed; nil: it succeeded.
func (n *node) guestwireCalled(stdin string, environ ...string) (string, *types.Error) {
	n.Helper()
	out, err := n.ExecPlugin(n.Context(), filepath.Join(n.plugins, "guestwire"), []byte(stdin), append(os.Environ(), append(environ, "CNI_PATH="+n.plugins)...))
	var reported *types.Error
	if err != nil && !errors.As(err, &reported) {
		n.Fatal(err)
	}
	return string(out), reported
}

// sandboxOf is a pod's sandbox as an engine sees it.
type sandboxOf struct {
	*node
	ns      *nstest.Namespace
	id, uid string
}

func (n *node) sandbox(uid string) *sandboxOf {
	n.Helper()
	ns := nstest.New(n.TB, "pod")
	return &sandboxOf{n, ns, "c-" + ns.Name, uid}
}

// runtime are the arguments of a call.
func (s *sandboxOf) runtime(nic string, annotations ...string) *libcni.RuntimeConf {
	pod := map[string]string{"kubernetes.io/config.source": "api"}
	for i := 0; i < len(annotations); i += 2 {
		pod[annotations[i]] = annotations[i+1]
	}
	return &libcni.RuntimeConf{ContainerID: s.id, NetNS: s.ns.Path(), IfName: nic,
		Args:           [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "vm"}, {"K8S_POD_INFRA_CONTAINER_ID", s.id}, {"K8S_POD_UID", s.uid}},
		CapabilityArgs: map[string]any{"io.kubernetes.cri.pod-annotations": pod}}
}

func (s *sandboxOf) add(list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) types.Result {
	s.Helper()
	result, err := s.cni.AddNetworkList(s.Context(), list, rt)
	if err != nil {
		s.Fatalf("ADD: %v\n%s", err, s.said())
	}
	return result
}

func (s *sandboxOf) del(list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) {
	s.Helper()
	if err := s.cni.DelNetworkList(s.Context(), list, rt); err != nil {
		s.Errorf("DEL: %v\n%s", err, s.said())
	}
}

// files are all files of the plugin, below the state and the journals' directory, and the leases. Those that always
// stay are left out.
func (n *node) files() []string {
	n.Helper()
	found := map[string]bool{}
	for _, root := range []string{n.state, n.dir, n.leases} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			name := strings.TrimPrefix(path, filepath.Dir(n.state)+"/")
			stays := path == root || path == filepath.Join(n.state, "pods") || strings.HasPrefix(d.Name(), "last_reserved_ip") || d.Name() == "lock" ||
				strings.Contains(d.Name(), "cni-calls") || filepath.Dir(path) == n.leases
			if err == nil && !stays {
				found[name] = true
			}
			return err
		})
		if err != nil {
			n.Fatal(err)
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// clean fails the test if a file is left.
func (n *node) clean() {
	n.Helper()
	if left := n.files(); len(left) > 0 {
		n.Errorf("%q are left\n%s", left, n.said())
	}
}

// dirOf is the directory of the sandbox's records.
func (s *sandboxOf) dirOf() string { return filepath.Join(s.state, s.id) }

// record is that of a NIC.
func (s *sandboxOf) record(nic string) cache.Record { return nstest.Record(s, s.dirOf(), nic) }

// boot starts a guest at the NIC's tap.
func (s *sandboxOf) boot(nic string) *guest.Guest {
	s.Helper()
	g := nstest.Boot(s, s.ns.File, s.record(nic), "guest")
	if err := g.ListenTCP(8000); err != nil {
		s.Fatal(err)
	}
	return g
}

// wired fails the test unless these NICs have a record, and no others.
func (s *sandboxOf) wired(nics ...string) {
	s.Helper()
	found, err := filepath.Glob(filepath.Join(s.dirOf(), "*.json"))
	if err != nil {
		s.Fatal(err)
	}
	for i, path := range found {
		found[i] = strings.TrimSuffix(filepath.Base(path), ".json")
	}
	if !slices.Equal(found, nics) {
		s.Errorf("the NICs %q are wired, want %q\n%s", found, nics, s.said())
	}
}

// Shorter names for what libcni takes.
type (
	networkList = libcni.NetworkConfigList
	runtimeConf = libcni.RuntimeConf
)

// environ are the variables of a call without libcni.
func (s *sandboxOf) environ(command, nic string) []string {
	return []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + s.id, "CNI_NETNS=" + s.ns.Path(), "CNI_IFNAME=" + nic,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_UID=" + s.uid}
}

// configuration is the input of a call without libcni.
func (s *sandboxOf) configuration(entry []byte, result types.Result, rt *runtimeConf) string {
	s.Helper()
	members := map[string]any{}
	if err := json.Unmarshal(entry, &members); err != nil {
		s.Fatal(err)
	}
	members["cniVersion"], members["name"], members["runtimeConfig"] = "1.0.0", "podnet", rt.CapabilityArgs
	if result != nil {
		members["prevResult"] = result
	}
	text, err := json.Marshal(members)
	if err != nil {
		s.Fatal(err)
	}
	return string(text)
}

// add2 is a second ADD of guestwire: the plugins before it are not made to be called twice.
func (s *sandboxOf) add2(list *networkList, rt *runtimeConf) {
	s.Helper()
	result, err := s.cni.GetNetworkListCachedResult(list, rt)
	if err != nil {
		s.Fatal(err)
	}
	entry := list.Plugins[len(list.Plugins)-1]
	if out, err := s.guestwireCalled(s.configuration(entry.Bytes, result, rt), s.environ("ADD", rt.IfName)...); err != nil {
		s.Fatalf("%s, %v", out, err)
	}
}
