package kernel

import (
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
	"github.com/guestwire/guestwire/internal/tap"
)

// addTap makes a persistent tap with a certain index (Documentation/networking/tuntap.rst). After an error
// there is no tap.
func addTap(o netstate.TapAdd) error {
	fd, err := unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: tap.Device, Err: err}
	}
	defer unix.Close(fd) // deletes the tap unless it is persistent by then
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
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETIFINDEX, o.Index); err != nil {
		return fmt.Errorf("TUNSETIFINDEX: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return fmt.Errorf("TUNSETIFF: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, int(o.Tap.Owner.UID)); err != nil {
		return fmt.Errorf("TUNSETOWNER: %w", err)
	}
	if o.Tap.Owner.GID != 0 {
		if err := unix.IoctlSetInt(fd, unix.TUNSETGROUP, int(o.Tap.Owner.GID)); err != nil {
			return fmt.Errorf("TUNSETGROUP: %w", err)
		}
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("TUNSETPERSIST: %w", err)
	}
	return nil
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
