package wiring

import (
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/cache"
)

// losses are what a guest lacks, in the order in which the record has them.
type losses []cache.Finding

func (l *losses) lose(kind, what, why string, args ...any) {
	*l = append(*l, cache.Finding{Kind: kind, Grave: kind == "family", What: what, Why: fmt.Sprintf(why, args...)})
}

// grave are those for which the binding is refused.
func (l losses) grave() []cache.Finding {
	return slices.DeleteFunc(slices.Clone(l), func(l cache.Finding) bool { return !l.Grave })
}

// isTemporary reports whether a later Setup may give the guest what is lost, with the same binding.
func isTemporary(l cache.Finding) bool { return l.Kind == "gateway" }

// isOfClient reports whether the loss depends on the guest's DHCP client or on the Spec alone, and not on the binding.
func isOfClient(l cache.Finding) bool { return l.Kind == "option" }

// weight is a number that is higher for a guest that loses more; 0: nothing that Auto would choose by.
func (l losses) weight() int {
	const grave = 1 << 20 // more than any number of other losses
	weight := 0
	for _, one := range l {
		switch {
		case one.Grave:
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
