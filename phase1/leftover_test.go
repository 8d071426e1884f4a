package phase1_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/kernel"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

// openAs opens a tap as a VMM does by its name, which knows nothing of an earlier one. A program that another test
// starts may have a copy of an earlier file for a moment.
func openAs(ns *nstest.Namespace, name string, flags uint16) (f *os.File, err error) {
	err = netns.Do(ns.File, func() error {
		fd, err := unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		ifr, err := unix.NewIfreq(name)
		if err == nil {
			ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | flags)
			for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
				if err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != unix.EBUSY || time.Now().After(end) {
					break
				}
			}
		}
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("open tap %s by its name: %w", name, err)
		}
		tap.NoticeCarrier(name)
		f = os.NewFile(uintptr(fd), name)
		return nil
	})
	return f, err
}

// leaving is what a VMM sets at its tap by an ioctl.
type leaving struct {
	name           string
	request, value uintptr
	// at makes the value in the place of value.
	at func(t *testing.T) (value unsafe.Pointer, free func())
	// differs is what Check says of it when the VMM has ended; empty: nothing.
	differs string
	// visible: it is in the link, so that Setup repairs it, and not the next process that opens the tap.
	visible bool
	// several: of a tap with several queues alone. root: where the owner is not root.
	several, root bool
	// refused is the error of kernels that do not have it.
	refused error
}

// leavings are all TUNSET ioctls that an open tap takes, and those of its filters.
func leavings() []leaving {
	at := func(v int32) func(*testing.T) (unsafe.Pointer, func()) {
		return func(*testing.T) (unsafe.Pointer, func()) { return unsafe.Pointer(&v), func() {} }
	}
	drops := func(t *testing.T) (unsafe.Pointer, func()) {
		fd := int32(noFrames(t))
		return unsafe.Pointer(&fd), func() { unix.Close(int(fd)) }
	}
	request := func(set func(p *[40]byte)) func(*testing.T) (unsafe.Pointer, func()) { // struct ifreq
		p := new([40]byte)
		set(p)
		return func(*testing.T) (unsafe.Pointer, func()) { return unsafe.Pointer(p), func() {} }
	}
	offloads := "tap eth0-tap leaves checksums and segments to a VMM that has ended"
	return []leaving{
		{name: "TUNSETOFFLOAD checksums", request: unix.TUNSETOFFLOAD, value: unix.TUN_F_CSUM, differs: offloads},
		{name: "TUNSETOFFLOAD all", request: unix.TUNSETOFFLOAD, value: unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6, differs: offloads},
		{name: "TUNSETOFFLOAD datagrams", request: unix.TUNSETOFFLOAD, value: unix.TUN_F_CSUM | unix.TUN_F_USO4 | unix.TUN_F_USO6, differs: offloads, refused: unix.EINVAL},
		{name: "TUNSETVNETHDRSZ", request: unix.TUNSETVNETHDRSZ, at: at(12)},
		{name: "TUNSETVNETLE", request: unix.TUNSETVNETLE, at: at(1)},
		{name: "TUNSETVNETBE", request: unix.TUNSETVNETBE, at: at(1), refused: unix.EINVAL},
		{name: "TUNSETSNDBUF", request: unix.TUNSETSNDBUF, at: at(1)},
		{name: "TUNSETCARRIER", request: unix.TUNSETCARRIER, at: at(0)},
		{name: "TUNSETTXFILTER", request: unix.TUNSETTXFILTER, at: request(func(p *[40]byte) { p[2], p[4], p[9] = 1, 2, 1 })}, // struct tun_filter: 02:00:00:00:00:01 alone
		{name: "TUNATTACHFILTER", request: unix.TUNATTACHFILTER, at: filterThatEnds},
		{name: "TUNSETFILTEREBPF", request: unix.TUNSETFILTEREBPF, at: drops},
		{name: "TUNSETSTEERINGEBPF", request: unix.TUNSETSTEERINGEBPF, at: drops},
		{name: "TUNSETQUEUE", request: unix.TUNSETQUEUE, several: true, at: request(func(p *[40]byte) { p[17] = unix.IFF_DETACH_QUEUE >> 8 })},
		{name: "TUNSETDEBUG", request: unix.TUNSETDEBUG, value: 1, refused: unix.EINVAL},
		{name: "TUNSETNOCSUM", request: unix.TUNSETNOCSUM, value: 1},
		{name: "TUNSETOWNER", request: unix.TUNSETOWNER, value: 0, differs: "tap eth0-tap is of user 0", visible: true, root: true},
		{name: "TUNSETGROUP", request: unix.TUNSETGROUP, value: 0, differs: "tap eth0-tap is of user", visible: true, root: true},
		{name: "TUNSETPERSIST", request: unix.TUNSETPERSIST, value: 0, differs: "tap eth0-tap is gone", visible: true},
		{name: "TUNSETLINK", request: unix.TUNSETLINK, value: unix.ARPHRD_PPP, refused: unix.EBUSY}, // see TestStandbyTapType
		{name: "SIOCSIFHWADDR", request: unix.SIOCSIFHWADDR, differs: "MAC of eth0-tap is 02:00:00:00:00:42", visible: true,
			at: request(func(p *[40]byte) { p[16], p[18], p[23] = unix.ARPHRD_ETHER, 2, 0x42 })},
	}
}

