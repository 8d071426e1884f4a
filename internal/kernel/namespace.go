// Package kernel reads what a network namespace holds and carries out the operations of a plan in
// it: the ioctls of taps, one batch of nftables messages, writes below /proc/sys, one batch of
// rtnetlink messages. No process is started, but for rules of iptables where those are wanted.
//
// Everything works on the namespace of the calling thread.
package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Namespace is the one of the thread that called Open.
type Namespace struct {
	route  *socket
	filter *socket // nil: the kernel has no netfilter
}

// Open returns the namespace of the calling thread. It needs CAP_NET_ADMIN there. Close it.
func Open() (*Namespace, error) {
	route, err := openSocket(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	filter, err := openSocket(unix.NETLINK_NETFILTER)
	if err != nil && !errors.Is(err, unix.EPROTONOSUPPORT) {
		route.close()
		return nil, err
	}
	return &Namespace{route: route, filter: filter}, nil
}

// Close ends the use of the namespace.
func (n *Namespace) Close() {
	n.route.close()
	if n.filter != nil {
		n.filter.close()
	}
}

// Snapshot reads what concerns the wiring of the NIC with these names; sysctls are paths below
// /proc/sys. The tables of iptables are looked at for those that are wanted. Rules other than those of
// the tables that are wanted are firewall.Unknown.
func (n *Namespace) Snapshot(names netstate.Names, sysctls []string, wanted []firewall.Table) (netstate.Snapshot, error) {
	var s netstate.Snapshot
	for _, step := range []struct {
		what string
		read func(*netstate.Snapshot) error
	}{
		{"links", n.readLinks}, {"addresses", n.readAddresses}, {"routes", n.readRoutes}, {"rules", n.readRules}, {"neighbours", n.readNeighbours},
	} {
		if err := step.read(&s); err != nil {
			return netstate.Snapshot{}, fmt.Errorf("read the namespace's %s: %w", step.what, err)
		}
	}
	for _, l := range s.Links {
		if l.Tap == nil || !(l.Name == names.Tap || l.Name == names.Responder) {
			continue
		}
		if err := n.readFilters(&s, l.Index); err != nil {
			return netstate.Snapshot{}, fmt.Errorf("read the filters of %s: %w", l.Name, err)
		}
	}
	if err := n.readTables(&s, names.Table, wanted); err != nil {
		return netstate.Snapshot{}, fmt.Errorf("read the namespace's nftables: %w", err)
	}
	if err := readIPTables(&s, wanted); err != nil {
		return netstate.Snapshot{}, fmt.Errorf("read the namespace's iptables: %w", err)
	}
	if err := readSysctls(&s, sysctls); err != nil {
		return netstate.Snapshot{}, err
	}
	return s, nil
}
