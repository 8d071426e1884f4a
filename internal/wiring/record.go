package wiring

import (
	"fmt"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/syntax"
)

// recordOf is the part of a record that does not depend on the binding.
func recordOf(spec infra.Spec, found netstate.Snapshot, nic netstate.Link, mac cache.MAC) cache.Record {
	return cache.Record{
		Version: cache.Version,
		Name:    nic.Name,
		Binding: spec.Binding.Kind(),
		Tap:     netstate.NamesFor(nic.Name, spec.Tap).Tap,
		Queues:  max(1, spec.Queues),
		MAC:     mac,
		MTU:     guestMTU(spec, found, nic),
		DNS:     spec.DNS,
		Options: spec.Options,
		Device:  spec.Device,
		Limits:  spec.Limits,
	}
}

// guestMTU is the guest's. A route's own MTU takes precedence over the link's. The guest has one MTU for all its
// routes, so it is the smallest, and at least what IPv6 needs if the guest has that.
func guestMTU(spec infra.Spec, found netstate.Snapshot, nic netstate.Link) int {
	mtu := linkMTU(spec, nic)
	least := syntax.MinMTU
	on := lease.Of(found, nic)
	if _, v6 := on.Addresses(); len(v6) > 0 {
		least = min(mtu, minMTUIPv6)
	}
	for _, v4 := range []bool{true, false} {
		for _, route := range on.Routes(v4) {
			if route.MTU >= syntax.MinMTU {
				mtu = min(mtu, max(least, route.MTU))
			}
		}
	}
	return mtu
}

// leasedRecord is the record of a guest that has the NIC's addresses: a responder gives it what the NIC has. A NIC
// without addresses gives the guest a connection without a responder.
func leasedRecord(spec infra.Spec, found netstate.Snapshot, nic netstate.Link, mac cache.MAC) cache.Record {
	r, on := recordOf(spec, found, nic, mac), lease.Of(found, nic)
	if v4, v6 := on.Addresses(); len(v4)+len(v6) == 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%[1]s has no address: the guest gets a connection without a responder of guestwire; to have it served, call Teardown, give %[1]s its address, and call Setup again (agent teardown, agent setup)", nic.Name))
	} else if !spec.Options.NoResponder {
		addResponder(&r, nic)
		on.Fill(&r)
	}
	r.Static = on.Static(mac)
	return r
}

// routerRecord is the record of a guest whose next hop is the namespace, without addresses.
func routerRecord(spec infra.Spec, found netstate.Snapshot, nic netstate.Link, guest, gateway cache.MAC) cache.Record {
	r := recordOf(spec, found, nic, guest)
	r.GatewayMAC = gateway
	if !spec.Options.NoResponder {
		addResponder(&r, nic)
	}
	return r
}

// addResponder puts the responder's tap into a record that has the MACs of the guest and of its gateway.
func addResponder(r *cache.Record, nic netstate.Link) {
	r.ResponderTap = netstate.NamesFor(nic.Name, "").Responder
	r.ResponderMAC = responderMAC(*r, nic)
}