// noFrames loads a program that passes no frame.
func noFrames(t *testing.T) int {
	t.Helper()
	program := [...]uint64{0xb7, 0x95} // r0 = 0; exit
	license := [...]byte{'G', 'P', 'L', 0}
	attributes := struct { // union bpf_attr
		kind, count      uint32
		program, license *byte
		_                [96]byte
	}{kind: 1, count: uint32(len(program)), program: (*byte)(unsafe.Pointer(&program)), license: &license[0]} // BPF_PROG_TYPE_SOCKET_FILTER
	fd, _, errno := unix.Syscall(unix.SYS_BPF, 5, uintptr(unsafe.Pointer(&attributes)), unsafe.Sizeof(attributes)) // BPF_PROG_LOAD
	if errno == unix.EPERM {
		nstest.LeaveOut(t, "the user may not load BPF programs")
	}
	if errno != 0 {
		t.Fatalf("load a program: %v", errno)
	}
	return int(fd)
}

// filterThatEnds is a socket filter in memory that goes with its process: the kernel remembers the address alone.
func filterThatEnds(t *testing.T) (value unsafe.Pointer, free func()) {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	*(*unix.SockFilter)(unsafe.Pointer(&memory[0])) = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	program := &unix.SockFprog{Len: 1, Filter: (*unix.SockFilter)(unsafe.Pointer(&memory[0]))}
	return unsafe.Pointer(program), func() {
		if err := unix.Munmap(memory); err != nil {
			t.Error(err)
		}
	}
}

// TestTapLeftover: a VMM sets something at its tap and ends at once, as by SIGKILL. The next one knows nothing of it,
// and has TCP both ways: one that opens the tap by its name after Setup, or after Serve has begun, and one that calls
// OpenTap. Check says what can be seen without a process at the tap.
func TestTapLeftover(t *testing.T) {
	nstest.KernelDecides(t, "what it keeps of a VMM that has ended")
	t.Parallel()
	for queues, binding := range map[int]infra.Binding{1: infra.Redirect{}, 2: infra.Bridge{}} {
		t.Run(fmt.Sprintf("%s with %d queues", binding.Kind(), queues), func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			c := config(n, binding)
			c.Queues = queues
			record, err := c.Setup(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			l := &leftover{Network: n, record: record, server: netip.AddrPortFrom(nstest.Beyond4, 9000)}
			if queues > 1 {
				l.flags = unix.IFF_MULTI_QUEUE
			}
			n.World.Serve("world", "tcp", l.server)
			l.guest = nstest.New(t, "guest")
			l.guest.IP("tuntap add eth0 mode tap vnet_hdr")
			l.guest.IP("link set eth0 address " + record.MAC.String() + " up")
			l.guest.IP("addr add 10.244.1.7/24 dev eth0")
			l.guest.IP("route add default via 10.244.1.1")
			for _, s := range leavings() {
				if s.several && queues == 1 || s.root && nstest.LauncherUID == 0 {
					continue
				}
				t.Run(s.name, func(t *testing.T) {
					repair := func() {
						t.Helper()
						if _, err := c.Setup(t.Context()); err != nil {
							t.Fatal(err)
						}
						check(t, c)
						l.unused(t)
					}
					if !l.leave(t, s) {
						return
					}
					err := c.Check(t.Context())
					var drift *phase1.DriftError
					if s.differs == "" && err != nil || s.differs != "" && (!errors.As(err, &drift) || !strings.Contains(err.Error(), s.differs)) {
						t.Errorf("Check says %v, want %q", err, s.differs)
					}
					if !s.visible {
						l.talks(t, "by OpenTap", l.openTap)
						l.leave(t, s)
						if err := netns.Do(n.Pod.File, func() error { return tap.Clear(record.Tap, queues > 1) }); err != nil {
							t.Fatal(err)
						}
						l.unused(t)
						l.talks(t, "by name after Serve has begun", l.byName)
						l.leave(t, s)
					}
					repair()
					l.talks(t, "by name after Setup", l.byName)
					l.talks(t, "by name with a header", l.withHeader)
					check(t, c)
				})
			}
		})
	}
}

