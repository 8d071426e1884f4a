package dhcp

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
)

// seeds returns frames of every kind that the responder answers, some that it must not answer, and those
// of real clients.
func seeds(t testing.TB) [][]byte {
	ours, server := addr("10.244.1.7").AsSlice(), addr("169.254.1.1").AsSlice()
	cid, sid := tlv(1, clientDUID), tlv(2, serverDUID)
	router := addr("fe80::1")
	list := [][]byte{
		client4{kind: discover, options: map[uint8][]byte{55: {1, 3, 6, 121, 249, 119}, 57: {5, 0xdc}, 61: {1, 2}, 80: {}}}.frame(),
		client4{kind: discover, flags: 0x8000}.frame(),
		client4{kind: request, options: map[uint8][]byte{54: server, 50: ours}}.frame(),
		client4{kind: request, options: map[uint8][]byte{50: {10, 9, 9, 9}}}.frame(),
		client4{kind: request, ciaddr: "10.244.1.7"}.frame(),
		client4{kind: 8, ciaddr: "192.0.2.5"}.frame(),
		client4{kind: 4, options: map[uint8][]byte{54: server}}.frame(),
		client4{}.frame(),
		arp(1, guestMAC, anyone, addr("169.254.1.1")),
		arp(1, guestMAC, anyone, addr("10.244.1.7")),
		routerSolicitation(guestLL, append([]byte{1, 1}, guestMAC[:]...)...),
		routerSolicitation(addr("::")),
		solicitation(guestLL, frame.SolicitedNode(router), router, append([]byte{1, 1}, guestMAC[:]...)...),
		solicitation(addr("::"), frame.SolicitedNode(router), router),
		from6(guestLL, servers6, append([]byte{12, 0}, make([]byte, 32)...)),
	}
	for kind := range byte(12) {
		list = append(list,
			from6(guestLL, servers6, append([]byte{kind, 1, 2, 3}, slices.Concat(cid, sid, iaNA(5, iaAddr("fd00:10:244::7")))...)),
			from6(guestLL, servers6, append([]byte{kind, 1, 2, 3}, slices.Concat(cid, tlv(14), tlv(6, []byte{0, 23, 0, 24}), iaNA(5, iaAddr("fd00::9")), iaNA(6), tlv(25, make([]byte, 12)), tlv(4, make([]byte, 4)))...)),
			from6(guestLL, servers6, append([]byte{kind, 1, 2, 3}, slices.Concat(cid, sid, iaPD(9, iaPrefix("fd09::/64"), iaPrefix("fd08::/64")), iaPD(10, iaPrefix("::/60")))...)))
	}
	for _, frames := range captures(t) {
		list = append(list, frames...)
	}
	return list
}

// FuzzReply: for each frame of the guest there is no panic and at most one answer. The answer is well-formed, no
// larger than the guest accepts, and goes to the guest only.
//
// A mutation makes checksums wrong, so each frame is sent a second time with correct ones.
func FuzzReply(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	full := newRecord()
	full.Options = cache.Options{
		Hostname: "vm1", LeaseSeconds: 3600, NTP: []netip.Addr{addr("192.0.2.1"), addr("fd00::1")},
		TFTPServer: "pxe.example", BootFile: "x", BootFileURL: "tftp://[fd00::1]/x", DHCPv4: map[uint8]cache.Data{224: cache.Data(strings.Repeat("p", 255))},
	}
	dns := resolvConf
	for i := range 20 {
		dns.Search = append(dns.Search, fmt.Sprintf("%d.%s.example", i, strings.Repeat("d", i)))
	}
	full.IPv6.Others, full.IPv6.Delegated = severalRecord().IPv6.Others, delegatedRecord().IPv6.Delegated
	responders := []*Responder{newResponder(f, newRecord(), resolvConf), newResponder(f, full, dns)}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, r := range responders {
			for _, in := range [][]byte{raw, repair(raw)} {
				before := bytes.Clone(in)
				got, silent := ask(t, r, in)
				if !bytes.Equal(in, before) {
					t.Fatal("the frame was changed")
				}
				if e := resultOf(r, in); (e.ignored == "") != (!silent || e.kind != "" && e.kind != otherMACSeen) {
					t.Fatalf("silent %v, event %q, ignored %q", silent, e.kind, e.ignored)
				} else if e.ignored != "" && !slices.Contains(reasons[:], e.ignored) {
					t.Fatalf("ignored %q, which is no reason", e.ignored)
				}
				if silent {
					continue
				}
				if len(in) < 14 || !bytes.Equal(in[6:12], guestMAC[:]) {
					t.Fatal("an answer to another station")
				}
				if n := len(got.frame) - 14; n > 1450 {
					t.Fatalf("a packet of %d octets", n)
				}
				if got.dstMAC != guestMAC && got.dstMAC != frame.Broadcast && got.dstMAC != frame.MulticastMAC(frame.AllNodes) {
					t.Fatalf("an answer to %v", got.dstMAC)
				}
				if got.srcMAC != responderMAC && got.srcMAC != gatewayMAC {
					t.Fatalf("an answer from %v", got.srcMAC)
				}
				if again, _ := ask(t, r, in); !bytes.Equal(got.frame, again.frame) {
					t.Fatal("another answer to the same frame")
				}
			}
		}
	})
}

