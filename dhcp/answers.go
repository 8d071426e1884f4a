package dhcp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/served"
)

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
	stations   map[netip.Addr]station // of the network, which the responder follows
	rounds     []round                // of an announcement
	standby    bool
	warnings   []string

	record cache.Record // as it was given
	dns    cache.DNS
}

func newAnswers(given cache.Record, dns cache.DNS, moves moves) (*answers, error) {
	rec := moves.in(given)
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
		frameSize: frame.EthernetLen + frame.PriorityTagLen + max(rec.MTU, 1500),
		standby:   rec.Role != cache.RoleActive,
		warnings:  res.warnings,
		record:    given,
		dns:       dns,
	}
	if rec.IPv4 != nil || rec.IPv6 != nil && rec.Options.IPv6OnlySeconds > 0 {
		r.v4 = newServer4(rec, res)
	}
	if rec.IPv6 != nil {
		var warnings []string
		r.v6, warnings = newServer6(rec, res)
		r.warnings = append(r.warnings, warnings...)
		r.router, warnings = newRouter(rec, res)
		r.warnings = append(r.warnings, warnings...)
	}
	r.warnings = append(r.warnings, unsent(&rec, res)...)
	r.neighbours = newNeighbours(rec)
	r.stations = newStations(rec)
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

func (r *answers) answer(dst, received []byte) ([]byte, result) {
	f, ok := frame.ParseEthernet(received)
	if !ok {
		return dst, result{ignored: malformed}
	}
	if !r.guests.have(f.Src) {
		if said, ok := r.said(f, received); ok {
			return dst, said
		}
		return dst, result{ignored: otherMAC, kind: otherMACSeen}
	}
	switch f = f.WithoutPriority(); f.Type {
	case frame.TypeIPv4:
		return r.answerIPv4(dst, f.Body)
	case frame.TypeARP:
		return r.answerARP(dst, f.Body)
	case frame.TypeIPv6:
		return r.answerIPv6(dst, f.Src, f.Body)
	}
	return dst, result{ignored: otherProtocol}
}

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
