package dhcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mdlayher/ndp"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
)

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
