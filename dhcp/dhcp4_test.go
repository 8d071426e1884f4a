package dhcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/served"
)

// client4 is a message of a DHCPv4 client, by default the guest.
type client4 struct {
	kind     dhcpv4.MessageType // 0: none, BOOTP
	ciaddr   string
	flags    uint16
	options  map[uint8][]byte
	src, dst string // default: 0.0.0.0 to 255.255.255.255
	change   func(msg []byte)
}

var xid = []byte{0xde, 0xad, 0xbe, 0xef}

// bytes returns the message. It is encoded by hand, so that it can be wrong.
func (c client4) bytes() []byte {
	msg := make([]byte, 240)
	msg[0], msg[1], msg[2] = 1, 1, 6
	copy(msg[4:], xid)
	binary.BigEndian.PutUint16(msg[8:], 7) // secs
	binary.BigEndian.PutUint16(msg[10:], c.flags)
	if c.ciaddr != "" {
		copy(msg[12:], addr(c.ciaddr).AsSlice())
	}
	copy(msg[28:], guestMAC[:])
	copy(msg[236:], []byte{99, 130, 83, 99})
	if c.kind != 0 {
		msg = append(msg, 53, 1, byte(c.kind))
	}
	for code, value := range c.options {
		for len(value) > 255 {
			msg = append(append(msg, code, 255), value[:255]...)
			value = value[255:]
		}
		msg = append(append(msg, code, byte(len(value))), value...)
	}
	msg = append(msg, 255)
	if c.change != nil {
		c.change(msg)
	}
	return msg
}

func (c client4) frame() []byte {
	src, dst := anyone, everybody
	if c.src != "" {
		src = addr(c.src)
	}
	if c.dst != "" {
		dst = addr(c.dst)
	}
	return from4(src, dst, c.bytes())
}

