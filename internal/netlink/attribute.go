package netlink

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const TypeMask = 0x3fff // NLA_TYPE_MASK, linux/netlink.h: without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER

// ErrCutShort is the error of a message that is shorter than its header.
var ErrCutShort = errors.New("netlink: a message was cut short")

// EachAttribute calls f with the type and the value of each attribute of a message, in order.
//
// n is the size of the header before the attributes, in octets; 0 for nested attributes. The last
// attribute may lack its padding. value shares memory with message.
//
// struct nlattr, linux/netlink.h: length of header and value, type, value, padding to 4 octets.
func EachAttribute(message []byte, n int, f func(kind uint16, value []byte) error) error {
	if len(message) < n {
		return ErrCutShort
	}
	for b := message[n:]; len(b) >= unix.SizeofRtAttr; {
		kind, value, rest, err := CutAttribute(b)
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

// CutAttribute returns the type and the value of the first attribute in b, which has a whole header, and what follows.
func CutAttribute(b []byte) (kind uint16, value, rest []byte, err error) {
	size := int(U16(b))
	if size < unix.SizeofRtAttr || size > len(b) {
		return 0, nil, nil, errAttributeCutShort
	}
	return U16(b[2:]) & TypeMask, b[unix.SizeofRtAttr:size], b[min(len(b), (size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):], nil
}

// AppendAttribute appends an attribute and its padding.
func AppendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for range -len(value) & (unix.RTA_ALIGNTO - 1) {
		b = append(b, 0)
	}
	return b
}

// U32 is a number of 4 octets in the order of the machine; 0 if the value is shorter.
func U32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// U16 is a number of 2 octets in the order of the machine; 0 if the value is shorter.
func U16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(b)
}

// U8 is a number of 1 octet; 0 if the value is empty.
func U8(b []byte) uint8 {
	if len(b) < 1 {
		return 0
	}
	return b[0]
}

// Addr is an address of 4 or 16 octets; the zero address if the value has another length.
func Addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Attr32 returns an attribute with a number of 4 octets.
func Attr32(kind int, value uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(value)) }

// Family is AF_INET or AF_INET6. NFPROTO_IPV4 and NFPROTO_IPV6 are the same numbers.
func Family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// BE32 is a number of 4 octets in network order, as in nfnetlink; 0 if the value is shorter.
func BE32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// EncodeBE16 is a number in network order.
func EncodeBE16(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }
