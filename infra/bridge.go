package infra

import "github.com/guestwire/guestwire/cache"

// Bridge makes the guest the station that the NIC was: the guest has the NIC's addresses and routes, and the NIC's MAC
// unless it gets another one. The namespace keeps the NIC's name, MAC and addresses on a link that is down.
//
// It needs nf_tables, and a NIC that can be a bridge's port with another MAC: an ipvlan, a macvtap and a macvlan that
// is not in mode passthru are refused with a [*RefusedError]. So is a NIC with what only router advertisements can
// make: an advertised route beside another one with the same metric, a temporary address, an IPv6 MTU below the link's.
type Bridge struct {
	// MAC is the guest's; zero: the NIC's. The record warns where the network seems to know the NIC's MAC, as such
	// networks drop the frames of another one.
	MAC cache.MAC `json:"mac,omitzero"`
}

// Kind is cache.BindingBridge.
func (Bridge) Kind() cache.Kind            { return cache.BindingBridge }
func (b Bridge) validate() error           { return checkStation("binding.bridge.mac", b.MAC) }
func (Bridge) validateGuard(g Guard) error { return g.opensNothing() }
