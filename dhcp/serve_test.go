package dhcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// RFC 4861 section 6.2.4: three advertisements at short intervals, then one in 1350 to 1800 s, which is less
// than a third of the lifetime. Serve wakes up at no other time.
func TestServePace(t *testing.T) {
	serve(t, newResponder(t, newRecord(), resolvConf), func(t *testing.T, p *fakePort) {
		start := time.Now()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		out, times := p.sent()
		if len(out) < 48 || len(out) > 66 {
			t.Fatalf("%d advertisements in a day, want 48 to 66", len(out))
		}
		for i, at := range times {
			if got := readReply(t, out[i]); got.dst != frame.AllNodes || got.payload[0] != 134 {
				t.Errorf("type %d to %v", got.payload[0], got.dst)
			}
			var gap time.Duration
			if i > 0 {
				gap = at.Sub(times[i-1])
			}
			switch {
			case i == 0 && !at.Equal(start):
				t.Errorf("the first advertisement came after %v", at.Sub(start))
			case (i == 1 || i == 2) && gap != 16*time.Second:
				t.Errorf("advertisement %d after %v, want 16s", i, gap)
			case i > 2 && (gap < 1350*time.Second || gap > 1800*time.Second):
				t.Errorf("advertisement %d after %v", i, gap)
			}
		}
		if n := p.readsSoFar(); n > len(out)+1 {
			t.Errorf("%d reads for %d advertisements", n, len(out))
		}
	})
}

// Without IPv6 an idle Serve sleeps, and DHCPv4 is answered.
func TestServeWithoutIPv6(t *testing.T) {
	rec := newRecord()
	rec.IPv6 = nil
	serve(t, newResponder(t, rec, resolvConf), func(t *testing.T, p *fakePort) {
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if out, _ := p.sent(); len(out) != 0 || p.reads != 1 || p.arms != 1 {
			t.Errorf("%d frames, %d reads, %d deadlines in an idle day", len(out), p.reads, p.arms)
		}
		p.in <- client4{kind: discover}.frame()
		synctest.Wait()
		out, _ := p.sent()
		if len(out) != 1 || read4(t, readReply(t, out[0])).MessageType() != offer {
			t.Errorf("%d frames to a DISCOVER", len(out))
		}
	})
}

// RFC 4861 section 6.2.6: each solicitation with a source is answered at once, and multicast at most once in 3 s.
func TestServeSolicitations(t *testing.T) {
	serve(t, newResponder(t, newRecord(), resolvConf), func(t *testing.T, p *fakePort) {
		start := time.Now()
		time.Sleep(time.Second)
		for range 50 {
			p.in <- routerSolicitation(guestLL)
			p.in <- routerSolicitation(addr("::"))
		}
		synctest.Wait()
		if out, _ := p.sent(); len(out) != 1+50 {
			t.Errorf("%d advertisements after a second, want the first and 50 unicasts", len(out))
		}
		time.Sleep(9 * time.Second)
		p.in <- routerSolicitation(addr("::"))
		synctest.Wait()
		var got []string
		out, times := p.sent()
		for i, frame := range out {
			if frame[0]&1 != 0 {
				got = append(got, times[i].Sub(start).String())
			}
		}
		if fmt.Sprint(got) != "[0s 3s 10s]" {
			t.Errorf("multicast advertisements at %v, want 0s, the one asked for at 3s, the next at once", got)
		}
	})
}

// After errors of the port Serve pauses and goes on. It writes few lines about them.
func TestServePortErrors(t *testing.T) {
	var log bytes.Buffer
	r := newResponder(t, newRecord(), resolvConf)
	r.Log = slog.New(slog.NewTextHandler(&log, nil))
	serve(t, r, func(t *testing.T, p *fakePort) {
		for range 50 {
			p.failures <- syscall.EIO
		}
		time.Sleep(10 * time.Second)
		if n := p.readsSoFar(); n > 10 {
			t.Errorf("%d reads in 10 s of errors", n)
		}
		time.Sleep(time.Hour)
		p.in <- client4{kind: discover}.frame()
		synctest.Wait()
		out, _ := p.sent()
		if len(out) == 0 || readReply(t, out[len(out)-1]).to != 68 {
			t.Error("no offer after the port came back")
		}

		p.breakWrites(syscall.EIO)
		for range 1000 {
			p.in <- client4{kind: discover}.frame()
		}
		synctest.Wait()
		p.breakWrites(nil)
		p.in <- client4{kind: discover}.frame()
		synctest.Wait()
		after, _ := p.sent()
		if len(after) != len(out)+1 {
			t.Errorf("%d frames after the port came back, want %d", len(after), len(out)+1)
		}
	})
	for event, most := range map[string]int{"event=read-failed": 30, "event=write-failed": 5} {
		if n := strings.Count(log.String(), event); n == 0 || n > most {
			t.Errorf("%d lines with %s, want 1 to %d:\n%s", n, event, most, &log)
		}
	}
	if !strings.Contains(log.String(), `msg="read from the port: input/output error"`) {
		t.Errorf("the log lacks the error:\n%s", &log)
	}
}

