package dhcp

import (
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
)

// neighbour is a station for which the responder answers.
type neighbour struct {
	mac     cache.MAC
	station netip.Addr // as in the record
	// Neighbour advertisements, without a checksum; nil for IPv4.
	solicited, unsolicited []byte
}

func newNeighbours(rec cache.Record) map[netip.Addr]neighbour {
	all := make(map[netip.Addr]neighbour, len(rec.Neighbours))
	for _, n := range rec.Neighbours {
		// An answer for the guest's own address would say to the guest that another station
		// has the address (RFC 5227, RFC 4862 section 5.4).
		if rec.IPv4 != nil && n.Address == rec.IPv4.Address.Addr() || rec.IPv6 != nil && slices.Contains(rec.IPv6.Addresses(), n.Address) ||
			slices.ContainsFunc(stationsOf(rec), func(m cache.MAC) bool { return n.Address == eui64.LinkLocal(m) }) {
			continue
		}
		made := neighbour{mac: n.MAC, station: n.Station}
		if n.Address.Is6() {
			var flags byte = frame.Override
			// Without the flag, the guest would take the router for a host and remove the routes through it (RFC 4861
			// section 7.2.5).
			if rec.IPv6 != nil && rec.IPv6.Router != nil && rec.IPv6.Router.Address == n.Address {
				flags |= frame.Router
			}
			made.unsolicited = frame.Advertisement(flags, n.Address, n.MAC)
			made.solicited = frame.Advertisement(flags|frame.Solicited, n.Address, n.MAC)
		}
		all[n.Address] = made
	}
	return all
}

// answerARP answers a request for a neighbour (RFC 826). It also answers a probe (RFC 5227), as the guest
// must not take a neighbour's address.
func (r *answers) answerARP(dst, b []byte) ([]byte, result) {
	q, ok := frame.ParseARP(b)
	switch {
	case !ok:
		return dst, result{ignored: malformed}
	case q.Operation != frame.ARPRequest:
		return dst, result{ignored: otherProtocol}
	case !r.guests.have(q.SenderMAC):
		return dst, result{ignored: otherHardwareAddress}
	}
	n, ok := r.neighbours[q.Target]
	if !ok {
		return dst, result{ignored: otherTarget}
	}
	dst = frame.AppendEthernet(dst, q.SenderMAC, n.mac, frame.TypeARP)
	return frame.ARP{Operation: frame.ARPReply, SenderMAC: n.mac, Sender: q.Target, TargetMAC: q.SenderMAC, Target: q.Sender}.Append(dst), result{asks: n.station}
}

// answerNeighbourSolicitation answers for a neighbour (RFC 4861 section 7.2.4). A solicitation from :: asks
// whether the neighbour's address is free, and the answer to all nodes says that it is in use.
func (r *answers) answerNeighbourSolicitation(dst []byte, from cache.MAC, p frame.IPv6) ([]byte, result) {
	switch {
	case p.Src.IsMulticast():
		return dst, result{ignored: badSource}
	case len(p.Body) < frame.NeighbourLen || !validOptionsND(p.Body[frame.NeighbourLen:], p.Src):
		return dst, result{ignored: malformed}
	}
	target := netip.AddrFrom16([16]byte(p.Body[8:24]))
	if p.Src.IsUnspecified() && p.Dst != frame.SolicitedNode(target) { // section 7.1.1
		return dst, result{ignored: malformed}
	}
	n, ok := r.neighbours[target]
	if !ok {
		return dst, result{ignored: otherTarget}
	}
	if p.Src.IsUnspecified() {
		return toAllNodes(dst, n.mac, target, n.unsolicited), result{asks: n.station}
	}
	return frame.AppendICMPv6(dst, from, n.mac, p.Src, target, n.solicited), result{asks: n.station}
}

// validOptionsND checks the options of a solicitation (RFC 4861 sections 6.1.1 and 7.1.1): no option has the
// length zero, and a solicitation from :: has no source link-layer address.
func validOptionsND(b []byte, src netip.Addr) bool {
	if !frame.ValidOptions(b) {
		return false
	}
	for option := range frame.Options(b) {
		if option[0] == frame.SourceLinkLayer && src.IsUnspecified() {
			return false
		}
	}
	return true
}

// stations are the MACs of the guest, which are those that the guard allows.
type stations []cache.MAC

func stationsOf(rec cache.Record) stations { return append(stations{rec.MAC}, rec.MACs...) }

func (s stations) have(m cache.MAC) bool { return slices.Contains(s, m) }

// toAllNodes appends a frame with an ICMPv6 message to all nodes of the link.
func toAllNodes(b []byte, mac cache.MAC, src netip.Addr, msg []byte) []byte {
	return frame.AppendICMPv6(b, frame.MulticastMAC(frame.AllNodes), mac, frame.AllNodes, src, msg)
}
