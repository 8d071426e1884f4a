package wiring

import (
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// answersOf returns the answers of the binding's kind; nil: the binding is Auto, which has none of its own, or unknown.
// TestBindingsAreListed finds a kind that is missing here.
func answersOf(b infra.Binding) binding {
	switch b := b.(type) {
	case infra.Bridge:
		return bridge{b}
	case infra.Redirect:
		return redirect{b}
	case infra.Masquerade:
		return masquerade{b}
	case infra.Routed:
		return routed{b}
	case infra.Macvtap:
		return macvtap{}
	case infra.SRIOV:
		return sriov{b}
	case infra.Passt:
		return passt{b}
	case infra.Slirp:
		return slirp{b}
	}
	return nil
}

// bindingOf returns the binding's answers, and for Auto those of the first binding that it tries.
func bindingOf(b infra.Binding) binding { return answersOf(triesOf(b)[0]) }

// kindsOf are the kinds that auto tries.
func kindsOf(a infra.Auto) []cache.Kind {
	var kinds []cache.Kind
	for _, b := range a.Bindings() {
		kinds = append(kinds, b.Kind())
	}
	return kinds
}

// Ask returns the questions for the first plan of a NIC.
func Ask(nic string, spec infra.Spec) Questions {
	q := Questions{Checksums: policyOf(spec, Networks{}).IsSet(), Shaper: spec.Limits.ToGuest != (cache.Shape{})}
	for _, b := range triesOf(spec.Binding) {
		q = q.and(bindingOf(b).asks(netstate.NamesFor(nic, spec.Tap)))
		if spec.Flows && traitsOf(b).Routes {
			q = q.and(Questions{Sysctls: netstate.OfFlows(), Tracking: true})
		}
		q.LoopbackDNS = q.LoopbackDNS || spec.DNS == nil && len(spec.Names) == 0 && traitsOf(b).Routes
	}
	return q
}

// MakesTaps reports whether the binding creates taps, for which the launcher's user needs /dev/net/tun.
func MakesTaps(b infra.Binding) bool {
	return slices.ContainsFunc(triesOf(b), func(t infra.Binding) bool { return !traitsOf(t).Direct })
}
