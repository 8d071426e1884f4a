package infra

import "github.com/guestwire/guestwire/cache"

// Redirect makes the guest the station that the NIC was, as [Bridge] does, and leaves the NIC alone: the NIC keeps its
// name, kind and addresses, and its MAC unless the guest gets another one, so that a CNI plugin finds it. All frames
// that come in at the NIC go to the guest. Redirect works on a macvlan and on an ipvlan too.
//
// It needs nf_tables with fwd. A NIC on which macvlans, ipvlans or VLANs lie is refused with a [*RefusedError].
type Redirect struct {
	// MAC is the guest's; zero: the NIC's. With another one than the NIC's, the NIC takes the guest's MAC until Teardown;
	// on standby, a NIC that takes it while it is up waits for Activate. The record warns where the network seems to know
	// the NIC's MAC. A macvlan, a macvtap and an ipvlan receive for their own MAC alone: there, another MAC is a
	// [*RefusedError]. CNI's CHECK compares MACs.
	MAC cache.MAC `json:"mac,omitzero"`
}

// Kind is cache.BindingRedirect.
func (Redirect) Kind() cache.Kind            { return cache.BindingRedirect }
func (b Redirect) validate() error           { return checkStation("binding.redirect.mac", b.MAC) }
func (Redirect) validateGuard(g Guard) error { return g.opensNothing() }
