package infra

import (
	"encoding/binary"

	"github.com/guestwire/guestwire/cache"
)

// portFilters take from the guest's tap what the responder answers, and give to the guest all that
// the responder sends. What they take does not travel any further.
//
// Offsets are from the network header, as u32 has them (tc-u32(8)).
func portFilters(r cache.Record) []Filter {
	var filters []Filter
	add := func(from, to int, protocol uint16, keys ...Key) {
		filters = append(filters, Filter{Link: from, Priority: uint16(len(filters) + 1), Protocol: protocol, Keys: keys, Target: to})
	}
	fromGuest := func(protocol uint16, keys ...Key) { add(newTap, newPort, protocol, keys...) }

	if r.IPv4 != nil {
		// IPv4 without options, the first fragment, UDP, to port 67.
		fromGuest(EthernetIPv4, Key{0, 0x0f000000, 0x05000000}, Key{4, 0x00001fff, 0}, Key{8, 0x00ff0000, 17 << 16}, Key{20, 0x0000ffff, 67})
	}
	if r.IPv6 != nil {
		// UDP to port 547; a router solicitation.
		fromGuest(EthernetIPv6, Key{4, 0x0000ff00, 17 << 8}, Key{40, 0x0000ffff, 547})
		fromGuest(EthernetIPv6, Key{4, 0x0000ff00, 58 << 8}, Key{40, 0xff000000, 133 << 24})
	}
	for _, n := range r.Neighbours {
		if a := n.Address; a.Is4() {
			// An ARP request with this target.
			target := a.As4()
			fromGuest(EthernetARP, Key{4, 0x0000ffff, 1}, Key{24, 0xffffffff, binary.BigEndian.Uint32(target[:])})
		} else {
			// A neighbour solicitation with this target.
			target := a.As16()
			keys := []Key{{4, 0x0000ff00, 58 << 8}, {40, 0xff000000, 135 << 24}}
			for i := 0; i < 16; i += 4 {
				keys = append(keys, Key{48 + i, 0xffffffff, binary.BigEndian.Uint32(target[i:])})
			}
			fromGuest(EthernetIPv6, keys...)
		}
	}
	add(newPort, newTap, EthernetAll, Key{0, 0, 0})
	return filters
}
