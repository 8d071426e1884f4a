package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/node"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// restricted are the labels of a namespace in which pods have nothing that Pod Security's strictest level forbids.
const restricted = "pod-security.kubernetes.io/enforce=restricted"

// launcher is a pod whose only container is a launcher that serves. What makes it a VM's pod is one annotation.
type launcher struct {
	name       string
	annotation string // of guestwire/nic.eth0; empty: redirect
	more       string // further annotations, a YAML flow without braces
	spec       string // lines of the pod's spec, indented by two
	container  string // lines of the container, indented by four
}

func (l launcher) template() string {
	if l.annotation == "" {
		l.annotation = "redirect"
	}
	if l.more != "" {
		l.more = ", " + l.more
	}
	return fmt.Sprintf(`metadata: {name: %s, labels: {app: %[1]s}, annotations: {guestwire/nic.eth0: '%s'%s}}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 5
  securityContext: {runAsUser: 107, runAsGroup: 107, runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
%s
  containers:
  - name: launcher
    image: %s
    args: [serve, -state, /run/guestwire]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
%s
`, l.name, l.annotation, l.more, l.spec, node.LauncherImage, l.container)
}

func (l launcher) pod() string { return "apiVersion: v1\nkind: Pod\n" + l.template() }

func (l launcher) deployment(replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: %[1]s}}
  template:
    %[3]s`, l.name, replicas, strings.ReplaceAll(l.template(), "\n", "\n    "))
}

// guestRuns wants a pod's guest to get its address, and to be reached at its Service's address by another pod.
func (c *Cluster) guestRuns(t testing.TB, namespace, name string) (p *pod, s *stream) {
	t.Helper()
	p = c.pod(t, namespace, name)
	c.boot(t, p, "eth0")
	client := c.pod(t, namespace, "client")
	s = newStream(t, client.Namespace, c.service(t, namespace, name))
	s.goesOn(t)
	return p, s
}

// testGuest is a VM's pod in a namespace that allows nothing but what each pod may: the annotation is all.
func (c *Cluster) testGuest(t *testing.T) {
	before := c.leftovers(t)
	t.Run("pod", func(t *testing.T) {
		c.namespace(t, "restricted", restricted)
		c.apply(t, "restricted", idle("client"))
		c.pod(t, "restricted", "client")
		began := time.Now()
		c.apply(t, "restricted", launcher{name: "vm"}.pod(), service("vm"))
		p := c.pod(t, "restricted", "vm")
		c.took("a VM's pod is created, until its launcher runs", began)
		c.boot(t, p, "eth0")
		c.took("... and until a guest without boot time has its address", began)
		client := c.pod(t, "restricted", "client")
		s := newStream(t, client.Namespace, c.service(t, "restricted", "vm"))
		s.goesOn(t)
		for path, want := range map[string]string{
			"/proc/1/status": "CapEff:\t0000000000000000",
			"/proc/1/mounts": " /run/guestwire ",
		} {
			if out := c.Kubectl(t, "", "exec", "--namespace=restricted", "vm", "--", "cat", path); !strings.Contains(out, want) {
				t.Errorf("%s of the launcher has no %q:\n%s", path, want, out)
			}
		}
		if out, err := c.TryKubectl("", "exec", "--namespace=restricted", "vm", "--", "sh", "-c", ">/run/guestwire/x || >/x"); err == nil {
			t.Errorf("the launcher can write its records, or its root: %s", out)
		}
	})
	c.gone(t, before)
}

// replicas is how many pods a Deployment is scaled to.
const replicas = 20

// testScale scales a Deployment of VM pods up and down.
func (c *Cluster) testScale(t *testing.T) {
	c.wantNoLeftovers(t, func(t *testing.T) {
		c.namespace(t, "scale", restricted)
		c.apply(t, "scale", launcher{name: "vm"}.deployment(0))
		began := time.Now()
		c.Kubectl(t, "", "scale", "--namespace=scale", fmt.Sprintf("--replicas=%d", replicas), "deployment/vm")
		c.wait(t, "scale", fmt.Sprintf("jsonpath={.status.readyReplicas}=%d", replicas), "deployment/vm")
		c.took(fmt.Sprintf("a Deployment is scaled from 0 to %d VM pods, until all are ready", replicas), began)
		t.Run("guests", func(t *testing.T) {
			names := strings.Fields(c.pods(t, "scale", "vm"))
			if len(names) != replicas {
				t.Fatalf("pods: %q", names)
			}
			for _, name := range names {
				c.boot(t, c.pod(t, "scale", name), "eth0")
			}
		})
		began = time.Now()
		c.Kubectl(t, "", "scale", "--namespace=scale", "--replicas=0", "deployment/vm")
		c.wait(t, "scale", "delete", "pod", "--selector=app=vm")
		c.took(fmt.Sprintf("the Deployment is scaled from %d to 0, until the last pod is gone", replicas), began)
	})
}

// testErrors is what the author of a pod sees of mistakes.
func (c *Cluster) testErrors(t *testing.T) {
	c.wantNoLeftovers(t, func(t *testing.T) {
		c.namespace(t, "mistakes", restricted)
		for _, mistake := range []struct {
			launcher
			words []string
		}{
			{launcher{name: "binding", annotation: "redirekt"}, []string{"guestwire/nic.eth0", "redirekt", "masquerade"}},
			{launcher{name: "key", more: "guestwire/nick.eth0: redirect"}, []string{"guestwire/nick.eth0", "guestwire/nic."}},
			{launcher{name: "field", annotation: `{"binding": {"masquerade": {"ports": ["99999"]}}}`}, []string{"guestwire/nic.eth0", "99999"}},
			{launcher{name: "guard", annotation: `{"guard": {}}`}, []string{"guard", "trustPods"}},
			{launcher{name: "nic", more: "guestwire/nic.eth7: redirect"}, []string{"guestwire/nic.eth7", "is guestwire in the node's CNI list"}},
			{launcher{name: "device", more: "guestwire/devices: vhost-net"}, []string{"vhost-net"}},
		} {
			c.apply(t, "mistakes", mistake.pod())
			t.Logf("%s: %s", mistake.name, c.event(t, "mistakes", mistake.name, mistake.words...))
		}
	})
}

// tunLimit asks the device plugin for /dev/net/tun.
const tunLimit = "    resources: {limits: {guestwire/tun: 1}}"

// testRestarts restarts what a running guest does not need: kubelet, engine and DaemonSet.
func (c *Cluster) testRestarts(t *testing.T) {
	c.wantNoLeftovers(t, func(t *testing.T) {
		c.namespace(t, "restarts", restricted)
		c.apply(t, "restarts", idle("client"), launcher{name: "vm", container: tunLimit}.pod(), service("vm"))
		p, s := c.guestRuns(t, "restarts", "vm")
		pings := newPings(t, c.pod(t, "restarts", "client").Namespace, p.address)

		t.Log("the kubelet is restarted")
		plugin := c.inode(t, pluginSocket)
		c.Stop(t, "kubelet")
		s.goesOn(t)
		c.Start(t, "kubelet")
		nstest.Eventually(t, func() error {
			if now := c.inode(t, pluginSocket); now == "" || now == plugin {
				return fmt.Errorf("the device plugin's socket is %s, and was %s before the kubelet's restart", now, plugin)
			}
			return nil
		})
		s.goesOn(t)
		c.apply(t, "restarts", launcher{name: "kubelet", container: tunLimit}.pod())
		c.pod(t, "restarts", "kubelet")

		t.Log("the engine is restarted")
		if err := c.Engine.Stop(); err != nil {
			t.Fatal(err)
		}
		s.goesOn(t)
		if err := c.Engine.Start(); err != nil {
			t.Fatal(err)
		}
		s.goesOn(t)
		c.apply(t, "restarts", launcher{name: "engine"}.pod())
		c.pod(t, "restarts", "engine")

		t.Log("the DaemonSet is restarted")
		c.Kubectl(t, "", "rollout", "restart", "--namespace="+system, daemonSet)
		c.Kubectl(t, "", "rollout", "status", "--namespace="+system, daemonSet, "--timeout="+patience.String())
		s.goesOn(t)
		c.apply(t, "restarts", launcher{name: "daemonset"}.pod())
		c.pod(t, "restarts", "daemonset")

		fmt.Printf("doc: | pings to a running guest while kubelet, containerd and the DaemonSet are restarted | %d, none lost |\n", pings.end(t))
		if now := c.pod(t, "restarts", "vm"); now.uid != p.uid || now.sandbox != p.sandbox {
			t.Error("the pod is another one")
		}
		if count := c.Kubectl(t, "", "get", "--namespace=restarts", "pod", "vm", "--output=jsonpath={.status.containerStatuses[0].restartCount}"); count != "0" {
			t.Errorf("the launcher was restarted %s times", count)
		}
	})
}

// testInterrupted restarts kubelet and engine while the plugin's ADD runs for a pod. The kubelet runs the pod again.
func (c *Cluster) testInterrupted(t *testing.T) {
	c.wantNoLeftovers(t, func(t *testing.T) {
		c.namespace(t, "interrupted", restricted)
		gate := c.NewGate(t, "portmap") // the plugin before guestwire
		kubelet := func() { c.Start(t, "kubelet") }
		engine := func() {
			if err := c.Engine.Start(); err != nil {
				t.Fatal(err)
			}
		}
		for _, restart := range []struct {
			name  string
			end   func() error
			start func()
		}{
			{"kubelet-term", func() error { return c.parts["kubelet"].Stop() }, kubelet},
			{"kubelet-kill", func() error { return c.parts["kubelet"].Kill() }, kubelet},
			{"engine-term", c.Engine.Stop, engine},
			{"engine-kill", c.Engine.Kill, engine},
		} {
			gate.Close(t)
			c.apply(t, "interrupted", launcher{name: restart.name}.pod())
			held := gate.Reached(t)
			release := c.holdNamespace(t, held.NetNS)
			held.Open(t)
			nstest.Eventually(t, func() error {
				_, err := c.Run("pgrep", "-x", "guestwire")
				return err
			})
			if err := restart.end(); err != nil {
				t.Fatal(err)
			}
			release()
			restart.start()
			p := c.pod(t, "interrupted", restart.name)
			if p.sandbox == held.ID {
				t.Errorf("%s: the pod has the sandbox whose ADD was interrupted", restart.name)
			}
			c.boot(t, p, "eth0")
			c.Kubectl(t, "", "delete", "--namespace=interrupted", "pod", restart.name, "--timeout="+patience.String())
		}
	})
}

// holdNamespace keeps guestwire's calls from working on a namespace until it is released.
func (c *Cluster) holdNamespace(t testing.TB, ns *os.File) (release func()) {
	t.Helper()
	info, err := ns.Stat()
	if err != nil {
		t.Fatal(err)
	}
	path := c.Path(fmt.Sprintf("/run/guestwire.lock/%d", info.Sys().(*syscall.Stat_t).Ino))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil { // the first pod's ADD would
		t.Fatal(err)
	}
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		os.Remove(path)
		lock.Close()
	}
}

// pluginSocket is the device plugin's, which the kubelet removes when it starts.
const pluginSocket = "/var/lib/kubelet/device-plugins/guestwire-tun.sock"

// inode identifies a file of the node, empty if there is none.
func (c *Cluster) inode(t testing.TB, path string) string {
	t.Helper()
	out, err := c.Run("stat", "--format=%i %W", path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}

// pods returns the names of the pods with a label app.
func (c *Cluster) pods(t testing.TB, namespace, app string) string {
	t.Helper()
	return c.Kubectl(t, "", "get", "--namespace="+namespace, "pods", "--selector=app="+app, "--output=jsonpath={.items[*].metadata.name}")
}

// testReboot kills the whole node and starts it again, with all of its files but those of /run. guestwire-node starts
// beside the pods, or after each of them has failed without it.
func (c *Cluster) testReboot(t *testing.T) {
	for _, late := range []bool{false, true} {
		c.wantNoLeftovers(t, func(t *testing.T) { c.rebooted(t, late) })
	}
}

func (c *Cluster) rebooted(t *testing.T, late bool) {
	namespace := map[bool]string{false: "reboot", true: "reboot-late"}[late]
	c.namespace(t, namespace, restricted)
	c.apply(t, namespace, launcher{name: "vm"}.deployment(2), launcher{name: "device", container: tunLimit}.deployment(1))
	c.wait(t, namespace, "jsonpath={.status.readyReplicas}=2", "deployment/vm")
	c.wait(t, namespace, "jsonpath={.status.readyReplicas}=1", "deployment/device")
	names, device := strings.Fields(c.pods(t, namespace, "vm")), c.pods(t, namespace, "device")
	if late {
		c.nodesOf(t, "none")
		c.wait(t, system, "delete", "pod", "--selector=app.kubernetes.io/name=guestwire-node")
	}
	began := time.Now()
	c.Reboot(t)
	if late {
		for _, name := range names {
			c.startedAgain(t, namespace, name, "guestwire-launcher: records: ")
		}
		c.nodesOf(t, "linux")
	}
	for _, name := range names {
		c.startedAgain(t, namespace, name, "event=ready")
	}
	if !late {
		c.took("the node is killed and starts again, until its VM pods run again", began)
	}
	t.Run("guests", func(t *testing.T) {
		for _, name := range names {
			c.boot(t, c.pod(t, namespace, name), "eth0")
		}
	})
	// The kubelet admits pods before the device plugin is there. Those that ask it for a device do not come back, and nor
	// do those that the Deployment makes before the plugin is there.
	c.event(t, namespace, device, "Allocate failed", "guestwire/tun")
	var next string
	c.eventually(t, namespace, func() error {
		running := c.Kubectl(t, "", "get", "--namespace="+namespace, "pods", "--selector=app=device", "--field-selector=status.phase=Running",
			"--output=jsonpath={.items[*].metadata.name}")
		if next = running; next == "" || strings.Contains(next, device) {
			return fmt.Errorf("the Deployment has no running pod instead of %s, but %q", device, running)
		}
		return nil
	})
	c.boot(t, c.pod(t, namespace, next), "eth0")
}

// nodesOf says on which nodes guestwire-node runs: on those with the operating system.
func (c *Cluster) nodesOf(t testing.TB, os string) {
	t.Helper()
	c.Kubectl(t, "", "patch", "--namespace="+system, daemonSet, "--patch", fmt.Sprintf(`{"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": %q}}}}}`, os))
}

// startedAgain waits until a container of the pod that was started after the first one has printed a text. The number
// of its restarts says less: a container that the engine creates before guestwire-node is connected has no records, and
// ends.
func (c *Cluster) startedAgain(t testing.TB, namespace, name, text string) {
	t.Helper()
	c.eventually(t, namespace, func() error {
		count := c.Kubectl(t, "", "get", "--namespace="+namespace, "pod", name, "--output=jsonpath={.status.containerStatuses[0].restartCount}")
		log, err := c.TryKubectl("", "logs", "--namespace="+namespace, name)
		if count == "0" || !strings.Contains(log, text) {
			return fmt.Errorf("pod %s, after %s restarts, does not print %q, but %q, %w", name, count, text, log, err)
		}
		return nil
	})
}
