package infra

import "github.com/guestwire/guestwire/cache"

// Redirect makes the guest the station that the NIC was, as [Bridge] does, and leaves the NIC alone: the NIC
// keeps its name, kind, MAC and addresses, so that a CNI plugin finds it. All frames that come in at the NIC
// go to the guest. Redirect works on a macvlan and on an ipvlan too.
//
// It needs nf_tables with fwd. A NIC on which macvlans, ipvlans or VLANs lie is refused with a
// [*RefusedError].
type Redirect struct{}

// Kind is cache.BindingRedirect.
func (Redirect) Kind() string { return cache.BindingRedirect }

func (b Redirect) visit(v Visitor)              { v.Redirect(b) }
func (Redirect) validate() error                { return nil }
func (Redirect) validateGuard(g Guard) error    { return g.opensNothing() }
func (b Redirect) sameGuest(other Binding) bool { return b == other }
func (Redirect) wiredAs() string                { return "" }
