package wiring

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// passt opens to the launcher's user the ports and the ping sockets that passt needs, and leaves the NIC as
// it is.
type passt struct{ infra.Passt }

func (passt) asks(netstate.Names) Questions { return askSockets() }

// askSockets are the questions of a binding whose guest uses the namespace's sockets.
func askSockets() Questions {
	return Questions{Sysctls: []string{netstate.PortStart, netstate.PingGroups}, Listeners: true}
}

func (b passt) sameGuest(other infra.Binding) bool {
	o, ok := other.(infra.Passt)
	return ok && b.MAC == o.MAC && b.VhostUser == o.VhostUser && equalPorts(b.Ports, o.Ports)
}

func (b passt) wiredAs() string { return fmt.Sprintf("%+v", b.Passt) }
func (b passt) makesMAC() bool  { return b.MAC.IsZero() }

func (b passt) wire(p *Plan) error {
	if len(p.own) == 0 {
		return p.refuse("it has no address that passt could give to the guest")
	}
	p.Record = p.recordOf(cmp.Or(b.MAC, p.guestMAC()))
	p.Record.Tap = ""
	p.Record.Passt = &cache.Passt{Forwards: p.openSockets(b.Ports), VhostUser: b.VhostUser}
	p.addWarnings(p.warnSockets()...)
	p.addLosses(p.downLosses()...)
	for _, addresses := range [][]netip.Prefix{p.v4, p.v6} {
		lease.LoseFurther(&p.Record, addresses, "passt gives the guest one address of a family, %v")
	}
	p.addLosses(b.familyLosses(&p.seen)...)
	for _, l := range p.found.Listeners {
		if containsPort(b.Ports, l.Protocol, l.Port) {
			p.warnService(l, ", which passt can then not take for the guest")
		}
	}
	return nil
}

// familyLosses are the families in which passt gives the guest nothing: it looks in the table main for a default route
// by the NIC with a single gateway of the family. A passt that knows vhost-user takes one of several gateways, and none
// in IPv6.
func (b passt) familyLosses(s *seen) (list losses) {
	for _, v := range ip.Both {
		isGateway := func(r netstate.Route) bool {
			isHop := func(h netstate.Hop) bool {
				return h.Link == s.nic.Index && h.Gateway.IsValid() && ip.Of(h.Gateway) == v
			}
			return r.Table == netstate.TableMain && r.Destination == v.All() && (len(r.Hops) == 0 || b.VhostUser) && slices.ContainsFunc(r.NextHops(), isHop)
		}
		if len(s.on.AddressesOf(v)) > 0 && !(v == ip.V6 && b.VhostUser) && !slices.ContainsFunc(s.found.Routes, isGateway) {
			list.lose("family", v.String(), "passt serves it only with a default route by %s in the table main, with one %v gateway", s.nic.Name, v)
		}
	}
	return list
}

// openSockets lets the launcher's user open sockets for the ports, and for pings, by the wanted sysctls. It returns the
// ports as the record has them.
func (p *Plan) openSockets(ports []infra.Ports) (forwards []cache.Forward) {
	for _, f := range ports {
		forwards = append(forwards, cache.Forward(syntax.Ports(f).Full()))
		// Another NIC's wiring may have opened the ports already, and may be torn down first.
		if start, err := strconv.Atoi(p.found.Sysctls[netstate.PortStart]); err == nil && int(f.First) < max(start, privilegedPorts) && (start == 0 || int(f.First) < start) {
			p.wanted.Sysctls[netstate.PortStart] = "0" // otherwise passt skips such ports and says nothing, and QEMU ends
		}
	}
	if groups := p.found.Sysctls[netstate.PingGroups]; groups == noGroup || groups == everyGroup {
		p.wanted.Sysctls[netstate.PingGroups] = everyGroup
	}
	return forwards
}

// warnSockets warns of what a guest cannot do, or reaches, by the namespace's sockets.
func (s *seen) warnSockets() texts {
	return slices.Concat(s.warnPings(),
		s.warnUnfiltered("it reaches what the namespace reaches, and by its gateway's address the namespace's own loopback"))
}

// warnPings warns of a range of groups that another program has chosen, or that a user namespace shows instead of the
// kernel's default: it has neither of the groups 1 and 0 there, and writes 65534.
func (s *seen) warnPings() (list texts) {
	groups := s.found.Sysctls[netstate.PingGroups]
	var first, last uint32
	if _, err := fmt.Sscan(groups, &first, &last); err != nil || groups == noGroup || groups == everyGroup {
		return list
	}
	o := s.spec.Owner
	if known := o.GID != 0 || o.UID == 0; !known || o.GID < first || o.GID > last {
		list.add("a process can ping only with one of the groups %d to %d (sysctl net.ipv4.ping_group_range): without one, %s drops the guest's pings", first, last, s.spec.Binding.Kind())
	}
	return list
}

const (
	privilegedPorts = 1024 // PROT_SOCK, net/sock.h

	// Values of netstate.PingGroups: the kernel's default, no group, and every group.
	noGroup    = "1 0"
	everyGroup = "0 2147483647"
)
