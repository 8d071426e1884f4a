package wiring

import (
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
)

// losses are what a guest lacks, in the order in which the record has them.
type losses []cache.Loss

func (l *losses) lose(kind, what, why string, args ...any) {
	*l = append(*l, cache.Loss{Kind: kind, What: what, Why: fmt.Sprintf(why, args...)})
}

// isGrave reports whether a binding is refused for the loss.
func isGrave(l cache.Loss) bool { return l.Kind == "family" }

// grave are those for which the binding is refused.
func (l losses) grave() []cache.Loss {
	return slices.DeleteFunc(slices.Clone(l), func(l cache.Loss) bool { return !isGrave(l) })
}

// isTemporary reports whether a later Setup may give the guest what is lost, with the same binding.
func isTemporary(l cache.Loss) bool { return l.Kind == "gateway" }

// isOfClient reports whether the loss depends on the guest's DHCP client or on the Spec alone, and not on the binding.
func isOfClient(l cache.Loss) bool { return l.Kind == "option" }

// weight is a number that is higher for a guest that loses more; 0: nothing that Auto would choose by.
func (l losses) weight() int {
	const grave = 1 << 20 // more than any number of other losses
	weight := 0
	for _, one := range l {
		switch {
		case isGrave(one):
			weight += grave
		case !isTemporary(one) && !isOfClient(one):
			weight++
		}
	}
	return weight
}

// keys are the things that are lost.
func (l losses) keys() map[lossKey]bool {
	keys := map[lossKey]bool{}
	for _, one := range l {
		keys[lossKey{one.Kind, one.What}] = true
	}
	return keys
}

type lossKey struct{ kind, what string }
