// Package dhcp is the responder: it answers one guest's DHCPv4, DHCPv6, router solicitations, ARP and neighbour
// solicitations, as the record wants. The guest gets the same addresses whatever client identifier, DUID or IAID it
// sends. The responder reads and writes Ethernet frames, and needs no capability, address or socket. It answers frames
// from the guest's MACs alone, which are those of the record, each with one frame at most.
package dhcp

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/served"
)

// Responder answers one guest. Its methods can be called at the same time. Set its fields before Serve.
type Responder struct {
	// Log gets the events that Notify gets. Offers and router advertisements are on the debug
	// level. It also gets warnings, such as of DNS servers that the guest cannot use. No frame
	// is answered until its handler returns. Nil discards.
	Log *slog.Logger

	// Notify is called with each event, in Serve's goroutine: no frame is answered until it
	// returns. Nil: no calls.
	Notify func(Event)

	answers  atomic.Pointer[answers]
	counters counters

	mu      sync.Mutex
	port    Port         // the port of a running Serve; nil: there is none
	asked   []chan error // callers of Announce that Serve has not taken yet
	updated bool         // Update was called, and Serve has not taken its answers yet
}

// answers are all answers for one record and one DNS configuration. They are computed when they are made and
// do not change.
type answers struct {
	guest      cache.MAC
	guests     stations
	frameSize  int
	v4         *server4 // nil: no answer by DHCPv4
	v6         *server6 // nil: no DHCPv6 and no advertisements
	router     *router  // nil exactly if v6 is
	neighbours map[netip.Addr]neighbour
	rounds     []round // of an announcement
	standby    bool
	warnings   []string
}

// New makes a responder for a record. dns is what the guest gets: pass Record.DNS, or what a resolv.conf says.
// Record.DNS itself is not read. Servers and search domains that the guest could not use are left out, with a warning
// in Log. If the record is not valid, the error wraps a [*cache.FieldError]. A record without a ResponderTap is an
// error, too.
func New(rec cache.Record, dns cache.DNS) (*Responder, error) {
	a, err := newAnswers(rec, dns)
	if err != nil {
		return nil, err
	}
	r := new(Responder)
	r.answers.Store(a)
	return r, nil
}

// Update replaces the record and the DNS configuration from the next frame on. Serve sends the new router advertisement
// at once. A DHCP client learns the rest with its next lease. The errors are those of [New], and then nothing has
// changed.
func (r *Responder) Update(rec cache.Record, dns cache.DNS) error {
	a, err := newAnswers(rec, dns)
	if err != nil {
		return err
	}
	r.answers.Store(a)
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
		return nil, fmt.Errorf("responder for %s: the record has no responderTap, as Setup had the option noResponder", rec.Name)
	}
	res := newResolver(dns, &rec)
	r := &answers{
		guest:     rec.MAC,
		guests:    stationsOf(rec),
		frameSize: frame.EthernetLen + max(rec.MTU, 1500),
		standby:   rec.Standby,
		warnings:  res.warnings,
	}
	if rec.IPv4 != nil || rec.IPv6 != nil && rec.Options.IPv6OnlySeconds > 0 {
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
	r.warnings = append(r.warnings, unsent(&rec, res)...)
	r.neighbours = newNeighbours(rec)
	r.rounds = newRounds(rec, r.neighbours)
	return r, nil
}

// unsent warns of what the guest does not get as it has no address of the family, and by DHCPv4 as it does not fit into
// a message. What the record names as a loss is known.
func unsent(rec *cache.Record, res resolver) []string {
	var warnings []string
	for _, l := range append(served.OtherFamily(rec), served.TooLong4(rec, res.servers4, res.search)...) {
		isKnown := func(k cache.Loss) bool { return k.What == l.What && k.Why == l.Why }
		if !slices.ContainsFunc(rec.Losses, isKnown) {
			warnings = append(warnings, fmt.Sprintf("%s is left out: %s", l.What, l.Why))
		}
	}
	return warnings
}

// Reply appends the answer to an Ethernet frame to dst, which must not overlap frame. If there is no answer, it returns
// dst as it is. Reply reads no clock and does no input or output.
func (r *Responder) Reply(dst, frame []byte) []byte {
	dst, _ = r.answers.Load().answer(dst, frame)
	return dst
}

func (r *answers) answer(dst, received []byte) ([]byte, result) {
	f, ok := frame.ParseEthernet(received)
	if !ok {
		return dst, result{ignored: malformed}
	}
	if !r.guests.have(f.Src) {
		return dst, result{ignored: otherMAC, kind: otherMACSeen}
	}
	switch f.Type {
	case frame.TypeIPv4:
		return r.answerIPv4(dst, f.Body)
	case frame.TypeARP:
		return r.answerARP(dst, f.Body)
	case frame.TypeIPv6:
		return r.answerIPv6(dst, f.Src, f.Body)
	}
	return dst, result{ignored: otherProtocol}
}

// stations are the MACs of the guest, which are those that the guard allows.
type stations []cache.MAC

func stationsOf(rec cache.Record) stations { return append(stations{rec.MAC}, rec.MACs...) }

func (s stations) have(m cache.MAC) bool { return slices.Contains(s, m) }

func (r *answers) answerIPv4(dst, body []byte) ([]byte, result) {
	if r.v4 == nil {
		return dst, result{ignored: noIPv4}
	}
	msg, why := parseUDP4(body, portServer4)
	if why != "" {
		return dst, result{ignored: why}
	}
	return r.v4.answer(dst, msg)
}

func (r *answers) answerIPv6(dst []byte, from cache.MAC, body []byte) ([]byte, result) {
	p, ok := frame.ParseIPv6(body)
	if !ok {
		return dst, result{ignored: malformed}
	}
	switch p.Next {
	case frame.UDP:
		if r.v6 == nil {
			return dst, result{ignored: noIPv6}
		}
		msg, why := parseUDP6(p, portServer6)
		if why != "" {
			return dst, result{ignored: why}
		}
		return r.v6.answer(dst, from, p, msg)
	case frame.ICMPv6:
		// RFC 4861 sections 6.1.1 and 7.1.1: a hop limit of 255, as no router has forwarded the packet,
		// a correct checksum, and the code 0.
		switch {
		case len(p.Body) < 8:
			return dst, result{ignored: malformed}
		case p.Body[0] != frame.RouterSolicitation && p.Body[0] != frame.NeighbourSolicitation:
			return dst, result{ignored: otherProtocol}
		case p.Hops != 255:
			return dst, result{ignored: badHopLimit}
		case p.Body[1] != 0:
			return dst, result{ignored: malformed}
		case !validChecksum(frame.Pseudo6(p.Src, p.Dst, frame.ICMPv6, len(p.Body)), p.Body, 2):
			return dst, result{ignored: badChecksum}
		case p.Body[0] == frame.RouterSolicitation:
			return r.answerRouterSolicitation(dst, from, p)
		}
		return r.answerNeighbourSolicitation(dst, from, p)
	}
	return dst, result{ignored: otherProtocol}
}
