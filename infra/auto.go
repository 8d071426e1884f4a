package infra

import (
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
)

// Auto is the one of [Redirect], [Bridge], [Routed] and [Masquerade] that can work on the NIC and loses least
// (Record.Losses), and the first of those that lose the same. Masquerade, which hides the NIC's address, is the last,
// unless it alone keeps a link that forwards where the NIC does not. A binding that is refused for its losses is left
// out, unless Spec.AcceptLosses is set. A gateway that does not answer, and an option that some clients cannot receive,
// count nothing. If Spec.Egress or Spec.EgressWithin is set, Auto is Routed or Masquerade. The first Setup chooses, and
// later ones keep the choice.
type Auto struct {
	// Order are the kinds to try, in this order. Empty: redirect, bridge, routed, masquerade.
	Order []cache.Kind `json:"order,omitempty"`

	// MAC is the guest's. A kind that cannot give the guest this MAC is not chosen. Redirect gives
	// it to the NIC as well, so CNI's CHECK may fail. Zero: the default of the kind that is chosen.
	MAC cache.MAC `json:"mac,omitzero"`
}

// autoOrder are the kinds that Auto can become, in the order in which Auto tries them without Order. Redirect is before
// Bridge: it leaves the NIC its name, kind and MAC, and makes fewer links. Bridge works on a few NICs on which Redirect
// does not.
var autoOrder = []cache.Kind{cache.BindingRedirect, cache.BindingBridge, cache.BindingRouted, cache.BindingMasquerade}

func (Auto) Kind() cache.Kind            { return "auto" }
func (Auto) validateGuard(g Guard) error { return g.opensNothing() }

func (b Auto) validate() error {
	for i, kind := range b.Order {
		reason := ""
		switch {
		case !slices.Contains(autoOrder, kind):
			reason = fmt.Sprintf("%q, want \"redirect\", \"bridge\", \"routed\" or \"masquerade\"", kind)
		case slices.Contains(b.Order[:i], kind):
			reason = fmt.Sprintf("%q is in the list already", kind)
		}
		if reason != "" {
			return &cache.FieldError{Field: fmt.Sprintf("binding.auto.order[%d]", i), Reason: reason}
		}
	}
	if !b.MAC.IsZero() && len(b.Bindings()) == 0 {
		return &cache.FieldError{Field: "binding.auto.mac", Reason: fmt.Sprintf("%v, but routed gives the guest the NIC's: leave it out, or name another kind in order", b.MAC)}
	}
	return checkStation("binding.auto.mac", b.MAC)
}

// Bindings returns the bindings that Auto tries, in this order.
func (b Auto) Bindings() []Binding {
	var list []Binding
	for _, kind := range b.order() {
		switch kind {
		case cache.BindingBridge:
			list = append(list, Bridge{MAC: b.MAC})
		case cache.BindingRedirect:
			list = append(list, Redirect{MAC: b.MAC})
		case cache.BindingRouted:
			if b.MAC.IsZero() { // otherwise the guest's MAC is the NIC's
				list = append(list, Routed{})
			}
		case cache.BindingMasquerade:
			list = append(list, Masquerade{MAC: b.MAC})
		}
	}
	return list
}

func (b Auto) order() []cache.Kind {
	if len(b.Order) == 0 {
		return autoOrder
	}
	return b.Order
}
