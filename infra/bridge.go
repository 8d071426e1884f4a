package infra

import "github.com/guestwire/guestwire/cache"

// Bridge makes the guest the station that the NIC was, with its addresses, routes and MAC. The NIC becomes a port of a
// bridge. The namespace keeps the NIC's name, MAC and addresses on a link that is down.
//
// Bridge needs nf_tables. A [*RefusedError]: the NIC carries no Ethernet with ARP, or is an ipvlan, a macvtap, a
// bridge, or a macvlan that is not in mode passthru. So is a NIC on which macvlans, macvtaps or ipvlans lie. The same
// holds for what only router advertisements can make on the NIC. Such are a temporary address, an IPv6 MTU below the
// link's, and an advertised route beside another one of the same metric.
type Bridge struct {
	// MAC is the guest's. Zero: the NIC's. The record warns if the network seems to drop the
	// frames of another MAC.
	MAC cache.MAC `json:"mac,omitzero"`
}

func (Bridge) Kind() cache.Kind            { return cache.BindingBridge }
func (b Bridge) validate() error           { return checkStation("binding.bridge.mac", b.MAC) }
func (Bridge) validateGuard(g Guard) error { return g.opensNothing() }