func read4(t testing.TB, r reply) *dhcpv4.DHCPv4 {
	t.Helper()
	if r.from != 67 || r.to != 68 {
		t.Errorf("ports %d to %d, want 67 to 68", r.from, r.to)
	}
	m, err := dhcpv4.FromBytes(r.payload)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// order4 returns the codes of a message's options in their order.
func order4(t testing.TB, msg []byte) []int {
	t.Helper()
	var codes []int
	for b := msg[240:]; b[0] != 255; b = b[2+int(b[1]):] {
		if b[0] == 0 {
			t.Fatalf("padding among the options of %x", msg)
		}
		codes = append(codes, int(b[0]))
	}
	return codes
}

// parts4 returns the values of an option that is given several times.
func parts4(t testing.TB, options []byte, code uint8) [][]byte {
	t.Helper()
	var parts [][]byte
	for b := options; len(b) > 0 && b[0] != 255; b = b[2+int(b[1]):] {
		if b[0] == code {
			parts = append(parts, b[2:2+int(b[1])])
		}
	}
	return parts
}

const (
	discover = dhcpv4.MessageTypeDiscover
	offer    = dhcpv4.MessageTypeOffer
	request  = dhcpv4.MessageTypeRequest
	ack      = dhcpv4.MessageTypeAck
	nak      = dhcpv4.MessageTypeNak
	silence  = dhcpv4.MessageTypeNone
)

// situation4 is a row of the DHCPv4 table. The guest's address is 10.244.1.7, the server's 169.254.1.1.
type situation4 struct {
	name string
	in   client4
	want dhcpv4.MessageType
	to   string // destination; 255.255.255.255 implies the broadcast MAC
	ev   Kind   // empty: none
	why  Reason // empty: not ignored
}

func situations4() []situation4 {
	const ours, server = "10.244.1.7", "169.254.1.1"
	opt := func(pairs ...any) map[uint8][]byte {
		m := map[uint8][]byte{}
		for i := 0; i < len(pairs); i += 2 {
			switch v := pairs[i+1].(type) {
			case string:
				m[uint8(pairs[i].(int))] = addr(v).AsSlice()
			case []byte:
				m[uint8(pairs[i].(int))] = v
			}
		}
		return m
	}
	id := []byte{1, 2, 3, 4, 5}
	return []situation4{
		{"RFC 2131 4.3.1: DISCOVER", client4{kind: discover}, offer, ours, offered4, ""},
		{"RFC 2131 4.1: DISCOVER, broadcast flag", client4{kind: discover, flags: 0x8000}, offer, "255.255.255.255", offered4, ""},
		{"RFC 2131 4.1: DISCOVER, reserved flags", client4{kind: discover, flags: 0x7fff}, offer, ours, offered4, ""},
		{"RFC 2131 4.3.1: DISCOVER, another address wished for", client4{kind: discover, options: opt(50, "10.9.9.9", 51, []byte{0, 0, 0, 9})}, offer, ours, offered4, ""},
		{"RFC 2131 4.3.1: DISCOVER, foreign ciaddr and source", client4{kind: discover, ciaddr: "192.0.2.66", src: "192.0.2.66"}, offer, ours, offered4, ""},
		{"RFC 2131 4.3.1: DISCOVER to our own address", client4{kind: discover, dst: server}, offer, ours, offered4, ""},
		{"RFC 4039: DISCOVER, rapid commit", client4{kind: discover, options: opt(80, []byte{})}, ack, ours, leased4, ""},
		{"RFC 4039: DISCOVER, rapid commit, broadcast, foreign ciaddr", client4{kind: discover, flags: 0x8000, ciaddr: ours, options: opt(80, []byte{})}, ack, "255.255.255.255", leased4, ""},
		{"RFC 2131 4.3.2: SELECTING", client4{kind: request, options: opt(54, server, 50, ours)}, ack, ours, leased4, ""},
		{"RFC 2131 4.3.2: SELECTING, broadcast flag", client4{kind: request, flags: 0x8000, options: opt(54, server, 50, ours)}, ack, "255.255.255.255", leased4, ""},
		{"RFC 2131 3.1 (4): SELECTING, another server", client4{kind: request, options: opt(54, "10.9.9.9", 50, ours)}, silence, "", "", otherServer},
		{"RFC 2131 4.3.2: SELECTING, malformed server", client4{kind: request, options: opt(54, []byte{169, 254}, 50, ours)}, silence, "", "", otherServer},
		{"RFC 2131 4.3.2: SELECTING, wrong address", client4{kind: request, options: opt(54, server, 50, "10.9.9.9")}, nak, "255.255.255.255", refused4, ""},
		{"RFC 2131 4.3.2: SELECTING, nothing requested", client4{kind: request, options: opt(54, server)}, silence, "", "", incomplete},
		{"RFC 2131 4.3.2: INIT-REBOOT", client4{kind: request, options: opt(50, ours)}, ack, ours, leased4, ""},
		{"RFC 2131 4.3.2: INIT-REBOOT, wrong address", client4{kind: request, options: opt(50, "192.168.0.5")}, nak, "255.255.255.255", refused4, ""},
		{"RFC 2131 4.3.2: RENEWING", client4{kind: request, ciaddr: ours, src: ours, dst: server}, ack, ours, renewed4, ""},
		{"RFC 2131 4.3.2: RENEWING, broadcast flag", client4{kind: request, ciaddr: ours, src: ours, dst: server, flags: 0x8000}, ack, ours, renewed4, ""},
		{"RFC 2131 4.3.2: REBINDING", client4{kind: request, ciaddr: ours, src: ours}, ack, ours, renewed4, ""},
		{"RFC 2131 4.3.2: RENEWING, wrong address", client4{kind: request, ciaddr: "10.9.9.9", src: "10.9.9.9", dst: server}, nak, "255.255.255.255", refused4, ""},
		{"RFC 2131 4.3.2: REBINDING, wrong address", client4{kind: request, ciaddr: "10.9.9.9", src: "10.9.9.9"}, nak, "255.255.255.255", refused4, ""},
		{"RFC 2131 4.3.2: RENEWING, wrong address requested", client4{kind: request, ciaddr: ours, options: opt(50, "10.9.9.9")}, nak, "255.255.255.255", refused4, ""},
		{"RFC 2131 table 5: REQUEST with neither 50, 54 nor ciaddr", client4{kind: request}, silence, "", "", incomplete},
		{"RFC 2131 table 5: REQUEST, malformed 50", client4{kind: request, options: opt(50, []byte{10, 244, 1})}, silence, "", "", malformed},
		{"RFC 2131 table 5: REQUEST, 50 of sixteen octets", client4{kind: request, options: opt(50, "fd00::1")}, silence, "", "", malformed},
		{"RFC 2131 table 5: REQUEST with 50, 54 and ciaddr", client4{kind: request, ciaddr: ours, options: opt(54, server, 50, ours)}, ack, ours, renewed4, ""},
		{"RFC 4039 4: REQUEST, rapid commit", client4{kind: request, options: opt(54, server, 50, ours, 80, []byte{})}, ack, ours, leased4, ""},
		{"RFC 2131 4.3.3: DECLINE", client4{kind: dhcpv4.MessageTypeDecline, options: opt(54, server, 50, ours)}, silence, "", declined4, ""},
		{"RFC 2131 4.3.3: DECLINE, another address", client4{kind: dhcpv4.MessageTypeDecline, options: opt(54, server, 50, "10.9.9.9")}, silence, "", "", otherAddress},
		{"RFC 2131 4.3.4: RELEASE, another address", client4{kind: dhcpv4.MessageTypeRelease, ciaddr: "10.9.9.9", options: opt(54, server)}, silence, "", "", otherAddress},
		{"RFC 2131 4.3.4: RELEASE, another server", client4{kind: dhcpv4.MessageTypeRelease, ciaddr: ours, options: opt(54, "10.9.9.9")}, silence, "", "", otherServer},
		{"RFC 2131 4.3.3: DECLINE, another server", client4{kind: dhcpv4.MessageTypeDecline, options: opt(54, "10.9.9.9", 50, ours)}, silence, "", "", otherServer},
		{"RFC 2131 4.3.4: RELEASE", client4{kind: dhcpv4.MessageTypeRelease, ciaddr: ours, options: opt(54, server)}, silence, "", released4, ""},
		{"RFC 2131 4.3.5: INFORM", client4{kind: dhcpv4.MessageTypeInform, ciaddr: ours, src: ours}, ack, ours, informed4, ""},
		{"RFC 2131 4.3.5: INFORM, address of the guest's own", client4{kind: dhcpv4.MessageTypeInform, ciaddr: "192.0.2.5", flags: 0x8000}, ack, "192.0.2.5", informed4, ""},
		{"RFC 2131 4.3.5: INFORM without ciaddr", client4{kind: dhcpv4.MessageTypeInform}, silence, "", "", incomplete},
		{"RFC 2131 4.3.5: INFORM, ciaddr broadcast", client4{kind: dhcpv4.MessageTypeInform, ciaddr: "255.255.255.255"}, silence, "", "", malformed},
		{"RFC 2131 4.3.5: INFORM, ciaddr multicast", client4{kind: dhcpv4.MessageTypeInform, ciaddr: "224.0.0.1"}, silence, "", "", malformed},
		{"RFC 1534: BOOTP", client4{}, silence, "", "", bootp},
		{"RFC 2131 4.1: option 53 twice", client4{options: opt(53, []byte{1, 1})}, silence, "", "", malformed},
		{"RFC 2132 9.6: unknown type", client4{kind: 99}, silence, "", "", otherMessage},
		{"RFC 2132 9.6: a server's type", client4{kind: offer}, silence, "", "", otherMessage},
		{"RFC 2131 4.1: a relay", client4{kind: discover, change: func(m []byte) { m[24] = 10 }}, silence, "", "", relayed},
		{"RFC 2131 2: op 2", client4{kind: discover, change: func(m []byte) { m[0] = 2 }}, silence, "", "", otherMessage},
		{"RFC 2131 2: hlen 16", client4{kind: discover, change: func(m []byte) { m[2] = 16 }}, silence, "", "", malformed},
		{"RFC 2131 2: hlen 255", client4{kind: discover, change: func(m []byte) { m[2] = 255 }}, silence, "", "", malformed},
		{"RFC 2131 3: bad cookie", client4{kind: discover, change: func(m []byte) { m[236] = 0 }}, silence, "", "", malformed},
		{"RFC 2131 2: foreign chaddr", client4{kind: discover, change: func(m []byte) { m[33]++ }}, silence, "", "", otherHardwareAddress},
		{"RFC 2132 2: option over the end", client4{kind: discover, change: func(m []byte) { m[len(m)-2] = 12; m[len(m)-1] = 200 }}, silence, "", "", malformed},
		{"RFC 3046: option 82 without a relay", client4{kind: discover, options: opt(82, []byte{1, 1, 7})}, offer, ours, offered4, ""},
		{"RFC 6842: client identifier", client4{kind: discover, options: opt(61, id)}, offer, ours, offered4, ""},
		{"RFC 6842: client identifier in NAK", client4{kind: request, options: opt(61, id, 50, "10.9.9.9")}, nak, "255.255.255.255", refused4, ""},
		{"RFC 6842: client identifier in ACK", client4{kind: request, options: opt(61, id, 50, ours)}, ack, ours, leased4, ""},
	}
}

// The rows of the DHCPv4 table.
func TestDHCPv4States(t *testing.T) {
	const ours, server = "10.244.1.7", "169.254.1.1"
	for _, c := range situations4() {
		t.Run(c.name, func(t *testing.T) {
			r := newResponder(t, newRecord(), resolvConf)
			frame := c.in.frame()
			if e := resultOf(r, frame); e.kind != c.ev || e.ignored != c.why {
				t.Errorf("event %q, ignored %q; want %q, %q", e.kind, e.ignored, c.ev, c.why)
			}
			got, silent := ask(t, r, frame)
			if silent || c.want == silence {
				if !silent || c.want != silence {
					t.Fatalf("silent %v, want %v", silent, c.want)
				}
				return
			}
			m := read4(t, got)
			if m.MessageType() != c.want {
				t.Fatalf("a %v, want %v", m.MessageType(), c.want)
			}
			wantMAC := guestMAC
			if c.to == "255.255.255.255" {
				wantMAC = cache.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
			}
			if got.dst != addr(c.to) || got.dstMAC != wantMAC || got.src != addr(server) || got.srcMAC != responderMAC {
				t.Errorf("from %v %v to %v %v, want to %v %v", got.src, got.srcMAC, got.dst, got.dstMAC, c.to, wantMAC)
			}
			if !bytes.Equal(m.TransactionID[:], xid) || m.OpCode != dhcpv4.OpcodeBootReply || m.HopCount != 0 || m.NumSeconds != 0 ||
				m.Flags != c.in.flags&0x8000 || !bytes.Equal(m.ClientHWAddr, guestMAC[:]) || !m.GatewayIPAddr.IsUnspecified() {
				t.Errorf("fixed part of %v", m)
			}
			if got := len(got.payload); got < 300 || got > 548 {
				t.Errorf("%d octets, want 300 to 548", got)
			}
			if !m.ServerIdentifier().Equal(net.IP(addr(server).AsSlice())) {
				t.Errorf("server identifier %v", m.ServerIdentifier())
			}
			if want := c.in.options[61]; !bytes.Equal(m.Options.Get(dhcpv4.OptionClientIdentifier), want) {
				t.Errorf("client identifier %x, want %x", m.Options.Get(dhcpv4.OptionClientIdentifier), want)
			}
			if m.Options.Has(dhcpv4.OptionRelayAgentInformation) {
				t.Error("option 82 is echoed")
			}
			wantRapid := c.in.kind == discover && c.in.options[80] != nil
			if got := m.Options.Has(dhcpv4.OptionRapidCommit); got != wantRapid {
				t.Errorf("rapid commit in the reply: %v, want %v", got, wantRapid)
			}
			codes := order4(t, got.payload)
			switch {
			case c.want == nak:
				want := []int{53, 54, 56}
				if c.in.options[61] != nil {
					want = append(want, 61)
				}
				if !slices.Equal(codes, want) || !m.YourIPAddr.IsUnspecified() || !m.ClientIPAddr.IsUnspecified() || !m.ServerIPAddr.IsUnspecified() {
					t.Errorf("NAK with %v, %v", codes, m)
				}
			case c.in.kind == dhcpv4.MessageTypeInform:
				if !m.YourIPAddr.IsUnspecified() || !m.ClientIPAddr.Equal(net.IP(addr(c.in.ciaddr).AsSlice())) ||
					slices.Contains(codes, 51) || slices.Contains(codes, 58) || slices.Contains(codes, 59) || !slices.Contains(codes, 6) {
					t.Errorf("ACK of an INFORM with %v, %v", codes, m)
				}
			default:
				if !slices.Equal(codes[:4], []int{53, 54, 51, 1}) || !m.YourIPAddr.Equal(net.IP(addr(ours).AsSlice())) {
					t.Errorf("options %v, yiaddr %v", codes, m.YourIPAddr)
				}
				wantCiaddr := c.want == ack && c.ev == renewed4
				if m.ClientIPAddr.IsUnspecified() == wantCiaddr {
					t.Errorf("ciaddr %v", m.ClientIPAddr)
				}
				if got := m.Options.Get(dhcpv4.OptionIPAddressLeaseTime); !bytes.Equal(got, []byte{255, 255, 255, 255}) {
					t.Errorf("lease time %x, want infinite", got)
				}
			}
		})
	}
}

func acked(t testing.TB, rec cache.Record, dns cache.DNS, options map[uint8][]byte) (reply, *dhcpv4.DHCPv4) {
	t.Helper()
	got, silent := ask(t, newResponder(t, rec, dns), client4{kind: discover, options: options}.frame())
	if silent {
		t.Fatal("no reply")
	}
	return got, read4(t, got)
}

// RFC 2131 section 4.4.5 and RFC 2132 sections 9.2, 9.11, 9.12.
func TestDHCPv4Lease(t *testing.T) {
	for _, c := range []struct {
		seconds uint32
		want    []byte
	}{
		{0, []byte{51, 4, 255, 255, 255, 255, 1, 4}},
		{served.Infinite, []byte{51, 4, 255, 255, 255, 255, 1, 4}},
		{3600, []byte{51, 4, 0, 0, 0x0e, 0x10, 58, 4, 0, 0, 0x07, 0x08, 59, 4, 0, 0, 0x0c, 0x4e, 1, 4}},
		{4294967294, []byte{51, 4, 255, 255, 255, 254, 58, 4, 0x7f, 255, 255, 255, 59, 4, 0xdf, 255, 255, 254, 1, 4}},
	} {
		rec := newRecord()
		rec.Options.LeaseSeconds = c.seconds
		got, _ := acked(t, rec, resolvConf, nil)
		if lease := got.payload[240+3+6:][:len(c.want)]; !bytes.Equal(lease, c.want) {
			t.Errorf("%d seconds: options %x, want %x", c.seconds, lease, c.want)
		}
	}
}

// RFC 2132 section 9.8: the order of option 55; section 3.3: the mask before the router.
func TestDHCPv4Order(t *testing.T) {
	rec := newRecord()
	rec.Options.Hostname = "vm1"
	rec.Options.DHCPv4 = map[uint8]cache.Data{252: "http://wpad/", 224: "x"}
	everything := []int{53, 54, 51, 1, 26, 6, 121, 3, 249, 15, 119, 12, 224, 252}
	for _, c := range []struct {
		asked []byte
		want  []int
	}{
		{nil, everything},
		{[]byte{}, everything},
		{[]byte{252, 15, 6, 3, 1, 51}, []int{53, 54, 51, 1, 252, 15, 6, 3, 26, 121, 249, 119, 12, 224}},
		{[]byte{26, 26, 77, 26, 249, 121}, []int{53, 54, 51, 1, 26, 249, 121, 6, 3, 15, 119, 12, 224, 252}},
	} {
		options := map[uint8][]byte{}
		if c.asked != nil {
			options[55] = c.asked
		}
		got, _ := acked(t, rec, resolvConf, options)
		if codes := order4(t, got.payload); !slices.Equal(codes, c.want) {
			t.Errorf("asked for %v: %v, want %v", c.asked, codes, c.want)
		}
	}
}

// RFC 2132 section 9.10 and RFC 2131 section 2: the size of the datagram.
func TestDHCPv4Size(t *testing.T) {
	rec := newRecord()
	rec.Options.DHCPv4 = map[uint8]cache.Data{}
	for code := range uint8(10) {
		rec.Options.DHCPv4[230+code] = cache.Data(strings.Repeat("x", 150))
	}
	for _, c := range []struct {
		option []byte
		most   int
		least  int // options fill it at least to here
	}{
		{nil, 576, 426},
		{[]byte{0, 0}, 576, 426},
		{[]byte{1}, 576, 426},
		{[]byte{0x01, 0x40}, 576, 426}, // 320
		{[]byte{0x03, 0xe8}, 1000, 850},
		{[]byte{0x05, 0xaa}, 1450, 1300},
		{[]byte{0xff, 0xff}, 1450, 1300}, // the MTU
	} {
		options := map[uint8][]byte{}
		if c.option != nil {
			options[57] = c.option
		}
		got, _ := acked(t, rec, resolvConf, options)
		if n := len(got.frame) - 14; n > c.most || n < c.least {
			t.Errorf("option 57 %x: a datagram of %d octets, want %d to %d", c.option, n, c.least, c.most)
		}
	}
}

// An option that fills the datagram to the last octet is sent, one that is longer by an octet is not.
func TestDHCPv4LastOctet(t *testing.T) {
	for _, limit := range []int{0, 320, 576, 800} {
		rec := newRecord()
		options := map[uint8][]byte{55: {224, 225, 226}}
		if limit != 0 {
			options[57] = binary.BigEndian.AppendUint16(nil, uint16(limit))
		}
		limit = max(limit, 576)
		// Headers 28, fixed part 240, options 53, 54, 51, 1 and END: 3+6+6+6+1.
		room := limit - 28 - 240 - 22
		rec.Options.DHCPv4 = map[uint8]cache.Data{224: cache.Data(strings.Repeat("x", 200))}
		room -= 202
		for code := uint8(225); room > 257; code++ {
			rec.Options.DHCPv4[code] = cache.Data(strings.Repeat("x", 200))
			room -= 202
		}
		rec.Options.DHCPv4[226] = cache.Data(strings.Repeat("x", room-2))
		got, m := acked(t, rec, resolvConf, options)
		if len(got.frame)-14 != limit || !m.Options.Has(dhcpv4.GenericOptionCode(226)) {
			t.Errorf("limit %d: a datagram of %d octets", limit, len(got.frame)-14)
		}
		rec.Options.DHCPv4[226] += "x"
		got, m = acked(t, rec, resolvConf, options)
		if len(got.frame)-14 > limit || m.Options.Has(dhcpv4.GenericOptionCode(226)) {
			t.Errorf("limit %d: a datagram of %d octets with an option too many", limit, len(got.frame)-14)
		}
	}
}

// If the options do not fit, those that the guest asks for come first, and the less important ones are left
// out; sname and file never hold options (RFC 2132 section 9.3).
func TestDHCPv4Priority(t *testing.T) {
	rec := newRecord()
	rec.Options.DHCPv4 = map[uint8]cache.Data{224: cache.Data(strings.Repeat("x", 200)), 225: cache.Data(strings.Repeat("y", 200))}
	for _, c := range []struct {
		asked []byte
		want  []int // of the private ones
	}{
		{nil, nil}, // more important options take the room
		{[]byte{1, 3, 121}, nil},
		{[]byte{225}, []int{225}},
		{[]byte{225, 224}, []int{224}},
	} {
		options := map[uint8][]byte{61: bytes.Repeat([]byte{7}, 20)}
		if c.asked != nil {
			options[55] = c.asked
		}
		got, m := acked(t, rec, resolvConf, options)
		codes := order4(t, got.payload)
		private := slices.DeleteFunc(slices.Clone(codes), func(c int) bool { return c < 224 || c == 249 })
		if !slices.Equal(private, c.want) {
			t.Errorf("asked for %v: private options %v of %v, want %v", c.asked, private, codes, c.want)
		}
		for _, code := range []int{53, 54, 51, 1, 61} {
			if !slices.Contains(codes, code) {
				t.Errorf("asked for %v: option %d is missing from %v", c.asked, code, codes)
			}
		}
		if m.Options.Has(dhcpv4.OptionOptionOverload) || m.ServerHostName != "" || m.BootFileName != "" {
			t.Errorf("options in sname or file: %q %q", m.ServerHostName, m.BootFileName)
		}
	}
}

// The MTU and the servers go before routes, and before the router if the guest gets routes.
func TestDHCPv4PriorityOfRoutes(t *testing.T) {
	for count, want := range map[int][]int{31: {121, 26, 6}, 45: {3, 26, 6}} {
		rec := newRecord()
		rec.Options.Hostname = "alice"
		for i := range count {
			route := cache.Route{Destination: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 24), Gateway: rec.IPv4.Gateway()}
			rec.IPv4.Routes = slices.Insert(rec.IPv4.Routes, 1, route)
		}
		// As udhcpc asks, routes first.
		got, _ := acked(t, rec, resolvConf, map[uint8][]byte{55: {121, 1, 3, 12, 15, 28, 119, 6, 26}, 61: bytes.Repeat([]byte{7}, 7)})
		codes := order4(t, got.payload)
		for _, code := range []int{3, 6, 26, 121} {
			if slices.Contains(codes, code) != slices.Contains(want, code) {
				t.Errorf("%d routes: options %v, want of these %v", count, codes, want)
			}
		}
	}
}

