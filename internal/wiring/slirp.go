package wiring

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
)

// slirp opens the same as passt, and leaves the NIC as it is.
type slirp struct{ infra.Slirp }

// The networks of a guest behind slirp. The first one is also QEMU's default.
var (
	slirpIPv4 = netip.MustParsePrefix("10.0.2.0/24")
	slirpIPv6 = netip.MustParsePrefix("fd10:0:2::/64")
)

// slirpMTU is libslirp's, whatever the NIC has: the namespace's own sockets cut what they send.
const slirpMTU = 1500

func (slirp) asks(netstate.Names) Questions { return askSockets() }

func (b slirp) networks() (v4, v6 netip.Prefix) {
	return cmp.Or(b.IPv4, slirpIPv4), cmp.Or(b.IPv6, slirpIPv6)
}

func (b slirp) sameGuest(other infra.Binding) bool {
	o, ok := other.(infra.Slirp)
	v4, v6 := b.networks()
	other4, other6 := slirp{o}.networks()
	return ok && b.MAC == o.MAC && v4 == other4 && v6 == other6 && equalPorts(b.Ports, o.Ports)
}

func (b slirp) wiredAs() string { return fmt.Sprintf("%+v", b.Slirp) }
func (b slirp) makesMAC() bool  { return b.MAC.IsZero() }

func (b slirp) wire(p *Plan) error {
	switch {
	case len(p.own) == 0:
		return p.refuse("it has no address from which slirp could send")
	case len(p.v4) == 0 && len(b.Ports) > 0:
		return &cache.FieldError{Field: "binding.slirp.ports", Reason: fmt.Sprintf("%s has no IPv4 address, and QEMU forwards no port of IPv6: leave this field out, or want the binding passt or masquerade", p.nic.Name)}
	}
	p.Record = p.recordOf(cmp.Or(b.MAC, p.guestMAC()))
	p.Record.Tap, p.Record.MTU = "", slirpMTU
	guest := &cache.Slirp{}
	network4, network6 := b.networks()
	if len(p.v4) > 0 {
		guest.IPv4 = network4
	}
	if len(p.v6) > 0 {
		guest.IPv6 = network6
	}
	for _, network := range []netip.Prefix{guest.IPv4, guest.IPv6} {
		if err := p.checkHidden(network); err != nil {
			return err
		}
	}
	guest.Forwards = p.openSockets(b.Ports)
	p.Record.Slirp = guest
	p.addWarnings(p.warnSockets()...)
	p.addLosses(p.downLosses()...)
	if len(p.v6) > 0 && len(b.Ports) > 0 {
		p.addLosses(cache.Finding{Kind: "address", What: p.v6[0].Addr().String(), Why: "QEMU forwards no port of IPv6, so nothing reaches the guest there"})
	}
	for _, l := range p.found.Listeners {
		if containsPort(b.Ports, l.Protocol, l.Port) && (l.Address.Is4() || l.Address.IsUnspecified()) {
			p.warnService(l, ": QEMU does not start while it does")
		}
	}
	return nil
}

// checkHidden refuses a network of the guest that would hide one of the namespace from it.
func (s *seen) checkHidden(network netip.Prefix) error {
	if routes := s.routesTo(network); len(routes) > 0 {
		return fmt.Errorf("binding.slirp.ipv%d: %v overlaps the route to %v of the namespace: %w, choose another network", ip.Of(network.Addr()), network, routes[0].Destination, infra.ErrCollision)
	}
	return nil
}
