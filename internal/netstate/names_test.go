package netstate_test

import (
	"testing"

	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// TestNames: they fit, are names, and differ, whatever the NIC is called.
func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, nic := range []string{"e", "eth0", "eth1", "tencharact", "elevenchara", "fifteencharacte", "fifteencharactf"} {
		n := netstate.NamesFor(nic, "")
		if n.NIC != nic {
			t.Errorf("NamesFor(%q).NIC is %q", nic, n.NIC)
		}
		for _, name := range []string{n.Moved, n.Bridge, n.Tap, n.Responder} {
			if err := syntax.CheckLinkName(name); err != nil {
				t.Error(err)
			}
			if other, taken := seen[name]; taken {
				t.Errorf("%s and %s both have a link %s", other, nic, name)
			}
			seen[name] = nic
		}
	}
}
