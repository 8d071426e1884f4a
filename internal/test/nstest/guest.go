package nstest

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
)

// Guest is a namespace in the guest's place: its eth0, which is down, is the other end of the
// record's tap. For programs there that is what a virtio device of QEMU is: the kernel leaves
// checksums and segments to the device, and each frame's header says what to do.
func (n Network) Guest(t testing.TB, r cache.Record) *Namespace {
	t.Helper()
	guest := New(t, "guest")
	n.Attach(t, guest, "eth0", r)
	return guest
}

// Attach gives a guest that Guest has returned a further link, which is down: the other end of the record's tap.
func (n Network) Attach(t testing.TB, guest *Namespace, link string, r cache.Record) {
	t.Helper()
	guest.IP("tuntap add " + link + " mode tap vnet_hdr")
	guest.IP("link set " + link + " address " + r.MAC.String())
	Connect(t, guest.attach(t, link), n.Pod.attach(t, r.Tap))
	t.Attr("guest", link) // as Boot says it
}

// Connect forwards frames between two taps whose frames have the same headers, until disconnect is called or the test
// ends, which closes them.
func Connect(t testing.TB, inside, outside *os.File) (disconnect func()) {
	t.Helper()
	var forwarding sync.WaitGroup
	forwarding.Go(func() { forward(t, outside, inside) })
	forwarding.Go(func() { forward(t, inside, outside) })
	disconnect = func() {
		inside.Close()
		outside.Close()
		forwarding.Wait()
	}
	t.Cleanup(disconnect)
	return disconnect
}

// attach opens a tap with vnet_hdr, as QEMU does.
func (n *Namespace) attach(t testing.TB, name string) *os.File {
	t.Helper()
	fd := -1
	// A tap is looked for in the namespace in which the device was opened.
	err := netns.Do(n.File, func() (err error) {
		if fd, err = unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	})
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6)
	}
	if err != nil {
		unix.Close(fd)
		t.Fatalf("attach to tap %s: %v", name, err)
	}
	return os.NewFile(uintptr(fd), name)
}

// maxFrame is the size of a frame with its header, and with segments that are still to be cut.
const maxFrame = 1 << 17

// forward copies frames with their headers until one of the taps is closed or gone. A frame for a link
// that is down is lost, as on a wire.
func forward(t testing.TB, to, from *os.File) {
	frame := make([]byte, maxFrame)
	for {
		size, err := from.Read(frame)
		if err == nil {
			_, err = to.Write(frame[:size])
		}
		if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EBADFD) {
			return
		}
		if err != nil && (deleted(from) || deleted(to)) { // the poller calls it "not pollable"
			return
		}
		if err != nil && !errors.Is(err, syscall.EIO) {
			t.Errorf("forward from tap %s to %s: %v", from.Name(), to.Name(), err)
			return
		}
	}
}

// deleted reports whether the tap is gone, or the file closed.
func deleted(tap *os.File) bool {
	raw, err := tap.SyscallConn()
	if err != nil {
		return true
	}
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return false
	}
	gone := true
	_ = raw.Control(func(fd uintptr) { gone = unix.IoctlIfreq(int(fd), unix.TUNGETIFF, ifr) != nil }) // not called for a closed file
	return gone
}

// FilterTap sets an address filter at a tap, as a VMM may: only frames to 02:00:00:00:00:01 pass (TUNSETTXFILTER).
func FilterTap(t testing.TB, f *os.File) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	filter := struct { // struct tun_filter of linux/if_tun.h
		flags, count uint16
		address      [6]byte
	}{count: 1, address: [6]byte{2, 0, 0, 0, 0, 1}}
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, unix.TUNSETTXFILTER, uintptr(unsafe.Pointer(&filter)))
	})
	if err != nil || errno != 0 {
		t.Fatalf("set an address filter: %v, %v", err, errno)
	}
}
