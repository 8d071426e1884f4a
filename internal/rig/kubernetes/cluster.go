// Package kubernetes runs Kubernetes for tests: etcd, all parts of a control plane and of a node, and containerd, on a
// node of package node. install.sh builds them. Nothing is installed, and nothing is left when the test ends.
package kubernetes

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/node"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// The addresses of the cluster. Pods have those of 10.244.0.0/24, and Services those of 10.96.0.0/16.
const (
	NodeAddress    = "192.0.2.10"
	ServiceAddress = "10.96.0.1" // the API server's
	PodGateway     = "10.244.0.1"
)

// NodeName is the name of the cluster's only node.
const NodeName = "node"

// Handler is a runtime handler of the engine in addition to the default one, with CNI lists of its own in HandlerCNI.
const (
	Handler    = "guestwire"
	HandlerCNI = "/etc/cni/guestwire.d"
)

// patience is the limit of a wait that ends by an event. A cluster on two busy cores is slow.
const patience = 3 * time.Minute

// Programs is the directory with the programs, which install.sh prints and "make kubernetes" passes on; empty if there
// is none.
var Programs = os.Getenv("GUESTWIRE_KUBERNETES")

// Cluster is a Kubernetes with one node.
type Cluster struct {
	// Node is the machine of all parts. Reboot replaces it.
	*node.Node

	// Engine is the node's containerd.
	Engine *node.Engine

	t     testing.TB
	parts map[string]*node.Process

	original map[string]string // of files, before guestwire was installed
}

// New starts a cluster for as long as the test, and waits until its node is ready. The test is skipped if Programs is
// empty.
func New(t testing.TB) *Cluster {
	t.Helper()
	if Programs == "" {
		nstest.LeaveOut(t, "only make kubernetes has the programs of a cluster")
	}
	nstest.Need(t, "nft")
	nstest.NeedTaps(t)
	c := &Cluster{t: t, parts: map[string]*node.Process{}}
	c.Node = node.New(t, node.Config{Dir: filepath.Join(nstest.Dir(t), "node"), Name: NodeName})
	c.configure()
	c.start()
	return c
}

//go:embed config
var config embed.FS

// dir is where the parts have their configuration.
const dir = "/etc/kubernetes"

