package wiring

import (
	"fmt"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// recordOf is the part of a record that does not depend on the binding.
func (s *seen) recordOf(mac cache.MAC) cache.Record {
	return cache.Record{
		Version: cache.Version,
		Name:    s.nic.Name,
		Binding: s.spec.Binding.Kind(),
		Tap:     netstate.NamesFor(s.nic.Name, s.spec.Tap).Tap,
		Queues:  max(1, s.spec.Queues),
		MAC:     mac,
		MTU:     s.guestMTU(),
		DNS:     s.spec.DNS,
		Options: s.spec.Options,
		Device:  s.spec.Device,
		Limits:  s.spec.Limits,
	}
}

// guestMTU is the guest's. A route's own MTU takes precedence over the link's. The guest has one MTU for all its
// routes, so it is the smallest, and at least what IPv6 needs if the guest has that.
func (s *seen) guestMTU() int {
	mtu, least := s.mtu, syntax.MinMTU
	if len(s.v6) > 0 {
		least = min(mtu, minMTUIPv6)
	}
	for _, v := range ip.Both {
		for _, route := range s.on.Routes(v) {
			if route.MTU >= syntax.MinMTU {
				mtu = min(mtu, max(least, route.MTU))
			}
		}
	}
	return mtu
}

// leasedRecord is the record of a guest that has the NIC's addresses: a responder gives it what the NIC has. A NIC
// without addresses gives the guest a connection without a responder.
func (s *seen) leasedRecord(mac cache.MAC) cache.Record {
	r := s.recordOf(mac)
	if len(s.own) == 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%[1]s has no address: the guest gets a connection without a responder of guestwire; to have it served, call Teardown, give %[1]s its address, and call Setup again (guestwire-agent teardown, guestwire-agent setup)", s.nic.Name))
	} else if !s.spec.Options.NoResponder {
		s.addResponder(&r)
		s.on.Fill(&r)
	}
	r.Static = s.on.Static(mac)
	return r
}

// routerRecord is the record of a guest whose next hop is the namespace, without addresses.
func (s *seen) routerRecord(guest, gateway cache.MAC) cache.Record {
	r := s.recordOf(guest)
	r.GatewayMAC = gateway
	if !s.spec.Options.NoResponder {
		s.addResponder(&r)
	}
	return r
}

// addResponder puts the responder's tap into a record that has the MACs of the guest and of its gateway.
func (s *seen) addResponder(r *cache.Record) {
	r.ResponderTap = netstate.NamesFor(s.nic.Name, "").Responder
	r.ResponderMAC = s.responderMAC(*r)
}
