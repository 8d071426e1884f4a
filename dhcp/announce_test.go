package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
)

// wordsOf names a frame of an announcement; an advertisement of a router is left out.
func wordsOf(t *testing.T, f []byte) string {
	t.Helper()
	names := map[cache.MAC]string{guestMAC: "guest", gatewayMAC: "gateway", responderMAC: "responder", frame.Broadcast: "all", {}: "none"}
	name := func(b []byte) string {
		if n, ok := names[cache.MAC(b)]; ok {
			return n
		}
		return cache.MAC(b).String()
	}
	from, body := name(f[6:12]), f[frame.EthernetLen:]
	switch kind := binary.BigEndian.Uint16(f[12:]); kind {
	case frame.TypeARP, frame.TypeRARP:
		if len(f) != 60 || [6]byte(body) != [6]byte{0, 1, 8, 0, 6, 4} || name(f) != "all" || name(body[8:]) != from {
			t.Errorf("ARP %x", f)
		}
		return fmt.Sprintf("%s %#x %d %v > %s %v", from, kind, body[7], netip.AddrFrom4([4]byte(body[14:])), name(body[18:]), netip.AddrFrom4([4]byte(body[24:])))
	case frame.TypeIPv6:
		p, ok := frame.ParseIPv6(body)
		if !ok || p.Hops != 255 || !validChecksum(frame.Pseudo6(p.Src, p.Dst, frame.ICMPv6, len(p.Body)), p.Body, 2) || cache.MAC(f) != frame.MulticastMAC(p.Dst) {
			t.Errorf("ICMPv6 %x", f)
		}
		if p.Body[0] == 134 {
			return ""
		}
		return fmt.Sprintf("%s %d %v > %v %v %x %d %s", from, p.Body[0], p.Src, p.Dst, netip.AddrFrom16([16]byte(p.Body[8:])), p.Body[4], p.Body[24], name(p.Body[26:32]))
	}
	t.Errorf("frame %x", f)
	return ""
}

// announced runs Announce under Serve, and returns what is sent and when, and the advertisements among it.
func announcedFrames(t *testing.T, rec cache.Record) (lines []string, advertised int) {
	t.Helper()
	r := newResponder(t, rec, resolvConf)
	events := 0
	r.Notify = func(e Event) {
		if e.Kind == announced {
			events++
		}
	}
	serve(t, r, func(t *testing.T, p *fakePort) {
		time.Sleep(time.Minute)
		before, _ := p.sent()
		start := time.Now()
		if err := r.Announce(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("Announce took %v", took)
		}
		frames, times := p.sent()
		for i, f := range frames[len(before):] {
			if line := wordsOf(t, f); line == "" {
				advertised++
			} else {
				lines = append(lines, fmt.Sprint(times[len(before)+i].Sub(start).Milliseconds(), " ", line))
			}
		}
		if events != 1 || r.Counters().Events[announced] != 1 {
			t.Errorf("%d events %s", events, announced)
		}
	})
	return lines, advertised
}