// repair returns the frame with the guest's MAC as its source and, if the lengths allow it, with correct checksums.
func repair(raw []byte) []byte {
	f := bytes.Clone(raw)
	if len(f) < 14 {
		return f
	}
	copy(f[6:], guestMAC[:])
	ip := f[14:]
	switch {
	case f[12] == 8 && f[13] == 0 && len(ip) >= 20 && int(ip[0]&15)*4 <= len(ip):
		head := int(ip[0]&15) * 4
		if head >= 20 {
			ip[10], ip[11] = 0, 0
			frame.PutChecksum(0, ip[:head], 10)
		}
		if len(ip) >= head+8 {
			ip[head+6], ip[head+7] = 0, 0
		}
	case f[12] == 0x86 && f[13] == 0xdd && len(ip) >= 48:
		src, dst := netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
		n := min(int(ip[4])<<8|int(ip[5]), len(ip)-40)
		at := map[byte]int{frame.UDP: 6, frame.ICMPv6: 2}[ip[6]]
		if at == 0 || n < 8 {
			return f
		}
		body := ip[40 : 40+n]
		if ip[6] == frame.UDP {
			n = min(int(body[4])<<8|int(body[5]), n)
			if n < 8 {
				return f
			}
			body = body[:n]
		}
		body[at], body[at+1] = 0, 0
		frame.PutChecksum(frame.Pseudo6(src, dst, ip[6], n), body, at)
	}
	return f
}

// FuzzDHCPv4 and FuzzDHCPv6 mutate the message only, and not the headers before it.
func FuzzDHCPv4(f *testing.F) {
	for _, s := range seeds(f) {
		if len(s) > 42+240 && s[12] == 8 {
			f.Add(s[42:])
		}
	}
	r := newResponder(f, newRecord(), resolvConf)
	f.Fuzz(func(t *testing.T, msg []byte) {
		if len(msg) > 1450-28 {
			return
		}
		got, silent := ask(t, r, from4(anyone, everybody, msg))
		if silent {
			return
		}
		m := read4(t, got)
		if m.MessageType() != offer && m.MessageType() != ack && m.MessageType() != nak {
			t.Fatalf("a %v", m.MessageType())
		}
		if a, ok := netip.AddrFromSlice(m.YourIPAddr); !ok || !a.IsUnspecified() && a != addr("10.244.1.7") {
			t.Fatalf("the address %v", m.YourIPAddr)
		}
	})
}

