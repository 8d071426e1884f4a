package podnet

import "github.com/guestwire/guestwire/internal/rig/nstest"

// selection: Debian's kernel is a Linux 6.1 with all modules.
var selection = nstest.Selection{
	Kernels: []nstest.Selected{
		{Test: "TestMatrix/(flannel,_bridge|.*,_vlan|.*ipvlan.*|vlan)", Why: "ipvlan and VLANs, which not every kernel has, and one network that is common"},
	},
	Short: []nstest.Selected{
		{Test: "TestMatrix/bridge", Why: "one network"},
		{Test: "TestSolicits", Why: "no kernel"},
	},
}
