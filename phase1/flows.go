package phase1

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/wiring"
)

// Flow is a connection of a guest, or an exchange without connections, such as of UDP or ping, as the namespace tracks
// it.
type Flow struct {
	// Time is when the event happened. Of a begin it is when the report arrived, before Linux 6.14.
	Time time.Time `json:"time"`

	// Event is "begin", "end", or "open" in the list of Flows. The kernel notices the end of a UDP exchange
	// when no packet has come for a time, 30 s by default.
	Event string `json:"event"`

	// NIC is the NIC's name.
	NIC string `json:"nic"`

	// Began is when the flow began. Zero: that is not known, as Spec.Flows was not set then.
	Began time.Time `json:"began,omitzero"`

	// ByGuest reports whether the guest opened the flow. False: the network or the namespace did.
	ByGuest bool `json:"byGuest"`

	// Protocol is tcp, udp, sctp, icmp, icmpv6, or the protocol's number.
	Protocol string `json:"protocol"`

	// Guest are the addresses and ports of the first packet as the guest has it, and Network those that
	// the network has. They differ where the namespace translates. Of a flow that was diverted, the
	// Network's destination is the target. A protocol without ports has the port 0.
	Guest   FlowEnds `json:"guest"`
	Network FlowEnds `json:"network"`

	// ICMP is what the first packet of icmp and icmpv6 has in the place of ports. Nil: another protocol.
	ICMP *FlowICMP `json:"icmp,omitempty"`

	// FromGuest and ToGuest are what the flow has carried. Nil: a begin, or the kernel did not count when the
	// flow began, as Spec.Flows was not set.
	FromGuest *FlowCount `json:"fromGuest,omitempty"`
	ToGuest   *FlowCount `json:"toGuest,omitempty"`

	// List is "egress" or "egressWithin", and Entry the entry of that list which decides, in the words of
	// [infra.Egress]. An end has the values of its begin, if the call has reported that and at most 65,536 others
	// since. Other flows have the values of the list when they are reported, which may refuse what is open: so may a
	// begin while Setup changes the list. Empty: no list decides, as of what the network opened, and of the
	// namespace's own ports.
	List  string `json:"list,omitempty"`
	Entry string `json:"entry,omitempty"`

	// Pinned is set if a pin opened what Entry refuses, and Name is the pin's name.
	Pinned bool   `json:"pinned,omitempty"`
	Name   string `json:"name,omitempty"`

	// Lost is the number of reports in this namespace, since the previous Flow, that were not received because f was
	// too slow. Those of other NICs count, and of the namespace itself.
	Lost int `json:"lost,omitempty"`
}

// FlowICMP is what a packet of ICMP has in the place of ports (RFC 792, RFC 4443).
type FlowICMP struct {
	Type uint8  `json:"type"`
	Code uint8  `json:"code"`
	ID   uint16 `json:"id"`
}

// FlowEnds are the two ends of a packet.
type FlowEnds struct {
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
}

// FlowCount is what a flow has carried in one direction.
type FlowCount struct {
	// Packets is their number. A segment that is cut later (offload) counts as one.
	Packets uint64 `json:"packets"`

	// Octets is their size, with the headers of IP.
	Octets uint64 `json:"octets"`
}

// Flows returns the flows of the guest that are open, in no order. It waits for no lock. Progress reports what Flow
// lacks. The errors are those of FollowFlows.
func (n NIC) Flows(ctx context.Context) (flows []Flow, err error) {
	err = n.read(ctx, func(s *session) error {
		b, err := s.flowBook()
		if err != nil {
			return err
		}
		b.pinned = s.ns.Tables.Pinned
		if lacking := flowsLack(false); lacking != "" {
			s.report.say("NIC %s: lists the guest's flows%s", s.nic, lacking)
		}
		var open []kernel.Flow
		err = s.ns.Flows(func() { open = nil }, func(r kernel.Flow) {
			if has, _ := b.flows.Has(r.First.Source.Addr(), r.Answers.Source.Addr()); has {
				open = append(open, r)
			}
		})
		flows = nil
		for _, r := range open { // pins are looked up by the same socket
			_, byGuest := b.flows.Has(r.First.Source.Addr(), r.Answers.Source.Addr())
			f := b.describe(r, byGuest)
			f.Event, f.Time = "open", time.Now()
			b.decide(&f, r)
			flows = append(flows, f)
		}
		return err
	})
	return flows, n.failed("flows", err)
}

// FollowFlows calls f when a flow of the guest begins, and when one ends. What egress refuses does not begin: see
// FollowDrops. It works until ctx is done, and then returns nil. Progress reports when it has begun, and what Flow will
// lack. The namespace lives as long as the call. No lock. Any number of calls can follow a namespace.
//
// Spec.Flows has the kernel count, and report the end also of what began before the call. Another Setup counts for the
// flows that begin later.
//
//	ErrNotWired  there was no Setup
//	others       nobody tracks the guest's connections under the binding, or the kernel has no nf_conntrack_netlink
func (n NIC) FollowFlows(ctx context.Context, f func(Flow)) error {
	return n.failed("flows", n.followFlows(ctx, kernel.FlowRoom, f))
}