func FuzzDHCPv6(f *testing.F) {
	for _, s := range seeds(f) {
		if len(s) > 62 && s[12] == 0x86 && s[20] == frame.UDP {
			f.Add(s[62:])
		}
	}
	rec := severalRecord()
	rec.IPv6.Delegated = delegatedRecord().IPv6.Delegated
	r := newResponder(f, rec, resolvConf)
	f.Fuzz(func(t *testing.T, msg []byte) {
		if len(msg) > 1450-48 || len(msg) < 4 {
			return
		}
		got, silent := ask(t, r, from6(guestLL, servers6, slices.Concat(msg[:1], []byte{0xab, 0xcd, 0xef}, msg[4:])))
		if silent {
			return
		}
		for _, ia := range read6(t, got).Options.IANA() {
			leased := 0
			for _, a := range ia.Options.Addresses() {
				own, _ := netip.AddrFromSlice(a.IPv6Addr)
				if (a.ValidLifetime != 0) != slices.Contains(rec.IPv6.Addresses(), own) {
					t.Fatalf("the address %v for %v", a.IPv6Addr, a.ValidLifetime)
				}
				if a.ValidLifetime != 0 {
					leased++
				}
			}
			if leased != 0 && leased != len(rec.IPv6.Addresses()) {
				t.Fatalf("%d addresses in %v", leased, ia)
			}
		}
		for _, ia := range read6(t, got).Options.IAPD() {
			delegated := 0
			for _, p := range ia.Options.Prefixes() {
				ours := p.Prefix != nil && slices.Contains(rec.IPv6.Delegated, prefix(p.Prefix.String()))
				if ours && p.ValidLifetime != 0 {
					delegated++
				} else if ours || p.ValidLifetime != 0 {
					t.Fatalf("the prefix %v for %v", p.Prefix, p.ValidLifetime)
				}
			}
			if delegated != 0 && delegated != len(rec.IPv6.Delegated) {
				t.Fatalf("%d prefixes in %v", delegated, ia)
			}
		}
	})
}

// FuzzOptions: the parsers find the options that the library's decoder finds.
func FuzzOptions(f *testing.F) {
	for _, s := range seeds(f) {
		if len(s) > 42+240 && s[12] == 8 {
			f.Add(s[42+240:])
		}
		if len(s) > 66 && s[12] == 0x86 && s[20] == frame.UDP {
			f.Add(s[66:])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		theirs := dhcpv4.Options{}
		err := theirs.FromBytes(b)
		ours, ok := parseOptions4(b)
		if ok && err != nil {
			t.Fatalf("DHCPv4: %v", err)
		}
		for code := range 256 {
			want, wanted := theirs[uint8(code)]
			if got, found := ours.get(uint8(code)); ok && (found != wanted || !bytes.Equal(got, want)) {
				t.Fatalf("DHCPv4 option %d: %x, %v, want %x, %v", code, got, found, want, wanted)
			}
		}

		msg := append(make([]byte, fixedLen4), 52, 1, 3, 255)
		copy(msg[offSname:offFile], b)
		copy(msg[offFile:offCookie], b[min(len(b), offFile-offSname):])
		file, sname := dhcpv4.Options{}, dhcpv4.Options{}
		err = errors.Join(file.FromBytes(msg[offFile:offCookie]), sname.FromBytes(msg[offSname:offFile]))
		ours, ok = optionsOf(msg)
		if ok && err != nil {
			t.Fatalf("DHCPv4, option 52: %v", err)
		}
		for code := range 256 {
			inFile, is := file[uint8(code)]
			inSname, also := sname[uint8(code)]
			got, found := ours.get(uint8(code))
			if want := slices.Concat(inFile, inSname); ok && code != 52 && (found != (is || also) || !bytes.Equal(got, want)) {
				t.Fatalf("DHCPv4 option %d by option 52: %x, %v, want %x", code, got, found, want)
			}
		}

		var list dhcpv6.Options
		cut := errors.New("cut short")
		err = list.FromBytesWithParser(b, func(code dhcpv6.OptionCode, data []byte) (dhcpv6.Option, error) {
			if data == nil {
				return nil, cut
			}
			return &dhcpv6.OptionGeneric{OptionCode: code, OptionData: data}, nil
		})
		if whole := options6(b).isComplete(); whole != (err == nil) {
			t.Fatalf("DHCPv6: whole is %v, and the codec says %v", whole, err)
		}
		n := 0
		for code, value := range options6(b).all() {
			if n == len(list) || list[n].Code() != code || !bytes.Equal(list[n].ToBytes(), value) {
				t.Fatalf("DHCPv6 option %d is %d, %x", n, code, value)
			}
			n++
		}
		if n != len(list) {
			t.Fatalf("%d DHCPv6 options, want %d", n, len(list))
		}
		if !bytes.Equal(b, before) {
			t.Fatal("the message was changed")
		}
	})
}
