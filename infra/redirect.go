package infra

import "github.com/guestwire/guestwire/cache"

// Redirect makes the guest the station that the NIC was, as [Bridge] does. The NIC keeps its name, kind, MAC and
// addresses, so that a CNI plugin finds it.
//
// Redirect also works on a macvlan and an ipvlan. It needs nf_tables with fwd. It refuses ([*RefusedError]) a NIC that
// has no MAC or carries no Ethernet. It refuses a NIC on which a macvlan, macvtap, ipvlan or VLAN lies.
type Redirect struct {
	// MAC is the guest's. Zero: the NIC's. If the guest has another MAC, the NIC takes it until
	// Teardown, so CNI's CHECK may fail.
	//
	// On standby, a veth, dummy or VLAN takes the MAC at Activate. A NIC of another kind may
	// have to go down for that, so it takes the MAC at Setup.
	//
	// The record warns if the network seems to expect the NIC's own MAC. On a macvlan, a
	// macvtap and an ipvlan, another MAC than the NIC's is a *RefusedError.
	MAC cache.MAC `json:"mac,omitzero"`
}

func (Redirect) Kind() cache.Kind            { return cache.BindingRedirect }
func (b Redirect) validate() error           { return checkStation("binding.redirect.mac", b.MAC) }
func (Redirect) validateGuard(g Guard) error { return g.routesNothing() }
