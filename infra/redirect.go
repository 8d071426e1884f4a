package infra

import "github.com/guestwire/guestwire/cache"

// Redirect makes the guest the station that the NIC was, as [Bridge] does, and leaves the NIC its name, kind, MAC and
// addresses, so that a CNI plugin finds it. It works on macvlan and ipvlan too, and needs nf_tables with fwd. A NIC on
// which macvlans, ipvlans or VLANs lie is a [*RefusedError].
type Redirect struct {
	// MAC is the guest's; zero: the NIC's. The NIC has another MAC until Teardown, so CNI's CHECK may fail; on standby, a
	// NIC that is up waits for Activate. The record warns where the network seems to know the NIC's MAC. On a macvlan, a
	// macvtap and an ipvlan, another MAC is a [*RefusedError].
	MAC cache.MAC `json:"mac,omitzero"`
}

func (Redirect) Kind() cache.Kind            { return cache.BindingRedirect }
func (b Redirect) validate() error           { return checkStation("binding.redirect.mac", b.MAC) }
func (Redirect) validateGuard(g Guard) error { return g.opensNothing() }
