package main

import (
	"context"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/phase1"
)

// mostCheck is the wanted ratio of Check to a dump.
const mostCheck = 1.5

// check measures Check of a wired NIC beside a dump of the same namespace.
func (b *bench) check(ctx context.Context, rounds int) error {
	wired := func(ctx context.Context, p *pod) error {
		if err := p.answerAsGateway(ctx); err != nil {
			return err
		}
		return setup(ctx, b.config(p))
	}
	ways := []way{
		b.goWay("Check", phase1.Check),
		b.goWay("dump: what ip addr and ip route ask", func(_ context.Context, c phase1.Config) error { return dump(c.NetNS) }),
	}
	samples, err := b.compare(ctx, rounds, 2, wired, ways)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.w, "%s: Check\n", b.binding.Kind())
	report(b.w, ways, samples, 1, "dump", []target{{"Check / dump", 0, 1, mostCheck, false}})
	return nil
}

// dump lists the links, the addresses, and the routes of all tables, as ip(8) asks for them, by the library that Go programs
// take for that. Like Check, it begins outside of the namespace, without a socket.
func dump(ns *os.File) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	if _, err := h.LinkList(); err != nil {
		return err
	}
	if _, err := h.AddrList(nil, netlink.FAMILY_ALL); err != nil {
		return err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if _, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE); err != nil {
			return err
		}
	}
	return nil
}