// RFC 6842 with the longest identifier, and with one that is too long for an option.
func TestDHCPv4LongIdentifier(t *testing.T) {
	for _, c := range []struct{ n, want int }{{0, 0}, {1, 1}, {255, 255}, {256, 0}, {900, 0}} {
		id := bytes.Repeat([]byte{9}, c.n)
		rec := newRecord()
		rec.Options.LeaseSeconds = 60
		got, m := acked(t, rec, resolvConf, map[uint8][]byte{61: id})
		if n := len(m.Options.Get(dhcpv4.OptionClientIdentifier)); n != c.want || len(got.payload) > 548 {
			t.Errorf("identifier of %d octets: %d in a message of %d, want %d", c.n, n, len(got.payload), c.want)
		}
	}
}

// RFC 3442; the order that udhcpc, dhclient, dhcpcd, networkd and NetworkManager install.
func TestDHCPv4Routes(t *testing.T) {
	route := func(dst, gw string) cache.Route {
		r := cache.Route{Destination: prefix(dst)}
		if gw != "" {
			r.Gateway = addr(gw)
		}
		return r
	}
	for _, c := range []struct {
		name            string
		address         string
		server, gateway string
		routes          []cache.Route
		mask            string
		want            string
	}{
		{"/32, gateway outside", "10.244.1.7/32", "169.254.1.1", "169.254.1.1",
			[]cache.Route{route("169.254.1.1/32", ""), route("0.0.0.0/0", "169.254.1.1")}, "ffffffff",
			"169.254.1.1/32>0.0.0.0 0.0.0.0/0>169.254.1.1"},
		{"a plain network", "10.0.2.2/24", "10.0.2.1", "10.0.2.1", []cache.Route{route("0.0.0.0/0", "10.0.2.1")}, "ffffff00", ""},
		{"a plain network, server outside", "10.0.2.2/24", "169.254.7.7", "10.0.2.1",
			[]cache.Route{route("169.254.7.7/32", ""), route("0.0.0.0/0", "10.0.2.1")}, "ffffff00",
			"169.254.7.7/32>0.0.0.0 0.0.0.0/0>10.0.2.1"},
		{"further routes", "10.0.2.2/24", "10.0.2.1", "10.0.2.1",
			[]cache.Route{route("192.168.7.0/25", ""), route("10.96.0.0/12", "10.0.2.9"), route("0.0.0.0/0", "10.0.2.1")}, "ffffff00",
			"192.168.7.0/25>0.0.0.0 10.96.0.0/12>10.0.2.9 0.0.0.0/0>10.0.2.1"},
		{"halves of a default route", "10.0.2.2/24", "10.0.2.1", "10.0.2.1",
			[]cache.Route{route("0.0.0.0/1", "10.0.2.1"), route("128.0.0.0/1", "10.0.2.1")}, "ffffff00",
			"0.0.0.0/1>10.0.2.1 128.0.0.0/1>10.0.2.1"},
		{"one half", "10.0.2.2/24", "10.0.2.1", "", []cache.Route{route("128.0.0.0/1", "10.0.2.1")}, "ffffff00", "128.0.0.0/1>10.0.2.1"},
		{"no default", "10.0.2.2/24", "10.0.2.1", "", []cache.Route{route("10.96.0.0/12", "10.0.2.9")}, "ffffff00",
			"10.96.0.0/12>10.0.2.9"},
		{"nothing behind", "10.0.2.2/24", "10.0.2.1", "", nil, "ffffff00", ""},
		{"a hop outside of the network", "10.0.2.2/24", "10.0.2.1", "10.0.2.1",
			[]cache.Route{route("10.7.7.7/32", ""), route("10.96.0.0/12", "10.7.7.7"), route("0.0.0.0/0", "10.0.2.1")}, "ffffff00",
			"10.7.7.7/32>0.0.0.0 10.96.0.0/12>10.7.7.7 0.0.0.0/0>10.0.2.1"},
		{"everything on the link", "10.0.2.2/24", "10.0.2.1", "", []cache.Route{route("0.0.0.0/0", "")}, "ffffff00", "0.0.0.0/0>0.0.0.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := newRecord()
			rec.IPv4 = &cache.IPv4{Address: prefix(c.address), Server: addr(c.server), Routes: c.routes}
			_, m := acked(t, rec, resolvConf, map[uint8][]byte{55: {1, 3, 121, 249}})
			var got []string
			for _, r := range m.ClasslessStaticRoute() {
				got = append(got, r.Dest.String()+">"+r.Router.String())
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("option 121: %v, want %s", got, c.want)
			}
			if !bytes.Equal(m.Options[249], m.Options[121]) {
				t.Errorf("option 249 %x, 121 %x", m.Options[249], m.Options[121])
			}
			if m.SubnetMask().String() != c.mask {
				t.Errorf("mask %v, want %s", m.SubnetMask(), c.mask)
			}
			want := []net.IP(nil)
			if c.gateway != "" {
				want = []net.IP{addr(c.gateway).AsSlice()}
			}
			if fmt.Sprint(m.Router()) != fmt.Sprint(want) {
				t.Errorf("option 3 %v, want %v", m.Router(), want)
			}
		})
	}
}

