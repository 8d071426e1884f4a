package podnet

import "slices"

// Networks are all networks, in the order of docs/results/networks.md.
var Networks = slices.Concat(
	plugins,
	leased,
	bridges,
	flannel,
	calico,
	clouds,
	exclusive,
	containers,
	tunnels,
	bonds,
	switches,
	ovn,
)

// ovn are the networks of logical switches and routers.
var ovn = []Network{kubeOVN, kubeOVNInternal, kubeOVNUnderlay, kubeOVNVLAN, ovnKubernetes, ovnKubernetesVM}

// switches are the networks with an Open vSwitch whose flows an agent on the node writes.
var switches = []Network{openShiftSDN}
