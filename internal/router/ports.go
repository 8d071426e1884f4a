package router

import (
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/syntax"
)

// transports are the names of firewall.Transports, in the order of rules.
var transports = []string{"tcp", "udp", "sctp"}

// matchPorts are the conditions of a rule for the ports.
func matchPorts(ports infra.Ports) []firewall.Match {
	p := syntax.Ports(ports).Full()
	number := firewall.Transports[p.Protocol]
	return []firewall.Match{
		firewall.Protocol{Number: number},
		firewall.DestinationPort{Protocol: number, First: p.First, Last: p.Last},
	}
}

// portMap is the map of the ports of a protocol that become other ports.
type portMap struct {
	protocol string
	firewall.PortMap
}

// portMaps are the maps of the protocols that need one. A map costs each packet one look, where a rule for each port
// would cost as many.
func portMaps(list []infra.Ports) []portMap {
	var maps []portMap
	for _, protocol := range transports {
		m := portMap{protocol, firewall.PortMap{Name: protocol + "-ports"}}
		for _, p := range list {
			if p := syntax.Ports(p).Full(); p.Guest != p.First && p.Protocol == protocol {
				m.Ranges = append(m.Ranges, firewall.PortRange{First: p.First, Last: p.Last, To: p.Guest})
			}
		}
		if len(m.Ranges) > 0 {
			maps = append(maps, m)
		}
	}
	return maps
}