// withStandIn is newRecord's, whose guest gets another router if it asks for no classless routes.
func withStandIn() cache.Record {
	rec := newRecord()
	rec.IPv4.StandIn = addr("10.244.1.6")
	rec.Neighbours = append(rec.Neighbours, cache.Neighbour{Address: rec.IPv4.StandIn, MAC: gatewayMAC})
	return rec
}

// The guest's parameter list decides which router and which network it gets. Each list but the first two is that of a
// real client.
func TestDHCPv4StandIn(t *testing.T) {
	const mask, router, routes = 1, 3, 121
	for _, c := range []struct {
		name  string
		list  []byte // option 55
		exact bool
	}{
		{"no list", nil, false},
		{"both forms of classless routes", []byte{1, 3, 121, 249}, true},
		{"Windows", []byte{1, 3, 6, 15, 31, 33, 43, 44, 46, 47, 119, 121, 249, 252}, true},
		{"Windows XP, 249 alone", []byte{1, 15, 3, 6, 44, 46, 47, 31, 33, 249, 43}, true},
		{"ISC dhclient, Debian's", []byte{1, 28, 2, 3, 15, 6, 119, 12, 44, 47, 26, 121, 42}, true},
		{"dhcpcd", []byte{1, 121, 3, 6, 12, 15, 26, 28, 33, 51, 54, 58, 59, 119}, true},
		{"udhcpc with -O staticroutes", []byte{1, 3, 6, 12, 15, 26, 28, 42, 119, 121}, true},
		{"systemd-networkd", []byte{1, 3, 6, 12, 15, 26, 33, 42, 119, 120, 121}, true},
		{"udhcpc", []byte{1, 3, 6, 12, 15, 26, 28, 42}, false},
		{"connman", []byte{1, 3, 26, 252, 42, 15, 6, 12}, false},
		{"Linux ip=dhcp", []byte{1, 3, 6, 12, 15, 17, 26, 40, 42}, false},
		{"iPXE", []byte{1, 3, 6, 7, 12, 15, 17, 26, 43, 60, 66, 67, 119, 128, 129, 130, 131, 132, 133, 134, 135, 175, 203}, false},
		{"OVMF, PXE", []byte{1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 66, 67, 97, 128, 129, 130, 131, 132, 133, 134, 135}, false},
		{"OVMF, HTTP", []byte{1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 235, 67, 97}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			options := map[uint8][]byte{}
			if c.list != nil {
				options[55] = c.list
			}
			ask := func(rec cache.Record, q client4) (reply, *dhcpv4.DHCPv4) {
				t.Helper()
				r, silent := ask(t, newResponder(t, rec, resolvConf), q.frame())
				if silent {
					t.Fatal("no answer")
				}
				return r, read4(t, r)
			}
			renew := map[uint8][]byte{54: addr("169.254.1.1").AsSlice(), 50: addr("10.244.1.7").AsSlice()}
			maps.Copy(renew, options)
			for _, q := range []client4{
				{kind: discover, options: options},
				{kind: request, options: renew},
				{kind: request, ciaddr: "10.244.1.7", options: options},
			} {
				got, m := ask(withStandIn(), q)
				if c.exact {
					if without, _ := ask(newRecord(), q); !bytes.Equal(got.payload, without.payload) {
						t.Errorf("%v: the answer differs from that of a record without a stand-in:\n%x\n%x", q.kind, got.payload, without.payload)
					}
					continue
				}
				if !bytes.Equal(m.Options[mask], []byte{255, 255, 255, 254}) || !bytes.Equal(m.Options[router], []byte{10, 244, 1, 6}) {
					t.Errorf("%v: mask %v, router %v; want 255.255.255.254 and 10.244.1.6", q.kind, m.SubnetMask(), m.Router())
				}
				if m.Options[routes] != nil || m.Options[249] != nil || m.Options[28] != nil {
					t.Errorf("%v: classless routes or a broadcast address: %v", q.kind, m)
				}
				if !m.YourIPAddr.Equal(net.IP{10, 244, 1, 7}) || !m.ServerIdentifier().Equal(net.IP{169, 254, 1, 1}) {
					t.Errorf("%v: address %v of server %v", q.kind, m.YourIPAddr, m.ServerIdentifier())
				}
			}
			// A guest that asks for configuration alone has a router already.
			inform := client4{kind: dhcpv4.MessageTypeInform, ciaddr: "10.244.1.7", options: options}
			got, _ := ask(withStandIn(), inform)
			if without, _ := ask(newRecord(), inform); !bytes.Equal(got.payload, without.payload) {
				t.Errorf("INFORM:\n%x, want\n%x", got.payload, without.payload)
			}
		})
	}
}

