package podnet

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// Numbers of bpf(2), linux/bpf.h.
const (
	bpfProgLoad, bpfLinkCreate = 5, 28
	bpfSchedCls                = 3      // BPF_PROG_TYPE_SCHED_CLS
	netkitPrimary, netkitPeer  = 54, 55 // BPF_NETKIT_PRIMARY, BPF_NETKIT_PEER
	netkitPass                 = 0      // NETKIT_PASS
)

// instruction is struct bpf_insn of a machine whose bytes begin with the lowest.
type instruction struct {
	code      uint8
	registers uint8 // destination, source << 4
	offset    int16
	immediate int32
}

// Codes of instructions, RFC 9669.
const (
	bpfLoad, bpfStore       = 0x61, 0x63 // 4 bytes
	bpfKeep, bpfKeep2       = 0x62, 0x6a // an immediate of 4, or 2 bytes
	bpfPacket, bpfPacket2   = 0x20, 0x28 // 4, or 2 bytes of the packet, to register 0
	bpfSet, bpfCopy, bpfAdd = 0xb4, 0xbf, 0x07
	bpfUnless               = 0x56 // jump if not equal
	bpfCall, bpfExit        = 0x85, 0x95
)

// loadProgram loads a program, which the caller closes. Where the machine has no bpf(2) or does not allow it, the test
// is left out. expected is the attachment that the program is checked for; 0: none.
func loadProgram(t testing.TB, kind, expected uint32, code []instruction) int {
	t.Helper()
	license := []byte("MIT\x00")
	log := make([]byte, 1<<14)
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&code[0])
	pinned.Pin(&license[0])
	pinned.Pin(&log[0])
	pointer := func(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }
	attributes := struct {
		kind, count          uint32
		code, license        uint64
		logLevel, logSize    uint32
		log                  uint64
		version, flags       uint32
		name                 [16]byte
		ifindex, expectation uint32
	}{
		kind: kind, count: uint32(len(code)), code: pointer(unsafe.Pointer(&code[0])), license: pointer(unsafe.Pointer(&license[0])),
		logLevel: 1, logSize: uint32(len(log)), log: pointer(unsafe.Pointer(&log[0])), expectation: expected,
	}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, bpfProgLoad, uintptr(unsafe.Pointer(&attributes)), unsafe.Sizeof(attributes))
	switch errno {
	case 0:
	case unix.ENOSYS, unix.EPERM:
		nstest.LeaveOut(t, "this machine loads no BPF programs: "+errno.Error())
	default:
		t.Fatalf("load a BPF program: %v\n%s", errno, unix.ByteSliceToString(log))
	}
	unix.CloseOnExec(int(fd))
	return int(fd)
}

// attachNetkit attaches a program to what an end of a netkit sends: the link of that index, which is the primary one,
// or its peer. The index is one of the calling thread's namespace. The program is attached until the file is closed.
func attachNetkit(program, primary int, end uint32) (int, error) {
	attributes := struct {
		program, index, end, flags, relative, pad uint32
		revision                                  uint64
	}{program: uint32(program), index: uint32(primary), end: end}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, bpfLinkCreate, uintptr(unsafe.Pointer(&attributes)), unsafe.Sizeof(attributes))
	if errno != 0 {
		return -1, errno
	}
	unix.CloseOnExec(int(fd))
	return int(fd), nil
}
