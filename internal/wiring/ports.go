package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/fib"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
	"github.com/guestwire/guestwire/internal/syntax"
)

// containsPort reports whether the port is one of the list.
func containsPort(list []infra.Ports, protocol string, port uint16) bool {
	return slices.ContainsFunc(list, func(p infra.Ports) bool {
		return firewall.HasPort(syntax.Ports(p), firewall.Transports[protocol], port)
	})
}

// equalPorts reports whether the lists say the same, with or without their defaults.
func equalPorts(a, b []infra.Ports) bool {
	return slices.EqualFunc(a, b, func(p, q infra.Ports) bool { return p.String() == q.String() })
}

// warnService warns of a service of the namespace.
func (p *Plan) warnService(l netstate.Listener, format string, args ...any) {
	if _, warned := p.services[l]; warned {
		return
	}
	if p.services == nil {
		p.services = map[netstate.Listener]string{}
	}
	p.services[l] = fmt.Sprintf("the namespace serves %s port %d at %v", l.Protocol, l.Port, l.Address) + fmt.Sprintf(format, args...)
	p.addWarnings(p.services[l])
}

// ServicesChange reports whether WarningsNow depends on the services of the namespace.
func (p *Plan) ServicesChange() bool { return len(p.services)+len(p.diverted) > 0 }

// WarningsNow returns the record's warnings without those of services that the namespace has no more, and with those of
// targets of diverts at which nobody listens by now.
func (p *Plan) WarningsNow(now []netstate.Listener) []string {
	ended := map[string]bool{}
	for _, warning := range p.services {
		ended[warning] = true
	}
	for _, l := range now {
		delete(ended, p.services[l])
	}
	warnings := slices.DeleteFunc(slices.Clone(p.Record.Warnings), func(text string) bool { return ended[text] })
	for _, d := range p.diverted {
		for _, name := range []string{"tcp", "udp"} {
			listens := func(l netstate.Listener) bool {
				return l.Protocol == name && l.Port == d.Target.Port() && (l.Address == d.Target.Addr() || l.Address.IsUnspecified())
			}
			text := fmt.Sprintf("nobody listens at %v/%s, where a divert leads: the guest is refused there until the service has started", d.Target, name)
			if slices.Contains(p.Record.DNSProxy, d.Target) {
				text = fmt.Sprintf("nobody listens at %v/%s, where the DNS proxy of names does: what the guest asks is refused until it has started, by phase1/pins or guestwire-agent names", d.Target, name)
			}
			if slices.Contains(d.Protocols, firewall.Transports[name]) && !slices.ContainsFunc(now, listens) && !slices.Contains(warnings, text) {
				warnings = append(warnings, text)
			}
		}
	}
	return warnings
}

// warnTakenPorts warns of the namespace's services whose connections go to the guest instead.
func (p *Plan) warnTakenPorts(b infra.Masquerade, addresses []netip.Addr) {
	if b.Sidecar != nil {
		return
	}
	at := fib.Sorted(addresses)
	for _, l := range p.found.Listeners {
		forwarded := b.Ports == nil || containsPort(b.Ports, l.Protocol, l.Port)
		if !forwarded || containsPort(b.Excluded, l.Protocol, l.Port) || !reached(l, at) && !(b.Loopback && l.Address.IsLoopback()) {
			continue
		}
		remedy := fmt.Sprintf("exclude %d/%s to keep it", l.Port, l.Protocol)
		if b.Ports != nil { // which none of Excluded may be in
			remedy = fmt.Sprintf("leave %d/%s out of binding.masquerade.ports to keep it", l.Port, l.Protocol)
		}
		p.warnService(l, ", which is forwarded to the guest: %s", remedy)
	}
}

// warnRoutedPorts is warnTakenPorts for a routed binding. What comes to an excluded port gets another destination, so a
// service that listens at the NIC's address alone does not receive it. A sidecar takes only what its rules redirect.
func (p *Plan) warnRoutedPorts(b infra.Routed, addresses []netip.Addr) {
	at := fib.Sorted(addresses)
	for _, l := range p.found.Listeners {
		if containsPort(b.Excluded, l.Protocol, l.Port) && l.Address.IsUnspecified() || !reached(l, at) {
			continue
		}
		remedy := fmt.Sprintf("list %d/%s in binding.routed.excluded to keep it", l.Port, l.Protocol)
		if !l.Address.IsUnspecified() {
			remedy += ", and let the service listen at all addresses"
		}
		p.warnService(l, ", which is the guest's now: %s", remedy)
	}
}

// reached reports whether the service listens at one of the addresses.
func reached(l netstate.Listener, addresses fib.Addresses) bool {
	return l.Address.IsUnspecified() || addresses.Has(l.Address)
}

// portsInUse are those of the namespace's sockets.
func (s *seen) portsInUse() router.InUse {
	return router.InUse{Clients: s.found.Sysctls[netstate.PortRange], Older: s.found.Connections, Listeners: s.found.Listeners}
}

// OutsideClients leaves out the ports that the kernel gives to clients: no older connection with one matters.
func OutsideClients(found netstate.Snapshot, list []netstate.LocalPort) []netstate.LocalPort {
	return router.OutsideClients(found.Sysctls[netstate.PortRange], list)
}