// UEFI's HTTP boot takes only an offer with its own vendor class, and no other client gets one unasked.
func TestDHCPv4HTTPBoot(t *testing.T) {
	const uefi = "HTTPClient:Arch:00016:UNDI:003000"
	for _, c := range []struct{ class, file, configured, want string }{
		{uefi, "http://192.0.2.1/boot.efi", "", "HTTPClient"},
		{uefi, "https://boot.example/boot.efi", "", "HTTPClient"},
		{uefi, "boot.efi", "", ""},
		{uefi, "", "", ""},
		{uefi, "http://192.0.2.1/boot.efi", "mine", "mine"},
		{"PXEClient:Arch:00007:UNDI:003000", "http://192.0.2.1/boot.efi", "", ""},
		{"", "http://192.0.2.1/boot.efi", "", ""},
	} {
		rec := withStandIn()
		rec.Options.BootFile = c.file
		if c.configured != "" {
			rec.Options.DHCPv4 = map[uint8]cache.Data{60: cache.Data(c.configured)}
		}
		options := map[uint8][]byte{55: {1, 3, 60, 67}}
		if c.class != "" {
			options[60] = []byte(c.class)
		}
		for _, kind := range []dhcpv4.MessageType{discover, request} {
			q := client4{kind: kind, options: maps.Clone(options)}
			if kind == request {
				q.options[50] = addr("10.244.1.7").AsSlice()
			}
			r, silent := ask(t, newResponder(t, rec, resolvConf), q.frame())
			if silent {
				t.Fatal("no answer")
			}
			if m := read4(t, r); string(m.Options[60]) != c.want || string(m.Options[67]) != c.file {
				t.Errorf("%+v: %v has class %q and file %q", c, kind, m.Options[60], m.Options[67])
			}
		}
	}
}

