package dhcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/served"
)

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
		{"RFC 2131 4.3.3: DECLINE without address and server, as of dhcpcd 9", client4{kind: dhcpv4.MessageTypeDecline, options: opt(61, id)}, silence, "", declined4, ""},
		{"RFC 2131 4.3.3: DECLINE of another server's address, named by no option 54", client4{kind: dhcpv4.MessageTypeDecline, options: opt(50, "10.9.9.9")}, silence, "", "", otherAddress},
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
		{"RFC 2131 4.1: DISCOVER, its type in file and its identifier in sname (option 52)", client4{kind: discover, options: opt(61, id), change: overloads}, offer, ours, offered4, ""},
		{"RFC 2131 4.1: option 52, and an option over the end of file", client4{kind: discover, options: opt(61, id), change: func(m []byte) {
			overloads(m)
			m[offFile+3] = 12 // in place of the end
			m[offFile+4] = 200
		}}, silence, "", "", malformed},
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
		{"a priority tag", func(f []byte) []byte { return slices.Concat(f[:12], []byte{0x81, 0, 0xe0, 0}, f[12:]) }, ""},
		{"two priority tags", func(f []byte) []byte { return slices.Concat(f[:12], []byte{0x81, 0, 0, 0, 0x81, 0, 0, 0}, f[12:]) }, otherProtocol},
		{"half a priority tag", func(f []byte) []byte { return slices.Concat(f[:12], []byte{0x81, 0, 0}) }, otherProtocol},
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
