package wiring

import (
	"encoding/binary"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/netstate"
)

// addResponder puts the responder's tap into the record.
func (p *Plan) addResponder(r *cache.Record, nic netstate.Link) {
	r.ResponderTap = p.names.Responder
	r.ResponderMAC = responderMAC(*r, nic)
}

// addLease has a responder give the guest what the NIC has. A NIC without addresses gives the guest a connection
// without a responder.
func (p *Plan) addLease(nic netstate.Link) {
	on := lease.Of(p.found, nic)
	if v4, v6 := on.Addresses(); len(v4)+len(v6) == 0 {
		p.warn("%s has no address: the guest gets a connection without a responder of guestwire", nic.Name)
	} else if !p.spec.Options.NoResponder {
		p.addResponder(&p.Record, nic)
		on.Fill(&p.Record)
	}
	p.Record.Static = on.Static(p.Record.MAC)
}

// responderFilters redirect from the guest's tap to the responder's tap what the responder answers, and back
// everything that the responder sends. A redirected frame goes nowhere else.
//
// What the responder sends with the guest's MAC goes to the ingress of the guest's tap, as if the guest had sent it:
// the guest filter checks the frame, and it leaves by the NIC.
//
// Offsets are from the network header, as u32 has them (tc-u32(8)).
func responderFilters(r cache.Record) []netstate.Filter {
	var filters []netstate.Filter
	fromGuest := func(protocol uint16, keys ...netstate.Key) {
		filters = append(filters, netstate.Filter{
			Link: compare.NewTap, Priority: uint16(len(filters) + 1), Protocol: protocol, Keys: keys, Target: compare.NewResponder,
		})
	}

	if r.IPv4 != nil || r.Options.IPv6OnlySeconds > 0 { // RFC 8925
		// IPv4 without options, the first fragment, UDP, to port 67.
		fromGuest(netstate.EthernetIPv4, key(0, 0x0f000000, 0x05000000), key(4, 0x00001fff, 0), key(8, 0x00ff0000, 17<<16), key(20, 0x0000ffff, 67))
	}
	if r.IPv6 != nil {
		// UDP to port 547; a router solicitation.
		fromGuest(netstate.EthernetIPv6, key(4, 0x0000ff00, 17<<8), key(40, 0x0000ffff, 547))
		fromGuest(netstate.EthernetIPv6, key(4, 0x0000ff00, 58<<8), key(40, 0xff000000, 133<<24))
	}
	for _, n := range r.Neighbours {
		if a := n.Address; a.Is4() {
			// An ARP request with this target.
			target := a.As4()
			fromGuest(netstate.EthernetARP, key(4, 0x0000ffff, 1), key(24, 0xffffffff, binary.BigEndian.Uint32(target[:])))
		} else {
			// A neighbour solicitation with this target.
			target := a.As16()
			keys := []netstate.Key{key(4, 0x0000ff00, 58<<8), key(40, 0xff000000, 135<<24)}
			for i := 0; i < 16; i += 4 {
				keys = append(keys, key(48+i, 0xffffffff, binary.BigEndian.Uint32(target[i:])))
			}
			fromGuest(netstate.EthernetIPv6, keys...)
		}
	}
	toResponder := len(filters) // at least one, as the guest has an address
	fromResponder := netstate.Filter{Link: compare.NewResponder, Protocol: netstate.EthernetAll, Target: compare.NewTap}
	if r.Announces() {
		asGuest := fromResponder
		asGuest.Priority, asGuest.Keys, asGuest.Ingress = 1, sourceMAC(r.MAC), true
		filters = append(filters, asGuest)
	}
	// The number is that of wirings without the filter before: so to add that one leaves this one in place.
	fromResponder.Priority, fromResponder.Keys = uint16(toResponder+1), []netstate.Key{key(0, 0, 0)}
	return append(filters, fromResponder)
}

// sourceMAC compares the source of the Ethernet header, whose last octets are before the EtherType.
func sourceMAC(m cache.MAC) []netstate.Key {
	return []netstate.Key{
		key(-8, 0xffffffff, binary.BigEndian.Uint32(m[:4])),
		key(-4, 0xffff0000, uint32(binary.BigEndian.Uint16(m[4:]))<<16),
	}
}

// key compares the 32 bits at an offset from the network header.
func key(offset int, mask, value uint32) netstate.Key {
	return netstate.Key{Offset: offset, Mask: mask, Value: value}
}
