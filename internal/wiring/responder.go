package wiring

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/compare"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/netstate"
)

// responderFilters redirect from the guest's tap to the responder's tap what the responder answers, and back
// everything that the responder sends. A redirected frame goes nowhere else.
//
// What the responder sends with the guest's MAC goes to the ingress of the guest's tap, as if the guest had sent it:
// the guest filter checks the frame, and it leaves by the NIC.
//
// DHCP to other servers is not the responder's: the guest filter drops it with a reason, or lets it pass if it is a
// relay's. A router solicitation is for every router on the link, and the guest has one.
//
// Offsets are from the network header, as u32 has them (tc-u32(8)).
func responderFilters(r cache.Record) []netstate.Filter {
	var filters []netstate.Filter
	fromGuest := func(protocol uint16, keys ...netstate.Key) {
		filters = append(filters, netstate.Filter{
			Link: compare.NewTap, Priority: uint16(len(filters) + 1), Protocol: protocol, Keys: keys, Target: compare.NewResponder,
		})
	}

	// IPv4 without options, the first fragment, UDP, to port 67 of an address.
	dhcp4 := func(to netip.Addr) {
		header := []netstate.Key{key(0, 0x0f000000, 0x05000000), key(4, 0x00001fff, 0), key(8, 0x00ff0000, 17<<16)}
		fromGuest(netstate.EthernetIPv4, append(append(header, address(16, to)...), key(20, 0x0000ffff, 67))...)
	}
	if r.IPv4 != nil || r.Options.IPv6OnlySeconds > 0 { // RFC 8925
		dhcp4(netip.AddrFrom4([4]byte{255, 255, 255, 255}))
	}
	if r.IPv6 != nil {
		// UDP to port 547 of all servers on the link; a router solicitation.
		fromGuest(netstate.EthernetIPv6, slices.Concat([]netstate.Key{key(4, 0x0000ff00, 17<<8)}, address(24, firewall.AllDHCP6), []netstate.Key{key(40, 0x0000ffff, 547)})...)
		fromGuest(netstate.EthernetIPv6, key(4, 0x0000ff00, 58<<8), key(40, 0xff000000, 133<<24))
	}
	for _, n := range r.Neighbours {
		if a := n.Address; a.Is4() {
			// An ARP request with this target.
			fromGuest(netstate.EthernetARP, append([]netstate.Key{key(4, 0x0000ffff, 1)}, address(24, a)...)...)
		} else {
			// A neighbour solicitation with this target.
			fromGuest(netstate.EthernetIPv6, append([]netstate.Key{key(4, 0x0000ff00, 58<<8), key(40, 0xff000000, 135<<24)}, address(48, a)...)...)
		}
	}
	toResponder := len(filters) // at least one, as the guest has an address
	if r.IPv4 != nil {
		dhcp4(r.IPv4.Server) // a renewal
	}
	fromResponder := netstate.Filter{Link: compare.NewResponder, Protocol: netstate.EthernetAll, Target: compare.NewTap}
	if r.Announces() {
		asGuest := fromResponder
		asGuest.Priority, asGuest.Keys, asGuest.Ingress = 1, sourceMAC(r.MAC), true
		filters = append(filters, asGuest)
	}
	// The number is that of wirings without the filters before and the renewal's: so to add those leaves this one in
	// place.
	fromResponder.Priority, fromResponder.Keys = uint16(toResponder+1), []netstate.Key{key(0, 0, 0)}
	return slices.Concat(filters, []netstate.Filter{fromResponder}, stationFilters(r))
}

// stationFilters copy to the responder's tap what the stations that it follows say of themselves to the guest.
func stationFilters(r cache.Record) (filters []netstate.Filter) {
	followed := map[netip.Addr]bool{}
	for _, n := range r.Neighbours {
		s := n.Station
		if !s.IsValid() || followed[s] || !r.Announces() {
			continue
		}
		followed[s] = true
		f := netstate.Filter{
			Link: compare.NewTap, Priority: firstOfStations + uint16(len(filters)), Target: compare.NewResponder, Copies: true,
			Protocol: netstate.EthernetIPv6, Keys: append([]netstate.Key{key(4, 0x0000ff00, 58<<8), key(40, 0xff000000, 136<<24)}, address(48, s)...),
		}
		if s.Is4() {
			a := s.As4()
			f.Protocol, f.Keys = netstate.EthernetARP, []netstate.Key{
				key(12, 0x0000ffff, uint32(binary.BigEndian.Uint16(a[:2]))), key(16, 0xffff0000, uint32(binary.BigEndian.Uint16(a[2:]))<<16),
			}
		}
		filters = append(filters, f)
	}
	return filters
}

// firstOfStations is beyond the numbers of responderFilters, and before those of clearingFilters.
const firstOfStations = 50000

// sourceMAC compares the source of the Ethernet header, whose last octets are before the EtherType.
func sourceMAC(m cache.MAC) []netstate.Key {
	return []netstate.Key{
		key(-8, 0xffffffff, binary.BigEndian.Uint32(m[:4])),
		key(-4, 0xffff0000, uint32(binary.BigEndian.Uint16(m[4:]))<<16),
	}
}

// address compares an address.
func address(offset int, a netip.Addr) (keys []netstate.Key) {
	for part := range slices.Chunk(a.AsSlice(), 4) {
		keys = append(keys, key(offset+4*len(keys), 0xffffffff, binary.BigEndian.Uint32(part)))
	}
	return keys
}

// key compares the 32 bits at an offset from the network header.
func key(offset int, mask, value uint32) netstate.Key {
	return netstate.Key{Offset: offset, Mask: mask, Value: value}
}
