package container

import (
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/tutorial"
)

// TestTutorial: the page's commands boot a guest in a container, which answers at the published port; and so do those
// of the page on hooks, with the same image. -own is for a machine that is in a PID namespace of its own.
func TestTutorial(t *testing.T) {
	e := New(t, false)
	e.importQEMU(t)
	e.importGuest(t)
	shells := e.reader(t)
	tutorial.TypeAt(t, tutorial.Read(t, "docs/tutorials/container.md"), shells)
	hook := strings.Replace(tutorial.Read(t, "docs/how-to/oci-hook.md"), `"guestwire-agent", "hook",`, `"guestwire-agent", "hook", "-own",`, 1)
	tutorial.TypeAt(t, hook, shells)
}
