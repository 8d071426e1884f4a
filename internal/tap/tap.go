// Package tap attaches to existing taps. It never creates one.
//
//   - [Open] opens a tap for the frames of one process, [OpenResponder] for the responder, and [OpenQueues] and [OpenMacvtap]
//     for a VMM.
//   - [Clear] undoes what an earlier process left at a tap that another process is about to open.
//   - [Queues] and [Offloads] say what is set at a tap, without opening it.
package tap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/holders"
)

// Device is the character device by which a process attaches to a tap (Documentation/networking/tuntap.rst).
const Device = "/dev/net/tun"

// Open attaches to the tap called name in the network namespace of the calling thread. A read returns one Ethernet
// frame, a write sends one; deadlines work. The tap is opened without vnet_hdr and without offloads: checksums are
// complete, and no frame exceeds the MTU. From then on, a read returns each frame that the kernel sends to the tap:
// Open undoes what an earlier process left (see [Initial]), and waits until the kernel has noticed the process.
//
// Open needs no capability if the caller's user owns the tap. The error is fs.ErrNotExist if there is no such
// link, fs.ErrPermission if the tap belongs to another user, and unix.EBUSY if another process is attached, and not
// only for the moment in which it resets the tap.
func Open(name string) (*os.File, error) {
	var fd int
	err := patiently(func() (err error) {
		fd, err = attach(name, unix.IFF_TAP|unix.IFF_NO_PI)
		return err
	})
	if err != nil {
		return nil, named(name, err)
	}
	if err := undo(fd, name); err != nil {
		unix.Close(fd)
		return nil, err
	}
	hasReader(name)
	return os.NewFile(uintptr(fd), name), nil
}

// sleep is a variable for tests.
var sleep = time.Sleep

// patiently tries again for 0.1 s while another process has the tap open: one that resets the tap, as [Clear] does, has
// it for well below 1 ms.
func patiently(open func() error) error {
	for pause := time.Millisecond; ; pause *= 2 {
		err := open()
		if !errors.Is(err, unix.EBUSY) || pause > 64*time.Millisecond {
			return err
		}
		sleep(pause)
	}
}

// attach opens the tap. The errors are those of Open.
func attach(name string, flags uint16) (fd int, err error) {
	if err := checkExists(name); err != nil {
		return -1, err
	}
	if err := CheckDevice(Device, TunMinor); err != nil {
		return -1, err
	}
	fd, err = openDevice(Device, "chmod 0666 "+Device+", or a group that may", "a container engine gives the device, for example by --device "+Device)
	if err != nil {
		return -1, err
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("tap %s: %w", name, err)
	}
	ifr.SetUint16(flags | NoFilter)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		unix.Close(fd)
		switch err {
		case unix.EPERM:
			// the kernel wants the tap's user and its group (tun_not_capable)
			err = fmt.Errorf("user %d of group %d is not its owner%s: %w", unix.Geteuid(), unix.Getegid(), owner(name), err)
		case unix.EACCES:
			err = fmt.Errorf("SELinux denies it to this process's domain (Setup's Owner.SELinux gives the tap the launcher's context; ausearch -m AVC shows the rule): %w", err)
		case unix.EBUSY:
			return -1, busyError{tap: name}
		}
		return -1, fmt.Errorf("attach to tap %s: %w", name, err)
	}
	return fd, nil
}

// busyError says that another process is attached to the tap.
type busyError struct{ tap, by string }

func (e busyError) Error() string {
	return fmt.Sprintf("attach to tap %s: another process is attached%s: %v", e.tap, e.by, unix.EBUSY)
}

func (busyError) Unwrap() error { return unix.EBUSY }

// named adds the processes that are attached to the tap to a busyError: they are those that have the tap open now. A
// user sees only its own processes.
func named(tap string, err error) error {
	var busy busyError
	if errors.As(err, &busy) {
		busy.by = ": " + holders.Name(context.Background(), tap) + ": end it first"
		return busy
	}
	return err
}

// openDevice opens a character device without blocking. To the error of a device that the user cannot open, or that
// does not exist, it adds the way out.
func openDevice(path, permit, provide string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		return fd, nil
	}
	wrapped := &fs.PathError{Op: "open", Path: path, Err: err}
	switch err {
	case unix.EACCES:
		return -1, fmt.Errorf("user %d cannot open the device (%s): %w", unix.Geteuid(), permit, wrapped)
	case unix.EPERM:
		return -1, fmt.Errorf("the container's device rules forbid the device (%s): %w", provide, wrapped)
	case unix.ENOENT:
		return -1, fmt.Errorf("there is no device (%s): %w", provide, wrapped)
	}
	return -1, wrapped
}

