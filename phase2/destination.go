package phase2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// OriginalDestination returns where the client of an accepted connection wanted to go, before a divert of
// infra.Spec.Egress led the connection here. The connection is one of TCP or SCTP, such as a *net.TCPConn, or an
// *os.File of its socket.
//
// An IPv4 connection of a dual-stack socket has an IPv4 address. An IPv6 address may stand for one of IPv4 (NAT64). The
// zone of a link-local address is the index of its link.
//
// It needs no capability. The kernel answers while it tracks the connection: ask when the connection is accepted.
//
//	fs.ErrNotExist         nobody diverted the connection: its client wanted to come here. A
//	                       proxy that goes on to its own address calls itself without end
//	fs.ErrNotExist         the kernel does not track the connection, or no longer
//	errors.ErrUnsupported  the client uses Multipath TCP, and the listener allows it, as Go's
//	                       do: listen after net.ListenConfig.SetMultipathTCP(false)
//	unix.ENOPROTOOPT       the socket has another protocol, or the kernel tracks nothing
//	net.ErrClosed          the connection is closed; of a file, os.ErrClosed
//
// UDP has no original destination: a socket gets datagrams of many clients, and the kernel answers for connections. If
// it matters, divert each destination to a port of its own. SCTP has one if the listener is bound to an address.
//
// Source: SO_ORIGINAL_DST of linux/netfilter_ipv4.h, IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h.
func OriginalDestination(c syscall.Conn) (netip.AddrPort, error) {
	to, err := originalDestination(c)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("original destination: %w", err)
	}
	return to, nil
}

func originalDestination(c syscall.Conn) (to netip.AddrPort, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return to, err
	}
	failed := raw.Control(func(fd uintptr) { to, err = destinationOf(int(fd)) })
	return to, errors.Join(failed, err)
}

func destinationOf(socket int) (to netip.AddrPort, err error) {
	local, err := unix.Getsockname(socket)
	if err != nil {
		return to, os.NewSyscallError("getsockname", err)
	}
	var at netip.AddrPort
	switch local := local.(type) {
	case *unix.SockaddrInet4:
		at = netip.AddrPortFrom(netip.AddrFrom4(local.Addr), uint16(local.Port))
	case *unix.SockaddrInet6:
		at = netip.AddrPortFrom(netip.AddrFrom16(local.Addr).Unmap(), uint16(local.Port))
	default:
		return to, fmt.Errorf("%T has no ports: %w", local, unix.ENOPROTOOPT)
	}
	level := unix.SOL_IPV6
	if at.Addr().Is4() {
		level = unix.SOL_IP
	}
	// The struct begins with one that both kinds of address fit into. Both options have the same number.
	answer, err := unix.GetsockoptIPv6MTUInfo(socket, level, unix.SO_ORIGINAL_DST)
	if errors.Is(err, unix.ENOENT) {
		return to, fmt.Errorf("the kernel tracks no such connection at %v: %w", at, os.NewSyscallError("getsockopt", err))
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return to, fmt.Errorf("of Multipath TCP, which the listener has to leave out by net.ListenConfig.SetMultipathTCP: %w", os.NewSyscallError("getsockopt", err))
	}
	if err != nil {
		return to, os.NewSyscallError("getsockopt", err)
	}
	to = addressIn(answer.Addr)
	if to.Port() == at.Port() && to.Addr().WithZone("") == at.Addr() {
		return netip.AddrPort{}, fmt.Errorf("nobody diverted the connection to %v: %w", at, fs.ErrNotExist)
	}
	return to, nil
}

// addressIn reads a struct sockaddr_in or sockaddr_in6. The address of the first is where the second has its flow
// information.
func addressIn(a unix.RawSockaddrInet6) netip.AddrPort {
	var port, v4 [4]byte
	binary.NativeEndian.PutUint16(port[:], a.Port)
	binary.NativeEndian.PutUint32(v4[:], a.Flowinfo)
	ip := netip.AddrFrom16(a.Addr)
	if a.Family == unix.AF_INET {
		ip = netip.AddrFrom4(v4)
	} else if a.Scope_id != 0 {
		ip = ip.WithZone(strconv.FormatUint(uint64(a.Scope_id), 10))
	}
	return netip.AddrPortFrom(ip, uint16(port[0])<<8|uint16(port[1]))
}
