package nft

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/netlink"
)

// Numbers of nft(8), see typePort.
const typeProtocol = 12

// What golang.org/x/sys/unix does not name (linux/netfilter/nf_tables.h).
const (
	setConcatenation = 0x80 // NFT_SET_CONCAT
	descConcat       = 2    // NFTA_SET_DESC_CONCAT
	fieldLength      = 1    // NFTA_SET_FIELD_LEN
	elementKeyEnd    = 10   // NFTA_SET_ELEM_KEY_END
)

// keyByteOrder is the user data by which nft(8) knows that numbers are in network order (NFTNL_UDATA_SET_KEYBYTEORDER).
var keyByteOrder = append([]byte{0, 4}, binary.NativeEndian.AppendUint32(nil, 2)...)

// sizeofBox is the length of an element: three attributes that hold attributes, and two keys of IPv6.
const sizeofBox = 72

// fieldsOf are the lengths of the parts of a key, each padded to 4 octets: address, protocol, port.
func fieldsOf(version ip.Version) []uint32 {
	return []uint32{uint32(ip.Pick[uint8](version, 4, 16)), 1, 2}
}

// typeOf is the number of nft(8) for the type of a key.
func typeOf(version ip.Version) uint32 {
	const bits = 6 // of each part's type
	return (uint32(ip.Pick[uint8](version, typeIPv4Address, typeIPv6Address))<<bits|typeProtocol)<<bits | typePort
}

// keysOf are what the kernel knows of a set's keys: flags (NFT_SET_*), the type, the length in octets, and those of the
// parts of a concatenation.
func keysOf(s firewall.Destinations) (flags, key, length uint32, fields []uint32) {
	fields = fieldsOf(s.Version)
	if s.AllPorts {
		return unix.NFT_SET_INTERVAL, uint32(ip.Pick[uint8](s.Version, typeIPv4Address, typeIPv6Address)), fields[0], nil
	}
	return unix.NFT_SET_INTERVAL | setConcatenation, typeOf(s.Version), fields[0] + 4 + 4, fields
}

// writeDestinations writes the messages of a set and of its elements. Number is the set's in the transaction.
func (w *writer) writeDestinations(family firewall.Family, table string, s firewall.Destinations, number uint32) {
	flags, key, length, fields := keysOf(s)
	w.beginTables(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, family)
	w.text(unix.NFTA_SET_TABLE, table)
	w.text(unix.NFTA_SET_NAME, s.Name)
	w.number32(unix.NFTA_SET_FLAGS, flags)
	w.number32(unix.NFTA_SET_KEY_TYPE, key)
	w.number32(unix.NFTA_SET_KEY_LEN, length)
	w.number32(unix.NFTA_SET_ID, number)
	if len(fields) > 0 {
		description := w.open(unix.NFTA_SET_DESC)
		parts := w.open(descConcat)
		for _, length := range fields {
			part := w.open(unix.NFTA_LIST_ELEM)
			w.number32(fieldLength, length)
			w.close(part)
		}
		w.close(parts)
		w.close(description)
	}
	w.bytes(unix.NFTA_SET_USERDATA, keyByteOrder)
	w.writeBoxes(unix.NFT_MSG_NEWSETELEM, family, table, s, number)
}

// writeBoxes writes the messages with the elements of a set.
func (w *writer) writeBoxes(kind uint16, family firewall.Family, table string, s firewall.Destinations, number uint32) {
	var room [24]byte
	w.writeSetElements(kind, family, table, s.Name, number, len(s.Boxes), func(index int) {
		b := s.Boxes[index]
		element := w.open(unix.NFTA_LIST_ELEM)
		if !s.AllPorts {
			w.data(unix.NFTA_SET_ELEM_KEY, appendKey(room[:0], b.First, b.FirstProtocol, b.FirstPort))
			w.data(elementKeyEnd, appendKey(room[:0], b.Last, b.LastProtocol, b.LastPort))
			w.close(element)
			return
		}
		w.data(unix.NFTA_SET_ELEM_KEY, appendAddress(room[:0], b.First))
		w.close(element)
		if after := b.Last.Next(); after.IsValid() { // else the range has no end
			element = w.open(unix.NFTA_LIST_ELEM)
			w.number32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
			w.data(unix.NFTA_SET_ELEM_KEY, appendAddress(room[:0], after))
			w.close(element)
		}
	})
}