// RFC 3396: an option of more than 255 octets is sent in several parts, one after the other. A part ends with an item
// of the list, so that each part by itself has a meaning.
func TestDHCPv4Split(t *testing.T) {
	for _, n := range []int{1, 24, 25, 31, 32, 45, 60, 90} {
		rec := newRecord()
		dns := cache.DNS{}
		for i := range n {
			bits := []int{24, 32, 16, 25, 12}[i%5]
			to := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + i), byte(3 * i), byte(i), byte(i)}), bits).Masked()
			rec.IPv4.Routes = slices.Insert(rec.IPv4.Routes, 1, cache.Route{Destination: to, Gateway: addr("169.254.1.1")})
			dns.Servers = append(dns.Servers, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
			rec.Options.NTP = append(rec.Options.NTP, netip.AddrFrom4([4]byte{192, 0, 3, byte(i)}))
		}
		for _, code := range []uint8{121, 249, 6, 42} {
			got, _ := acked(t, rec, dns, map[uint8][]byte{57: {0x05, 0xdc}, 55: {code}})
			if codes := order4(t, got.payload); n > 25 && code > 100 && !slices.Equal(codes[4:6], []int{int(code), int(code)}) {
				t.Errorf("%d items: options %v", n, codes)
			}
			var have, want []string
			for _, part := range parts4(t, got.payload[240:], code) {
				var ips dhcpv4.IPs
				var routes dhcpv4.Routes
				var err error
				if code > 100 {
					err = routes.FromBytes(part)
				} else {
					err = ips.FromBytes(part)
				}
				if err != nil {
					t.Errorf("%d items: a part of option %d: %v", n, code, err)
				}
				for _, a := range ips {
					have = append(have, a.String())
				}
				for _, r := range routes {
					have = append(have, r.Dest.String()+" "+r.Router.String())
				}
			}
			switch code {
			case 6:
				want = strings.Fields(strings.Trim(fmt.Sprint(dns.Servers), "[]"))
			case 42:
				want = strings.Fields(strings.Trim(fmt.Sprint(rec.Options.NTP), "[]"))
			default:
				for _, r := range rec.IPv4.Routes {
					hop := anyone
					if r.Gateway.IsValid() {
						hop = r.Gateway
					}
					want = append(want, r.Destination.String()+" "+hop.String())
				}
			}
			if !slices.Equal(have, want) {
				t.Errorf("%d items: option %d, part by part, is\n%q, want\n%q", n, code, have, want)
			}
		}
	}
	// In the smallest message it does not fit, and the guest still gets option 3.
	rec := newRecord()
	for i := range 60 {
		to := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100, byte(i), 0}), 24)
		rec.IPv4.Routes = slices.Insert(rec.IPv4.Routes, 1, cache.Route{Destination: to, Gateway: addr("169.254.1.1")})
	}
	_, m := acked(t, rec, resolvConf, map[uint8][]byte{55: {121, 3}})
	if m.Options.Has(dhcpv4.OptionClasslessStaticRoute) || len(m.Router()) != 1 {
		t.Errorf("121 of %d octets, router %v", len(m.Options[121]), m.Router())
	}
}

