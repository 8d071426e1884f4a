package guests_test

import (
	"testing"

	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/tutorial"
)

// TestTutorials types the tutorials that boot a machine.
func TestTutorials(t *testing.T) {
	t.Parallel()
	vm.NeedGuest(t)
	nstest.Need(t, "apt-get", "virsh")
	for _, page := range []string{"first-vm", "qemu", "libvirt"} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			tutorial.TypePage(t, "docs/tutorials/"+page+".md")
		})
	}
}
