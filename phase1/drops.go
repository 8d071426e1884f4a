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

// DropCount is what a NIC's rules have dropped for one reason.
type DropCount struct {
	Reason  string `json:"reason"` // see DropMeaning
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"` // of IP packets or ARP messages, without the Ethernet header
}

// DropMeaning explains a reason in one line; empty: there is no such reason.
func DropMeaning(reason string) string {
	for _, r := range firewall.Reasons {
		if string(r.Reason) == reason {
			return r.Meaning
		}
	}
	return ""
}

// Drops reads the counters of the NIC's rules, one for each reason. No lock.
func (n NIC) Drops(ctx context.Context) ([]DropCount, error) {
	if err := ctx.Err(); err != nil {
		return nil, n.failed("drops", context.Cause(ctx))
	}
	var list []DropCount
	err := n.inspect(func(ns *kernel.Namespace) (err error) {
		list, err = dropCounts(ns, n.Name)
		return err
	})
	return list, n.failed("drops", err)
}

func dropCounts(ns *kernel.Namespace, nic string) ([]DropCount, error) {
	counts, err := ns.Drops(netstate.NamesFor(nic, "").Table)
	if err != nil {
		return nil, fmt.Errorf("counters of nftables: %w", err)
	}
	list := []DropCount{}
	for _, c := range counts {
		list = append(list, DropCount{Reason: string(c.Reason), Packets: c.Packets, Bytes: c.Bytes})
	}
	return list, nil
}

// Drop is a packet that a NIC's nftables dropped.
type Drop struct {
	Time   time.Time // of the packet's arrival
	Reason string    // see DropMeaning
	Text   string    // who sent what to whom, in one line
	Lost   int       // packets of the namespace's NICs that were not reported since the last one: f was too slow
}

// FollowDrops calls f with packets that the NIC's nftables drop, at most 20 a second of each reason, until ctx is done;
// then it returns nil. It takes no lock and keeps the namespace alive. Progress is called when it begins. It fails if
// the namespace is followed already; ErrNotWired: no nftables are guestwire's.
func (n NIC) FollowDrops(ctx context.Context, f func(Drop)) error {
	var log *kernel.DropLog
	err := n.inspect(func(ns *kernel.Namespace) error {
		counts, err := ns.Drops(netstate.NamesFor(n.Name, "").Table)
		switch {
		case err != nil:
			return fmt.Errorf("counters of nftables: %w", err)
		case len(counts) == 0:
			return fmt.Errorf("%w, or wired without nftables that drop", ErrNotWired)
		case !counts[0].Logged:
			return errors.New("this kernel could not report dropped packets at Setup (nfnetlink_log is missing): only the counters report them")
		}
		log, err = kernel.OpenDropLog(n.Name)
		return err
	})
	if err != nil {
		return n.failed("drops", err)
	}
	defer log.Close()
	progress(n.Progress).say("NIC %s: follows what is dropped", n.Name)
	return n.failed("drops", log.Follow(ctx, func(d kernel.Drop) {
		f(Drop{
			Time: d.Time, Reason: string(d.Reason), Lost: int(d.Lost),
			Text: frametext.Line(d.Ethernet, d.Tag, d.EtherType, d.Packet),
		})
	}))
}