func appendKey(b []byte, a netip.Addr, protocol uint8, port uint16) []byte {
	b = append(appendAddress(b, a), protocol, 0, 0, 0)
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

// destinationsHead is the head of destinations in the kernel without boxes; ok is false for another set.
func destinationsHead(flags, key, length uint32, fields []uint32) (head string, ok bool) {
	for _, version := range ip.Both {
		for _, s := range firewall.DestinationsOf("", version, nil) {
			wantFlags, wantKey, wantLength, wantFields := keysOf(s)
			if flags == wantFlags && key == wantKey && length == wantLength && slices.Equal(fields, wantFields) {
				return s.Declaration(), true
			}
		}
	}
	return "", false
}

// appendBoxes parses struct nfgenmsg and a list of elements, and appends the boxes; joined makes those of a set
// with AllPorts. Others becomes true for an element without a key of the set.
func appendBoxes(s *firewall.Destinations, others *bool, message []byte) error {
	_, _, length, _ := keysOf(*s)
	size := int(fieldsOf(s.Version)[0])
	return eachElement(message, func(e element) {
		key, end := e.key, e.end
		if end == nil {
			end = key
		}
		if len(key) != int(length) || len(end) != len(key) || e.ends && !s.AllPorts {
			*others = true
			return
		}
		first, _ := netip.AddrFromSlice(key[:size])
		if s.AllPorts {
			b := firewall.Box{First: first, Last: ip.LastOf(netip.PrefixFrom(first, 0)), LastProtocol: 255, LastPort: 65535}
			if e.ends {
				b.Last = first.Prev()
			}
			s.Boxes = append(s.Boxes, b)
			return
		}
		last, _ := netip.AddrFromSlice(end[:size])
		s.Boxes = append(s.Boxes, firewall.Box{First: first, Last: last, FirstProtocol: key[size], LastProtocol: end[size],
			FirstPort: binary.BigEndian.Uint16(key[size+4:]), LastPort: binary.BigEndian.Uint16(end[size+4:])})
	})
}

// joined is a set that appendBoxes has read. With AllPorts, each range came as a box up to the last address there is,
// and one without addresses after the range, in any order. nft(8) adds one at the first address there is.
func joined(s firewall.Destinations) firewall.Destinations {
	if !s.AllPorts {
		return s
	}
	slices.SortFunc(s.Boxes, func(a, b firewall.Box) int { return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last)) })
	var boxes []firewall.Box
	for _, b := range s.Boxes {
		if last := len(boxes) - 1; last >= 0 && !boxes[last].Last.Less(b.First) {
			boxes[last].Last = b.First.Prev()
		}
		if !b.Last.Less(b.First) {
			boxes = append(boxes, b)
		}
	}
	s.Boxes = boxes
	return s
}

// Boxes returns what a set of the inet table holds whose keys are those of destinations; none if there is no such set.
func (n *Tables) Boxes(table string, s firewall.Destinations) ([]firewall.Box, error) {
	others := false // elements for all keys, which are another program's
	err := n.dumpElements(firewall.Inet, table, s.Name, func() { s.Boxes = nil }, func(m []byte) error { return appendBoxes(&s, &others, m) })
	if err != nil && !netlink.Answers(err, unix.ENOENT) {
		return nil, fmt.Errorf("read the set %s: %w", s.Name, err)
	}
	return joined(s).Boxes, nil
}