// leftover is a pod whose VMMs leave something, and a guest.
type leftover struct {
	nstest.Network
	guest  *nstest.Namespace
	record cache.Record
	server netip.AddrPort
	flags  uint16
}

// leave lets a VMM set something and end. It returns false if the kernel does not have it.
func (l *leftover) leave(t *testing.T, s leaving) bool {
	t.Helper()
	f, err := openAs(l.Pod, l.record.Tap, l.flags|unix.IFF_VNET_HDR)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var errno unix.Errno
	if s.at == nil {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, f.Fd(), s.request, s.value)
	} else {
		at, free := s.at(t)
		defer free()
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, f.Fd(), s.request, uintptr(at))
	}
	if errno != 0 && errno != s.refused {
		t.Fatalf("%s: %v", s.name, errno)
	}
	f.Close()
	l.unused(t)
	return errno == 0
}

// unused waits until no process has the pod's tap open: a program that another test starts has copies for a moment, and
// a tap with a queue in use takes no other flags.
func (l *leftover) unused(t *testing.T) {
	t.Helper()
	nstest.Eventually(t, func() error {
		return netns.Do(l.Pod.File, func() error {
			ns, err := kernel.Open()
			if err != nil {
				return err
			}
			defer ns.Close()
			links, err := ns.Links()
			for _, link := range links {
				if link.Name != l.record.Tap || link.Tap == nil {
					continue
				}
				if used, err := ns.InUse(link); err != nil || used {
					return fmt.Errorf("a process has the tap open: %t, %v", used, err)
				}
			}
			return err
		})
	})
}

// byName opens the pod's tap and the guest's without headers.
func (l *leftover) byName() (outside, inside *os.File, err error) {
	if outside, err = openAs(l.Pod, l.record.Tap, l.flags); err == nil {
		inside, err = openAs(l.guest, "eth0", 0)
	}
	return outside, inside, err
}

// withHeader is byName with headers of 10 octets.
func (l *leftover) withHeader() (outside, inside *os.File, err error) {
	if outside, err = openAs(l.Pod, l.record.Tap, l.flags|unix.IFF_VNET_HDR); err == nil {
		inside, err = openAs(l.guest, "eth0", unix.IFF_VNET_HDR)
	}
	return outside, inside, err
}

func (l *leftover) openTap() (outside, inside *os.File, err error) {
	err = netns.Do(l.Pod.File, func() error {
		files, err := phase2.OpenTap(l.record)
		if err != nil {
			return err
		}
		outside = files[0]
		for _, f := range files[1:] { // one queue gets all frames
			f.Close()
		}
		return nil
	})
	if err == nil {
		inside, err = openAs(l.guest, "eth0", unix.IFF_VNET_HDR)
	}
	return outside, inside, err
}

// talks wants a TCP connection of the guest to bring bytes back.
func (l *leftover) talks(t *testing.T, how string, open func() (outside, inside *os.File, err error)) {
	t.Helper()
	outside, inside, err := open()
	if err != nil {
		if outside != nil {
			outside.Close()
		}
		t.Errorf("%s: %v", how, err)
		return
	}
	disconnect := nstest.Connect(t, inside, outside)
	defer l.unused(t)
	defer disconnect()
	q, err := l.guest.Question("tcp", netip.Addr{}, l.server, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Answer(patience); err != nil {
		t.Errorf("%s: %v", how, err)
		return
	}
	if err := q.Echo(100_000, patience); err != nil {
		t.Errorf("%s: %v", how, err)
	}
}
