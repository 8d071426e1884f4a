package dhcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
)

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
		`level=WARN msg="lost: option search domain \"a..b\": it has an empty label, want 1 to 63 octets between two dots"`,
		`level=INFO msg="DHCPv4 address leased" event=dhcpv4-leased guest=02:00:00:00:00:01 address=10.244.1.7`,
		`level=WARN msg="DHCPv4 request for another address refused" event=dhcpv4-refused guest=02:00:00:00:00:01 address=10.9.9.9`,
		`level=WARN msg="DHCPv6 address declined by the guest: a station of the network answers for it, a duplicate or an NDP proxy" event=dhcpv6-declined guest=02:00:00:00:00:01 address=fd00:10:244::7`,
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
