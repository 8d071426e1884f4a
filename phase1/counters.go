package phase1

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/holders"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
)

// Counters are what a NIC's tap, or its macvtap, and its rules have counted, and whether processes are at the taps. A
// tap or a rule that Setup creates again counts from zero.
type Counters struct {
	// FromGuest is what the VMM wrote, also if rules drop it. Nil: there is no tap.
	FromGuest *Count `json:"fromGuest,omitempty"`

	// ToGuest is what the VMM read. Of a macvtap it is what the network sent, read or not. Nil:
	// there is no tap.
	ToGuest *Count `json:"toGuest,omitempty"`

	// Opened is the number of connections that Spec.Egress allowed. Nil: there is no policy.
	Opened *uint64 `json:"opened,omitempty"`

	// Diverted is the number of connections that a divert led to the namespace. Nil: there is none.
	Diverted *uint64 `json:"diverted,omitempty"`

	// Drops are the packets that rules dropped, one entry for each reason. What Spec.Egress
	// refused has the reason "egress". The reason "rate-limit" includes what the queue of
	// Limits.ToGuest dropped.
	Drops []Count `json:"drops"`

	// Attached has an entry for the guest's tap, and one for the responder's. A tap that the
	// wiring does not have, or that is gone, has no entry. Under passt, which has no tap, Status
	// adds an entry for passt.
	Attached []Attachment `json:"attached"`
}

// Attachment is who has one of the guest's taps open.
type Attachment struct {
	// Side is "vmm" for the guest's tap, and "responder" for the responder's, or "passt".
	Side string `json:"side"`

	// Tap is the tap's name. Empty: the side is passt.
	Tap string `json:"tap"`

	// State is "attached" if a process has the tap open, or passt runs, else "none". It is
	// "unknown" for a macvtap: the kernel does not report who has its device open.
	State string `json:"state"`

	// Processes are those that have the tap open, or are passt, as far as this process can see them.
	// Counters has none. With "attached" none means that the process is not visible here, as
	// outside of a container.
	Processes []Process `json:"processes,omitempty"`
}

// Process is a process that has a tap open.
type Process struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`

	// Started is when the process started, to a second. It opened the tap later.
	Started time.Time `json:"started,omitzero"`
}

// Count is a number of packets.
type Count struct {
	// Reason, of an entry of Drops, is why the packets were dropped, a word of
	// docs/reference/drop-reasons.md. Meaning says it in one line.
	Reason  string `json:"reason,omitempty"`
	Meaning string `json:"meaning,omitempty"`

	// Expected, of an entry of Drops, means that a healthy wiring drops such packets, and that
	// nothing needs to be done.
	Expected bool `json:"expected,omitempty"`

	// Packets is their number. A segment that is cut later (offload) counts as one.
	Packets uint64 `json:"packets"`

	// Bytes is the size of the Ethernet frames. In Drops the Ethernet header does not count, nor
	// does what the queue of Limits.ToGuest dropped, of which the kernel counts packets alone.
	Bytes uint64 `json:"bytes"`
}

// Counters reads the counters. A NIC that is not wired has none, except those of a macvtap. No lock.
func (n NIC) Counters(ctx context.Context) (*Counters, error) {
	if err := ctx.Err(); err != nil {
		return nil, n.failed("counters", context.Cause(ctx))
	}
	var c Counters
	err := n.inspect(func(ns *kernel.Namespace) error {
		ns.EndWith(ctx, n.MostRead)
		links, err := ns.Links()
		if err != nil {
			return err
		}
		c, err = counters(ns, n.Name, tapAmong(links, n.Name), responderAmong(links, n.Name))
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

// responderAmong is the name of the responder's tap; empty: there is none.
func responderAmong(links []netstate.Link, nic string) string {
	name := netstate.NamesFor(nic, "").Responder
	if slices.ContainsFunc(links, func(l netstate.Link) bool { return l.Tap != nil && l.Name == name }) {
		return name
	}
	return ""
}

// counters reads those of the NIC's rules and of its tap, and whether the two taps are open; empty: there is none.
func counters(ns *kernel.Namespace, nic, tap, responder string) (c Counters, err error) {
	counts, err := ns.Tables.Counts(netstate.NamesFor(nic, "").Table)
	if err != nil {
		return c, fmt.Errorf("counters of nftables: %w", err)
	}
	c = Counters{Opened: counts.Opened, Diverted: counts.Diverted, Drops: []Count{}}
	c.Attached = slices.Grow(c.Attached, 2)
	for _, d := range counts.Drops {
		one := dropsOf(d.Reason)
		one.Packets, one.Bytes = d.Packets, d.Bytes
		c.Drops = append(c.Drops, one)
	}
	for _, side := range []struct{ name, tap string }{{"vmm", tap}, {"responder", responder}} {
		if side.tap == "" {
			continue
		}
		t, dropped, open, err := ns.Traffic(side.tap)
		if err != nil {
			return c, fmt.Errorf("counters of %s: %w", side.tap, err)
		}
		if t == nil {
			continue
		}
		state := "none"
		switch {
		case side.tap == nic:
			state = "unknown"
		case open:
			state = "attached"
		}
		c.attach(side.name, side.tap, state)
		if dropped != nil {
			c.addLimited(*dropped)
		}
		if side.name == "vmm" {
			c.FromGuest, c.ToGuest = &Count{Packets: t.InPackets, Bytes: t.InBytes}, &Count{Packets: t.OutPackets, Bytes: t.OutBytes}
		}
	}
	if tap == nic { // a macvtap, which sends what the guest sends
		c.FromGuest, c.ToGuest = c.ToGuest, c.FromGuest
	}
	return c, nil
}

// dropsOf is an entry of Drops, of no packet yet.
func dropsOf(r firewall.Reason) Count {
	return Count{Reason: string(r), Meaning: r.Meaning(), Expected: r.Expected()}
}

// addLimited adds what the tap's qdisc has dropped to what rules have dropped for the same reason.
func (c *Counters) addLimited(packets uint64) {
	at := slices.IndexFunc(c.Drops, func(d Count) bool { return d.Reason == string(firewall.RateLimit) })
	if at < 0 {
		at = len(c.Drops)
		c.Drops = append(c.Drops, dropsOf(firewall.RateLimit))
	}
	c.Drops[at].Packets += packets
}

func (c *Counters) attach(side, tap, state string) {
	c.Attached = append(c.Attached, Attachment{Side: side, Tap: tap, State: state})
}

// findPasst adds the processes of passt that serve the NIC. Call it in the namespace.
func (c *Counters) findPasst(ctx context.Context, nic string) error {
	found, err := holders.Passt(ctx, nic)
	if err != nil {
		return err
	}
	c.attach("passt", "", "none")
	a := &c.Attached[len(c.Attached)-1]
	for _, p := range found {
		a.State = "attached"
		a.Processes = append(a.Processes, Process(p))
	}
	return nil
}

// findProcesses adds the processes that have the taps open. Call it in the namespace.
func (c *Counters) findProcesses(ctx context.Context) error {
	open := map[string]bool{}
	for _, a := range c.Attached {
		if a.State != "unknown" {
			open[a.Tap] = a.State == "attached"
		}
	}
	if len(open) == 0 {
		return nil
	}
	found, err := holders.Of(ctx, open)
	if err != nil {
		return err
	}
	for i := range c.Attached {
		a := &c.Attached[i]
		for _, p := range found[a.Tap] {
			a.State = "attached" // also if the process has taken the carrier away
			a.Processes = append(a.Processes, Process(p))
		}
	}
	return nil
}