// configure writes the files of the parts.
func (c *Cluster) configure() {
	c.t.Helper()
	for name, to := range map[string]string{
		"kubelet.yaml":  dir + "/kubelet.yaml",
		"proxy.yaml":    dir + "/proxy.yaml",
		"pods.conflist": node.CNIConf + "/10-pods.conflist",
	} {
		text, err := config.ReadFile("config/" + name)
		if err != nil {
			c.t.Fatal(err)
		}
		c.write(to, text)
	}
	c.write(dir+"/resolv.conf", []byte("nameserver 192.0.2.53\n"))

	ca, err := newAuthority()
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(dir+"/ca.crt", ca.pem())
	key, public, err := serviceAccountKey()
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(dir+"/serviceaccounts.key", key)
	c.write(dir+"/serviceaccounts.pub", public)
	addresses := []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(NodeAddress), net.ParseIP(ServiceAddress)}
	for name, user := range map[string]struct {
		name   string
		groups []string
	}{
		"apiserver":   {"kube-apiserver", []string{"system:masters"}},
		"admin":       {"admin", []string{"system:masters"}},
		"controllers": {"system:kube-controller-manager", nil},
		"scheduler":   {"system:kube-scheduler", nil},
		"proxy":       {"system:kube-proxy", nil},
		"kubelet":     {"system:node:" + NodeName, []string{"system:nodes"}},
	} {
		key, certificate, err := ca.identity(user.name, user.groups, addresses, "localhost", NodeName, "kubernetes.default.svc")
		if err != nil {
			c.t.Fatal(err)
		}
		c.write(dir+"/"+name+".key", key)
		c.write(dir+"/"+name+".crt", certificate)
		c.write(dir+"/"+name+".conf", fmt.Appendf(nil, kubeconfig, NodeAddress, dir, name))
	}
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://%s:6443", certificate-authority: %[2]s/ca.crt}}]
users: [{name: test, user: {client-certificate: %[2]s/%[3]s.crt, client-key: %[2]s/%[3]s.key}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`

func (c *Cluster) write(path string, content []byte) {
	c.t.Helper()
	if err := c.WriteFile(path, string(content), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// commands are the parts in the order in which they start, with the names of package node's processes and logs.
var commands = []struct {
	name  string
	words []string
	ready []string // a kubectl command line that succeeds once the part serves
}{
	{name: "etcd", words: []string{"etcd", "--data-dir=/var/lib/etcd", "--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379", "--listen-peer-urls=http://127.0.0.1:2380"}},
	{name: "apiserver", words: []string{"kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=" + NodeAddress, "--advertise-address=" + NodeAddress, "--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file=" + dir + "/apiserver.crt", "--tls-private-key-file=" + dir + "/apiserver.key", "--client-ca-file=" + dir + "/ca.crt",
		"--kubelet-client-certificate=" + dir + "/apiserver.crt", "--kubelet-client-key=" + dir + "/apiserver.key",
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + dir + "/serviceaccounts.pub",
		"--service-account-signing-key-file=" + dir + "/serviceaccounts.key",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged"},
		ready: []string{"get", "--raw", "/readyz"}},
	{name: "controllers", words: []string{"kube-controller-manager", "--kubeconfig=" + dir + "/controllers.conf", "--leader-elect=false",
		"--use-service-account-credentials", "--root-ca-file=" + dir + "/ca.crt", "--service-account-private-key-file=" + dir + "/serviceaccounts.key"}},
	{name: "scheduler", words: []string{"kube-scheduler", "--kubeconfig=" + dir + "/scheduler.conf", "--leader-elect=false"}},
	{name: "kubelet", words: []string{"kubelet", "--config=" + dir + "/kubelet.yaml", "--kubeconfig=" + dir + "/kubelet.conf",
		"--node-ip=" + NodeAddress, "--hostname-override=" + NodeName, "--root-dir=/var/lib/kubelet"}},
	{name: "proxy", words: []string{"kube-proxy", "--config=" + dir + "/proxy.yaml", "--hostname-override=" + NodeName}},
}

// start starts the engine and all parts, and waits until the node is ready.
func (c *Cluster) start() {
	c.t.Helper()
	c.MustRun(c.t, "sh", "-ec", "ip link add node0 type bridge && ip address add "+NodeAddress+"/24 dev node0 && ip link set node0 up &&"+
		" ip route add default via 192.0.2.1 dev node0")
	c.Engine = c.StartEngine(c.t, node.EngineConfig{
		Programs: Programs,
		Runc:     path.Join(Programs, "runc"),
		Handlers: map[string]string{Handler: HandlerCNI},
	})
	for _, part := range commands {
		c.Start(c.t, part.name)
		if part.ready != nil {
			nstest.Eventually(c.t, func() error {
				_, err := c.TryKubectl("", part.ready...)
				return err
			})
		}
	}
	c.Kubectl(c.t, "", "wait", "--for=create", "--timeout="+patience.String(), "node/"+NodeName)
	c.Kubectl(c.t, "", "wait", "--for=condition=Ready", "--timeout="+patience.String(), "node/"+NodeName)
}

// Start starts a part: etcd, apiserver, controllers, scheduler, kubelet or proxy.
func (c *Cluster) Start(t testing.TB, name string) {
	t.Helper()
	for _, part := range commands {
		if part.name == name {
			program := path.Join(Programs, part.words[0])
			if name == "etcd" {
				program = unpacked.Path("containerd/usr/bin/etcd")
			}
			words := append([]string{program}, part.words[1:]...)
			p, err := c.Node.Start(name, words...)
			if err != nil {
				t.Fatal(err)
			}
			c.parts[name] = p
			return
		}
	}
	t.Fatalf("no part is called %s", name)
}

// Stop ends a part by SIGTERM.
func (c *Cluster) Stop(t testing.TB, name string) {
	t.Helper()
	if err := c.parts[name].Stop(); err != nil {
		t.Fatal(err)
	}
}

// Reboot kills all processes of the node, and starts the node and the cluster again with the files of the node but
// those of /run.
func (c *Cluster) Reboot(t testing.TB) {
	t.Helper()
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(c.Dir, "run")); err != nil {
		t.Fatal(err)
	}
	c.Node = node.New(c.t, node.Config{Dir: c.Dir, Name: NodeName})
	c.start()
}

// TryKubectl runs kubectl as the administrator and returns what it printed to the standard output. The error has what
// it printed to the other.
func (c *Cluster) TryKubectl(input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience+time.Minute)
	defer cancel()
	out, err := c.kubectl(ctx, input, args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// Kubectl is TryKubectl for what has to succeed.
func (c *Cluster) Kubectl(t testing.TB, input string, args ...string) string {
	t.Helper()
	out, err := c.TryKubectl(input, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *Cluster) kubectl(ctx context.Context, input string, args ...string) *exec.Cmd {
	cmd := c.Command(ctx, path.Join(Programs, "kubectl"), append([]string{"--kubeconfig=" + dir + "/admin.conf"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	return cmd
}
