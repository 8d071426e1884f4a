package infra

import "github.com/guestwire/guestwire/cache"

// Bridge makes the guest the station that the NIC was, with its addresses, routes and MAC. The namespace keeps the
// NIC's name, MAC and addresses on a link that is down. It needs nf_tables. A [*RefusedError]: the NIC is an ipvlan, a
// macvtap or a macvlan not in mode passthru, or has what only router advertisements can make, such as a temporary
// address.
type Bridge struct {
	// MAC is the guest's; zero: the NIC's. The record warns where the network seems to drop the frames of another MAC.
	MAC cache.MAC `json:"mac,omitzero"`
}

func (Bridge) Kind() cache.Kind            { return cache.BindingBridge }
func (b Bridge) validate() error           { return checkStation("binding.bridge.mac", b.MAC) }
func (Bridge) validateGuard(g Guard) error { return g.opensNothing() }
