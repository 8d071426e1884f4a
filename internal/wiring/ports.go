package wiring

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

var transports = map[string]uint8{"tcp": firewall.ProtocolTCP, "udp": firewall.ProtocolUDP, "sctp": firewall.ProtocolSCTP}

// containsPort says whether the port is one of the list.
func containsPort(list []infra.Ports, protocol string, port uint16) bool {
	return slices.ContainsFunc(list, infra.Ports{Protocol: protocol, First: port}.Overlaps)
}

// matchPorts are the conditions of a rule for the ports.
func matchPorts(p infra.Ports) []firewall.Match {
	number := transports[p.Transport()]
	return []firewall.Match{
		firewall.Protocol{Number: number},
		firewall.DestinationPort{Protocol: number, First: p.First, Last: p.End()},
	}
}

// ruleByRule splits ports that become other ports into one entry a port, as each takes a rule of its own.
// Ports that stay the same take one rule together.
func splitPorts(p infra.Ports) []infra.Ports {
	if p.Guest == 0 || p.Guest == p.First {
		return []infra.Ports{{Protocol: p.Protocol, First: p.First, Last: p.Last}}
	}
	var list []infra.Ports
	for i := uint16(0); i <= p.End()-p.First; i++ {
		list = append(list, infra.Ports{Protocol: p.Protocol, First: p.First + i, Guest: p.Guest + i})
	}
	return list
}

// takenPorts are warnings: the namespace's services whose connections go to the guest instead.
func warnTakenPorts(b infra.Masquerade, listeners []netstate.Listener, addresses []netip.Prefix) []string {
	var warnings []string
	for _, l := range listeners {
		forwarded := b.Ports == nil || containsPort(b.Ports, l.Protocol, l.Port)
		if b.Sidecar != nil || !forwarded || containsPort(b.Excluded, l.Protocol, l.Port) {
			continue
		}
		isOwn := func(p netip.Prefix) bool { return p.Addr() == l.Address }
		reached := l.Address.IsUnspecified() || slices.ContainsFunc(addresses, isOwn) || b.Loopback && l.Address.IsLoopback()
		w := fmt.Sprintf("the namespace serves %s port %d at %v, which is forwarded to the guest: exclude %d/%s to keep it", l.Protocol, l.Port, l.Address, l.Port, l.Protocol)
		if reached && !slices.Contains(warnings, w) {
			warnings = append(warnings, w)
		}
	}
	return warnings
}
