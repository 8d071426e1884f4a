package kernel

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/tap"
)

// addTap makes a persistent tap with a certain index (Documentation/networking/tuntap.rst), labelled with o.Context if
// there is one. After an error there is no tap.
func addTap(o netstate.TapAdd) error {
	ifr, err := unix.NewIfreq(o.Link)
	if err != nil {
		return err
	}
	flags := unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_TUN_EXCL
	if o.VNetHeader {
		flags |= unix.IFF_VNET_HDR
	}
	if o.Tap.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	ifr.SetUint16(uint16(flags))
	index := int32(o.Index)
	calls := callsOn(tap.Device) // closing it deletes the tap unless it is persistent by then
	calls.keep = append(calls.keep, &index, ifr)
	calls.ioctl("TUNSETIFINDEX", unix.TUNSETIFINDEX, uintptr(unsafe.Pointer(&index)))
	calls.ioctl("TUNSETIFF", unix.TUNSETIFF, uintptr(unsafe.Pointer(ifr)))
	calls.ioctl("TUNSETOWNER", unix.TUNSETOWNER, uintptr(o.Tap.Owner.UID))
	if o.Tap.Owner.GID != 0 {
		calls.ioctl("TUNSETGROUP", unix.TUNSETGROUP, uintptr(o.Tap.Owner.GID))
	}
	calls.ioctl("TUNSETPERSIST", unix.TUNSETPERSIST, 1)
	if o.Context != "" {
		return calls.in(o.Context) // the kernel labels a tap with the context of the process that makes it
	}
	return calls.here()
}

// Attributes of a tap (linux/if_link.h, IFLA_TUN_*) in a link's IFLA_INFO_DATA.
const (
	tunOwner      = 1
	tunGroup      = 2
	tunType       = 3
	tunMultiQueue = 7
)

// parseTap parses the attributes of a link of the kind tun into l. l.Tap stays nil for a tun device that is
// no tap.
func parseTap(b []byte, l *netstate.Link) error {
	var t netstate.Tap
	var kind uint8
	err := eachAttribute(b, 0, func(a uint16, v []byte) error {
		switch a {
		case tunOwner:
			t.Owner.UID = u32(v)
		case tunGroup:
			t.Owner.GID = u32(v)
		case tunType:
			kind = u8(v)
		case tunMultiQueue:
			t.MultiQueue = u8(v) != 0
		}
		return nil
	})
	if kind == unix.IFF_TAP {
		l.Tap = &t
	}
	return err
}