// RFC 5227 section 3, RFC 4861 section 7.2.6, and the RARP requests of QEMU.
func TestAnnounce(t *testing.T) {
	rec := newRecord()
	rec.IPv4.Routes = slices.Insert(rec.IPv4.Routes, 1, cache.Route{Destination: prefix("10.244.1.1/32")}, cache.Route{Destination: prefix("192.0.2.0/24"), Gateway: addr("10.244.1.1")})
	rec.Static = &cache.Static{
		Addresses: []cache.StaticAddress{{Address: prefix("10.244.1.7/24")}, {Address: prefix("10.244.1.9/24")}, {Address: prefix("fd00::9/64")}},
		Routes:    []cache.StaticRoute{{Destination: prefix("fd01::/64"), Gateway: addr("fd00::1"), Table: 254}},
	}
	lines, advertised := announcedFrames(t, rec)
	arp := []string{
		"guest 0x806 1 10.244.1.7 > none 10.244.1.7", "guest 0x806 2 10.244.1.7 > guest 10.244.1.7",
		"guest 0x806 1 10.244.1.9 > none 10.244.1.9", "guest 0x806 2 10.244.1.9 > guest 10.244.1.9",
		"guest 0x806 1 10.244.1.7 > none 10.244.1.1",
		"gateway 0x806 1 169.254.1.1 > none 169.254.1.1", "gateway 0x806 2 169.254.1.1 > gateway 169.254.1.1",
	}
	nd := []string{
		"guest 136 fd00:10:244::7 > ff02::1 fd00:10:244::7 20 2 guest", "guest 136 fd00::9 > ff02::1 fd00::9 20 2 guest",
		"guest 135 fd00:10:244::7 > ff02::1:ff00:1 fd00::1 0 1 guest",
		"responder 136 fd00::53 > ff02::1 fd00::53 20 2 responder", "gateway 136 fe80::1 > ff02::1 fe80::1 a0 2 gateway",
	}
	var want []string
	for _, r := range []struct {
		at     int
		groups [][]string
	}{
		{0, [][]string{{rarpLine}, arp, nd}}, {50, [][]string{{rarpLine}}}, {200, [][]string{{rarpLine}}}, {450, [][]string{{rarpLine}}},
		{800, [][]string{{rarpLine}}}, {1000, [][]string{nd}}, {2000, [][]string{arp, nd}},
	} {
		for _, line := range slices.Concat(r.groups...) {
			want = append(want, fmt.Sprint(r.at, " ", line))
		}
	}
	if !slices.Equal(lines, want) || advertised != 1 {
		t.Errorf("%d router advertisements, and\n%s\nwant 1, and\n%s", advertised, strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

// The guest asks for its gateway also if it has one address alone.
func TestAnnounceOneAddress(t *testing.T) {
	rec := newRecord()
	rec.IPv4.Routes = slices.Insert(rec.IPv4.Routes, 1, cache.Route{Destination: prefix("10.244.1.1/32")}, cache.Route{Destination: prefix("192.0.2.0/24"), Gateway: addr("10.244.1.1")})
	lines, _ := announcedFrames(t, rec)
	for _, want := range []string{"0 guest 0x806 1 10.244.1.7 > none 10.244.1.7", "0 guest 0x806 1 10.244.1.7 > none 10.244.1.1"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %s in\n%s", want, strings.Join(lines, "\n"))
		}
	}
}

const rarpLine = "guest 0x8035 3 0.0.0.0 > guest 0.0.0.0"

// FuzzAnnounce: of no record comes a frame in another's name, or one that is not well-formed.
func FuzzAnnounce(f *testing.F) {
	for _, name := range []string{"bridge", "redirect", "masquerade"} {
		text, err := os.ReadFile(fmt.Sprintf("../cache/testdata/records/v%d/%s.json", cache.Version, name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		rec, err := cache.Decode(text)
		if err != nil {
			return
		}
		r, err := New(rec, cache.DNS{})
		if err != nil {
			return
		}
		own := map[netip.Addr]cache.MAC{}
		if rec.IPv6 != nil && rec.IPv6.Router != nil {
			own[rec.IPv6.Router.Address] = rec.IPv6.Router.MAC
		}
		if a := gateway4(rec); a.IsValid() {
			own[a] = rec.GatewayMAC
		}
		for _, n := range rec.Neighbours {
			own[n.Address] = n.MAC
		}
		if rec.Static != nil {
			for _, a := range rec.Static.Addresses {
				own[a.Address.Addr()] = rec.MAC
			}
		}
		if rec.IPv4 != nil {
			own[rec.IPv4.Address.Addr()] = rec.MAC
		}
		if rec.IPv6 != nil {
			own[rec.IPv6.Address] = rec.MAC
		}
		for _, round := range r.answers.Load().rounds {
			for _, f := range round.frames {
				source, from := cache.MAC(f[6:12]), netip.Addr{}
				switch binary.BigEndian.Uint16(f[12:]) {
				case frame.TypeARP:
					from = netip.AddrFrom4([4]byte(f[frame.EthernetLen+14:]))
				case frame.TypeIPv6:
					from = netip.AddrFrom16([16]byte(f[frame.EthernetLen+8:]))
				}
				if from.IsValid() && own[from] != source || source == rec.MAC && !rec.Announces() {
					t.Fatalf("%v of %v in the name of %v: %x", from, own[from], source, f)
				}
				wordsOf(t, f)
			}
		}
	})
}

// Only the guest learns of its gateway under masquerade, and where the guest has the MAC of its next hop.
func TestAnnounceToGuest(t *testing.T) {
	hidden := newRecord()
	hidden.Binding, hidden.Neighbours, hidden.GatewayMAC = cache.BindingMasquerade, nil, gatewayMAC
	shared := newRecord()
	shared.Binding, shared.Neighbours = cache.BindingRedirect, append(shared.Neighbours, cache.Neighbour{Address: addr("169.254.75.1"), MAC: guestMAC})
	for name, rec := range map[string]cache.Record{"masquerade": hidden, "shared": shared} {
		lines, _ := announcedFrames(t, rec)
		announced := false
		for _, line := range lines {
			_, line, _ = strings.Cut(line, " ")
			announced = announced || strings.HasPrefix(line, "gateway 0x806 2 169.254.1.1 ")
			if strings.HasPrefix(line, "guest 0x806 1 10.") || strings.HasPrefix(line, "guest 0x8035") || strings.HasPrefix(line, "guest 13") {
				t.Errorf("%s: %s", name, line)
			}
		}
		if !announced {
			t.Errorf("%s: the gateway is not announced: %q", name, lines)
		}
	}
}

func TestAnnounceRefused(t *testing.T) {
	standby := newRecord()
	standby.Role = cache.RoleStandby
	r := newResponder(t, newRecord(), resolvConf)
	if err := r.Announce(t.Context()); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("without Serve: %v", err)
	}
	r = newResponder(t, standby, resolvConf)
	serve(t, r, func(t *testing.T, p *fakePort) {
		before, _ := p.sent()
		if err := r.Announce(t.Context()); !errors.Is(err, ErrStandby) {
			t.Errorf("on standby: %v", err)
		}
		synctest.Wait()
		if now, _ := p.sent(); len(now) != len(before) {
			t.Errorf("on standby: %d frames sent", len(now)-len(before))
		}
	})
}

// Serve announces a guest whose standby ends, and ends an announcement when one begins.
func TestAnnounceStandby(t *testing.T) {
	active, standby := newRecord(), newRecord()
	standby.Role = cache.RoleStandby
	r := newResponder(t, standby, resolvConf)
	rarps := func(p *fakePort) (n int) {
		frames, _ := p.sent()
		for _, f := range frames {
			if wordsOf(t, f) == rarpLine {
				n++
			}
		}
		return n
	}
	serve(t, r, func(t *testing.T, p *fakePort) {
		time.Sleep(time.Minute)
		if n := rarps(p); n > 0 {
			t.Errorf("%d RARP requests on standby", n)
		}
		update := func(rec cache.Record) {
			if err := r.Update(rec, resolvConf); err != nil {
				t.Fatal(err)
			}
		}
		update(active)
		time.Sleep(time.Minute)
		if n := rarps(p); n != 5 || r.Counters().Events[announced] != 1 {
			t.Errorf("%d RARP requests after the standby, events %v", n, r.Counters().Events)
		}
		update(active)
		time.Sleep(time.Minute)
		if n := rarps(p); n != 5 {
			t.Errorf("%d RARP requests after the same record came again", n)
		}
		done := make(chan error, 1)
		go func() { done <- r.Announce(t.Context()) }()
		time.Sleep(100 * time.Millisecond)
		update(standby)
		if err := <-done; !errors.Is(err, ErrStandby) {
			t.Errorf("an announcement that a standby ends: %v", err)
		}
		time.Sleep(time.Minute)
		if n := rarps(p); n != 7 {
			t.Errorf("%d RARP requests", n)
		}
	})
}

// Several callers get one announcement, from its beginning. One that does not wait gets its context's error.
func TestAnnounceTogether(t *testing.T) {
	r := newResponder(t, newRecord(), resolvConf)
	serve(t, r, func(t *testing.T, p *fakePort) {
		start := time.Now()
		done := make(chan error, 1)
		go func() { done <- r.Announce(t.Context()) }()
		time.Sleep(time.Second)
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := r.Announce(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a short context: %v", err)
		}
		if err := <-done; err != nil || time.Since(start) != 3*time.Second {
			t.Errorf("the first caller: %v after %v", err, time.Since(start))
		}
		// Requests are answered meanwhile.
		go func() { done <- r.Announce(t.Context()) }()
		time.Sleep(time.Millisecond)
		p.in <- arp(1, guestMAC, addr("10.244.1.7"), addr("169.254.1.1"))
		synctest.Wait()
		if frames, _ := p.sent(); cache.MAC(frames[len(frames)-1]) != guestMAC {
			t.Errorf("no answer during an announcement: %x", frames[len(frames)-1])
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		p.breakWrites(syscall.EIO)
		if err := r.Announce(t.Context()); !errors.Is(err, syscall.EIO) {
			t.Errorf("a tap that is down: %v", err)
		}
		p.breakWrites(nil)
	})
	synctest.Test(t, func(t *testing.T) {
		p, ctx, done := newFakePort(), t.Context(), make(chan error, 1)
		ctx, cancel := context.WithCancel(ctx)
		served := make(chan error, 1)
		go func() { served <- r.Serve(ctx, p) }()
		synctest.Wait()
		go func() { done <- r.Announce(t.Context()) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, syscall.ENOTCONN) {
			t.Errorf("Serve ends under Announce: %v", err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
