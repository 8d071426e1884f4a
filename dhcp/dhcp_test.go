package dhcp

import (
	"errors"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

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

// warnings are what Serve would log.
func (r *Responder) warnings() []string { return r.answers.Load().warnings }

// Every kind of event and every reason has a short name for machines, and every kind has a sentence of its own.
func TestNames(t *testing.T) {
	texts := map[string]bool{}
	var haveKinds, haveReasons []string
	for _, k := range kinds {
		if k.text == "" || texts[k.text] || k.burst < 1 {
			t.Errorf("%s has the text %q and a burst of %d", k.kind, k.text, k.burst)
		}
		texts[k.text] = true
		haveKinds = append(haveKinds, string(k.kind))
	}
	for _, r := range reasons {
		haveReasons = append(haveReasons, string(r))
	}
	for _, c := range []struct {
		what, file string
		have       []string
	}{{"Kind", "event.go", haveKinds}, {"Reason", "ignored.go", haveReasons}} {
		var documented []string
		for _, n := range documentedNames(t, c.file, c.what) {
			documented = append(documented, n)
			if !regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`).MatchString(n) {
				t.Errorf("%s %q is not in kebab-case", c.what, n)
			}
		}
		source, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		var declared []string
		for _, m := range regexp.MustCompile(`(?m)^\t\w+ +`+c.what+` += "(.*)"$`).FindAllStringSubmatch(string(source), -1) {
			declared = append(declared, m[1])
		}
		for _, names := range [][]string{documented, declared, c.have} {
			slices.Sort(names)
		}
		if !slices.Equal(c.have, documented) || !slices.Equal(c.have, declared) || len(slices.Compact(declared)) != len(c.have) {
			t.Errorf("%s: the table has %q, the doc comment %q, the constants are %q", c.what, c.have, documented, declared)
		}
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

// A reply allocates nothing, and Serve allocates nothing for an event that is held back. So a guest's flood of messages
// makes no garbage.
func TestAllocations(t *testing.T) {
	rec := withStandIn()
	rec.IPv6.Delegated = delegatedRecord().IPv6.Delegated
	r := newResponder(t, rec, resolvConf)
	r.Log, r.Notify = slog.New(slog.DiscardHandler), func(Event) {}
	buf := make([]byte, 0, 2048)
	l := loop{r: r, port: discardPort{}, log: r.Log, answers: r.answers.Load(), out: buf}
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
		{"prefixes", from6(guestLL, servers6, msg6(5, tlv(1, clientDUID), tlv(2, serverDUID), iaPD(1, iaPrefix("fd09::/64")), iaPD(2, iaPrefix("fd08::/64"))))},
		{"router solicitation", routerSolicitation(guestLL)},
		{"neighbour solicitation", solicitation(guestLL, addr("ff02::1:ff00:1"), addr("fe80::1"))},
		{"arp", arp(1, guestMAC, anyone, addr("169.254.1.1"))},
		{"another station's", change(client4{kind: discover}.frame(), 11, 9)},
	} {
		if n := testing.AllocsPerRun(100, func() { buf = r.Reply(buf[:0], c.frame) }); n > 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
		for range 1000 { // more than a burst
			l.answerFrame(c.frame)
		}
		if n := testing.AllocsPerRun(100, func() { l.answerFrame(c.frame) }); n > 0 {
			t.Errorf("%s: Serve makes %v allocations", c.name, n)
		}
	}
}

// discardPort is a port without a guest.
type discardPort struct{ Port }

func (discardPort) Write(b []byte) (int, error)       { return len(b), nil }
func (discardPort) SetReadDeadline(t time.Time) error { return nil }

// documentedNames returns the names of the table in a type's doc comment.
func documentedNames(t *testing.T, file, typ string) (names []string) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	doc := regexp.MustCompile(`(?://.*\n)+type ` + typ + ` `).FindString(string(source))
	for _, m := range regexp.MustCompile(`(?m)^//\t(\S+) +(.*)$`).FindAllStringSubmatch(doc, -1) {
		names = append(names, m[1])
	}
	return names
}
