package dhcp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/mdlayher/ndp"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
)

const (
	arpLen     = 28
	arpRequest = 1
	arpReply   = 2

	icmpRouterSolicitation    = 133
	icmpNeighbourSolicitation = 135
	optionSourceLinkLayer     = 1

	solicitationLen = 24 // without options
)

// arpHead is the beginning of every ARP packet for IPv4 on Ethernet (RFC 826).
var arpHead = [6]byte{0, 1, etherIPv4 >> 8, 0, 6, 4}

// neighbour is a station for which the responder answers.
type neighbour struct {
	mac cache.MAC
	// Neighbour advertisements, without a checksum; nil for IPv4.
	solicited, unsolicited []byte
}

func newNeighbours(rec cache.Record) (map[netip.Addr]neighbour, error) {
	all := make(map[netip.Addr]neighbour, len(rec.Neighbours))
	for _, n := range rec.Neighbours {
		// An answer for the guest's own address would say to the guest that another station
		// has the address (RFC 5227, RFC 4862 section 5.4).
		if rec.IPv4 != nil && n.Address == rec.IPv4.Address.Addr() || rec.IPv6 != nil && slices.Contains(rec.IPv6.Addresses(), n.Address) ||
			n.Address == eui64.LinkLocal(rec.MAC) {
			continue
		}
		made := neighbour{mac: n.MAC}
		if n.Address.Is6() {
			na := &ndp.NeighborAdvertisement{
				// Without the flag, the guest would take the router for a host and
				// remove the routes through it (RFC 4861 section 7.2.5).
				Router:        rec.IPv6 != nil && rec.IPv6.Router != nil && rec.IPv6.Router.Address == n.Address,
				Override:      true,
				TargetAddress: n.Address,
				Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: net.HardwareAddr(n.MAC[:])}},
			}
			var err error
			if made.unsolicited, err = ndp.MarshalMessage(na); err != nil {
				return nil, fmt.Errorf("neighbour advertisement for %v: %w", n.Address, err)
			}
			na.Solicited = true
			if made.solicited, err = ndp.MarshalMessage(na); err != nil {
				return nil, fmt.Errorf("neighbour advertisement for %v: %w", n.Address, err)
			}
		}
		all[n.Address] = made
	}
	return all, nil
}

// answerARP answers a request for a neighbour (RFC 826). It also answers a probe (RFC 5227), as the guest
// must not take a neighbour's address.
func (r *answers) answerARP(dst, b []byte) ([]byte, result) {
	switch {
	case len(b) < arpLen || [6]byte(b) != arpHead:
		return dst, result{ignored: malformed}
	case binary.BigEndian.Uint16(b[6:]) != arpRequest:
		return dst, result{ignored: otherProtocol}
	case cache.MAC(b[8:14]) != r.guest:
		return dst, result{ignored: otherHardwareAddress}
	}
	n, ok := r.neighbours[netip.AddrFrom4([4]byte(b[24:28]))]
	if !ok {
		return dst, result{ignored: otherTarget}
	}
	dst = appendEthernet(dst, r.guest, n.mac, etherARP)
	dst = append(dst, arpHead[:]...)
	dst = append(dst, 0, arpReply)
	dst = append(dst, n.mac[:]...)
	dst = append(dst, b[24:28]...)
	return append(dst, b[8:18]...), result{}
}

// answerNeighbourSolicitation answers for a neighbour (RFC 4861 section 7.2.4). A solicitation from :: asks
// whether the neighbour's address is free, and the answer to all nodes says that it is in use.
func (r *answers) answerNeighbourSolicitation(dst []byte, p packet6) ([]byte, result) {
	switch {
	case p.src.IsMulticast():
		return dst, result{ignored: badSource}
	case len(p.body) < solicitationLen || !validOptionsND(p.body[solicitationLen:], p.src):
		return dst, result{ignored: malformed}
	}
	target := netip.AddrFrom16([16]byte(p.body[8:24]))
	if p.src.IsUnspecified() && p.dst != solicitedNode(target) { // section 7.1.1
		return dst, result{ignored: malformed}
	}
	n, ok := r.neighbours[target]
	if !ok {
		return dst, result{ignored: otherTarget}
	}
	if p.src.IsUnspecified() {
		return appendICMPv6(dst, multicastMAC(allNodes), n.mac, allNodes, target, n.unsolicited), result{}
	}
	return appendICMPv6(dst, r.guest, n.mac, p.src, target, n.solicited), result{}
}

// solicitedNode returns the solicited-node multicast address (RFC 4291 section 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	copy(b[:], []byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff})
	return netip.AddrFrom16(b)
}

// validOptionsND checks the options of a solicitation (RFC 4861 sections 6.1.1 and 7.1.1): no option has the
// length zero, and a solicitation from :: has no source link-layer address.
func validOptionsND(b []byte, src netip.Addr) bool {
	for len(b) > 0 {
		if len(b) < 2 || b[1] == 0 || int(b[1])*8 > len(b) {
			return false
		}
		if b[0] == optionSourceLinkLayer && src.IsUnspecified() {
			return false
		}
		b = b[int(b[1])*8:]
	}
	return true
}
