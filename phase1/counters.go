package phase1

import (
	"context"
	"fmt"
	"slices"

	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Counters are what a NIC's tap, or its macvtap, and its rules have counted. A tap or a rule that Setup creates again
// counts from zero.
type Counters struct {
	// FromGuest is what the VMM wrote, also if rules drop it. Nil: there is no tap.
	FromGuest *Count `json:"fromGuest,omitempty"`

	// ToGuest is what the VMM read. Of a macvtap it is what the network sent, read or not. Nil:
	// there is no tap.
	ToGuest *Count `json:"toGuest,omitempty"`

	// Opened is the number of connections that Spec.Egress allowed. Nil: there is no policy.
	Opened *uint64 `json:"opened,omitempty"`

	// Drops are the packets that rules dropped, one entry for each reason. What Spec.Egress
	// refused has the reason "egress".
	Drops []Count `json:"drops"`
}

// Count is a number of packets.
type Count struct {
	// Reason, of an entry of Drops, is why the packets were dropped: see DropMeaning.
	Reason string `json:"reason,omitempty"`

	// Packets is their number. A segment that is cut later (offload) counts as one.
	Packets uint64 `json:"packets"`

	// Bytes is the size of the Ethernet frames. In Drops the Ethernet header does not count.
	Bytes uint64 `json:"bytes"`
}

// Counters reads the counters. A NIC that is not wired has none, except those of a macvtap. No lock.
func (n NIC) Counters(ctx context.Context) (*Counters, error) {
	if err := ctx.Err(); err != nil {
		return nil, n.failed("counters", context.Cause(ctx))
	}
	var c Counters
	err := n.inspect(func(ns *kernel.Namespace) error {
		links, err := ns.Links()
		if err != nil {
			return err
		}
		c, err = counters(ns, n.Name, tapAmong(links, n.Name))
		return err
	})
	if err != nil {
		return nil, n.failed("counters", err)
	}
	return &c, nil
}

// tapAmong is the name of the NIC's tap, which has its mark; of a macvtap the NIC's own; empty: there is none.
func tapAmong(links []netstate.Link, nic string) string {
	responder := netstate.NamesFor(nic, "").Responder
	tap := slices.IndexFunc(links, func(l netstate.Link) bool {
		return l.Tap != nil && l.Alias == netstate.Mark(nic) && l.Name != responder
	})
	if tap < 0 {
		tap = slices.IndexFunc(links, func(l netstate.Link) bool { return l.Name == nic && l.Kind == "macvtap" })
	}
	if tap < 0 {
		return ""
	}
	return links[tap].Name
}

// counters reads those of the NIC's rules and of its tap; empty: there is none.
func counters(ns *kernel.Namespace, nic, tap string) (c Counters, err error) {
	counts, err := ns.Counts(netstate.NamesFor(nic, "").Table)
	if err != nil {
		return c, fmt.Errorf("counters of nftables: %w", err)
	}
	c = Counters{Opened: counts.Opened, Drops: []Count{}}
	for _, d := range counts.Drops {
		c.Drops = append(c.Drops, Count{Reason: string(d.Reason), Packets: d.Packets, Bytes: d.Bytes})
	}
	if tap == "" {
		return c, nil
	}
	t, err := ns.Traffic(tap)
	if err != nil {
		return c, fmt.Errorf("counters of %s: %w", tap, err)
	}
	if t != nil {
		c.FromGuest, c.ToGuest = &Count{Packets: t.InPackets, Bytes: t.InBytes}, &Count{Packets: t.OutPackets, Bytes: t.OutBytes}
	}
	if tap == nic { // a macvtap, which sends what the guest sends
		c.FromGuest, c.ToGuest = c.ToGuest, c.FromGuest
	}
	return c, nil
}
