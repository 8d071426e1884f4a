package dhcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/ndp"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// fakePort is a port with deadlines by the clock of a synctest bubble.
type fakePort struct {
	in       chan []byte
	failures chan error

	mu      sync.Mutex
	out     [][]byte
	times   []time.Time // of out
	reads   int
	arms    int // calls of SetReadDeadline
	broken  error
	timer   *time.Timer
	expired chan struct{}
}

func newFakePort() *fakePort {
	return &fakePort{in: make(chan []byte), failures: make(chan error, 100), expired: make(chan struct{})}
}

func (p *fakePort) Read(b []byte) (int, error) {
	p.mu.Lock()
	p.reads++
	expired := p.expired
	p.mu.Unlock()
	select {
	case <-expired:
		return 0, os.ErrDeadlineExceeded
	default:
	}
	select {
	case f := <-p.in:
		return copy(b, f), nil
	case err := <-p.failures:
		return 0, err
	case <-expired:
		return 0, os.ErrDeadlineExceeded
	}
}

func (p *fakePort) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return 0, p.broken
	}
	p.out, p.times = append(p.out, bytes.Clone(b)), append(p.times, time.Now())
	return len(b), nil
}

// SetReadDeadline cannot extend the deadline of a Read that has begun. Serve does not need that: it sets a
// deadline between two reads, and the end of its context sets one that has passed.
func (p *fakePort) SetReadDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arms++
	if p.timer != nil {
		p.timer.Stop()
	}
	select {
	case <-p.expired:
		p.expired = make(chan struct{})
	default:
	}
	if expired := p.expired; !t.IsZero() && !t.After(time.Now()) {
		close(expired)
	} else if !t.IsZero() {
		p.timer = time.AfterFunc(time.Until(t), func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			select {
			case <-expired:
			default:
				close(expired)
			}
		})
	}
	return nil
}

// breakWrites has each Write fail from now on; nil: none.
func (p *fakePort) breakWrites(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = err
}

func (p *fakePort) readsSoFar() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reads
}

func (p *fakePort) sent() ([][]byte, []time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out, p.times
}

// serve runs Serve in a bubble and ends it after f.
func serve(t *testing.T, r *Responder, f func(t *testing.T, p *fakePort)) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakePort()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Serve(ctx, p) }()
		synctest.Wait()
		f(t, p)
		before := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if took := time.Since(before); took != 0 {
			t.Errorf("Serve ended %v after its context", took)
		}
	})
}

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

