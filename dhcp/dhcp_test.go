package dhcp

import (
	"errors"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
)

func TestNew(t *testing.T) {
	rec := newRecord()
	rec.MTU = 0
	var field *cache.FieldError
	if _, err := New(rec, resolvConf); !errors.As(err, &field) || field.Field != "mtu" {
		t.Errorf("a record without an MTU: %v", err)
	}
	rec = newRecord()
	rec.ResponderTap = ""
	if _, err := New(rec, resolvConf); err == nil {
		t.Error("New accepts a record without a responderTap")
	}
}

// Every kind of event has a text of its own.
func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	for k := nothing + 1; k < kinds; k++ {
		text := k.String()
		if text == "" || seen[text] || strings.HasPrefix(text, "event ") {
			t.Errorf("event %d has the text %q", k, text)
		}
		seen[text] = true
	}
	if kinds.String() != "event 18" || nothing.String() != "event 0" {
		t.Errorf("no events are %q and %q", kinds, nothing)
	}
}

// RFC 768: a checksum of zero is sent as all ones.
func TestUDPChecksumZero(t *testing.T) {
	udp := []byte{0xff, 0xff, 0, 0, 0, 0, 7, 7}
	putUDPChecksum(0, udp)
	if udp[6] != 0xff || udp[7] != 0xff {
		t.Errorf("checksum %x, want ffff", udp[6:])
	}
}

// A reply allocates nothing, so a guest's flood of messages makes no garbage.
func TestAllocations(t *testing.T) {
	r := newResponder(t, newRecord(), resolvConf)
	buf := make([]byte, 0, 2048)
	for _, c := range []struct {
		name  string
		frame []byte
	}{
		{"discover", client4{kind: discover, options: map[uint8][]byte{55: {1, 3, 6}, 61: {1, 2, 3}}}.frame()},
		{"request", client4{kind: request, options: map[uint8][]byte{54: addr("169.254.1.1").AsSlice(), 50: addr("10.244.1.7").AsSlice()}}.frame()},
		{"solicit", from6(guestLL, servers6, msg6(1, tlv(1, clientDUID), tlv(6, []byte{0, 23}), iaNA(1)))},
		{"renew", from6(guestLL, servers6, msg6(5, tlv(1, clientDUID), tlv(2, serverDUID), iaNA(1, iaAddr("fd00:10:244::7"), iaAddr("fd00::9"))))},
		{"release", from6(guestLL, servers6, msg6(8, tlv(1, clientDUID), tlv(2, serverDUID), iaNA(1, iaAddr("fd00:10:244::7"))))},
		{"confirm", from6(guestLL, servers6, msg6(4, tlv(1, clientDUID), iaNA(1, iaAddr("fd00:10:244::7"))))},
		{"several associations", from6(guestLL, servers6, msg6(1, tlv(1, clientDUID), iaNA(1), iaNA(2), tlv(4, make([]byte, 4)), tlv(25, make([]byte, 12))))},
		{"router solicitation", routerSolicitation(guestLL)},
		{"neighbour solicitation", solicitation(guestLL, addr("ff02::1:ff00:1"), addr("fe80::1"))},
		{"arp", arp(1, guestMAC, anyone, addr("169.254.1.1"))},
		{"another station's", change(client4{kind: discover}.frame(), 11, 9)},
	} {
		if n := testing.AllocsPerRun(100, func() { buf = r.Reply(buf[:0], c.frame) }); n > 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}
