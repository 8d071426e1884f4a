package podnet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// Numbers of bpf(2), linux/bpf.h.
const (
	bpfProgAttach     = 8
	bpfCgroupSockAddr = 18 // BPF_PROG_TYPE_CGROUP_SOCK_ADDR
	bpfInet4Connect   = 10 // BPF_CGROUP_INET4_CONNECT
)

// inPacket returns the address and port as numbers whose bytes are those of a packet.
func inPacket(a netip.AddrPort) (ip, port int32) {
	return int32(binary.NativeEndian.Uint32(a.Addr().AsSlice())), int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, a.Port())))
}

// connect4 is a program that changes the address and port of an IPv4 connect(2) to from into those of to.
//
// The context is a struct bpf_sock_addr: user_ip4 at 4, user_port at 24, both as in a packet.
func connect4(from, to netip.AddrPort) []instruction {
	fromIP, fromPort := inPacket(from)
	toIP, toPort := inPacket(to)
	return []instruction{
		{bpfLoad, 2 | 1<<4, 4, 0},
		{bpfUnless, 2, 6, fromIP},
		{bpfLoad, 2 | 1<<4, 24, 0},
		{bpfUnless, 2, 4, fromPort},
		{bpfSet, 2, 0, toIP},
		{bpfStore, 1 | 2<<4, 4, 0},
		{bpfSet, 2, 0, toPort},
		{bpfStore, 1 | 2<<4, 24, 0},
		{bpfSet, 0, 0, 1}, // go on
		{bpfExit, 0, 0, 0},
	}
}

// Offsets in an Ethernet frame with IPv4 without options, and TCP.
const (
	sourceIP, sourcePort           = 26, 34
	destinationIP, destinationPort = 30, 36
	sumIP, sumTCP                  = 24, 50
)

// translation is a program for packets: where a TCP packet over IPv4 has from at the offsets, the packet gets to.
func translation(ipAt, portAt int32, from, to netip.AddrPort) []instruction {
	fromIP, fromPort := inPacket(from)
	toIP, toPort := inPacket(to)
	const storeBytes, replaceSumIP, replaceSumTCP = 9, 10, 11
	const pseudoHeader = 0x10 // BPF_F_PSEUDO_HDR
	const packet, ipOnStack, portOnStack = 6, -4, -8
	call := func(helper, at, a, b, flags int32) []instruction {
		return []instruction{{bpfCopy, 1 | packet<<4, 0, 0}, {bpfSet, 2, 0, at}, {bpfSet, 3, 0, a}, {bpfSet, 4, 0, b}, {bpfSet, 5, 0, flags}, {bpfCall, 0, 0, helper}}
	}
	store := func(at, onStack, size int32) []instruction {
		return []instruction{{bpfCopy, 1 | packet<<4, 0, 0}, {bpfSet, 2, 0, at}, {bpfCopy, 3 | 10<<4, 0, 0}, {bpfAdd, 3, 0, onStack}, {bpfSet, 4, 0, size}, {bpfSet, 5, 0, 0}, {bpfCall, 0, 0, storeBytes}}
	}
	body := slices.Concat(
		[]instruction{{bpfKeep, 10, ipOnStack, toIP}, {bpfKeep2, 10, portOnStack, toPort}},
		call(replaceSumTCP, sumTCP, fromIP, toIP, pseudoHeader|4), call(replaceSumIP, sumIP, fromIP, toIP, 4), store(ipAt, ipOnStack, 4),
		call(replaceSumTCP, sumTCP, fromPort, toPort, 2), store(portAt, portOnStack, 2))
	out := int16(len(body))
	return slices.Concat([]instruction{
		{bpfCopy, packet | 1<<4, 0, 0},
		{bpfPacket2, 0, 0, 12}, {bpfUnless, 0, out + 4, unix.ETH_P_IP},
		{bpfPacket, 0, 0, ipAt}, {bpfUnless, 0, out + 2, int32(binary.BigEndian.Uint32(from.Addr().AsSlice()))},
		{bpfPacket2, 0, 0, portAt}, {bpfUnless, 0, out, int32(from.Port())},
	}, body, []instruction{{bpfSet, 0, 0, 0}, {bpfExit, 0, 0, 0}}) // TC_ACT_OK
}

// translateAtNIC attaches programs to a NIC that translate what leaves for the service, and what comes from the
// backend.
func translateAtNIC(t *testing.T, pod *nstest.Namespace, nic string, service, backend netip.AddrPort) {
	t.Helper()
	pod.Exec("tc", "qdisc", "add", "dev", nic, "clsact")
	for parent, program := range map[uint32][]instruction{
		netlink.HANDLE_MIN_EGRESS:  translation(destinationIP, destinationPort, service, backend),
		netlink.HANDLE_MIN_INGRESS: translation(sourceIP, sourcePort, backend, service),
	} {
		fd := loadProgram(t, bpfSchedCls, 0, program)
		err := netns.Do(pod.File, func() error {
			link, err := netlink.LinkByName(nic)
			if err != nil {
				return err
			}
			return netlink.FilterAdd(&netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: parent, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
				Fd:          fd, Name: "services", DirectAction: true,
			})
		})
		unix.Close(fd)
		if err != nil {
			t.Fatalf("attach a BPF program to %s: %v", nic, err)
		}
	}
}

// attachConnect4 attaches a program to a cgroup, until the cgroup is removed.
func attachConnect4(cgroup *os.File, program int) error {
	attributes := struct{ target, program, kind, flags uint32 }{uint32(cgroup.Fd()), uint32(program), bpfInet4Connect, 0}
	if _, _, errno := unix.Syscall(unix.SYS_BPF, bpfProgAttach, uintptr(unsafe.Pointer(&attributes)), unsafe.Sizeof(attributes)); errno != 0 {
		return fmt.Errorf("attach a BPF program to %s: %w", cgroup.Name(), errno)
	}
	return nil
}
