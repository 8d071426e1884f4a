package podnet

import "github.com/guestwire/guestwire/internal/test/nstest"

// selection: Debian's kernel is a Linux 6.1 with all modules.
var selection = nstest.Selection{
	Kernels: []nstest.Selected{
		{Test: "TestMatrix", Why: "ipvlan, VLANs and WireGuard, which not every kernel has, and network cards of the machine"},
		{Test: "TestTrunk/CNI.*", Why: "VLANs, and a bridge that filters them"},
	},
	Short: []nstest.Selected{
		{Test: "TestMatrix/bridge", Why: "one network"},
		{Test: "TestSolicits", Why: "no kernel"},
	},
}
