package phase1

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/guestwire/guestwire/internal/frametext"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/nft"
)

// Drop is a packet that a NIC's nftables dropped.
type Drop struct {
	Time    time.Time `json:"time"`              // of the packet's arrival
	Reason  string    `json:"reason,omitempty"`  // a word of docs/reference/drop-reasons.md
	Text    string    `json:"text,omitempty"`    // who sent what to whom, in one line
	Meaning string    `json:"meaning,omitempty"` // Reason's, in one line

	// Lost is the number of drops in this namespace, since the previous Drop, that were not
	// reported because f was too slow.
	Lost int `json:"lost,omitempty"`
}

// FollowDrops calls f with packets that the NIC's nftables drop, at most 20 a second of each reason. It works until ctx
// is done, and then returns nil. Progress reports when it has begun. The namespace lives as long as the call. No lock.
// One call at a time can follow a namespace.
//
//	ErrNotWired  the namespace has no nftables table of this NIC, or one that drops nothing
//	others       another call follows the namespace, or the kernel has no nfnetlink_log
func (n NIC) FollowDrops(ctx context.Context, f func(Drop)) error {
	var log *nft.DropLog
	err := n.inspect(func(ns *kernel.Namespace) error {
		counts, err := ns.Tables.Counts(netstate.NamesFor(n.Name, "").Table)
		switch {
		case err != nil:
			return fmt.Errorf("counters of nftables: %w", err)
		case len(counts.Drops) == 0:
			return fmt.Errorf("%w, or wired without nftables that drop", ErrNotWired)
		case !counts.Drops[0].Logged:
			return errors.New("this kernel could not report dropped packets at Setup (nfnetlink_log is missing): only the counters report them")
		}
		log, err = nft.OpenDropLog(n.Name)
		return err
	})
	if err != nil {
		return n.failed("drops", err)
	}
	defer log.Close()
	progress(n.Progress).say("NIC %s: follows what is dropped", n.Name)
	return n.failed("drops", log.Follow(ctx, func(d nft.Drop) {
		f(Drop{
			Time: d.Time, Reason: string(d.Reason), Meaning: d.Reason.Meaning(), Lost: int(d.Lost),
			Text: frametext.Line(d.Ethernet, d.Tag, d.EtherType, d.Packet),
		})
	}))
}
