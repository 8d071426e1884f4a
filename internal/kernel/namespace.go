// Package kernel reads a network namespace into a netstate.Snapshot, and carries out the operations of a
// plan.
//
// Operations go to the kernel in four ways: a tap by ioctls, a sysctl by a write below /proc/sys,
// nftables as one batch of nfnetlink messages, all others as one batch of rtnetlink messages. Only
// iptables rules start processes, and only if the caller wants iptables.
//
// Each kind of message has one file, with its encoder and its parser side by side: encodeX makes the
// message of an operation, parseX parses the bytes of an answer, readX asks the kernel and parses all
// answers.
//
// All functions work in the namespace of the calling thread.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netlink"
	"github.com/guestwire/guestwire/internal/nft"
)

// Namespace is a network namespace, as two netlink sockets in it.
type Namespace struct {
	route  *netlink.Socket
	filter *netlink.Socket // nil: the kernel has no nfnetlink
	Tables *nft.Tables
	// deletions are those of groups that the kernel has not ended yet.
	deletions sync.WaitGroup
}

// Open returns the namespace of the calling thread. The caller needs CAP_NET_ADMIN in the namespace, and
// has to call Close.
func Open() (*Namespace, error) {
	route, err := netlink.Open(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	filter, err := netlink.Open(unix.NETLINK_NETFILTER)
	if err != nil && !errors.Is(err, unix.EPROTONOSUPPORT) {
		route.Close()
		return nil, err
	}
	return &Namespace{route: route, filter: filter, Tables: nft.New(filter, route)}, nil
}

// EndWith makes what reads the namespace end with ctx, with its cause as the error. It also ends, with E2BIG, if one
// kind of object takes more octets than most, unless most is 0. The caller reads nothing more then.
func (n *Namespace) EndWith(ctx context.Context, most int) {
	ended := func(octets int) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case most > 0 && octets > most:
			return fmt.Errorf("the kernel's answer about one kind of object of the namespace takes more than %d octets, the bound that the caller sets: raise it (MostRead), or end the program that adds so many (ip route, ip rule and ip address show them): %w", most, unix.E2BIG)
		}
		return nil
	}
	n.route.Ended = ended
	if n.filter != nil {
		n.filter.Ended = ended
	}
}

// Close closes the sockets, and waits for deletions of links. It does not wait until the kernel has freed what
// transactions have deleted (nft_rcv_nl_event, net/netfilter/nf_tables_api.c).
func (n *Namespace) Close() {
	n.route.Close()
	n.Tables.Close()
	n.deletions.Wait()
}