// RFC 2132 sections 3.14, 3.17, 5.1, 5.3, 8.3, 9.4, 9.5. TestDHCPv4BootHeader has the header, which QEMU's iPXE reads.
func TestDHCPv4Configuration(t *testing.T) {
	rec := newRecord()
	rec.IPv4 = &cache.IPv4{
		Address: prefix("10.0.2.2/24"), Server: addr("10.0.2.1"),
		Routes: []cache.Route{{Destination: prefix("0.0.0.0/0"), Gateway: addr("10.0.2.1")}},
	}
	rec.Options = cache.Options{
		Hostname: "vm1", NTP: []netip.Addr{addr("fd00::7"), addr("192.0.2.7")},
		TFTPServer: "192.0.2.9", BootFile: "boot/x.ipxe", DHCPv4: map[uint8]cache.Data{224: "a"},
	}
	_, m := acked(t, rec, resolvConf, nil)
	for code, want := range map[uint8]string{
		12: "vm1", 26: "\x05\xaa", 28: "\x0a\x00\x02\xff", 42: "\xc0\x00\x02\x07", 6: "\x0a\x60\x00\x0a",
		66: "192.0.2.9", 67: "boot/x.ipxe", 224: "a", 15: "default.svc.cluster.local",
	} {
		if got := string(m.Options[code]); got != want {
			t.Errorf("option %d %q, want %q", code, got, want)
		}
	}
	if got := m.DomainSearch(); fmt.Sprint(got.Labels) != fmt.Sprint(resolvConf.Search) {
		t.Errorf("option 119 %v", got.Labels)
	}

	rec.Options = cache.Options{TFTPServer: "pxe.example", BootFile: strings.Repeat("f", 128)}
	_, m = acked(t, rec, cache.DNS{Servers: []netip.Addr{addr("fd00::53")}}, nil)
	if len(m.Options[67]) != 128 {
		t.Errorf("option 67 %q", m.Options[67])
	}
	for _, code := range []uint8{6, 12, 15, 42, 119, 108, 114, 116, 118} {
		if v, ok := m.Options[code]; ok {
			t.Errorf("option %d is there with %q", code, v)
		}
	}
}

// RFC 8910 section 2.1, RFC 8925 section 3.3: these options are only for a guest that asks for them. RFC 2132
// section 8.4, RFC 3925: the vendor's options are bytes.
func TestDHCPv4FurtherOptions(t *testing.T) {
	rec := newRecord()
	rec.Options = cache.Options{
		CaptivePortal: "https://portal.example/api", IPv6OnlySeconds: 1800,
		DHCPv4: map[uint8]cache.Data{43: "\x01\x02\x00\xff", 125: "\x00\x00\x00\x09\x00", 224: "text"},
	}
	further := map[uint8]string{43: "\x01\x02\x00\xff", 125: "\x00\x00\x00\x09\x00", 224: "text"}
	for _, c := range []struct {
		asked []byte
		want  map[uint8]string
	}{
		{nil, further},
		{[]byte{43, 224}, further},
		{[]byte{108}, map[uint8]string{108: "\x00\x00\x07\x08"}},
		{[]byte{114}, map[uint8]string{114: "https://portal.example/api"}},
	} {
		_, m := acked(t, rec, resolvConf, map[uint8][]byte{55: c.asked})
		for code, want := range c.want {
			if got := string(m.Options[code]); got != want {
				t.Errorf("asked for %v: option %d %q, want %q", c.asked, code, got, want)
			}
		}
		for _, code := range []uint8{108, 114} {
			if _, there := m.Options[code]; there && !slices.Contains(c.asked, code) {
				t.Errorf("asked for %v: option %d is there", c.asked, code)
			}
		}
	}
	rec.Options.IPv6OnlySeconds = 0 // RFC 8925 section 3.3.1: such a guest keeps IPv4
	if _, m := acked(t, rec, resolvConf, map[uint8][]byte{55: {108}}); m.Options[108] != nil {
		t.Errorf("option 108 %x, though the record has none", m.Options[108])
	}
}

