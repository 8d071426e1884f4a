// Package dhcp is the responder: it tells one guest, over one port, what a record says.
//
// It speaks Ethernet, so it needs no capability, no address and no socket: a frame of the guest
// goes in, at most one frame comes out. DHCPv4, DHCPv6, router advertisements, ARP and neighbour
// advertisements are in it. Whoever asks with the guest's Ethernet address gets the one address of
// the record, whatever identifiers it uses; nobody else gets an answer.
//
// [Responder.Reply] is a pure function from frame to frame. What depends on time, the
// advertisements that nobody asked for and the limits on rates, is in [Responder.Serve].
package dhcp

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestwire/guestwire/cache"
)

// Responder answers one guest. Its methods can be called at the same time; the fields are to be set
// before Serve.
type Responder struct {
	// Log gets what the guest was given and what went wrong. Nil discards.
	Log *slog.Logger
	// Notify is called by Serve, in its goroutine, with what the guest was given. The guest can
	// cause an event with each of its frames and waits for the call to return. Nil: nobody is told.
	Notify func(Event)

	says     atomic.Pointer[answers]
	counters counters

	mu      sync.Mutex
	port    Port // that is being served; nil: none
	updated bool // since the loop looked
}

// answers are all that the guest can be told, computed when they are made; afterwards they do not
// change.
type answers struct {
	guest      cache.MAC
	frameSize  int
	v4         *server4 // nil: no DHCPv4
	v6         *server6 // nil: no DHCPv6 and no advertisements
	router     *router  // nil exactly if v6 is
	neighbours map[netip.Addr]neighbour
	warnings   []string
}

// New makes a responder out of a record and the DNS configuration that the guest is to have, which
// is the record's or one read from a resolv.conf: Record.DNS is not looked at.
//
// A search domain or a server that the guest could not use is left out and is no error; Warnings
// names it. The error is a *cache.FieldError for a record that does not hold, or says that the
// record names no port.
func New(rec cache.Record, dns cache.DNS) (*Responder, error) {
	a, err := newAnswers(rec, dns)
	if err != nil {
		return nil, err
	}
	r := new(Responder)
	r.says.Store(a)
	return r, nil
}

// Update lets the responder answer from another record or DNS configuration from the next frame on.
// A running Serve advertises it at once; DHCP clients learn it when they ask the next time. The error
// is New's, and then nothing has changed.
func (r *Responder) Update(rec cache.Record, dns cache.DNS) error {
	a, err := newAnswers(rec, dns)
	if err != nil {
		return err
	}
	r.says.Store(a)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updated = true
	if r.port != nil {
		if err := r.port.SetReadDeadline(time.Unix(1, 0)); err != nil {
			return fmt.Errorf("interrupt the port's read: %w", err)
		}
	}
	return nil
}

func newAnswers(rec cache.Record, dns cache.DNS) (*answers, error) {
	if err := rec.Validate(); err != nil {
		return nil, fmt.Errorf("responder for %s: %w", rec.Name, err)
	}
	if rec.ResponderTap == "" {
		return nil, fmt.Errorf("responder for %s: the record names no port: Setup was told not to serve the guest", rec.Name)
	}
	res := newResolver(dns, &rec)
	r := &answers{
		guest:     rec.MAC,
		frameSize: ethLen + max(rec.MTU, 1500),
		warnings:  res.warnings,
	}
	if rec.IPv4 != nil {
		r.v4 = newServer4(rec, res)
	}
	if rec.IPv6 != nil {
		var warnings []string
		r.v6, warnings = newServer6(rec, res)
		r.warnings = append(r.warnings, warnings...)
		var err error
		r.router, warnings, err = newRouter(rec, res)
		if err != nil {
			return nil, fmt.Errorf("responder for %s: %w", rec.Name, err)
		}
		r.warnings = append(r.warnings, warnings...)
	}
	var err error
	if r.neighbours, err = newNeighbours(rec); err != nil {
		return nil, fmt.Errorf("responder for %s: %w", rec.Name, err)
	}
	return r, nil
}

// Warnings are sentences about what the guest is not told because it cannot be encoded or because
// it would be of no use there.
func (r *Responder) Warnings() []string { return r.says.Load().warnings }

// Reply answers one Ethernet frame: the answer is appended to dst, which is returned as it was if
// there is none. Dst must not overlap frame. There is no clock and no input or output, and the
// answer goes to the guest's Ethernet address, to broadcast or to multicast.
func (r *Responder) Reply(dst, frame []byte) []byte {
	dst, _ = r.says.Load().answer(dst, frame)
	return dst
}

func (r *answers) answer(dst, frame []byte) ([]byte, event) {
	if len(frame) < ethLen || cache.MAC(frame[6:12]) != r.guest {
		return dst, event{}
	}
	body := frame[ethLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherIPv4:
		return r.answerIPv4(dst, body)
	case etherARP:
		return r.answerARP(dst, body)
	case etherIPv6:
		return r.answerIPv6(dst, body)
	}
	return dst, event{}
}

func (r *answers) answerIPv4(dst, body []byte) ([]byte, event) {
	if r.v4 == nil {
		return dst, event{}
	}
	msg, port, ok := parseUDP4(body)
	if !ok || port != portServer4 {
		return dst, event{}
	}
	return r.v4.answer(dst, msg)
}

func (r *answers) answerIPv6(dst, body []byte) ([]byte, event) {
	p, ok := parseIPv6(body)
	if !ok {
		return dst, event{}
	}
	switch p.next {
	case protoUDP:
		if r.v6 == nil {
			return dst, event{}
		}
		msg, port, ok := parseUDP6(p)
		if !ok || port != portServer6 {
			return dst, event{}
		}
		return r.v6.answer(dst, p, msg)
	case protoICMPv6:
		// RFC 4861 sections 6.1.1 and 7.1.1: no router forwarded it, its checksum holds, its
		// code is 0.
		if p.hops != 255 || len(p.body) < 8 || p.body[1] != 0 || !checksumHolds(pseudo6(p.src, p.dst, protoICMPv6, len(p.body)), p.body, 2) {
			return dst, event{}
		}
		switch p.body[0] {
		case icmpRouterSolicitation:
			return r.answerRouterSolicitation(dst, p)
		case icmpNeighbourSolicitation:
			return r.answerNeighbourSolicitation(dst, p)
		}
	}
	return dst, event{}
}

// infinite is the lifetime that never ends: RFC 2131 section 3.3, RFC 9915 section 7.7.
const infinite = math.MaxUint32

// leaseTime is the lifetime of a lease in seconds.
func leaseTime(o cache.Options) uint32 {
	if o.LeaseSeconds == 0 {
		return infinite
	}
	return o.LeaseSeconds
}
