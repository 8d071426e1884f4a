package container

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/node"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestNodeImage: podman builds the image of guestwire-node by its Containerfile, and loads the archive of make image.
func TestNodeImage(t *testing.T) {
	e := New(t, false)
	e.write(t, "/tmp/node/Containerfile", "../../../examples/kubernetes/Containerfile")
	bin := ""
	for _, folder := range []string{"examples/guestwire-node", "examples/guestwire", "examples/guestwire-agent", "examples/guestwire-launcher"} {
		program := nstest.Program(t, folder)
		bin = filepath.Dir(program)
		e.write(t, "/tmp/node/"+filepath.Base(program), program)
	}
	const built, loaded = "localhost/guestwire-node:built", "localhost/guestwire-node:loaded"
	e.MustPodman(t, "build --quiet --tag "+built+" /tmp/node")
	var archive bytes.Buffer
	if err := node.DaemonImage(loaded, bin).Write(&archive); err != nil {
		t.Fatal(err)
	}
	if err := e.machine.Write("/tmp/node.tar", archive.Bytes()); err != nil {
		t.Fatal(err)
	}
	e.MustPodman(t, "load --quiet --input /tmp/node.tar")
	for _, image := range []string{built, loaded} {
		if out := e.MustPodman(t, "run --rm --network none "+image+" version"); !strings.Contains(out, "go1.") {
			t.Errorf("%s: %s", image, out)
		}
	}
}
