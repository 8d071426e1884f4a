package guests_test

import (
	"context"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/internal/rig/vm"
)

func newNIC(t *testing.T, r cache.Record, o qemu.Options) *qemu.NIC {
	t.Helper()
	nic, err := qemu.NewNIC(&r, o)
	if err != nil {
		t.Fatal(err)
	}
	return nic
}

// bootQEMU boots a guest, which ends with the test.
func bootQEMU(ctx context.Context, t *testing.T, cfg vm.Config, nics ...*qemu.NIC) *vm.Guest {
	t.Helper()
	g, err := vm.BootQEMU(ctx, cfg, nics...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Destroy(); err != nil {
			t.Error(err)
		}
	})
	return g
}