// NoCarrier is IFF_NO_CARRIER of linux/if_tun.h, which Linux has since 6.1, and earlier kernels ignore: a tap that is
// opened for a moment keeps its carrier away, for which the kernel would make routes and tell the bridge.
const NoCarrier = 0x40

// NoFilter is IFF_NOFILTER of linux/if_tun.h: without it the kernel attaches the socket filter of an earlier process
// anew (TUNATTACHFILTER), and reads its program in the memory of this one, where it is not: EFAULT.
const NoFilter = 0x1000

// Setting is an ioctl on the file of a tap, with a value or the address of one.
type Setting struct {
	Name           string
	Request, Value uintptr
	// Unknown is the error of a kernel that has no such setting; 0: each has it.
	Unknown unix.Errno
}

// Initial are the ioctls that give a tap the settings of a new one. The kernel keeps them for the tap, and not for the
// process, so those of a process that ended hold for the next.
//
// The kernel does not keep the carrier, the limit of what is on its way (TUNSETSNDBUF), the queues that are switched
// off, and the flags of TUNSETIFF. It keeps what it logs (TUNSETDEBUG), which concerns no frame. Owner, group, MAC and
// type of the link are kept as well, and can be read without a process at the tap.
func Initial() []Setting { return initial }

var (
	noAddresses   struct{ flags, count uint16 } // struct tun_filter: no address filter
	noProgram     int32                         = -1
	headerSize    int32                         = 10 // of struct virtio_net_hdr
	nativeHeaders int32

	initial = []Setting{
		{Name: "TUNDETACHFILTER", Request: unix.TUNDETACHFILTER},
		{Name: "TUNSETTXFILTER", Request: unix.TUNSETTXFILTER, Value: uintptr(unsafe.Pointer(&noAddresses))},
		{Name: "TUNSETFILTEREBPF", Request: unix.TUNSETFILTEREBPF, Value: uintptr(unsafe.Pointer(&noProgram))},
		{Name: "TUNSETSTEERINGEBPF", Request: unix.TUNSETSTEERINGEBPF, Value: uintptr(unsafe.Pointer(&noProgram))},
		{Name: "TUNSETVNETHDRSZ", Request: unix.TUNSETVNETHDRSZ, Value: uintptr(unsafe.Pointer(&headerSize))},
		{Name: "TUNSETVNETLE", Request: unix.TUNSETVNETLE, Value: uintptr(unsafe.Pointer(&nativeHeaders))},
		{Name: "TUNSETOFFLOAD", Request: unix.TUNSETOFFLOAD},
		{Unknown: unix.EINVAL /* without CONFIG_TUN_VNET_CROSS_LE */, Name: "TUNSETVNETBE", Request: unix.TUNSETVNETBE, Value: uintptr(unsafe.Pointer(&nativeHeaders))},
	}
)

// undo gives a tap the settings of a new one.
func undo(fd int, name string) error {
	for _, s := range initial {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), s.Request, s.Value); errno != 0 && errno != s.Unknown {
			return fmt.Errorf("undo what an earlier process has set at tap %s: %s: %w", name, s.Name, errno)
		}
	}
	return nil
}

// Offloads reports whether the kernel leaves checksums of what it sends to the tap unfinished, as a process has asked
// it to (TUNSETOFFLOAD). The question needs no process at the tap.
func Offloads(name string) bool {
	value := struct{ command, data uint32 }{command: unix.ETHTOOL_GTXCSUM}
	return ethtool(name, unsafe.Pointer(&value)) == nil && value.data != 0
}

// clearing is held while Clear has a tap open: OpenQueues of this process waits.
var clearing sync.Mutex

// hasReader reports whether a process has the tap open. ETHTOOL_GLINK makes the kernel look now (linkwatch_sync_dev):
// before the kernel has noticed a process, it drops what it sends to the tap. An error is ignored, as the kernel then
// looks a moment later.
func hasReader(name string) bool {
	value := struct{ command, data uint32 }{command: unix.ETHTOOL_GLINK}
	return ethtool(name, unsafe.Pointer(&value)) == nil && value.data != 0
}

// NoticeCarrier has the kernel do now what it does up to a second after a link's carrier changed: only then a link that
// came up makes its IPv6 link-local address. The link, of any kind, is one of the calling thread's namespace.
func NoticeCarrier(link string) { hasReader(link) }

// ethtool asks the kernel about a link. The value begins with the command, and has the answer afterwards.
func ethtool(name string, value unsafe.Pointer) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifr := struct { // struct ifreq of linux/if.h
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: value}
	copy(ifr.name[:unix.IFNAMSIZ-1], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
		return errno
	}
	return nil
}

// checkExists returns fs.ErrNotExist if there is no link with this name. Without the check, TUNSETIFF would
// create a tap if the caller has CAP_NET_ADMIN.
func checkExists(name string) error {
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
