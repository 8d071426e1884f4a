package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
	"github.com/guestwire/guestwire/internal/syntax"
)

// containsPort reports whether the port is one of the list.
func containsPort(list []infra.Ports, protocol string, port uint16) bool {
	return slices.ContainsFunc(list, func(ports infra.Ports) bool {
		p := syntax.Ports(ports).Full()
		return p.Protocol == protocol && p.First <= port && port <= p.Last
	})
}

// equalPorts reports whether the lists say the same, with or without their defaults.
func equalPorts(a, b []infra.Ports) bool {
	return slices.EqualFunc(a, b, func(p, q infra.Ports) bool { return p.String() == q.String() })
}

// warnTakenPorts warns of the namespace's services whose connections go to the guest instead.
func warnTakenPorts(b infra.Masquerade, listeners []netstate.Listener, addresses []netip.Addr) []string {
	if b.Sidecar != nil {
		return nil
	}
	var warnings []string
	at := fib.Sorted(addresses)
	for _, l := range listeners {
		forwarded := b.Ports == nil || containsPort(b.Ports, l.Protocol, l.Port)
		if !forwarded || containsPort(b.Excluded, l.Protocol, l.Port) || !reached(l, at) && !(b.Loopback && l.Address.IsLoopback()) {
			continue
		}
		remedy := fmt.Sprintf("exclude %d/%s to keep it", l.Port, l.Protocol)
		if b.Ports != nil { // which none of Excluded may be in
			remedy = fmt.Sprintf("leave %d/%s out of binding.masquerade.ports to keep it", l.Port, l.Protocol)
		}
		warnings = append(warnings, fmt.Sprintf("the namespace serves %s port %d at %v, which is forwarded to the guest: %s", l.Protocol, l.Port, l.Address, remedy))
	}
	return distinct(warnings)
}

// warnRoutedPorts is warnTakenPorts for a routed binding. What comes to an excluded port gets another destination, so a
// service that listens at the NIC's address alone does not receive it. A sidecar takes only what its rules redirect.
func warnRoutedPorts(b infra.Routed, listeners []netstate.Listener, addresses []netip.Addr) []string {
	var warnings []string
	at := fib.Sorted(addresses)
	for _, l := range listeners {
		if containsPort(b.Excluded, l.Protocol, l.Port) && l.Address.IsUnspecified() || !reached(l, at) {
			continue
		}
		remedy := fmt.Sprintf("list %d/%s in binding.routed.excluded to keep it", l.Port, l.Protocol)
		if !l.Address.IsUnspecified() {
			remedy += ", and let the service listen at all addresses"
		}
		warnings = append(warnings, fmt.Sprintf("the namespace serves %s port %d at %v, which is the guest's now: %s", l.Protocol, l.Port, l.Address, remedy))
	}
	return distinct(warnings)
}

// reached reports whether the service listens at one of the addresses.
func reached(l netstate.Listener, addresses fib.Addresses) bool {
	return l.Address.IsUnspecified() || addresses.Has(l.Address)
}

// distinct are the texts without those that were there before.
func distinct(texts []string) []string {
	var list []string
	listed := map[string]bool{}
	for _, text := range texts {
		if !listed[text] {
			list, listed[text] = append(list, text), true
		}
	}
	return list
}

// portsInUse are those of the namespace's sockets.
func (s *seen) portsInUse() router.InUse {
	return router.InUse{Clients: s.found.Sysctls[netstate.PortRange], Older: s.found.Connections, Listeners: s.found.Listeners}
}

// OutsideClients leaves out the ports that the kernel gives to clients: no older connection with one matters.
func OutsideClients(found netstate.Snapshot, list []netstate.LocalPort) []netstate.LocalPort {
	return router.OutsideClients(found.Sysctls[netstate.PortRange], list)
}
