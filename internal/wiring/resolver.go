package wiring

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/router"
	"github.com/guestwire/guestwire/internal/syntax"
)

// A resolver on loopback, such as Docker's at 127.0.0.11 and systemd's at 127.0.0.53, is the namespace's alone. Under
// masquerade and routed the guest asks it by the port 53 of its gateway.

const portDNS = 53

// Resolver is where the resolver on loopback listens, by protocol; 0: nowhere. Docker's listens at other ports than 53,
// to which rules for the namespace's own packets lead: these are no rules for the guest's.
type Resolver struct {
	Address netip.Addr `json:"address,omitzero"`
	UDP     uint16     `json:"udp,omitempty"`
	TCP     uint16     `json:"tcp,omitempty"`
}

// ofDocker is the address of Docker's resolver in each container (libnetwork, resolver.go).
var ofDocker = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// Resolver is the loopback address of a resolver that the guest needs; zero: there is none. A divert's target comes
// first, then Spec.DNS, then what resolv.conf said at the first Setup. A DNS proxy asks it by itself.
func (s *seen) Resolver() netip.Addr {
	if !s.traits().Routes {
		return netip.Addr{}
	}
	for _, t := range s.targets() {
		if to := t.entry.Divert; to.Addr().IsLoopback() && to.Port() == portDNS {
			return to.Addr()
		}
	}
	if len(s.spec.Names) > 0 {
		return netip.Addr{}
	}
	if s.spec.DNS == nil {
		return s.found.LoopbackDNS
	}
	return FirstLoopback(s.spec.DNS.Servers)
}

// FirstLoopback is the first IPv4 loopback address of the list; zero: there is none.
func FirstLoopback(servers []netip.Addr) netip.Addr {
	for _, a := range servers {
		if a = a.Unmap(); a.Is4() && a.IsLoopback() {
			return a
		}
	}
	return netip.Addr{}
}

// MayResolve reports whether one of the sockets can be that of a resolver on loopback.
func MayResolve(listeners []netstate.Listener) bool {
	return slices.ContainsFunc(listeners, func(l netstate.Listener) bool {
		return l.Protocol == "udp" && l.Address.Is4() && l.Address.IsLoopback()
	})
}

// listensAt is where the resolver answers: at port 53, or Docker's at the only port of its address. A socket of all
// addresses counts if the Spec names the resolver: a resolv.conf may be that of another namespace, whose resolver has
// the same address.
func listensAt(resolver netip.Addr, listeners []netstate.Listener, named bool) Resolver {
	r := Resolver{Address: resolver}
	if !resolver.IsValid() {
		return r
	}
	for protocol, port := range map[string]*uint16{"udp": &r.UDP, "tcp": &r.TCP} {
		var others []uint16
		for _, l := range listeners {
			switch {
			case l.Protocol != protocol:
			case l.Port == portDNS && (l.Address == resolver || named && l.Address.IsUnspecified()):
				*port = portDNS
			case l.Address == resolver:
				others = append(others, l.Port)
			}
		}
		if *port == 0 && resolver == ofDocker && len(others) == 1 {
			*port = others[0]
		}
	}
	return r
}

// since has the ports of before in the place of those at which the resolver does not listen at the moment.
func (r Resolver) since(was Resolver) Resolver {
	if r.Address == was.Address {
		r.UDP, r.TCP = cmp.Or(r.UDP, was.UDP), cmp.Or(r.TCP, was.TCP)
	}
	return r
}

// follow is where the resolver listens, or asked.
func (r Resolver) follow(asked netip.AddrPort, protocol uint8) netip.AddrPort {
	if port := map[uint8]uint16{firewall.ProtocolUDP: r.UDP, firewall.ProtocolTCP: r.TCP}[protocol]; port != 0 {
		return netip.AddrPortFrom(asked.Addr(), port)
	}
	return asked
}

