package kernel

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
)

// withoutOvertaken returns the failures without those of operations that were overtaken: what they add is there already,
// or what they remove is not there.
//
// The kernel itself overtakes a plan. A worker adds the route to an IPv6 address's peer when duplicate address detection
// has ended, also under nodad (addrconf_dad_work, net/ipv6/addrconf.c). A link that gets its carrier gets a link-local
// address and routes (linkwatch). Lifetimes of addresses and routes end, and router advertisements renew both.
//
// What is there already has to be the same in all properties, so the namespace is read: IPv6 also refuses a route with
// the destination, metric and next hop of a route that has another MTU.
func (n *Namespace) withoutOvertaken(ops []netstate.Op, failures []failure) ([]failure, error) {
	failures = slices.DeleteFunc(failures, func(f failure) bool { return hasGone(ops[f.message], f.err) })
	if !slices.ContainsFunc(failures, func(f failure) bool { return mayBeThere(ops[f.message], f.err) }) {
		return failures, nil
	}
	var now netstate.Snapshot
	if err := errors.Join(n.readAddresses(&now), n.readRoutes(&now)); err != nil {
		return failures, fmt.Errorf("read the namespace after a failure: %w", err)
	}
	return slices.DeleteFunc(failures, func(f failure) bool {
		return mayBeThere(ops[f.message], f.err) && isThere(ops[f.message], now)
	}), nil
}

// hasGone says whether the kernel's answer is that there is no such route or address to remove. The namespace does not
// tell: a route that comes late may be there by now.
func hasGone(op netstate.Op, answer error) bool {
	switch op.(type) {
	case netstate.RouteDel:
		return errors.Is(answer, unix.ESRCH)
	case netstate.AddressDel:
		return errors.Is(answer, unix.EADDRNOTAVAIL)
	}
	return false
}

// mayBeThere says whether the kernel's answer is that there is such a route or address.
func mayBeThere(op netstate.Op, answer error) bool {
	switch op.(type) {
	case netstate.RouteAdd, netstate.AddressAdd:
		return errors.Is(answer, unix.EEXIST)
	}
	return false
}

// isThere says whether the route or address that the operation adds is there, with all its properties.
func isThere(op netstate.Op, now netstate.Snapshot) bool {
	switch o := op.(type) {
	case netstate.RouteAdd:
		return slices.ContainsFunc(now.Routes, o.Route.Same)
	case netstate.AddressAdd:
		return slices.ContainsFunc(now.Addresses, o.Address.Same)
	}
	return false
}