func TestServePortGone(t *testing.T) {
	for _, want := range []error{os.ErrClosed, io.EOF, syscall.EBADFD} {
		synctest.Test(t, func(t *testing.T) {
			p := newFakePort()
			p.failures <- &os.PathError{Op: "read", Path: "eth0-dhcp", Err: want}
			if err := newResponder(t, newRecord(), resolvConf).Serve(t.Context(), p); !errors.Is(err, want) {
				t.Errorf("Serve: %v, want %v", err, want)
			}
		})
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := newResponder(t, newRecord(), resolvConf).Serve(t.Context(), file); !errors.Is(err, os.ErrNoDeadline) {
		t.Errorf("Serve on a file: %v", err)
	}
}

// A real file descriptor that reads and writes whole frames, in Go's poller, as a tap's is.
func TestServeFile(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	port, guest := os.NewFile(uintptr(fds[0]), "port"), os.NewFile(uintptr(fds[1]), "guest")
	defer port.Close()
	defer guest.Close()
	if err := guest.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	// Serve works more than once on a port: it resets the deadline that ended the Serve before it.
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- newResponder(t, newRecord(), resolvConf).Serve(ctx, port) }()
		buf := make([]byte, 2048)
		n, err := guest.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		if got := readReply(t, buf[:n]); got.payload[0] != 134 {
			t.Errorf("the first frame is no advertisement: %x", buf[:n])
		}
		if _, err := guest.Write(client4{kind: discover}.frame()); err != nil {
			t.Fatal(err)
		}
		if n, err = guest.Read(buf); err != nil {
			t.Fatal(err)
		}
		if got := read4(t, readReply(t, buf[:n])).MessageType(); got != offer {
			t.Errorf("a %v, want an offer", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if n, err = guest.Read(buf); err != nil {
			t.Fatal(err)
		}
		if got := readReply(t, buf[:n]); got.payload[0] != 134 || lifetime(got) != 0 {
			t.Errorf("the last frame does not withdraw the router: %x", buf[:n])
		}
	}
}

// lifetime returns the router lifetime of an advertisement, in seconds.
func lifetime(r reply) uint16 { return binary.BigEndian.Uint16(r.payload[6:]) }

// A flood of one kind of event is held back, and hides no other kind.
func TestServeFlood(t *testing.T) {
	var log bytes.Buffer
	r := newResponder(t, newRecord(), resolvConf)
	r.Log = slog.New(slog.NewTextHandler(&log, nil))
	var events noted
	r.Notify = events.add
	check := func(t *testing.T, kind Kind, want int, wantHeld uint64) {
		t.Helper()
		if announced, held := events.of(kind); len(announced) != want || held != wantHeld {
			t.Errorf("%s: %d events and %d held back, want %d and %d", kind, len(announced), held, want, wantHeld)
		}
	}
	ours := map[uint8][]byte{50: addr("10.244.1.7").AsSlice()}
	const flood = 10000
	serve(t, r, func(t *testing.T, p *fakePort) {
		for range flood {
			p.in <- client4{kind: request, options: ours}.frame()
			p.in <- client4{kind: discover}.frame()
		}
		p.in <- client4{kind: dhcpv4.MessageTypeDecline, options: ours}.frame()
		synctest.Wait()
		check(t, leased4, 20, 0)
		check(t, offered4, 20, 0)
		check(t, declined4, 1, 0)
		time.Sleep(burstEvery)
		p.in <- client4{kind: request, options: ours}.frame()
		p.in <- client4{kind: request, options: ours}.frame()
		synctest.Wait()
		check(t, leased4, 21, flood-20)
		time.Sleep(time.Hour)
		p.in <- client4{kind: request, options: ours}.frame()
		synctest.Wait()
		check(t, leased4, 22, flood-20+1)
		if c := r.Counters(); c.Events[leased4] != flood+3 || c.Events[offered4] != flood || c.Events[declined4] != 1 {
			t.Errorf("counters %v", c.Events)
		}
	})
	if n := strings.Count(log.String(), "event=dhcpv4-leased"); n != 22 {
		t.Errorf("%d lines, want 22:\n%s", n, &log)
	}
	if !strings.Contains(log.String(), "event=dhcpv4-declined") {
		t.Errorf("the flood hides a decline:\n%s", &log)
	}
}

// TestServeSilence: a guest that solicits routers and speaks no DHCPv6 is reported once, after two minutes.
func TestServeSilence(t *testing.T) {
	cid := tlv(1, []byte{0, 3, 0, 1}, guestMAC[:])
	for name, c := range map[string]struct {
		frames [][]byte
		want   uint64
	}{
		"nothing":            {nil, 0},
		"solicitations":      {[][]byte{routerSolicitation(guestLL), routerSolicitation(addr("::"))}, 1},
		"DHCPv6":             {[][]byte{routerSolicitation(guestLL), from6(guestLL, addr("ff02::1:2"), msg6(1, cid, iaNA(5)))}, 0},
		"DHCPv6 alone first": {[][]byte{from6(guestLL, addr("ff02::1:2"), msg6(1, cid, iaNA(5))), routerSolicitation(guestLL)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newResponder(t, newRecord(), resolvConf)
			serve(t, r, func(t *testing.T, p *fakePort) {
				for _, f := range c.frames {
					p.in <- f
				}
				time.Sleep(silence6 - time.Second)
				if n := r.Counters().Events[noDHCP6]; n != 0 {
					t.Errorf("%d events at once", n)
				}
				time.Sleep(2 * time.Second)
				if len(c.frames) > 0 {
					p.in <- c.frames[0]
				}
				time.Sleep(time.Hour)
				if n := r.Counters().Events[noDHCP6]; n != c.want {
					t.Errorf("%d events, want %d", n, c.want)
				}
			})
		})
	}
}