// RFC 8925 section 3.3.1: a guest without an IPv4 address that asks for option 108 gets an offer without an address. No
// other message gets an answer.
func TestDHCPv4IPv6Only(t *testing.T) {
	rec := newRecord()
	rec.IPv4, rec.Options.IPv6OnlySeconds, rec.Options.Hostname = nil, 1800, "vm1"
	r := newResponder(t, rec, resolvConf)
	dhcpcd := map[uint8][]byte{55: {1, 121, 3, 6, 12, 15, 26, 28, 33, 51, 54, 58, 59, 108, 119}, 61: {1, 2, 3}, 80: {}}
	for _, q := range []client4{{kind: discover, options: dhcpcd}, {kind: discover, flags: 0x8000, options: dhcpcd}} {
		if e := resultOf(r, q.frame()); e.kind != offered4 || e.address != anyone {
			t.Errorf("event %q of %v", e.kind, e.address)
		}
		got, silent := ask(t, r, q.frame())
		if silent {
			t.Fatal("no answer")
		}
		m := read4(t, got)
		if m.MessageType() != offer || !m.YourIPAddr.IsUnspecified() || got.dst != everybody || !bytes.Equal(m.TransactionID[:], xid) {
			t.Errorf("a %v of %v to %v", m.MessageType(), m.YourIPAddr, got.dst)
		}
		if codes := order4(t, got.payload); !slices.Equal(codes, []int{53, 54, 51, 108, 61}) || !bytes.Equal(m.Options[108], []byte{0, 0, 7, 8}) {
			t.Errorf("options %v, 108 %x", codes, m.Options[108])
		}
		if !m.ServerIdentifier().Equal(net.IP(got.src.AsSlice())) {
			t.Errorf("server %v, source %v", m.ServerIdentifier(), got.src)
		}
	}
	for _, q := range []client4{
		{kind: discover}, {kind: discover, options: map[uint8][]byte{55: {1, 3, 6}}}, {kind: request, options: map[uint8][]byte{50: {10, 0, 0, 7}, 55: {108}}},
		{kind: dhcpv4.MessageTypeInform, ciaddr: "10.0.0.7", options: map[uint8][]byte{55: {108}}}, {kind: dhcpv4.MessageTypeDecline, options: map[uint8][]byte{55: {108}}},
	} {
		judge(t, r, fmt.Sprint(q.kind, q.options), q.frame(), noIPv4)
	}
	rec.Options.IPv6OnlySeconds = 0
	judge(t, newResponder(t, rec, resolvConf), "not configured", client4{kind: discover, options: dhcpcd}.frame(), noIPv4)
}

// The parser of the frame, RFC 791, RFC 768.
func TestDHCPv4Frames(t *testing.T) {
	r := newResponder(t, newRecord(), resolvConf)
	good := client4{kind: discover}.frame()
	resum := func(f []byte) {
		f[24], f[25] = 0, 0
		frame.PutChecksum(0, f[14:14+int(f[14]&15)*4], 10)
	}
	for _, c := range []struct {
		name   string
		change func(f []byte) []byte
		why    Reason // empty: there is an answer
	}{
		{"as it is", func(f []byte) []byte { return f }, ""},
		{"padding after", func(f []byte) []byte { return append(f, 0, 0, 0) }, ""},
		{"another source MAC", func(f []byte) []byte { f[11]++; return f }, otherMAC},
		{"any destination MAC", func(f []byte) []byte { copy(f, gatewayMAC[:]); return f }, ""},
		{"a VLAN tag", func(f []byte) []byte { return slices.Concat(f[:12], []byte{0x81, 0, 0, 1}, f[12:]) }, otherProtocol},
		{"cut", func(f []byte) []byte { return f[:len(f)-1] }, malformed},
		{"IP version 5", func(f []byte) []byte { f[14] = 0x55; resum(f); return f }, malformed},
		{"IP header of 16", func(f []byte) []byte { f[14] = 0x44; resum(f); return f }, malformed},
		{"IP options", func(f []byte) []byte {
			f = slices.Concat(f[:34], []byte{1, 1, 1, 1}, f[34:])
			f[14] = 0x46
			binary.BigEndian.PutUint16(f[16:], binary.BigEndian.Uint16(f[16:])+4)
			resum(f)
			return f
		}, ""},
		{"wrong IP checksum", func(f []byte) []byte { f[24]++; return f }, badChecksum},
		{"more fragments", func(f []byte) []byte { f[20] = 0x20; resum(f); return f }, fragment},
		{"a fragment's offset", func(f []byte) []byte { f[21] = 1; resum(f); return f }, fragment},
		{"do not fragment", func(f []byte) []byte { f[20] = 0x40; resum(f); return f }, ""},
		{"TCP", func(f []byte) []byte { f[23] = 6; resum(f); return f }, otherProtocol},
		{"port 68", func(f []byte) []byte { f[37] = 68; f[40], f[41] = 0, 0; return f }, otherProtocol},
		{"UDP length over the packet", func(f []byte) []byte { f[38] = 9; f[40], f[41] = 0, 0; return f }, malformed},
		{"UDP length under its header", func(f []byte) []byte { f[38], f[39] = 0, 7; f[40], f[41] = 0, 0; return f }, malformed},
		{"wrong UDP checksum", func(f []byte) []byte { f[41]++; return f }, badChecksum},
		{"no UDP checksum", func(f []byte) []byte { f[40], f[41] = 0, 0; return f }, ""},
		{"UDP checksum left to the device", func(f []byte) []byte {
			n := len(f) - 34
			binary.BigEndian.PutUint16(f[40:], frame.Fold(frame.Sum(17+uint32(n), f[26:34])))
			return f
		}, ""},
	} {
		judge(t, r, c.name, c.change(slices.Clone(good)), c.why)
	}
	for n := range good {
		judge(t, r, fmt.Sprintf("the first %d octets", n), good[:n], malformed)
	}
	rec := newRecord()
	rec.IPv4 = nil
	r = newResponder(t, rec, resolvConf)
	judge(t, r, "without an IPv4 address", good, noIPv4)
}