func (n NIC) followFlows(ctx context.Context, room int, f func(Flow)) error {
	_, release, err := n.openOwn() // until the end the goroutine stays in the namespace, which each look opens again
	if err != nil {
		return err
	}
	defer release()
	var b *flowBook
	load := func(s *session) (err error) {
		b, err = s.flowBook()
		return err
	}
	if err := n.read(ctx, load); err != nil {
		return err
	}
	var log *kernel.FlowLog
	var ns *kernel.Namespace // for its tables
	lacking := ""
	err = n.inNamespace(func(*kernel.Namespace) (err error) {
		lacking = flowsLack(true)
		if ns, err = kernel.Open(); err == nil {
			log, err = kernel.OpenFlowLog(room)
		}
		return err
	})
	if ns != nil {
		defer ns.Close()
	}
	if err != nil {
		return err
	}
	defer log.Close()
	report := progress(n.Progress)
	report.say("NIC %s: follows the guest's flows%s", n.Name, lacking)
	b.pinned = ns.Tables.Pinned
	byGuest := false
	var again time.Time // when to read the journal again; zero: it is read
	wants := func(r kernel.Flow) bool {
		if !r.Ended && (b.journal.hasChanged() || !again.IsZero() && time.Now().After(again)) {
			old := b
			if err := n.read(ctx, load); err != nil {
				if b = old; ctx.Err() == nil && again.IsZero() {
					report.say("NIC %s: flows are judged by an earlier Setup's list: %v", n.Name, err)
				}
				again = time.Now().Add(readAgain)
			} else {
				b.pinned, b.known, b.older, b.pins = old.pinned, old.known, old.older, old.pins
				again = time.Time{}
			}
		}
		has := false
		has, byGuest = b.flows.Has(r.First.Source.Addr(), r.Answers.Source.Addr())
		return has
	}
	return log.Follow(ctx, wants, func(r kernel.Flow) {
		flow := b.describe(r, byGuest)
		if flow.Event = "begin"; r.Ended {
			flow.Event = "end"
			b.recall(&flow, r)
		} else {
			flow.Began = flow.Time
			b.decide(&flow, r)
			b.remember(flow, r)
		}
		f(flow)
	})
}

// flowsLack says what flows lack in the calling thread's namespace; empty: nothing. Where follows is set, that can be
// all of them.
func flowsLack(follows bool) string {
	var now netstate.Snapshot
	err := kernel.ReadSysctls(&now, []string{netstate.CountFlows, netstate.ReportFlows})
	switch {
	case err != nil:
		return ""
	case follows && now.Sysctls[netstate.ReportFlows] == "0":
		return ", and will get none that begins while net.netfilter.nf_conntrack_events is 0 (flows in the configuration sets it)"
	case now.Sysctls[netstate.CountFlows] != "1":
		return ", without octets, as the kernel does not count here (flows in the configuration)"
	}
	return ""
}

// flowBook is what describes the flows of a NIC.
type flowBook struct {
	nic, table string
	journal    stamp
	flows      *wiring.Flows
	pinned     func(table string, p firewall.Pin) (name string, pinned bool, err error)
	known      map[flowKey]knownFlow
	older      map[flowKey]knownFlow // what known was when it was full
	pins       map[firewall.Pin]knownPin
}

// flowKey names a flow that has not ended.
type flowKey struct {
	id       uint32
	zone     uint16
	protocol uint8
	first    kernel.Ends
}

func keyOf(r kernel.Flow) flowKey { return flowKey{r.ID, r.Zone, r.Protocol, r.First} }

// knownFlow is what the begin of a flow has said.
type knownFlow struct {
	began             time.Time
	list, entry, name string
	pinned            bool
}

// knownPin is the name of a pin that the kernel has. It holds for pinKnown: a pin has a life of minPinLife at least.
type knownPin struct {
	name  string
	until time.Time
}

const (
	mostKnownFlows = 1 << 16
	mostKnownPins  = firewall.MaxPins
	pinKnown       = minPinLife / 2
	readAgain      = time.Second
)

// flowBook returns the book of the journal's plan.
func (s *session) flowBook() (*flowBook, error) {
	at := stampOf(filepath.Join(s.node.Name(), s.identity.Name(), s.nic+journalSuffix)) // before the journal is read
	_, plan, err := s.planOf()
	if err != nil {
		return nil, err
	}
	now, err := s.ns.Addresses()
	if err != nil {
		return nil, err
	}
	flows := plan.Flows(now)
	if flows == nil {
		return nil, fmt.Errorf("under the %s binding nobody tracks the guest's connections: masquerade and routed have flows", plan.Binding().Kind())
	}
	return &flowBook{nic: s.nic, table: plan.Names().Table, journal: at, flows: flows, known: map[flowKey]knownFlow{}, pins: map[firewall.Pin]knownPin{}}, nil
}

