package infra

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
)

// Auto is the first of [Bridge], [Redirect] and [Masquerade] that can work on the NIC, each with its defaults. The
// first Setup chooses; the record tells what Auto became.
type Auto struct {
	// Order are the kinds that are tried, in this order; empty: "bridge", "redirect", "masquerade". A kind that is
	// left out is never chosen. Without "bridge", CNI's CHECK passes whatever Auto becomes:
	//
	//	{"auto": {"order": ["redirect", "masquerade"]}}
	Order []string `json:"order,omitempty"`
}

// autoOrder are the kinds that Auto can become, in the order in which Auto tries them without Order.
var autoOrder = []string{cache.BindingBridge, cache.BindingRedirect, cache.BindingMasquerade}

// Kind is "auto".
func (Auto) Kind() string { return "auto" }

func (b Auto) visit(v Visitor)           { v.Auto(b) }
func (Auto) validateGuard(g Guard) error { return g.opensNothing() }

func (b Auto) validate() error {
	for i, kind := range b.Order {
		reason := ""
		switch {
		case !slices.Contains(autoOrder, kind):
			reason = fmt.Sprintf("%q, want \"bridge\", \"redirect\" or \"masquerade\"", kind)
		case slices.Contains(b.Order[:i], kind):
			reason = fmt.Sprintf("%q is in the list already", kind)
		}
		if reason != "" {
			return &cache.FieldError{Field: fmt.Sprintf("binding.auto.order[%d]", i), Reason: reason}
		}
	}
	return nil
}

// Bindings returns the bindings that Auto tries, in this order, each with its defaults. A kind that Validate refuses is
// left out.
func (b Auto) Bindings() []Binding {
	var list []Binding
	for _, kind := range b.order() {
		if binding, err := NewBinding(kind); err == nil && slices.Contains(autoOrder, kind) {
			list = append(list, binding)
		}
	}
	return list
}

func (b Auto) order() []string {
	if len(b.Order) == 0 {
		return autoOrder
	}
	return b.Order
}

func (b Auto) sameGuest(other Binding) bool {
	o, ok := other.(Auto)
	return ok && slices.Equal(b.order(), o.order())
}

func (b Auto) wiredAs() string { return "(order " + strings.Join(b.order(), ", ") + ")" }
