package wiring

import (
	"fmt"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netstate"
)

// SameGuest refuses to change the NIC's wiring from one Spec to another where a running guest would not keep its
// network. What Masquerade forwards can change, and so can MTU, Limits, Guard, DNS, Options and Device. The kind of the
// binding, Owner, Queues, Tap, MACs, Guest where a MAC is computed from it, and a Masquerade's networks and Firewall
// cannot. If they differ, the error is infra.ErrWired and names how the NIC is wired.
//
// It returns the wanted Spec, with what Auto has become. If one of the two names a default and the other leaves it out,
// the field is as in wired: only a guest whose address was named may have one that the namespace reaches.
func SameGuest(nic string, wired, wanted infra.Spec) (infra.Spec, error) {
	wired.Owner.OwnDevices = wanted.Owner.OwnDevices // what Setup asks, and not what it makes
	was := answersOf(wired.Binding)
	if was == nil {
		return wanted, &cache.FieldError{Field: "binding", Reason: fmt.Sprintf("%T, which no NIC is wired with", wired.Binding)}
	}
	if auto, is := wanted.Binding.(infra.Auto); is && CanBecome(auto, wired.Binding) {
		wanted.Binding = wired.Binding
	}
	sameKind, sameBinding, sameIdentity := false, false, true
	if is := answersOf(wanted.Binding); is != nil && wired.Binding.Kind() == wanted.Binding.Kind() {
		sameKind, sameBinding = true, was.sameGuest(wanted.Binding)
		sameIdentity = wired.Guest == wanted.Guest || !was.makesMAC() && !is.makesMAC()
	}
	var other []string // what is wanted otherwise: a value that was left out is easily overlooked
	switch {
	case !sameKind:
		other = append(other, fmt.Sprintf("the %s binding", wanted.Binding.Kind()))
	case !sameBinding:
		other = append(other, fmt.Sprintf("another %s binding", wanted.Binding.Kind()))
	}
	if !sameIdentity {
		other = append(other, fmt.Sprintf("guest %q", wanted.Guest))
	}
	if max(1, wired.Queues) != max(1, wanted.Queues) {
		other = append(other, fmt.Sprintf("queues %d", max(1, wanted.Queues)))
	}
	if netstate.NamesFor(nic, wired.Tap).Tap != netstate.NamesFor(nic, wanted.Tap).Tap {
		other = append(other, fmt.Sprintf("tap %q", wanted.Tap))
	}
	if wired.Owner != wanted.Owner {
		other = append(other, ownerText(wanted.Owner))
	}
	if len(other) == 0 {
		wanted.Tap = wired.Tap
		wanted.AcceptLosses = wanted.AcceptLosses || wired.AcceptLosses // the guest lives without since then
		if b, ok := wanted.Binding.(infra.Masquerade); ok {
			is := wired.Binding.(infra.Masquerade)
			b.Guest, b.Gateway = is.Guest, is.Gateway
			wanted.Binding = b
		}
		return wanted, nil
	}
	how := fmt.Sprintf("the %s binding", wired.Binding.Kind())
	if as := was.wiredAs(); as != "" {
		how += " " + as
	}
	if was.makesMAC() && wired.Guest != "" {
		how += fmt.Sprintf(", guest %q", wired.Guest)
	}
	if wired.Tap != "" {
		how += fmt.Sprintf(", tap %q", wired.Tap)
	}
	return wanted, fmt.Errorf("%w with %s, queues %d, for %s; this call asks for %s: ask for the same, or Teardown first (guestwire-agent teardown)",
		infra.ErrWired, how, max(1, wired.Queues), ownerText(wired.Owner), strings.Join(other, ", "))
}

// ownerText is the owner in messages.
func ownerText(o infra.Owner) string {
	text := fmt.Sprintf("user %d (no group named)", o.UID)
	if o.GID != 0 {
		text = fmt.Sprintf("user %d, group %d", o.UID, o.GID)
	}
	if o.Inside {
		text += " inside"
	}
	if o.SELinux != "" {
		text += ", context " + o.SELinux
	}
	return text
}

// CanBecome reports whether Auto may have become the binding. An Auto without a MAC leaves the MAC to the binding.
func CanBecome(a infra.Auto, b infra.Binding) bool {
	for _, try := range a.Bindings() {
		if try.Kind() == b.Kind() {
			return a.MAC.IsZero() || a.MAC == givenMAC(b)
		}
	}
	return false
}
