package kubernetes

import (
	"net/netip"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/node"
	"github.com/guestwire/guestwire/internal/rig/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestKubernetes is all scenarios on one cluster.
func TestKubernetes(t *testing.T) {
	c := New(t)
	t.Run("services", c.testServices)
}

// testServices is about the cluster itself: a pod reaches another one at its Service's address.
func (c *Cluster) testServices(t *testing.T) {
	before := c.left(t)
	t.Run("pods", func(t *testing.T) {
		c.namespace(t, "services")
		c.Kubectl(t, `
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: server, labels: {app: server}}
  spec:
    terminationGracePeriodSeconds: 0
    containers: [{name: server, image: `+node.BusyboxImage+`, command: [sleep, inf]}]
- apiVersion: v1
  kind: Pod
  metadata: {name: client}
  spec:
    terminationGracePeriodSeconds: 0
    containers: [{name: client, image: `+node.BusyboxImage+`, command: [sleep, inf]}]
- apiVersion: v1
  kind: Service
  metadata: {name: server}
  spec: {clusterIP: 10.96.0.80, selector: {app: server}, ports: [{port: 80, targetPort: 8000}]}
`, "apply", "--namespace=services", "--filename=-")
		server, client := c.pod(t, "services", "server"), c.pod(t, "services", "client")
		server.Listen("server", ":8000")
		s := newStream(t, client.Namespace, netip.MustParseAddrPort("10.96.0.80:80"))
		p := newPings(t, client.Namespace, server.address)
		s.goesOn(t)
		t.Logf("%d pings", p.end(t))
	})
	c.gone(t, before)
}
