package infra

import "github.com/guestwire/guestwire/cache"

// Bridge makes the guest the station that the NIC was: the guest has the NIC's MAC, addresses and routes.
// The namespace keeps the NIC's name and addresses on a link that is down.
//
// It needs nf_tables, and a NIC that can be a bridge's port with another MAC: an ipvlan, a macvtap and a
// macvlan that is not in mode passthru are refused with a [*RefusedError].
type Bridge struct{}

// Kind is cache.BindingBridge.
func (Bridge) Kind() string { return cache.BindingBridge }

func (b Bridge) visit(v Visitor)              { v.Bridge(b) }
func (Bridge) validate() error                { return nil }
func (Bridge) validateGuard(g Guard) error    { return g.opensNothing() }
func (b Bridge) sameGuest(other Binding) bool { return b == other }
func (Bridge) wiredAs() string                { return "" }
