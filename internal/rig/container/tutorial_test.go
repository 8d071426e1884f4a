package container

import (
	"testing"

	"github.com/guestwire/guestwire/internal/test/tutorial"
)

// TestTutorial: the page's commands boot a guest in a container, which answers at the published port.
func TestTutorial(t *testing.T) {
	e := New(t, false)
	e.importBase(t)
	e.importGuest(t)
	tutorial.TypeAt(t, tutorial.Read(t, "docs/tutorials/container.md"), e.reader(t))
}
