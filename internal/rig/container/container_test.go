package container

import (
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestImage: both engines build the image, and a container of it has a NIC, QEMU and the programs of the entry point.
func TestImage(t *testing.T) {
	for name, rootless := range map[string]bool{"rootful": false, "rootless": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := New(t, rootless)
			e.Build(t)
			out := e.MustPodman(t, "run --rm --entrypoint sh "+Image+
				" -c 'ip -o -4 addr; qemu-system-x86_64 --version; agent version; launcher version'")
			for _, want := range []string{" inet 10.", "QEMU emulator version", "\nagent ", "\nlauncher "} {
				if !strings.Contains(out, want) {
					t.Errorf("%s\nwant %q in it", out, want)
				}
			}
		})
	}
}
