package launchers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocni "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/libcni"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// onCluster is the refusal of a pod's tapResult.
const onCluster = "tapResult: not on Kubernetes"

// entries are guestwire's in a list, without and with tapResult.
func entries(t *testing.T) (wired, tapResult string) {
	wired = fmt.Sprintf(`{"type": "guestwire", "state": %q, "spec": {"owner": {"uid": 107}, "binding": {"redirect": {}}}}`, nstest.Dir(t))
	return wired, strings.Replace(wired, `"spec"`, `"tapResult": true, "spec"`, 1)
}

// ptp is a list whose pod has 10.50.0.2 and fd00:50::2.
func ptp(t *testing.T, entry string) string {
	return fmt.Sprintf(`{"type": "ptp", "ipam": %s}, %s`, dualStack(t, "10.50.0.0/24", "fd00:50::/64"), entry)
}

// podArgs is a pod of Kubernetes, as CNI_ARGS has it.
var podArgs = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "vm"}, {"K8S_POD_INFRA_CONTAINER_ID", "1"}, {"K8S_POD_UID", "7"}}

// TestGoCNI: containerd's go-cni reads the pod's addresses from guestwire's result, with tapResult as well; then the
// tap is an interface of its own. On Kubernetes tapResult is refused.
func TestGoCNI(t *testing.T) {
	wired, tapResult := entries(t)
	for _, row := range []struct {
		name, entry string
		args        [][2]string
		interfaces  []string
		refused     string
	}{
		{name: "a pod", entry: wired, args: podArgs, interfaces: []string{"eth0"}},
		{name: "tapResult", entry: tapResult, interfaces: []string{"eth0", "eth0-tap"}},
		{name: "tapResult of a pod", entry: tapResult, args: podArgs, refused: onCluster},
	} {
		t.Run(row.name, func(t *testing.T) {
			n, ns := newNode(t), nstest.New(t, "pod")
			t.Cleanup(func() { os.Remove("/var/lib/cni/results"); os.Remove("/var/lib/cni") }) // libcni's cache, if nobody else's file is in it
			l := list(t, "1.0.0", "podnet", ptp(t, row.entry))
			engine, err := gocni.New(gocni.WithPluginDir([]string{n.plugins}), gocni.WithConfListBytes(l.Bytes))
			if err != nil {
				t.Fatal(err)
			}
			var labels []gocni.NamespaceOpts
			for _, arg := range row.args {
				labels = append(labels, gocni.WithArgs(arg[0], arg[1]))
			}
			before := ns.Settled()
			result, err := engine.Setup(t.Context(), "go-cni-1", ns.Path(), labels...)
			if row.refused != "" {
				if err == nil || !strings.Contains(err.Error(), row.refused) {
					t.Errorf("Setup: %v, want %s", err, row.refused)
				}
			} else if err != nil {
				t.Fatal(err)
			} else {
				var inPod []string
				for name, config := range result.Interfaces {
					if config.Sandbox != "" {
						inPod = append(inPod, name)
					}
				}
				slices.Sort(inPod)
				var addresses []string
				for _, ip := range result.Interfaces["eth0"].IPConfigs {
					addresses = append(addresses, ip.IP.String())
				}
				if !slices.Equal(inPod, row.interfaces) || !slices.Equal(addresses, []string{"10.50.0.2", "fd00:50::2"}) {
					t.Errorf("go-cni has the interfaces %v, and the pod has %v", slices.Collect(maps.Keys(result.Interfaces)), addresses)
				}
			}
			if err := engine.Remove(t.Context(), "go-cni-1", ns.Path(), labels...); err != nil {
				t.Error(err)
			}
			if err := nstest.Difference(before, ns.Settled()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMultusProgram: Multus writes the status of a pod's networks as it would without guestwire, whose entry is last in
// the networks' lists, or after Multus in the engine's list. tapResult is refused: Multus would report the guest's tap,
// twice, as an interface of the pod.
func TestMultusProgram(t *testing.T) {
	n := newNode(t)
	build := exec.Command("go", "build", "-o", filepath.Join(n.plugins, "multus"), "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus")
	build.Dir, build.Env = "..", append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0") // it compiles with the requirements of the laboratory alone
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wired, tapResult := entries(t)
	unbound := strings.Replace(wired, `, "binding": {"redirect": {}}`, "", 1)
	// not-asked is guestwire without CNI_ARGS, by which it knows of Kubernetes.
	script, err := os.ReadFile(filepath.Join(n.plugins, "guestwire"))
	if err == nil {
		err = os.WriteFile(filepath.Join(n.plugins, "not-asked"), []byte(strings.Replace(string(script), "exec ", "CNI_ARGS= exec ", 1)), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.IP("link add lan0 type veth peer name lan1")
	n.IP("link set lan0 up")
	eth0, net1 := "podnet eth0 [10.50.0.2 fd00:50::2] true", "default/lan net1 [192.0.2.2] false"
	for _, row := range []struct {
		name             string
		pod, lan, engine string // guestwire's entry in the list of eth0's network, in that of net1's, and after Multus
		main             string // plugin of net1's network; empty: a bridge
		statuses, taps   []string
		refused          string
	}{
		{name: "in the networks' lists", pod: wired, main: `"type": "macvlan", "master": "lan0"`, lan: unbound, statuses: []string{eth0, net1}, taps: []string{"eth0-tap", "net1-tap"}},
		{name: "after Multus", engine: strings.Replace(unbound, `"spec"`, `"everyNIC": true, "capabilities": {"io.kubernetes.cri.pod-annotations": true}, "spec"`, 1),
			statuses: []string{eth0, net1}, taps: []string{"eth0-tap", "net1-tap"}},
		{name: "tapResult", pod: tapResult, refused: onCluster},
		{name: "tapResult, if it were not refused", pod: strings.Replace(tapResult, `"guestwire"`, `"not-asked"`, 1),
			statuses: []string{eth0, "podnet eth0-tap [] false", "podnet eth0-tap [10.50.0.2] false", net1}, taps: []string{"eth0-tap"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			ns := nstest.New(t, "pod")
			before := ns.Settled()
			after := func(entry string) string {
				if entry != "" {
					entry = ", " + entry
				}
				return entry
			}
			api := &apiServer{t: t, lan: fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "lan", "plugins": [{%s, "ipam":
				{"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "192.0.2.0/24"}]]}}%s]}`,
				cmp.Or(row.main, `"type": "bridge", "bridge": "lan"`), t.TempDir(), after(row.lan))}
			l := list(t, "1.0.0", "multus", fmt.Sprintf(`{"type": "multus", "kubeconfig": %q, "cniDir": %q, "binDir": %q, "delegates":
				[{"cniVersion": "1.0.0", "name": "podnet", "plugins": [{"type": "ptp", "ipam": %s}%s]}]}%s`,
				api.start(), t.TempDir(), n.plugins, dualStack(t, "10.50.0.0/24", "fd00:50::/64"), after(row.pod), after(row.engine)))
			rt := &libcni.RuntimeConf{ContainerID: "multus-1", NetNS: ns.Path(), IfName: "eth0", Args: podArgs, CapabilityArgs: map[string]any{
				"io.kubernetes.cri.pod-annotations": map[string]string{"guestwire/nic.eth0": "redirect", "guestwire/nic.net1": "redirect"}}}
			_, err := n.cni.AddNetworkList(t.Context(), l, rt)
			switch {
			case row.refused == "" && err != nil:
				t.Error(err)
			case row.refused != "" && (err == nil || !strings.Contains(err.Error(), row.refused)):
				t.Errorf("ADD: %v, want %s", err, row.refused)
			}
			if !slices.Equal(api.statuses, row.statuses) {
				t.Errorf("the pod's networks are %q, want %q", api.statuses, row.statuses)
			}
			links := ns.Exec("ip", "-o", "link")
			for _, tap := range row.taps {
				if !strings.Contains(links, tap) {
					t.Errorf("no %s:\n%s", tap, links)
				}
			}
			if err := n.cni.DelNetworkList(t.Context(), l, rt); err != nil {
				t.Error(err)
			}
			if err := nstest.Difference(before, ns.Settled()); err != nil {
				t.Error(err)
			}
		})
	}
}

// apiServer answers Multus as a cluster with a pod and a NetworkAttachmentDefinition would.
type apiServer struct {
	t        *testing.T
	lan      string   // the CNI list of the definition
	statuses []string // of the pod's networks, as Multus has written them
}

// start returns the path of a kubeconfig.
func (a *apiServer) start() string {
	server := httptest.NewServer(a)
	a.t.Cleanup(server.Close)
	path := filepath.Join(a.t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": %q}}],
		"contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`, server.URL)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	metadata := map[string]any{"namespace": "default", "name": "vm", "uid": "7", "annotations": map[string]string{
		"k8s.v1.cni.cncf.io/networks": `[{"name": "lan", "cni-args": {"guestwire": {"binding": {"redirect": {}}}}}]`}}
	answer := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
	switch {
	case strings.HasSuffix(r.URL.Path, "/network-attachment-definitions/lan"):
		answer = map[string]any{"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
			"metadata": map[string]string{"namespace": "default", "name": "lan"}, "spec": map[string]string{"config": a.lan}}
	case strings.HasSuffix(r.URL.Path, "/events"):
		answer = map[string]any{"apiVersion": "v1", "kind": "Event"}
	case strings.HasSuffix(r.URL.Path, "/pods/vm/status"):
		body, err := io.ReadAll(r.Body) // protobuf; the annotation in it is JSON
		_, status, _ := strings.Cut(string(body), "network-status")
		status = status[max(0, strings.Index(status, "[")):]
		var networks []struct {
			Name, Interface string
			IPs             []string
			Default         bool
		}
		if err == nil {
			err = json.NewDecoder(strings.NewReader(status)).Decode(&networks)
		}
		if err != nil {
			a.t.Errorf("%v: %q", err, body)
		}
		for _, n := range networks {
			a.statuses = append(a.statuses, fmt.Sprintf("%s %s %v %v", n.Name, n.Interface, n.IPs, n.Default))
		}
	case !strings.HasSuffix(r.URL.Path, "/pods/vm"):
		a.t.Errorf("%s %s", r.Method, r.URL.Path)
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(answer)
}
