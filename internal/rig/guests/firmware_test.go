package guests_test

import (
	"strings"
	"testing"

	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestUEFI boots from the network by Debian's OVMF: by TFTP, and by HTTP, which OVMF tries after TFTP has failed. What
// is booted is Debian's GRUB, which has a network stack of its own and fetches its configuration from the same server.
func TestUEFI(t *testing.T) {
	t.Parallel()
	uid, gid := vm.NeedGuest(t)
	grub, err := vm.GRUB()
	if err != nil {
		t.Fatal(err)
	}
	for name, bootFile := range map[string]string{"TFTP": "grub.efi", "HTTP": "http://" + nstest.Beyond4.String() + "/grub.efi"} {
		if name == "HTTP" && *clients != "all" {
			continue
		}
		eachBoot(t, name+"/", []string{"bridge-on-link"}, func(t *testing.T, network bootNetwork) {
			ctx := bootTime(t)
			n := network.create(t)
			server := newBootServer(t, n.World, map[string][]byte{"/grub.efi": grub})
			c := bootConfig(n, network.binding, uid, gid)
			c.Options.BootFile = bootFile
			_, r := setupAndOpen(ctx, t, c)
			launcher := n.Serve(t, uid)
			g := bootQEMU(ctx, t, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Boot: vm.BootUEFI}, newNIC(t, r, qemu.Options{}))
			defer func() {
				if t.Failed() {
					t.Logf("console: %q\n%s", g.Console(), launcher.Output.String())
				}
			}()
			// OVMF loads GRUB, and GRUB looks for its configuration.
			for loaded := false; ; {
				v, err := server.visit(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if v.From != nstest.Pod4 {
					t.Errorf("%s asked for by %v, want %v", v.Path, v.From, nstest.Pod4)
				}
				loaded = loaded || v.Path == "/grub.efi"
				if loaded && strings.HasPrefix(v.Path, "/grub/") {
					break
				}
			}
			stopLauncher(t, launcher, r.IPv4.Address.Addr())
		})
	}
}