// addResolver diverts the gateway's port 53 to the resolver on loopback, if the policy lets the guest ask it, and
// writes it into the record. Where a policy diverts its questions, the gateway's go there as well. A resolver of
// resolv.conf that does not listen is another namespace's. A port that Guard.Open opens is a service of the user's own.
func (p *Plan) addResolver(ends router.Ends) {
	resolver, gateway := p.Resolver(), ends.Gateway(ip.V4)
	if !resolver.IsValid() || !gateway.IsValid() || len(p.spec.Names) > 0 || p.found.NoNFTables || p.spec.DNS == nil && p.networks.Resolver.UDP == 0 || p.spec.DNS != nil && FirstLoopback(p.spec.DNS.Servers) != resolver {
		return
	}
	index := p.policy.Index()
	for _, name := range asks {
		protocol := firewall.Transports[name]
		open := func(o infra.Ports) bool { return firewall.HasPort(syntax.Ports(o), protocol, portDNS) }
		asked := netip.AddrPortFrom(resolver, portDNS)
		d := index.Decide(asked, protocol)
		if d.Refuses || slices.ContainsFunc(p.spec.Guard.Open, open) || p.spec.DNS != nil && !p.spec.AllowsTarget(asked, name) {
			continue
		}
		target := d.Target
		if target.Port() == 0 || target == asked {
			target = p.networks.Resolver.follow(asked, protocol)
		}
		box := firewall.Box{First: gateway, Last: gateway, FirstProtocol: protocol, LastProtocol: protocol, FirstPort: portDNS, LastPort: portDNS}
		p.diverted = append(p.diverted, firewall.Divert{Target: target, Protocols: []uint8{protocol}, Resolver: true,
			Set: firewall.Destinations{Name: "divert-resolver-" + name, Version: ip.V4, Boxes: []firewall.Box{box}}})
		p.Record.Resolver = resolver
	}
}

// addDNSProxy writes into the record where the DNS proxy of the Spec's names listens.
func (p *Plan) addDNSProxy(ends router.Ends) {
	if len(p.spec.Names) == 0 {
		return
	}
	port := p.spec.AllEgress()[0].Divert.Port()
	for _, gateway := range gatewaysOf(ends) {
		p.Record.DNSProxy = append(p.Record.DNSProxy, netip.AddrPortFrom(gateway, port))
	}
}

// checkAsked refuses servers of the Spec that the DNS proxy would ask past EgressWithin: the guest's questions and the
// answers are a channel to them, which no rule for the guest sees. Those of a resolv.conf are the namespace's own.
func (p *Plan) checkAsked() error {
	if len(p.spec.Names) == 0 || len(p.spec.EgressWithin) == 0 || p.spec.DNS == nil {
		return nil
	}
	within := p.policy
	within.Egress = nil
	index := within.Index()
	for i, server := range p.spec.DNS.Servers {
		to := netip.AddrPortFrom(server.Unmap().WithZone(""), portDNS)
		for _, name := range asks {
			d := index.Decide(to, firewall.Transports[name])
			passes := !d.Refuses && !d.Target.IsValid()
			if to.Addr().IsLoopback() {
				passes = p.spec.AllowsTarget(to, name)
			}
			if !passes {
				return &cache.FieldError{Field: fmt.Sprintf("dns.servers[%d]", i), Reason: fmt.Sprintf("the DNS proxy of names would ask %v, which egressWithin does not allow: add \"allow %[1]v 53/%s\" there, or leave this server out", server, name)}
			}
		}
	}
	return nil
}

// asks are the protocols of questions.
var asks = []string{"udp", "tcp"}

// followed are the diverts with the ports at which the resolver on loopback listens, in place of 53.
func (p *Plan) followed(diverts []firewall.Divert) (list []firewall.Divert) {
	asked := netip.AddrPortFrom(p.Resolver(), portDNS)
	for _, d := range diverts {
		if d.Target != asked {
			list = append(list, d)
			continue
		}
		for _, protocol := range d.Protocols {
			one := d
			one.Protocols, one.Target = []uint8{protocol}, p.networks.Resolver.follow(asked, protocol)
			list = append(list, one)
		}
	}
	return list
}
