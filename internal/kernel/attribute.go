package kernel

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const typeMask = 0x3fff // NLA_TYPE_MASK, linux/netlink.h

// errCutShort says that a message ends before its header does.
var errCutShort = errors.New("netlink: a message was cut short")

// eachAttribute calls f with each attribute behind a header of n bytes.
func eachAttribute(message []byte, n int, f func(kind uint16, value []byte) error) error {
	if len(message) < n {
		return errCutShort
	}
	for b := message[n:]; len(b) >= unix.SizeofRtAttr; {
		size := int(u16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return errors.New("netlink: an attribute was cut short")
		}
		if err := f(u16(b[2:])&typeMask, b[unix.SizeofRtAttr:size]); err != nil {
			return err
		}
		b = b[min(len(b), (size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
	}
	return nil
}

func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func u16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(b)
}

func u8(b []byte) uint8 {
	if len(b) < 1 {
		return 0
	}
	return b[0]
}

func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b) // zero unless 4 or 16 bytes
	return a
}

func attr32(kind int, value uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(value)) }

func addressFamily(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// be32 is a number as nftables tells it.
func be32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
