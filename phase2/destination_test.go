package phase2_test

import (
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/phase2"
)

// TestNoOriginalDestination: what nobody diverted has no other destination, whether the kernel tracks connections here
// or not. phase1's TestOriginalDestination has those that are diverted.
func TestNoOriginalDestination(t *testing.T) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	for _, c := range []struct {
		network, at string
		want        error
	}{
		{"tcp4", "127.0.0.1:0", fs.ErrNotExist},
		{"tcp", "[::]:0", fs.ErrNotExist},
		{"unix", filepath.Join(t.TempDir(), "socket"), unix.ENOPROTOOPT},
	} {
		l, err := config.Listen(t.Context(), c.network, c.at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		to := l.Addr().String()
		if at, is := l.Addr().(*net.TCPAddr); is && at.IP.IsUnspecified() {
			to = (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: at.Port}).String()
		}
		opened, err := net.Dial(c.network, to)
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		if to, err := phase2.OriginalDestination(accepted.(syscall.Conn)); !errors.Is(err, c.want) || to.IsValid() {
			t.Errorf("%s: %v, %v; want %v", c.network, to, err, c.want)
		}
	}
}
