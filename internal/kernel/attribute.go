package kernel

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const typeMask = 0x3fff // NLA_TYPE_MASK, linux/netlink.h: without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER

// errCutShort is the error of a message that is shorter than its header.
var errCutShort = errors.New("netlink: a message was cut short")

// eachAttribute calls f with the type and the value of each attribute of a message, in order.
//
// n is the size of the header before the attributes, in octets; 0 for nested attributes. The last
// attribute may lack its padding. value shares memory with message.
//
// struct nlattr, linux/netlink.h: length of header and value, type, value, padding to 4 octets.
func eachAttribute(message []byte, n int, f func(kind uint16, value []byte) error) error {
	if len(message) < n {
		return errCutShort
	}
	for b := message[n:]; len(b) >= unix.SizeofRtAttr; {
		kind, value, rest, err := cutAttribute(b)
		if err != nil {
			return err
		}
		if err := f(kind, value); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

var errAttributeCutShort = errors.New("netlink: an attribute was cut short")

// cutAttribute returns the type and the value of the first attribute in b, which has a whole header, and what follows.
func cutAttribute(b []byte) (kind uint16, value, rest []byte, err error) {
	size := int(u16(b))
	if size < unix.SizeofRtAttr || size > len(b) {
		return 0, nil, nil, errAttributeCutShort
	}
	return u16(b[2:]) & typeMask, b[unix.SizeofRtAttr:size], b[min(len(b), (size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):], nil
}

// appendAttribute appends an attribute and its padding.
func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for range -len(value) & (unix.RTA_ALIGNTO - 1) {
		b = append(b, 0)
	}
	return b
}

// u32 is a number of 4 octets in the order of the machine; 0 if the value is shorter.
func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// u16 is a number of 2 octets in the order of the machine; 0 if the value is shorter.
func u16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(b)
}

// u8 is a number of 1 octet; 0 if the value is empty.
func u8(b []byte) uint8 {
	if len(b) < 1 {
		return 0
	}
	return b[0]
}

// addr is an address of 4 or 16 octets; the zero address if the value has another length.
func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// attr32 returns an attribute with a number of 4 octets.
func attr32(kind int, value uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(value)) }

// addressFamily is AF_INET or AF_INET6. NFPROTO_IPV4 and NFPROTO_IPV6 are the same numbers.
func addressFamily(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// be32 is a number of 4 octets in network order, as in nfnetlink; 0 if the value is shorter.
func be32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// be16 is a number in network order.
func be16(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
