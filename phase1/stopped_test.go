package phase1_test

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestStoppedResponder: a guest that floods a launcher that is stopped occupies at most 2 MiB of the kernel's memory in
// the responder's tap. A burst of requests is kept.
func TestStoppedResponder(t *testing.T) {
	t.Parallel()
	eachBinding(t, func(t *testing.T, b infra.Binding) {
		n := nstest.NewNetwork(t)
		setup(t, config(n, b))
		w := attachDeaf(t, n, true, true)
		responder := openPort(t, n, "eth0-dhcp")
		ask := func(times, size int) (kept, octets int) {
			t.Helper()
			request := append(w.link.Ask(unix.IPPROTO_UDP, w.link.IPv4, netip.MustParseAddr("255.255.255.255"), 67), make([]byte, size)...) // as for a DHCP server
			for range times {
				if _, err := w.port.Write(request); err != nil {
					t.Fatal(err)
				}
			}
			buffer := make([]byte, 1<<16)
			for {
				if err := responder.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil { // a write has put the frame there
					t.Fatal(err)
				}
				got, err := responder.Read(buffer)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					return kept, octets
				}
				if err != nil {
					t.Fatal(err)
				}
				kept, octets = kept+1, octets+got
			}
		}
		const most = 2 << 20
		kept, octets := ask(2000, 65000)
		t.Logf("%d frames, %d octets", kept, octets)
		if kept == 0 || octets > most {
			t.Errorf("%d frames with %d octets wait for the responder, want at most %d octets", kept, octets, most)
		}
		if kept, _ := ask(10, 300); kept != 10 {
			t.Errorf("%d of 10 requests wait for the responder", kept)
		}
	})
}
