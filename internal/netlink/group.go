package netlink

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Join has the socket receive what the kernel sends to the group.
func (s *Socket) Join(group int) error {
	if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
		return fmt.Errorf("netlink group %d: %w", group, err)
	}
	return nil
}

// Keep asks for room for so many octets that are not received yet. It gets less without CAP_NET_ADMIN in the machine's
// user namespace: see enlarge.
func (s *Socket) Keep(octets int) error {
	err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, octets)
	if err == unix.EPERM {
		err = enlargePlain(s.fd, unix.SO_RCVBUF, octets)
	}
	if err != nil {
		return fmt.Errorf("netlink receive buffer: %w", err)
	}
	return nil
}

// Lost is how many messages the socket of the descriptor has lost, as its buffer was full: SK_MEMINFO_DROPS
// (linux/sock_diag.h), from where it goes on with zero after 2^32-1.
func Lost(descriptor int) (uint32, error) {
	const drops = 8
	var info [drops + 1]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(descriptor), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("lost messages of a netlink socket: %w", errno)
	}
	return info[drops], nil
}

// NextMessage returns the type, the flags and the body of the first message of a datagram, and what follows. The body
// shares memory with the datagram.
func NextMessage(b []byte) (kind, flags uint16, body, rest []byte, err error) {
	m, rest, err := nextMessage(b)
	return m.Header.Type, m.Header.Flags, m.Data, rest, err
}
