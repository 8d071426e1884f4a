package kubernetes

import (
	"testing"

	"github.com/guestwire/guestwire/internal/rig/container"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/tutorial"
)

// testTutorial types container.KubernetesTutorial, from the repository to a guest that answers at its Service's
// address, and to a node without guestwire. The engine keeps the images.
func (c *Cluster) testTutorial(t *testing.T) {
	nstest.Need(t, "curl")
	c.copyManifests(t)
	c.original = c.files(t)
	before := c.leftovers(t)
	archives, page := container.BuildImages(t)
	t.Cleanup(func() {
		if t.Failed() {
			out, err := c.TryKubectl("", "describe", "--namespace="+vms, "pods")
			t.Log(out, err)
		}
	})
	tutorial.TypeAt(t, page, c.Engine.Reader(t, archives, "KUBECONFIG="+dir+"/admin.conf"))
	c.gone(t, before)
	c.given(t)
}