// describe returns what the report says. The caller sets the event.
func (b *flowBook) describe(r kernel.Flow, byGuest bool) Flow {
	first := FlowEnds(r.First)
	answered := FlowEnds{Source: r.Answers.Destination, Destination: r.Answers.Source}
	f := Flow{Time: r.At, NIC: b.nic, Began: r.Began, ByGuest: byGuest, Protocol: protocolName(r.Protocol), Guest: first, Network: answered,
		FromGuest: countOf(r.FromFirst), ToGuest: countOf(r.FromAnswers), Lost: int(r.Lost)}
	if !byGuest {
		f.Guest, f.Network, f.FromGuest, f.ToGuest = f.Network, f.Guest, f.ToGuest, f.FromGuest
	}
	if i := r.ICMP; i != nil {
		f.ICMP = &FlowICMP{Type: i.Type, Code: i.Code, ID: i.ID}
	}
	return f
}

func countOf(c *kernel.Carried) *FlowCount {
	if c == nil {
		return nil
	}
	return &FlowCount{c.Packets, c.Octets}
}

// protocolName is that of Flow.Protocol.
func protocolName(number uint8) string {
	switch number {
	case firewall.ProtocolTCP:
		return "tcp"
	case firewall.ProtocolUDP:
		return "udp"
	case firewall.ProtocolSCTP:
		return "sctp"
	case firewall.ProtocolOfICMP(ip.V4):
		return "icmp"
	case firewall.ProtocolOfICMP(ip.V6):
		return "icmpv6"
	}
	return strconv.Itoa(int(number))
}

// decide adds what the list says now.
func (b *flowBook) decide(f *Flow, r kernel.Flow) {
	if !f.ByGuest {
		return
	}
	d := b.flows.Decide(r.First.Destination, r.Answers.Source, r.Protocol)
	if d.Entry.To == "" {
		return
	}
	if f.List = "egress"; d.Within {
		f.List = "egressWithin"
	}
	f.Entry = d.Entry.String()
	if d.Refuses && d.Pinnable {
		f.Name, f.Pinned = b.pin(firewall.Pin{To: r.Answers.Source.Addr(), Protocol: r.Protocol, Port: r.Answers.Source.Port()})
	}
}

// pin looks the pin up, once in a time.
func (b *flowBook) pin(p firewall.Pin) (name string, pinned bool) {
	now := time.Now()
	if known, has := b.pins[p]; has && now.Before(known.until) {
		return known.name, true
	}
	name, pinned, _ = b.pinned(b.table, p) // a failure costs the name
	if !isPinName(name) {                  // another program's comment
		name = ""
	}
	if pinned {
		if len(b.pins) >= mostKnownPins {
			clear(b.pins)
		}
		b.pins[p] = knownPin{name, now.Add(pinKnown)}
	}
	return name, pinned
}

// remember keeps what the end of the flow will say, until mostKnownFlows others at least have begun. A flow whose end
// is lost stays until then.
func (b *flowBook) remember(f Flow, r kernel.Flow) {
	if len(b.known) >= mostKnownFlows {
		b.known, b.older = map[flowKey]knownFlow{}, b.known
	}
	b.known[keyOf(r)] = knownFlow{f.Began, f.List, f.Entry, f.Name, f.Pinned}
}

// recall adds what the begin of the flow has said, or what the list says now.
func (b *flowBook) recall(f *Flow, r kernel.Flow) {
	key := keyOf(r)
	k, known := b.known[key]
	if !known {
		k, known = b.older[key]
	}
	if !known {
		b.decide(f, r)
		return
	}
	delete(b.known, key)
	delete(b.older, key)
	f.List, f.Entry, f.Name, f.Pinned = k.list, k.entry, k.name, k.pinned
	if f.Began.IsZero() {
		f.Began = k.began
	}
}

// stamp is how a file was, which is replaced when it changes.
type stamp struct {
	path     string
	inode    uint64
	size     int64
	modified unix.Timespec
}

func stampOf(path string) stamp {
	var stat unix.Stat_t
	if unix.Stat(path, &stat) != nil {
		return stamp{path: path}
	}
	return stamp{path, stat.Ino, stat.Size, stat.Mtim}
}

// hasChanged reports whether the file has changed since the last call, or since the stamp was made. A file that is gone
// has not.
func (s *stamp) hasChanged() bool {
	now := stampOf(s.path)
	if now == *s || now.inode == 0 {
		return false
	}
	*s = now
	return true
}
