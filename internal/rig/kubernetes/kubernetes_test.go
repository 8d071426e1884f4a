package kubernetes

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/node"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestKubernetes is all scenarios on one cluster, one after another: each says what it leaves to the next one. A line
// "doc: TEXT" is one of docs/results/kubernetes.md.
func TestKubernetes(t *testing.T) {
	machine := lookAtMachine(t)
	t.Cleanup(func() { machine.unchanged(t) })
	began := time.Now()
	c := New(t)
	fmt.Printf("doc: One run of %s, containerd %s and runc on two cores. The times depend on the machine and on what else it does.\ndoc: \n",
		c.Kubectl(t, "", "get", "node", NodeName, "--output=jsonpath=Kubernetes {.status.nodeInfo.kubeletVersion}"), c.Engine.Version)
	fmt.Println("doc: | what | measured |\ndoc: | --- | ---: |")
	c.took("a cluster is started, until its node is ready", began)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"services", c.testServices},
		{"tutorial", c.testTutorial},
		{"install", c.testInstall},
		{"look", c.testLook},
		{"guest", c.testGuest},
		{"vm", c.testVM},
		{"errors", c.testErrors},
		{"restarts", c.testRestarts},
		{"interrupted", c.testInterrupted},
		{"upgrade", c.testUpgrade},
		{"scale", c.testScale},
		{"reboot", c.testReboot},
		{"uninstall", c.testUninstall},
		{"runtimeclass", c.testRuntimeClass},
		{"without-nri", c.testWithoutNRI},
	} {
		if !t.Run(scenario.name, scenario.run) {
			return // what follows builds upon it
		}
	}
}

// wantNoLeftovers runs a part of a scenario, after which nothing of its pods is left.
func (c *Cluster) wantNoLeftovers(t *testing.T, pods func(t *testing.T)) {
	before := c.leftovers(t)
	t.Run("pods", pods)
	c.gone(t, before)
}

// took writes a row of measured times.
func (c *Cluster) took(what string, since time.Time) {
	fmt.Printf("doc: | %s | %.1f s |\n", what, time.Since(since).Seconds())
}

// testServices is about the cluster itself: a pod reaches another one at its Service's address.
func (c *Cluster) testServices(t *testing.T) {
	c.wantNoLeftovers(t, func(t *testing.T) {
		c.namespace(t, "services")
		c.apply(t, "services", idle("server"), idle("client"), service("server"))
		server, client := c.pod(t, "services", "server"), c.pod(t, "services", "client")
		server.Listen("server", fmt.Sprint(":", echoPort))
		s := newStream(t, client.Namespace, c.service(t, "services", "server"))
		p := newPings(t, client.Namespace, server.address)
		s.goesOn(t)
		p.end(t)
	})
}

// idle is a pod that does nothing.
func idle(name string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %[1]s}}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 1000, runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: idle
    image: %s
    command: [sleep, inf]
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`, name, node.BusyboxImage)
}

// service is a Service with port 80 for echoPort of the pods with a label app.
func service(app string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s}
spec: {selector: {app: %[1]s}, ports: [{port: 80, targetPort: %d}]}
`, app, echoPort)
}

// apply makes objects in a namespace.
func (c *Cluster) apply(t testing.TB, namespace string, objects ...string) {
	t.Helper()
	var text string
	for _, object := range objects {
		text += object + "\n---\n"
	}
	c.Kubectl(t, text, "apply", "--namespace="+namespace, "--filename=-")
}

// service returns the address and port of a Service.
func (c *Cluster) service(t testing.TB, namespace, name string) netip.AddrPort {
	t.Helper()
	address, err := netip.ParseAddr(c.Kubectl(t, "", "get", "--namespace="+namespace, "service", name, "--output=jsonpath={.spec.clusterIP}"))
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(address, 80)
}
