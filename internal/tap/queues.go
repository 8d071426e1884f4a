package tap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// flagsOf returns what a VMM wants of a tap: each frame has a struct virtio_net_hdr in front, and nothing else.
func flagsOf(queues int) uint16 {
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	return flags
}

// Queues says how many queues the tap can have at most (1: it is no multi-queue tap), and how many of them processes
// have open. Zero and zero: the kernel does not report them, as Linux 6.1. The error is fs.ErrNotExist if there is no
// such link, unix.EINVAL if the link is no tap.
func Queues(name string) (most, attached int, err error) {
	if err := checkExists(name); err != nil {
		return 0, 0, err
	}
	driver, err := driver(name)
	if err != nil {
		return 0, 0, fmt.Errorf("driver of tap %s: %w", name, err)
	}
	if driver != "tun tap" {
		return 0, 0, fmt.Errorf("link %s is no tap: %w", name, unix.EINVAL)
	}
	channels := struct { // struct ethtool_channels
		command, maxRx, maxTx, maxOther, maxCombined, rx, tx, other, combined uint32
	}{command: unix.ETHTOOL_GCHANNELS}
	if err := ethtool(name, unsafe.Pointer(&channels)); err != nil {
		return 0, 0, nil
	}
	return int(channels.maxCombined), int(channels.combined), nil
}

// driver returns the driver of a link and its bus: "tun tap" for a tap; empty: a link without ethtool.
func driver(name string) (string, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(s)
	info, err := unix.IoctlGetEthtoolDrvinfo(s, name)
	if err == unix.EOPNOTSUPP {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return unix.ByteSliceToString(info.Driver[:]) + " " + unix.ByteSliceToString(info.Bus_info[:]), nil
}

// OpenQueues attaches to the tap called name in the network namespace of the calling thread as a VMM does: with a
// struct virtio_net_hdr of 10 octets in front of each frame, without offloads and filters, whatever an earlier process
// has set (see [Initial]). It returns a file for each queue. With several, the tap has to be multi-queue.
//
// The errors are those of [Open]; unix.EBUSY also if another process attaches to a multi-queue tap at the same time,
// where the kernel reports (see [Queues]); unix.EINVAL if the tap is multi-queue and one queue is asked for, or the
// other way round.
func OpenQueues(name string, queues int) (files []*os.File, err error) {
	err = patiently(func() (err error) {
		files, err = openQueues(name, queues)
		return err
	})
	return files, named(name, err)
}

func openQueues(name string, queues int) (files []*os.File, err error) {
	clearing.Lock()
	defer clearing.Unlock()
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	// The kernel lets another process add queues to a multi-queue tap, and each gets a part of the guest's frames.
	_, attached, err := Queues(name)
	if err != nil {
		return nil, err
	}
	if attached > 0 || hasReader(name) {
		return nil, busyError{tap: name}
	}
	for range queues {
		fd, err := attach(name, flagsOf(queues))
		if err != nil {
			return files, err
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	if _, attached, err = Queues(name); err != nil {
		return files, err
	}
	if attached > queues { // another process attached at the same time
		return files, busyError{tap: name}
	}
	if err := undo(int(files[0].Fd()), name); err != nil {
		return files, err
	}
	hasReader(name)
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// OpenMacvtap opens the character device of the macvtap called name in the network namespace of the calling thread,
// once for each queue: /dev/tapINDEX, where INDEX is the link's. The files are those of [OpenQueues].
//
// The error is fs.ErrNotExist if there is no such link, if the device is not in /dev, or if it belongs to another
// macvtap; fs.ErrPermission if the user cannot open the device. The kernel does not say that another process has the
// macvtap open.
func OpenMacvtap(name string, queues int) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	index, mac, err := link(name)
	if err != nil {
		return nil, err
	}
	path := fmt.Sprintf("/dev/tap%d", index)
	node := fmt.Sprintf("the node has the numbers of /sys/class/net/%s/macvtap/tap%d/dev", name, index)
	for range queues {
		fd, err := openDevice(path, "chown it", node)
		if err != nil {
			if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
				err = fmt.Errorf("a node of a macvtap that is gone (%s): %w: %w", node, err, fs.ErrNotExist)
			}
			return files, fmt.Errorf("device of macvtap %s: %w", name, err)
		}
		files = append(files, os.NewFile(uintptr(fd), name))
		if err := checkMacvtap(fd, path, name, mac); err != nil {
			return files, fmt.Errorf("device of macvtap %s: %w (%s)", name, err, node)
		}
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return files, err
		}
		ifr.SetUint16(flagsOf(queues))
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
			return files, fmt.Errorf("attach to macvtap %s: %w", name, err)
		}
	}
	// All else is the file's. A new macvtap has all offloads.
	if err := unix.IoctlSetInt(int(files[0].Fd()), unix.TUNSETOFFLOAD, 0); err != nil {
		return files, fmt.Errorf("offloads of macvtap %s: %w", name, err)
	}
	return files, nil
}

// checkMacvtap checks that the open device is that of the macvtap: two namespaces can have macvtaps with one index.
func checkMacvtap(fd int, path, name string, mac [6]byte) error {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr); err != nil {
		return fmt.Errorf("%s is no macvtap's: %w: %w", path, err, fs.ErrNotExist)
	}
	var other hardware
	if err := other.ask(fd); err != nil {
		return fmt.Errorf("MAC of %s: %w", path, err)
	}
	if ifr.Name() != name || other.mac != mac {
		return fmt.Errorf("%s belongs to another macvtap, %s with MAC %x: %w", path, ifr.Name(), other.mac, fs.ErrNotExist)
	}
	return nil
}

// hardware is struct ifreq with the answer of SIOCGIFHWADDR.
type hardware struct {
	name   [unix.IFNAMSIZ]byte
	family uint16
	mac    [6]byte
	_      [16]byte
}

func (h *hardware) ask(fd int) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGIFHWADDR, uintptr(unsafe.Pointer(h))); errno != 0 {
		return errno
	}
	return nil
}

// link returns the index and the MAC of a link.
func link(name string) (index uint32, mac [6]byte, err error) {
	if err := checkExists(name); err != nil {
		return 0, mac, err
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, mac, err
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return 0, mac, err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFINDEX, ifr); err != nil {
		return 0, mac, fmt.Errorf("index of link %s: %w", name, err)
	}
	var h hardware
	copy(h.name[:unix.IFNAMSIZ-1], name)
	if err := h.ask(s); err != nil {
		return 0, mac, fmt.Errorf("MAC of link %s: %w", name, err)
	}
	return ifr.Uint32(), h.mac, nil
}
