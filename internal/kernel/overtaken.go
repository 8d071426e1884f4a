package kernel

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/netstate"
)

// withoutOvertaken returns the failures without those of operations that were overtaken: what they add is there
// already, or what they remove is not there.
//
// The kernel itself overtakes a plan. A worker adds the route to an IPv6 address's peer when duplicate address
// detection has ended, also under nodad (addrconf_dad_work, net/ipv6/addrconf.c). A link that gets its carrier gets a
// link-local address and routes (linkwatch). Lifetimes of addresses and routes end, and router advertisements renew
// both.
//
// What is there already has to be the same in all properties, so the namespace is read: IPv6 also refuses a route with
// the destination, metric and next hop of a route that has another MTU.
func withoutOvertaken(route *netlink.Socket, ops []netstate.Op, failures []netlink.Failure) ([]netlink.Failure, error) {
	// The answer counts for what is removed, and not the namespace: a route that comes late may be there by now.
	failures = slices.DeleteFunc(failures, func(f netlink.Failure) bool {
		switch ops[f.Message].(type) {
		case netstate.RouteDel:
			return errors.Is(f.Err, unix.ESRCH)
		case netstate.AddressDel:
			return errors.Is(f.Err, unix.EADDRNOTAVAIL)
		}
		return false
	})
	if !slices.ContainsFunc(failures, func(f netlink.Failure) bool { return errors.Is(f.Err, unix.EEXIST) }) {
		return failures, nil
	}
	var now netstate.Snapshot
	if err := errors.Join(readAddresses(route, &now), readRoutes(route, &now)); err != nil {
		return failures, fmt.Errorf("read the namespace after a failure: %w", err)
	}
	routes, addresses := netstate.IndexRoutes(now.Routes), map[netstate.Address]bool{}
	for _, a := range now.Addresses {
		addresses[a.Kind()] = true
	}
	return slices.DeleteFunc(failures, func(f netlink.Failure) bool {
		switch o := ops[f.Message].(type) {
		case netstate.RouteAdd:
			return errors.Is(f.Err, unix.EEXIST) && routes.Has(o.Route)
		case netstate.AddressAdd:
			return errors.Is(f.Err, unix.EEXIST) && addresses[o.Address.Kind()]
		}
		return false
	}), nil
}
