package podnet

import (
	"io"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// openTun creates a tun device in the namespace and attaches to it, until the test ends.
func openTun(t testing.TB, n *nstest.Namespace, name string) *os.File {
	t.Helper()
	fd := -1
	err := netns.Do(n.File, func() (err error) {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	})
	if err != nil {
		unix.Close(fd)
		t.Fatalf("create tun device %s: %v", name, err)
	}
	return os.NewFile(uintptr(fd), name)
}

// joinTuns hands the packets of each device, or socket, to the other, until the test ends.
func joinTuns(t testing.TB, a, b io.ReadWriteCloser) {
	var copying sync.WaitGroup
	for _, way := range [][2]io.ReadWriteCloser{{a, b}, {b, a}} {
		copying.Go(func() {
			packet := make([]byte, 1<<16)
			for {
				size, err := way[0].Read(packet)
				if err != nil {
					return // closed, or deleted with its namespace
				}
				_, _ = way[1].Write(packet[:size]) // a packet for a device that is down is lost
			}
		})
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
		copying.Wait()
	})
}
