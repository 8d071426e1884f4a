package tap

import (
	"encoding/binary"
	"fmt"
	"iter"
	"syscall"

	"golang.org/x/sys/unix"
)

// Attributes of a tap (linux/if_link.h, IFLA_TUN_*).
const (
	tunOwner = 1
	tunGroup = 2
)

// owner names the tap's user and its group, in the numbers of the calling process's user namespace. Empty: the kernel
// does not report them.
func owner(name string) (text string) {
	dump, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return ""
	}
	links, err := syscall.ParseNetlinkMessage(dump)
	if err != nil {
		return ""
	}
	for _, l := range links {
		if l.Header.Type != unix.RTM_NEWLINK || len(l.Data) < unix.SizeofIfInfomsg {
			continue
		}
		attributes := map[uint16][]byte{}
		for kind, value := range nested(l.Data[unix.SizeofIfInfomsg:]) {
			attributes[kind] = value
		}
		if unix.ByteSliceToString(attributes[unix.IFLA_IFNAME]) != name {
			continue
		}
		for kind, info := range nested(attributes[unix.IFLA_LINKINFO]) {
			if kind != unix.IFLA_INFO_DATA {
				continue
			}
			for kind, value := range nested(info) {
				switch {
				case kind == tunOwner && len(value) == 4:
					text += fmt.Sprintf(", user %d", binary.NativeEndian.Uint32(value))
				case kind == tunGroup && len(value) == 4:
					text += fmt.Sprintf(" of group %d", binary.NativeEndian.Uint32(value))
				}
			}
		}
	}
	return text
}

// nested are the attributes in b, and their types.
func nested(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.SizeofRtAttr || size > len(b) || !yield(binary.NativeEndian.Uint16(b[2:])&^unix.NLA_F_NESTED, b[unix.SizeofRtAttr:size]) {
				return
			}
			b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
		}
	}
}
