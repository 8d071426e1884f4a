package infra

import "github.com/guestwire/guestwire/cache"

// Bridge makes the guest the station that the NIC was, with its addresses, routes and MAC. The NIC becomes a port of a
// bridge. The namespace keeps the NIC's name, MAC and addresses on a link that is down.
//
// Bridge needs nf_tables. It refuses ([*RefusedError]) a NIC that has no MAC, or carries no Ethernet with ARP. It
// refuses an ipvlan, a macvtap, a bridge, and a macvlan that is not in mode passthru. It refuses a NIC on which
// macvlans, macvtaps or ipvlans lie.
//
// It also refuses a NIC with something that Teardown could not give back, because only router advertisements can make
// it. Examples are a temporary address, an IPv6 MTU below the link's, and an advertised route beside another route of
// the same metric.
type Bridge struct {
	// MAC is the guest's. Zero: the NIC's. The record warns if the network seems to drop the
	// frames of another MAC.
	MAC cache.MAC `json:"mac,omitzero"`
}

func (Bridge) Kind() cache.Kind            { return cache.BindingBridge }
func (b Bridge) validate() error           { return checkStation("binding.bridge.mac", b.MAC) }
func (Bridge) validateGuard(g Guard) error { return g.routesNothing() }
