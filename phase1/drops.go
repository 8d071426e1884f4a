package phase1

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/frametext"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
)

// DropCount is how much a NIC's nftables have dropped for one reason. The counters begin with Setup, and again
// with a Setup that replaces rules: after a change of the configuration, or to repair a table.
type DropCount struct {
	// Reason is one of DropReasons.
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
	// Bytes are the sizes of the IP packets or ARP messages, without the Ethernet header.
	Bytes uint64 `json:"bytes"`
}

// DropReason is why a packet is dropped.
type DropReason struct {
	// Name is a word such as mac-spoof.
	Name string
	// Meaning is one line.
	Meaning string
}

// DropReasons returns all reasons for which guestwire's nftables drop a packet.
//
// iptables and tc do not count: a masquerade by iptables has the reasons of the guest filter alone.
func DropReasons() []DropReason {
	var list []DropReason
	for _, r := range firewall.Reasons {
		list = append(list, DropReason{string(r.Reason), r.Meaning})
	}
	return list
}

// Drops reads the NIC's counters, in the order of DropReasons. A reason for which the NIC has no rule is left out, so a NIC
// without nftables of guestwire has none. Drops takes no lock.
func (n NIC) Drops(ctx context.Context) ([]DropCount, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	var list []DropCount
	err := n.look(func(ns *kernel.Namespace) (err error) {
		list, err = dropCounts(ns, n.Name)
		return err
	})
	return list, err
}

func dropCounts(ns *kernel.Namespace, nic string) ([]DropCount, error) {
	counts, err := ns.Drops(netstate.NamesFor(nic, "").Table)
	if err != nil {
		return nil, fmt.Errorf("NIC %s: counters of nftables: %w", nic, err)
	}
	list := []DropCount{}
	for _, c := range counts {
		list = append(list, DropCount{Reason: string(c.Reason), Packets: c.Packets, Bytes: c.Bytes})
	}
	return list, nil
}

// Drop is a packet that a NIC's nftables dropped.
type Drop struct {
	// Time is when the packet arrived.
	Time time.Time
	// Reason is one of DropReasons.
	Reason string
	// Text says who sent what to whom, in one line, as far as the first octets tell.
	Text string
	// Lost is the number of packets, of all NICs of the namespace, that were not reported since the last one,
	// because f was too slow.
	Lost int
}

// FollowDrops calls f with packets that the NIC's nftables drop, until ctx is done. Then it returns nil.
//
// The kernel reports at most 20 packets a second of each reason; the counters count all. One call at a time can follow a
// namespace: a second one is an error. FollowDrops takes no lock, so Setup and Teardown go on meanwhile, but the namespace
// does not end before FollowDrops does. After Teardown no packet is reported. Progress is called when the following begins.
//
// The error is ErrNotWired if the NIC has no nftables of guestwire: there was no Setup, or the binding or Guard.Off leaves
// nothing to drop.
func (n NIC) FollowDrops(ctx context.Context, f func(Drop)) error {
	var log *kernel.DropLog
	err := n.look(func(ns *kernel.Namespace) error {
		counts, err := ns.Drops(netstate.NamesFor(n.Name, "").Table)
		switch {
		case err != nil:
			return fmt.Errorf("read the counters of nftables: %w", err)
		case len(counts) == 0:
			return fmt.Errorf("%w, or wired without nftables that drop", ErrNotWired)
		case !counts[0].Logged:
			return errors.New("this kernel could not report dropped packets at Setup (nfnetlink_log is missing): only the counters tell of them")
		}
		log, err = kernel.OpenDropLog(n.Name)
		return err
	})
	if err != nil {
		return fmt.Errorf("NIC %s: %w", n.Name, err)
	}
	defer log.Close()
	progress(n.Progress).say("NIC %s: follows what is dropped", n.Name)
	return log.Follow(ctx, func(d kernel.Drop) {
		f(Drop{
			Time: d.Time, Reason: string(d.Reason), Lost: int(d.Lost),
			Text: frametext.Line(d.Ethernet, d.Tag, d.EtherType, d.Packet),
		})
	})
}