// The log has what the guest got, and few lines of a guest's flood.
func TestServeLog(t *testing.T) {
	var log bytes.Buffer
	dns := resolvConf
	dns.Search = []string{"a..b"}
	r := newResponder(t, newRecord(), dns)
	r.Log = slog.New(slog.NewTextHandler(&log, nil))
	serve(t, r, func(t *testing.T, p *fakePort) {
		p.in <- client4{kind: request, options: map[uint8][]byte{50: addr("10.244.1.7").AsSlice()}}.frame()
		p.in <- client4{kind: request, options: map[uint8][]byte{50: addr("10.9.9.9").AsSlice()}}.frame()
		p.in <- from6(guestLL, servers6, msg6(9, tlv(1, clientDUID), tlv(2, serverDUID), iaNA(1, iaAddr("fd00:10:244::7"))))
		synctest.Wait()
		for range 10000 {
			p.in <- client4{kind: request, options: map[uint8][]byte{50: addr("10.9.9.9").AsSlice()}}.frame()
		}
		time.Sleep(time.Minute)
		p.in <- client4{kind: request, options: map[uint8][]byte{50: addr("10.9.9.9").AsSlice()}}.frame()
		synctest.Wait()
	})
	text := log.String()
	for _, want := range []string{
		`level=WARN msg="search domain \"a..b\" is left out: it has an empty label, want 1 to 63 octets between two dots"`,
		`level=INFO msg="DHCPv4 address leased" event=dhcpv4-leased guest=02:00:00:00:00:01 address=10.244.1.7`,
		`level=WARN msg="DHCPv4 request for another address refused" event=dhcpv4-refused guest=02:00:00:00:00:01 address=10.9.9.9`,
		`level=WARN msg="DHCPv6 address declined by the guest: another station seems to use it" event=dhcpv6-declined guest=02:00:00:00:00:01 address=fd00:10:244::7`,
		`held=9981`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %s", want)
		}
	}
	// The warning, a lease, a decline, the flood's burst and its last one, and the end.
	if n := strings.Count(text, "\n"); n != 1+2+20+1+1 {
		t.Errorf("%d lines in the log:\n%s", n, text)
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

// Notify gets the events in their order, and the counters count them.
func TestServeEvents(t *testing.T) {
	r := newResponder(t, newRecord(), resolvConf)
	var got []string
	r.Notify = func(e Event) {
		if e.Time.IsZero() {
			t.Errorf("%v at no time", e.Kind)
		}
		if e.Text == "" || e.Text == string(e.Kind) {
			t.Errorf("%v has the text %q", e.Kind, e.Text)
		}
		text := string(e.Kind)
		if e.Address.IsValid() {
			text += " " + e.Address.String()
		}
		got = append(got, text)
	}
	const ours4, ours6 = "10.244.1.7", "fd00:10:244::7"
	server := addr("169.254.1.1").AsSlice()
	cid, sid := tlv(1, clientDUID), tlv(2, serverDUID)
	serve(t, r, func(t *testing.T, p *fakePort) {
		for _, frame := range [][]byte{
			client4{kind: discover}.frame(),
			client4{kind: request, options: map[uint8][]byte{54: server, 50: addr(ours4).AsSlice()}}.frame(),
			client4{kind: request, ciaddr: ours4}.frame(),
			client4{kind: request, ciaddr: "10.9.9.9"}.frame(),
			client4{kind: dhcpv4.MessageTypeDecline, options: map[uint8][]byte{54: server, 50: addr(ours4).AsSlice()}}.frame(),
			client4{kind: dhcpv4.MessageTypeRelease, ciaddr: ours4, options: map[uint8][]byte{54: server}}.frame(),
			arp(1, guestMAC, anyone, addr("169.254.1.1")),
			{1, 2, 3},
			from6(guestLL, servers6, msg6(1, cid, iaNA(1))),
			from6(guestLL, servers6, msg6(3, cid, sid, iaNA(1))),
			from6(guestLL, servers6, msg6(6, cid, iaNA(1, iaAddr(ours6)))),
			from6(guestLL, servers6, msg6(11)),
			from6(guestLL, servers6, msg6(8, cid, sid, iaNA(1, iaAddr(ours6)))),
			routerSolicitation(guestLL),
		} {
			p.in <- frame
		}
		synctest.Wait()
		c := r.Counters()
		if c.Received != 14 || c.Sent != 1+4+1+5+1 || c.Failed != 0 || c.Events[leased4] != 1 || c.Events[advertised] != 2 || len(c.Events) != 12 ||
			fmt.Sprint(c.Ignored) != "map[malformed:1]" {
			t.Errorf("counters %+v", c)
		}
		text, err := json.Marshal(c)
		for _, want := range []string{`"received":14`, `"sent":12`, `"failed":0`, `"dhcpv4-leased":1`, `"ignored":{"malformed":1}`} {
			if err != nil || !strings.Contains(string(text), want) {
				t.Errorf("counters as JSON: %s, %v; want %s", text, err, want)
			}
		}
	})
	want := []string{
		"router-advertised",
		"dhcpv4-offered " + ours4, "dhcpv4-leased " + ours4, "dhcpv4-renewed " + ours4, "dhcpv4-refused 10.9.9.9",
		"dhcpv4-declined " + ours4, "dhcpv4-released " + ours4,
		"dhcpv6-offered " + ours6, "dhcpv6-leased " + ours6, "dhcpv6-renewed " + ours6, "dhcpv6-informed", "dhcpv6-released " + ours6,
		"router-advertised", "router-withdrawn",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// RFC 4861 section 6.2.5, RFC 4191 section 3.1, RFC 8106 section 5: at the end Serve withdraws the router, unless
// another responder takes over.
func TestServeWithdraws(t *testing.T) {
	rec := newRecord()
	rec.IPv6.Router.Routes = []netip.Prefix{prefix("fd00:9::/48")}
	rec.IPv6.OnLink = []netip.Prefix{prefix("fd00:10:244::/64")}
	for _, cause := range []error{nil, ErrHandover} {
		synctest.Test(t, func(t *testing.T) {
			p := newFakePort()
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan error)
			go func() { done <- newResponder(t, rec, resolvConf).Serve(ctx, p) }()
			synctest.Wait()
			cancel(cause)
			if err := <-done; err != nil {
				t.Errorf("Serve: %v", err)
			}
			out, _ := p.sent()
			if cause != nil {
				if len(out) != 1 {
					t.Errorf("%d frames, want the first one alone", len(out))
				}
				return
			}
			if len(out) != 2 {
				t.Fatalf("%d frames, want two", len(out))
			}
			got := readReply(t, out[1])
			msg, err := ndp.ParseMessage(got.payload)
			if err != nil {
				t.Fatal(err)
			}
			ra := msg.(*ndp.RouterAdvertisement)
			if got.src != addr("fe80::1") || got.dst != frame.AllNodes || ra.RouterLifetime != 0 {
				t.Errorf("from %v to %v with a lifetime of %v", got.src, got.dst, ra.RouterLifetime)
			}
			seen := 0
			for _, o := range ra.Options {
				switch o := o.(type) {
				case *ndp.RouteInformation:
					seen++
					if o.RouteLifetime != 0 {
						t.Errorf("route for %v", o.RouteLifetime)
					}
				case *ndp.RecursiveDNSServer:
					seen++
					if o.Lifetime != 0 {
						t.Errorf("DNS servers for %v", o.Lifetime)
					}
				case *ndp.DNSSearchList:
					seen++
					if o.Lifetime != 0 || len(o.DomainNames) != 3 {
						t.Errorf("search domains %v for %v", o.DomainNames, o.Lifetime)
					}
				case *ndp.PrefixInformation:
					seen++
					if o.ValidLifetime != ndp.Infinity {
						t.Errorf("prefix for %v", o.ValidLifetime)
					}
				}
			}
			if seen != 4 {
				t.Errorf("%d of the four options", seen)
			}
		})
	}
}

// After Update, the new record is served from the next frame on and advertised at once.
func TestServeUpdate(t *testing.T) {
	r := newResponder(t, newRecord(), resolvConf)
	serve(t, r, func(t *testing.T, p *fakePort) {
		time.Sleep(time.Hour)
		before, _ := p.sent()
		dns := cache.DNS{Servers: []netip.Addr{addr("10.96.0.99"), addr("fd00::99")}}
		if err := r.Update(newRecord(), dns); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		out, _ := p.sent()
		if len(out) != len(before)+2 || !bytes.Contains(out[len(out)-1], addr("fd00::99").AsSlice()) {
			t.Errorf("%d frames after the update, want one that takes back the old server and one with the new", len(out)-len(before))
		}
		p.in <- client4{kind: discover}.frame()
		synctest.Wait()
		out, _ = p.sent()
		if m := read4(t, readReply(t, out[len(out)-1])); fmt.Sprint(m.DNS()) != "[10.96.0.99]" {
			t.Errorf("DNS %v after the update", m.DNS())
		}

		// Many updates: one advertisement in three seconds.
		before = out
		for range 100 {
			if err := r.Update(newRecord(), dns); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if out, _ = p.sent(); len(out) != len(before) {
			t.Errorf("%d frames within a second after an advertisement", len(out)-len(before))
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if out, _ = p.sent(); len(out) != len(before)+1 {
			t.Errorf("%d frames for a hundred updates, want one", len(out)-len(before))
		}

		// A record that is not valid changes nothing.
		bad := newRecord()
		bad.MTU = 0
		if err := r.Update(bad, dns); err == nil {
			t.Error("a record without an MTU is served")
		}
		// A record without IPv6 and with a larger MTU: Serve withdraws the router and reads larger frames.
		rec := newRecord()
		rec.IPv6, rec.MTU = nil, 9000
		if err := r.Update(rec, dns); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		out, _ = p.sent()
		if last := readReply(t, out[len(out)-1]); last.payload[0] != 134 || lifetime(last) != 0 {
			t.Errorf("the router is not withdrawn: %x", last.payload)
		}
		reads := p.readsSoFar()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if n := p.readsSoFar(); n != reads {
			t.Errorf("%d reads in an idle day", n-reads)
		}
		big := client4{kind: discover, options: map[uint8][]byte{60: bytes.Repeat([]byte{7}, 4000)}}.frame()
		p.in <- big
		synctest.Wait()
		if after, _ := p.sent(); len(after) != len(out)+1 {
			t.Error("a frame of 4 KiB got no answer")
		}
		if err := r.Serve(t.Context(), p); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a second Serve: %v, want EBUSY", err)
		}
	})
}

// updatingPort calls update in a Read, before the Read returns a frame.
type updatingPort struct {
	*fakePort
	update func()
}

func (p updatingPort) Read(b []byte) (int, error) {
	n, err := p.fakePort.Read(b)
	if err == nil {
		p.update()
	}
	return n, err
}

// A frame that comes after Update is answered from the new record, also if Read has begun before Update.
func TestServeUpdateBeforeFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResponder(t, newRecord(), resolvConf)
		p := updatingPort{newFakePort(), func() {
			if err := r.Update(newRecord(), cache.DNS{Servers: []netip.Addr{addr("10.96.0.99")}}); err != nil {
				t.Error(err)
			}
		}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Serve(ctx, p) }()
		p.in <- client4{kind: discover}.frame()
		synctest.Wait()
		out, _ := p.sent()
		if m := read4(t, readReply(t, out[len(out)-1])); fmt.Sprint(m.DNS()) != "[10.96.0.99]" {
			t.Errorf("DNS %v after the update", m.DNS())
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// What a new record has no more ends at once, and not hours later with its lifetime: RFC 4861 section 6.2.4, RFC
// 4191 section 2.3, RFC 8106 section 5. The rest stays.
func TestServeTakesBack(t *testing.T) {
	rec, dns := newRecord(), cache.DNS{Servers: []netip.Addr{addr("fd00::1")}, Search: []string{"a.example"}}
	rec.IPv6.OnLink = []netip.Prefix{prefix("fd00:1::/64"), prefix("fd00:2::/64")}
	rec.IPv6.Router.Routes = []netip.Prefix{prefix("fd00:8::/48"), prefix("fd00:9::/48")}
	r := newResponder(t, rec, dns)
	serve(t, r, func(t *testing.T, p *fakePort) {
		time.Sleep(time.Hour)
		before, _ := p.sent()
		rec := newRecord()
		rec.IPv6.OnLink, rec.IPv6.Router.Routes = []netip.Prefix{prefix("fd00:2::/64")}, []netip.Prefix{prefix("fd00:9::/48")}
		if err := r.Update(rec, cache.DNS{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		out, _ := p.sent()
		if len(out) != len(before)+2 {
			t.Fatalf("%d advertisements after the update, want two", len(out)-len(before))
		}
		msg, err := ndp.ParseMessage(readReply(t, out[len(before)]).payload)
		if err != nil {
			t.Fatal(err)
		}
		ra := msg.(*ndp.RouterAdvertisement)
		var got []string
		for _, o := range ra.Options {
			switch o := o.(type) {
			case *ndp.PrefixInformation:
				got = append(got, fmt.Sprint(o.Prefix, o.ValidLifetime, o.PreferredLifetime))
			case *ndp.RouteInformation:
				got = append(got, fmt.Sprint(o.Prefix, o.RouteLifetime))
			case *ndp.RecursiveDNSServer:
				got = append(got, fmt.Sprint(o.Servers, o.Lifetime))
			case *ndp.DNSSearchList:
				got = append(got, fmt.Sprint(o.DomainNames, o.Lifetime))
			default:
				t.Errorf("a %T", o)
			}
		}
		if want := "fd00:1:: 0s 0s|[fd00::1] 0s|fd00:8:: 0s|[a.example] 0s"; strings.Join(got, "|") != want {
			t.Errorf("taken back %q, want %s", got, want)
		}
		if ra.RouterLifetime != 9000*time.Second || !ra.ManagedConfiguration {
			t.Errorf("the router itself: %+v", ra)
		}
	})
}

// Each reason to ignore a frame has a counter. The frames are those of the tables, and what the tables have no row for.
func TestServeIgnored(t *testing.T) {
	seen := map[Reason]bool{}
	ignored := func(rec cache.Record, rows ...situation) {
		r := newResponder(t, rec, resolvConf)
		want := map[Reason]uint64{}
		serve(t, r, func(t *testing.T, p *fakePort) {
			before, received := r.Counters(), uint64(0)
			for _, c := range rows {
				if c.why != "" {
					p.in <- c.frame
					want[c.why]++
					received++
					seen[c.why] = true
				}
			}
			synctest.Wait()
			after := r.Counters()
			if !maps.Equal(after.Ignored, want) || after.Received != before.Received+received || after.Sent != before.Sent {
				t.Errorf("counters %+v, want %v", after, want)
			}
		})
	}
	discover, solicit := client4{kind: discover}.frame(), msg6(1, tlv(1, clientDUID), iaNA(1))
	rows := slices.Concat(situationsARP(), situationsNS(), situationsRS(), []situation{
		{frame: from6(guestLL, eui64.LinkLocal(responderMAC), solicit), why: unicast},
		{frame: firstFragment(slices.Clone(discover)), why: fragment},
	})
	for _, c := range situations4() {
		rows = append(rows, situation{frame: c.in.frame(), why: c.why})
	}
	for _, c := range situations6() {
		rows = append(rows, situation{frame: from6(guestLL, servers6, c.in), why: c.why})
	}
	ignored(newRecord(), rows...)
	without4, without6 := newRecord(), newRecord()
	without4.IPv4, without6.IPv6 = nil, nil
	ignored(without4, situation{frame: discover, why: noIPv4})
	ignored(without6, situation{frame: from6(guestLL, servers6, solicit), why: noIPv6})
	for _, reason := range reasons {
		if !seen[reason] {
			t.Errorf("no frame is ignored for %s", reason)
		}
	}
}

// firstFragment returns the IPv4 packet with the flag that more fragments follow.
func firstFragment(f []byte) []byte {
	f[20], f[24], f[25] = 0x20, 0, 0
	frame.PutChecksum(0, f[14:34], 10)
	return f
}

// noted are the events that Notify got.
type noted struct {
	mu     sync.Mutex
	events []Event
}

func (n *noted) add(e Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, e)
}

// of returns the events of a kind, and how many of them were held back.
func (n *noted) of(kind Kind) (events []Event, held uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.events {
		if e.Kind == kind {
			events = append(events, e)
			held += e.Held
		}
	}
	return events, held
}

// A guest with another MAC than the record's gets no answer. The log and Notify say so, and what to do.
func TestServeOtherMAC(t *testing.T) {
	var log bytes.Buffer
	r := newResponder(t, newRecord(), resolvConf)
	r.Log = slog.New(slog.NewTextHandler(&log, nil))
	var events noted
	r.Notify = events.add
	stranger := cache.MAC{0x52, 0x54, 0, 0x12, 0x34, 0x56}
	const text = "another MAC than the record's speaks on the tap: the guest of the record is 02:00:00:00:00:01, " +
		"this is 52:54:00:12:34:56; start the VM with mac=02:00:00:00:00:01, or add that of a bridge in the guest to guard.macs"
	serve(t, r, func(t *testing.T, p *fakePort) {
		frames := [][]byte{
			client4{kind: discover}.frame(),
			from6(guestLL, servers6, msg6(1, tlv(1, clientDUID), iaNA(1))),
			routerSolicitation(guestLL),
			arp(1, guestMAC, anyone, addr("169.254.1.1")),
			solicitation(guestLL, addr("ff02::1:ff00:1"), addr("fe80::1")),
		}
		for i, frame := range frames {
			copy(frame[6:], stranger[:])
			p.in <- frame
			synctest.Wait()
			if got, _ := events.of(otherMACSeen); len(got) != i+1 || got[i].Text != text || got[i].MAC != stranger || got[i].Held != 0 {
				t.Errorf("frame %d: events %+v", i, got)
			}
		}
		for range 1000 {
			p.in <- frames[0]
		}
		time.Sleep(time.Minute)
		p.in <- frames[0]
		synctest.Wait()
		c := r.Counters()
		if c.Events[otherMACSeen] != 1006 || c.Ignored[otherMAC] != 1006 || len(c.Ignored) != 1 {
			t.Errorf("counters %+v", c)
		}
		all, _ := p.sent()
		for _, out := range all {
			if out[0]&1 == 0 {
				t.Errorf("an answer %x", out)
			}
		}
	})
	if got, _ := events.of(otherMACSeen); len(got) != 6 || got[5].Held != 1000 {
		t.Errorf("%d events, want 6, the last one after 1000: %+v", len(got), got)
	}
	if n := strings.Count(log.String(), "level=WARN msg=\""+text); n != 6 {
		t.Errorf("%d lines, want 6:\n%s", n, &log)
	}
}

// A guest whose guard allows further MACs is served with each of them: the answer goes to the MAC in the message, or to
// that of the frame where the message has none. A MAC that the guard refuses gets nothing, in neither place.
func TestFurtherMACs(t *testing.T) {
	rec := newRecord()
	bridge, stranger := cache.MAC{2, 0, 0, 0, 0, 0x77}, cache.MAC{0x52, 0x54, 0, 0x12, 0x34, 0x56}
	rec.MACs = []cache.MAC{bridge}
	r := newResponder(t, rec, resolvConf)
	for _, c := range []struct {
		name  string
		frame func(inside cache.MAC) []byte
		names bool // the message names a MAC
	}{
		{"DHCPv4", func(m cache.MAC) []byte {
			return client4{kind: discover, change: func(msg []byte) { copy(msg[offChaddr:], m[:]) }}.frame()
		}, true},
		{"ARP", func(m cache.MAC) []byte { return arp(1, m, anyone, addr("169.254.1.1")) }, true},
		{"DHCPv6", func(cache.MAC) []byte { return from6(guestLL, servers6, msg6(1, tlv(1, clientDUID), iaNA(1))) }, false},
		{"router solicitation", func(cache.MAC) []byte { return routerSolicitation(guestLL) }, false},
		{"neighbour solicitation", func(cache.MAC) []byte { return solicitation(guestLL, addr("ff02::1:ff00:1"), addr("fe80::1")) }, false},
	} {
		for _, from := range []cache.MAC{guestMAC, bridge, stranger} {
			for _, inside := range []cache.MAC{guestMAC, bridge, stranger} {
				f, to, why := c.frame(inside), from, Reason("")
				copy(f[6:], from[:])
				if c.names {
					to = inside
				}
				switch {
				case from == stranger:
					why = otherMAC
				case c.names && inside == stranger:
					why = otherHardwareAddress
				}
				got, answered := judge(t, r, fmt.Sprintf("%s of %v from %v", c.name, inside, from), f, why)
				if answered && got.dstMAC != to {
					t.Errorf("%s of %v from %v: the answer goes to %v", c.name, inside, from, got.dstMAC)
				}
			}
		}
	}
	// It answers for no address that the guest makes of such a MAC.
	rec.Neighbours = append(rec.Neighbours, cache.Neighbour{Address: eui64.LinkLocal(bridge), MAC: gatewayMAC})
	a := eui64.LinkLocal(bridge)
	judge(t, newResponder(t, rec, resolvConf), "the bridge's own address", solicitation(addr("::"), frame.SolicitedNode(a), a), otherTarget)
}

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
