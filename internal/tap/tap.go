// Package tap attaches to a tap that lies in the namespace already. It creates none.
package tap

import (
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Device is where the kernel hands out taps (Documentation/networking/tuntap.rst).
const Device = "/dev/net/tun"

// Open attaches to the tap called name in the namespace of the calling thread. A read returns one
// Ethernet frame, a write sends one; both honour deadlines. Without vnet_hdr and without
// offloads, so checksums are complete and no frame is larger than the MTU asks.
//
// It needs no capability if the tap is owned by the caller's user. The error is fs.ErrNotExist if
// there is no such link, fs.ErrPermission if it is another user's, and unix.EBUSY if another
// process has attached to it.
func Open(name string) (*os.File, error) {
	if err := exists(name); err != nil {
		return nil, err
	}
	fd, err := unix.Open(Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: Device, Err: err}
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("tap %s: %w", name, err)
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		unix.Close(fd)
		switch err {
		case unix.EPERM:
			err = fmt.Errorf("it is not user %d's: %w", unix.Geteuid(), err)
		case unix.EBUSY:
			err = fmt.Errorf("another process has it: %w", err)
		}
		return nil, fmt.Errorf("attach to tap %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// exists keeps Open from creating a tap: TUNSETIFF does that for whoever may.
func exists(name string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("look for tap %s: %w", name, err)
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("look for tap %s: %w", name, err)
	}
	err = unix.IoctlIfreq(s, unix.SIOCGIFINDEX, ifr)
	if err == unix.ENODEV {
		return fmt.Errorf("tap %s: no such link in this network namespace: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("look for tap %s: %w", name, err)
	}
	return nil
}
