package kubernetes

import (
	"testing"

	"github.com/guestwire/guestwire/internal/rig/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestKubernetes is all scenarios on one cluster.
func TestKubernetes(t *testing.T) {
	c := New(t)
	t.Log(c.Kubectl("", "get", "nodes", "-o", "wide"))
}
