package dhcp

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
)

// situation6 is a row of the DHCPv6 table, with sections of RFC 9915. The guest's address is fd00:10:244::7.
type situation6 struct {
	name string
	in   []byte
	want string // empty: silence
	ev   Kind   // empty: none
	why  Reason // empty: not ignored
}

func situations6() []situation6 {
	const ours, wrong = "fd00:10:244::7", "fd00:10:244::8"
	cid, sid, foreign := tlv(1, clientDUID), tlv(2, serverDUID), tlv(2, clientDUID)
	pd := iaPD(9)
	ta := tlv(4, []byte{0, 0, 0, 8})
	return []situation6{
		{"18.3.1: SOLICIT", msg6(1, cid, iaNA(5)), "ADVERTISE, preference 255, NA 5 " + ours + "/inf", offered6, ""},
		{"21.4: SOLICIT, IAID 0", msg6(1, cid, iaNA(0)), "ADVERTISE, preference 255, NA 0 " + ours + "/inf", offered6, ""},
		{"18.3.1: SOLICIT, another address wished for", msg6(1, cid, iaNA(5, iaAddr(wrong))), "ADVERTISE, preference 255, NA 5 " + ours + "/inf", offered6, ""},
		{"16.2: SOLICIT without client identifier", msg6(1, iaNA(5)), "", "", incomplete},
		{"16.2: SOLICIT with server identifier", msg6(1, cid, sid, iaNA(5)), "", "", malformed},
		{"18.3.1: SOLICIT, rapid commit", msg6(1, cid, tlv(14), iaNA(5)), "REPLY, rapid, NA 5 " + ours + "/inf", leased6, ""},
		{"18.3.9: SOLICIT, several IA_NA", msg6(1, cid, iaNA(1), iaNA(2), iaNA(3)), "ADVERTISE, preference 255, NA 1 " + ours + "/inf, NA 2 status 2, NA 3 status 2", offered6, ""},
		{"18.3.9: SOLICIT, IA_TA and IA_PD", msg6(1, cid, pd, iaNA(1), ta), "ADVERTISE, preference 255, PD 9 status 6, NA 1 " + ours + "/inf, TA 8 status 2", offered6, ""},
		{"18.3.9: SOLICIT, only IA_PD", msg6(1, cid, pd), "ADVERTISE, preference 255, PD 9 status 6", informed6, ""},
		{"18.3.9: SOLICIT, no association", msg6(1, cid), "ADVERTISE, preference 255", informed6, ""},
		{"18.3.2: REQUEST", msg6(3, cid, sid, iaNA(5, iaAddr(ours))), "REPLY, NA 5 " + ours + "/inf", leased6, ""},
		{"18.3.2: REQUEST, wrong address", msg6(3, cid, sid, iaNA(5, iaAddr(wrong))), "REPLY, NA 5 " + ours + "/inf", leased6, ""},
		{"16.4: REQUEST, another server", msg6(3, cid, foreign, iaNA(5)), "", "", otherServer},
		{"16.4: REQUEST without server identifier", msg6(3, cid, iaNA(5)), "", "", incomplete},
		{"16.4: REQUEST without client identifier", msg6(3, sid, iaNA(5)), "", "", incomplete},
		{"18.3.4: RENEW", msg6(5, cid, sid, iaNA(5, iaAddr(ours))), "REPLY, NA 5 " + ours + "/inf", renewed6, ""},
		{"18.3.4: RENEW, wrong address", msg6(5, cid, sid, iaNA(5, iaAddr(wrong))), "REPLY, NA 5 " + ours + "/inf " + wrong + "/0", renewed6, ""},
		{"18.3.4: RENEW, unknown IAID without address", msg6(5, cid, sid, iaNA(77)), "REPLY, NA 77 " + ours + "/inf", renewed6, ""},
		{"18.3.4: RENEW, a prefix that is gone", msg6(5, cid, sid, iaNA(5), iaPD(9, iaPrefix("2001:db8:9::/56"))), "REPLY, NA 5 " + ours + "/inf, PD 9 2001:db8:9::/56/0", renewed6, ""},
		{"16.6: RENEW without server identifier", msg6(5, cid, iaNA(5)), "", "", incomplete},
		{"18.3.5: REBIND", msg6(6, cid, iaNA(5, iaAddr(ours))), "REPLY, NA 5 " + ours + "/inf", renewed6, ""},
		{"18.3.5: REBIND, wrong and right address", msg6(6, cid, iaNA(5, iaAddr(wrong), iaAddr(ours))), "REPLY, NA 5 " + ours + "/inf " + wrong + "/0", renewed6, ""},
		{"16.7: REBIND with server identifier", msg6(6, cid, sid, iaNA(5)), "", "", malformed},
		{"18.3.3: CONFIRM", msg6(4, cid, iaNA(5, iaAddr(ours))), "REPLY, status 0", confirmed6, ""},
		{"18.3.3: CONFIRM, wrong address", msg6(4, cid, iaNA(5, iaAddr(wrong))), "REPLY, status 4", refused6, ""},
		{"18.3.3: CONFIRM, one of two wrong", msg6(4, cid, iaNA(5, iaAddr(ours)), iaNA(6, iaAddr(wrong))), "REPLY, status 4", refused6, ""},
		{"18.3.3: CONFIRM, IA_TA", msg6(4, cid, tlv(4, []byte{0, 0, 0, 8}, iaAddr(wrong))), "REPLY, status 4", refused6, ""},
		{"18.3.3: CONFIRM without addresses", msg6(4, cid, iaNA(5)), "", "", incomplete},
		{"16.5: CONFIRM with server identifier", msg6(4, cid, sid, iaNA(5, iaAddr(ours))), "", "", malformed},
		{"18.3.7: RELEASE", msg6(8, cid, sid, iaNA(5, iaAddr(ours))), "REPLY, status 0", released6, ""},
		{"18.3.8: DECLINE", msg6(9, cid, sid, iaNA(5, iaAddr(ours))), "REPLY, status 0", declined6, ""},
		{"18.3.7: RELEASE, another address", msg6(8, cid, sid, iaNA(5, iaAddr(wrong))), "REPLY, status 0", "", ""},
		{"18.3.8: DECLINE, another address", msg6(9, cid, sid, iaNA(5, iaAddr(wrong))), "REPLY, status 0", "", ""},
		{"16.9: RELEASE, another server", msg6(8, cid, foreign, iaNA(5)), "", "", otherServer},
		{"16.8: DECLINE without server identifier", msg6(9, cid, iaNA(5)), "", "", incomplete},
		{"18.3.6: INFORMATION-REQUEST", msg6(11, cid), "REPLY", informed6, ""},
		{"18.3.6: INFORMATION-REQUEST without client identifier", msg6(11), "REPLY", informed6, ""},
		{"16.12: INFORMATION-REQUEST with our identifier", msg6(11, sid), "REPLY", informed6, ""},
		{"16.12: INFORMATION-REQUEST, another server", msg6(11, foreign), "", "", otherServer},
		{"16.12: INFORMATION-REQUEST with an association", msg6(11, cid, iaNA(5)), "", "", malformed},
		{"16: ADVERTISE", msg6(2, cid, sid, iaNA(5)), "", "", otherMessage},
		{"16: REPLY", msg6(7, cid, sid), "", "", otherMessage},
		{"16: RECONFIGURE", msg6(10, cid, sid), "", "", otherMessage},
		{"19: RELAY-FORW", append([]byte{12, 0}, append(make([]byte, 32), tlv(9, msg6(1, cid, iaNA(5)))...)...), "", "", relayed},
		{"19: RELAY-REPL", append([]byte{13, 0}, append(make([]byte, 32), tlv(9, msg6(1, cid, iaNA(5)))...)...), "", "", relayed},
		{"unknown type", msg6(200, cid), "", "", otherMessage},
		{"21.1: an option over the end", append(msg6(1, cid, iaNA(5)), 0, 6, 0, 9, 1), "", "", malformed},
		{"21.1: half an option head", append(msg6(1, cid, iaNA(5)), 0, 6), "", "", malformed},
		{"11.1: an empty client identifier", msg6(1, tlv(1), iaNA(5)), "", "", malformed},
		{"11.1: a client identifier of 131 octets", msg6(1, tlv(1, make([]byte, 131)), iaNA(5)), "", "", malformed},
		{"11.1: a client identifier of 130 octets", msg6(1, tlv(1, make([]byte, 130)), iaNA(5)), "ADVERTISE, preference 255, NA 5 " + ours + "/inf", offered6, ""},
		{"11: a client identifier is opaque", msg6(1, tlv(1, []byte{0, 4, 1, 2}), iaNA(5)), "ADVERTISE, preference 255, NA 5 " + ours + "/inf", offered6, ""},
		{"21.2: two client identifiers", msg6(1, cid, cid, iaNA(5)), "", "", malformed},
		{"seen in the wild: ill-formed elapsed time, FQDN, vendor class", msg6(1, cid, tlv(8, []byte{1}), tlv(39), tlv(16, []byte{1}), iaNA(5)), "ADVERTISE, preference 255, NA 5 " + ours + "/inf", offered6, ""},
		{"an ill-formed option in the association", msg6(5, cid, sid, iaNA(5, iaAddr(wrong), tlv(13), []byte{0, 5, 0, 99})), "REPLY, NA 5 " + ours + "/inf " + wrong + "/0", renewed6, ""},
		{"an address inside an option over the end", msg6(5, cid, sid, iaNA(5, []byte{0, 13, 0, 99}, iaAddr(wrong))), "REPLY, NA 5 " + ours + "/inf", renewed6, ""},
		{"an ill-formed option request", msg6(1, cid, tlv(6, []byte{0, 23, 0}), iaNA(5)), "ADVERTISE, preference 255, NA 5 " + ours + "/inf", offered6, ""},
		{"an association cut short before a good one", msg6(1, cid, tlv(3, []byte{0, 0, 0, 1}), iaNA(2)), "ADVERTISE, preference 255, NA 2 " + ours + "/inf", offered6, ""},
	}
}

// situationsSeveral6 are the rows for a guest with three addresses, fd00:10:244::7, fd00:10:244::17 and 2001:db8:1::7.
func situationsSeveral6() []situation6 {
	const first, second, third, wrong = "fd00:10:244::7", "fd00:10:244::17", "2001:db8:1::7", "fd00:10:244::8"
	const all = first + "/inf " + second + "/inf " + third + "/inf"
	cid, sid := tlv(1, clientDUID), tlv(2, serverDUID)
	return []situation6{
		{"18.3.1: SOLICIT", msg6(1, cid, iaNA(5)), "ADVERTISE, preference 255, NA 5 " + all, offered6, ""},
		{"18.3.1: SOLICIT, one address wished for", msg6(1, cid, iaNA(5, iaAddr(second))), "ADVERTISE, preference 255, NA 5 " + all, offered6, ""},
		{"18.3.1: SOLICIT, rapid commit", msg6(1, cid, tlv(14), iaNA(5)), "REPLY, rapid, NA 5 " + all, leased6, ""},
		{"18.3.9: SOLICIT, as many IA_NA", msg6(1, cid, iaNA(1), iaNA(2), iaNA(3)), "ADVERTISE, preference 255, NA 1 " + all + ", NA 2 status 2, NA 3 status 2", offered6, ""},
		{"18.3.2: REQUEST", msg6(3, cid, sid, iaNA(5, iaAddr(first), iaAddr(second), iaAddr(third))), "REPLY, NA 5 " + all, leased6, ""},
		{"18.3.2: REQUEST of one", msg6(3, cid, sid, iaNA(5, iaAddr(third))), "REPLY, NA 5 " + all, leased6, ""},
		{"18.3.4: RENEW", msg6(5, cid, sid, iaNA(5, iaAddr(third), iaAddr(first), iaAddr(second))), "REPLY, NA 5 " + all, renewed6, ""},
		{"18.3.4: RENEW of one: the others are added", msg6(5, cid, sid, iaNA(5, iaAddr(first))), "REPLY, NA 5 " + all, renewed6, ""},
		{"18.3.4: RENEW, one address is gone", msg6(5, cid, sid, iaNA(5, iaAddr(first), iaAddr(wrong), iaAddr(third))), "REPLY, NA 5 " + all + " " + wrong + "/0", renewed6, ""},
		{"18.3.5: REBIND", msg6(6, cid, iaNA(5, iaAddr(first), iaAddr(second), iaAddr(third))), "REPLY, NA 5 " + all, renewed6, ""},
		{"18.3.5: REBIND, one address is gone", msg6(6, cid, iaNA(5, iaAddr(wrong), iaAddr(second))), "REPLY, NA 5 " + all + " " + wrong + "/0", renewed6, ""},
		{"18.3.3: CONFIRM", msg6(4, cid, iaNA(5, iaAddr(first), iaAddr(second), iaAddr(third))), "REPLY, status 0", confirmed6, ""},
		{"18.3.3: CONFIRM of one", msg6(4, cid, iaNA(5, iaAddr(third))), "REPLY, status 0", confirmed6, ""},
		{"18.3.3: CONFIRM, one of three wrong", msg6(4, cid, iaNA(5, iaAddr(first), iaAddr(third), iaAddr(wrong))), "REPLY, status 4", refused6, ""},
		{"18.3.7: RELEASE of one", msg6(8, cid, sid, iaNA(5, iaAddr(third))), "REPLY, status 0", released6, ""},
		{"18.3.8: DECLINE of one", msg6(9, cid, sid, iaNA(5, iaAddr(wrong), iaAddr(second))), "REPLY, status 0", declined6, ""},
		{"18.3.8: DECLINE, another address", msg6(9, cid, sid, iaNA(5, iaAddr(wrong))), "REPLY, status 0", "", ""},
	}
}

// situationsDelegated6 are the rows for a guest with the address fd00:10:244::7, to which 2001:db8:9::/56 and fd09::/64
// are routed.
func situationsDelegated6() []situation6 {
	const ours, other, wrong = "2001:db8:9::/56", "fd09::/64", "2001:db8:8::/56"
	const all, address = ours + "/inf " + other + "/inf", "NA 5 fd00:10:244::7/inf"
	cid, sid, na := tlv(1, clientDUID), tlv(2, serverDUID), iaNA(5)
	return []situation6{
		{"18.3.1: SOLICIT", msg6(1, cid, na, iaPD(9)), "ADVERTISE, preference 255, " + address + ", PD 9 " + all, offered6, ""},
		{"18.3.1: SOLICIT, only IA_PD", msg6(1, cid, iaPD(9)), "ADVERTISE, preference 255, PD 9 " + all, informed6, ""},
		{"18.3.1: SOLICIT, rapid commit", msg6(1, cid, tlv(14), iaPD(9), na), "REPLY, rapid, PD 9 " + all + ", " + address, leased6, ""},
		{"18.3.1: SOLICIT, a length wished for", msg6(1, cid, iaPD(9, iaPrefix("::/60"))), "ADVERTISE, preference 255, PD 9 " + all, informed6, ""},
		{"18.3.1: SOLICIT, another prefix wished for", msg6(1, cid, iaPD(9, iaPrefix(wrong))), "ADVERTISE, preference 255, PD 9 " + all, informed6, ""},
		{"18.3.9: SOLICIT, several IA_PD", msg6(1, cid, iaPD(1), iaPD(2), na), "ADVERTISE, preference 255, PD 1 " + all + ", PD 2 status 6, " + address, offered6, ""},
		{"18.3.2: REQUEST", msg6(3, cid, sid, iaPD(9, iaPrefix(ours), iaPrefix(other))), "REPLY, PD 9 " + all, informed6, ""},
		{"18.3.2: REQUEST, wrong prefix", msg6(3, cid, sid, na, iaPD(9, iaPrefix(wrong))), "REPLY, " + address + ", PD 9 " + all, leased6, ""},
		{"18.3.4: RENEW", msg6(5, cid, sid, na, iaPD(9, iaPrefix(other), iaPrefix(ours))), "REPLY, " + address + ", PD 9 " + all, renewed6, ""},
		{"18.3.4: RENEW, one prefix is gone", msg6(5, cid, sid, iaPD(9, iaPrefix(wrong), iaPrefix(ours))), "REPLY, PD 9 " + all + " " + wrong + "/0", informed6, ""},
		{"18.3.4: RENEW, another length", msg6(5, cid, sid, iaPD(9, iaPrefix("2001:db8:9::/60"))), "REPLY, PD 9 " + all + " 2001:db8:9::/60/0", informed6, ""},
		{"18.3.4: RENEW, the other IA_PD has one that is gone", msg6(5, cid, sid, iaPD(1), iaPD(2, iaPrefix(wrong))), "REPLY, PD 1 " + all + ", PD 2 " + wrong + "/0", informed6, ""},
		{"18.3.5: REBIND", msg6(6, cid, iaPD(9, iaPrefix(ours))), "REPLY, PD 9 " + all, informed6, ""},
		{"18.3.5: REBIND, the prefix is gone", msg6(6, cid, iaPD(9, iaPrefix(wrong))), "REPLY, PD 9 " + all + " " + wrong + "/0", informed6, ""},
		{"18.3.3: CONFIRM, the prefix is not asked about", msg6(4, cid, iaNA(5, iaAddr("fd00:10:244::7")), iaPD(9, iaPrefix(wrong))), "REPLY, status 0", confirmed6, ""},
		{"18.3.3: CONFIRM, only IA_PD", msg6(4, cid, iaPD(9, iaPrefix(ours))), "", "", incomplete},
		{"18.3.7: RELEASE", msg6(8, cid, sid, iaPD(9, iaPrefix(ours))), "REPLY, status 0", "", ""},
		{"18.3.8: DECLINE", msg6(9, cid, sid, iaPD(9, iaPrefix(ours))), "REPLY, status 0", "", ""},
		{"16.12: INFORMATION-REQUEST with IA_PD", msg6(11, cid, iaPD(9)), "", "", malformed},
		{"an IA_PD cut short before a good one", msg6(1, cid, tlv(25, []byte{0, 0, 0, 1}), iaPD(2)), "ADVERTISE, preference 255, PD 2 " + all, informed6, ""},
		{"a prefix of 129 bits, and one cut short", msg6(5, cid, sid, iaPD(9, tlv(26, make([]byte, 8), []byte{129}, make([]byte, 16)), tlv(26, make([]byte, 24)))), "REPLY, PD 9 " + all, informed6, ""},
		{"an address in the IA_PD", msg6(5, cid, sid, iaPD(9, iaAddr("fd00:10:244::8"))), "REPLY, PD 9 " + all, informed6, ""},
	}
}

// delegatedRecord is newRecord with two prefixes.
func delegatedRecord() cache.Record {
	rec := newRecord()
	rec.IPv6.Delegated = []netip.Prefix{prefix("2001:db8:9::/56"), prefix("fd09::/64")}
	return rec
}

// The rows of the DHCPv6 table of a guest with prefixes.
func TestDHCPv6Delegated(t *testing.T) { testMessages6(t, delegatedRecord(), situationsDelegated6()) }

// severalRecord is newRecord with three IPv6 addresses.
func severalRecord() cache.Record {
	rec := newRecord()
	rec.IPv6.Others = []netip.Addr{addr("fd00:10:244::17"), addr("2001:db8:1::7")}
	return rec
}

// The rows of the DHCPv6 table.
func TestDHCPv6Messages(t *testing.T) { testMessages6(t, newRecord(), situations6()) }

// The rows of the DHCPv6 table of a guest with several addresses.
func TestDHCPv6SeveralAddresses(t *testing.T) {
	testMessages6(t, severalRecord(), situationsSeveral6())

	// The event names the address that the guest named.
	r := newResponder(t, severalRecord(), resolvConf)
	decline := msg6(9, tlv(1, clientDUID), tlv(2, serverDUID), iaNA(5, iaAddr("2001:db8:1::7")))
	if e := resultOf(r, from6(guestLL, servers6, decline)); e.address != addr("2001:db8:1::7") {
		t.Errorf("DECLINE of 2001:db8:1::7: an event of %v", e.address)
	}
}

func testMessages6(t *testing.T, rec cache.Record, rows []situation6) {
	for _, c := range rows {
		t.Run(c.name, func(t *testing.T) {
			r := newResponder(t, rec, resolvConf)
			frame := from6(guestLL, servers6, c.in)
			if e := resultOf(r, frame); e.kind != c.ev || e.ignored != c.why {
				t.Errorf("event %q, ignored %q; want %q, %q", e.kind, e.ignored, c.ev, c.why)
			}
			got, silent := ask(t, r, frame)
			if silent != (c.want == "") {
				t.Fatalf("silent %v, want %q", silent, c.want)
			}
			if silent {
				return
			}
			m := read6(t, got)
			if outline(m) != c.want {
				t.Errorf("got  %s\nwant %s", outline(m), c.want)
			}
			if s := m.Options.ServerID(); s == nil || !bytes.Equal(s.ToBytes(), serverDUID) {
				t.Errorf("server identifier %v", s)
			}
			var wantID []byte
			for code, value := range options6(c.in[4:]).all() {
				if code == dhcpv6.OptionClientID {
					wantID = value
				}
			}
			var gotID []byte
			if o := m.Options.GetOne(dhcpv6.OptionClientID); o != nil {
				gotID = o.ToBytes()
			}
			if !bytes.Equal(gotID, wantID) {
				t.Errorf("client identifier %x, want %x", gotID, wantID)
			}
		})
	}
}

// RFC 9915 section 21.4 and 7.7.
func TestDHCPv6Lifetimes(t *testing.T) {
	for _, c := range []struct {
		lease             uint32
		t1, t2, preferred string
	}{
		{0, "inf", "inf", "inf"},
		{1000, "500", "800", "1000"},
		{4294967294, "2147483647", "3435973835", "4294967294"},
	} {
		rec := newRecord()
		rec.IPv6.Others = []netip.Addr{addr("fd00:10:244::8"), addr("fd00:10:244::aaaa")}
		rec.IPv6.Deprecated = rec.IPv6.Others[1:]
		rec.IPv6.Delegated = []netip.Prefix{prefix("fd09::/64")}
		rec.Options.LeaseSeconds = c.lease
		got, _ := ask(t, newResponder(t, rec, resolvConf), from6(guestLL, servers6, msg6(1, tlv(1, clientDUID), iaNA(1), iaPD(2))))
		ia, pd := read6(t, got).Options.OneIANA(), read6(t, got).Options.OneIAPD()
		a := ia.Options.OneAddress()
		if seconds(ia.T1) != c.t1 || seconds(ia.T2) != c.t2 || seconds(a.PreferredLifetime) != c.preferred || seconds(a.ValidLifetime) != c.preferred {
			t.Errorf("lease %d: T1 %s, T2 %s, preferred %s, valid %s", c.lease, seconds(ia.T1), seconds(ia.T2), seconds(a.PreferredLifetime), seconds(a.ValidLifetime))
		}
		if p := pd.Options.Prefixes()[0]; seconds(pd.T1) != c.t1 || seconds(pd.T2) != c.t2 || seconds(p.PreferredLifetime) != c.preferred || seconds(p.ValidLifetime) != c.preferred {
			t.Errorf("lease %d: the prefix: T1 %s, T2 %s, preferred %s, valid %s", c.lease, seconds(pd.T1), seconds(pd.T2), seconds(p.PreferredLifetime), seconds(p.ValidLifetime))
		}
		d := ia.Options.Addresses()[1] // section 21.6
		if d.IPv6Addr.String() != "fd00:10:244::aaaa" || d.PreferredLifetime != 0 || seconds(d.ValidLifetime) != c.preferred {
			t.Errorf("lease %d: the deprecated address: preferred %s, valid %s", c.lease, seconds(d.PreferredLifetime), seconds(d.ValidLifetime))
		}
	}
}

// RFC 3646, 5908, 5970, 4075, and RFC 9915 section 21.7: the options that the guest asks for, or all.
func TestDHCPv6Configuration(t *testing.T) {
	rec := newRecord()
	rec.Options = cache.Options{NTP: []netip.Addr{addr("192.0.2.7"), addr("fd00::7")}, BootFileURL: "tftp://[fd00::9]/x",
		CaptivePortal: "https://portal.example/api",
		DHCPv6:        map[uint16]cache.Data{17: "\x00\x00\x00\x09", 32: "\x00\x00\x0e\x10", 82: "\x00\x00\x00\x3c", 83: "\x00\x00\x00\x3c", 65000: ""}}
	r := newResponder(t, rec, resolvConf)
	for _, c := range []struct {
		asked []byte // nil: no option 6
		want  []int
	}{
		{nil, []int{23, 24, 56, 59, 31, 103, 17, 32, 82, 83, 65000}},
		{[]byte{}, nil},
		{[]byte{0, 24, 0, 99, 0, 23}, []int{23, 24}},
		{[]byte{0, 56, 0, 59, 0, 31, 0, 82}, []int{56, 59, 31, 82}},
		{[]byte{0, 103, 0, 17, 0, 32, 0, 83, 0xfd, 0xe8}, []int{103, 17, 32, 83, 65000}},
	} {
		in := msg6(11)
		if c.asked != nil {
			in = append(in, tlv(6, c.asked)...)
		}
		got, _ := ask(t, r, from6(guestLL, servers6, in))
		m := read6(t, got)
		var codes []int
		for _, o := range m.Options.Options {
			if o.Code() != dhcpv6.OptionServerID {
				codes = append(codes, int(o.Code()))
			}
		}
		if !slices.Equal(codes, c.want) {
			t.Errorf("asked for %v: %v, want %v", c.asked, codes, c.want)
		}
		if c.asked == nil {
			if fmt.Sprint(m.Options.DNS()) != "[fd00:10:96::a]" || fmt.Sprint(m.Options.NTPServers()) != "[fd00::7]" ||
				fmt.Sprint(m.Options.SNTP()) != "[fd00::7]" || m.Options.BootFileURL() != "tftp://[fd00::9]/x" ||
				!slices.Equal(m.Options.DomainSearchList().Labels, resolvConf.Search) {
				t.Errorf("configuration %v", m)
			}
		}
	}
}

// RFC 9915 section 21.23: option 32 is in replies to an INFORMATION-REQUEST only.
func TestDHCPv6RefreshTime(t *testing.T) {
	rec := newRecord()
	rec.Options.DHCPv6 = map[uint16]cache.Data{32: "\x00\x00\x0e\x10"}
	r := newResponder(t, rec, resolvConf)
	for kind, want := range map[dhcpv6.MessageType]bool{1: false, 11: true} {
		in := msg6(kind, tlv(1, clientDUID), tlv(6, []byte{0, 32}))
		got, _ := ask(t, r, from6(guestLL, servers6, in))
		if there := read6(t, got).Options.GetOne(dhcpv6.OptionInformationRefreshTime) != nil; there != want {
			t.Errorf("message %d: option 32 is there: %v, want %v", kind, there, want)
		}
	}
}

// RFC 9915 section 10 and RFC 8200 section 5: every reply fits into the smallest packet.
func TestDHCPv6Bounds(t *testing.T) {
	rec := newRecord()
	rec.MTU = 1280
	dns := cache.DNS{Servers: resolvConf.Servers}
	for i := range 40 {
		dns.Search = append(dns.Search, fmt.Sprintf("%d.%s.example", i, strings.Repeat("d", 60)))
	}
	r := newResponder(t, rec, dns)
	if len(r.warnings()) == 0 {
		t.Error("no warning about a search list of 2.8 KiB")
	}
	in := msg6(5, tlv(1, make([]byte, 130)), tlv(2, serverDUID))
	for i := range byte(100) {
		in = append(in, iaNA(i, iaAddr("fd00::1"), iaAddr("fd00::2"), iaAddr("fd00::3"))...)
	}
	got, silent := ask(t, r, from6(guestLL, servers6, in))
	if silent {
		t.Fatal("no reply")
	}
	m := read6(t, got)
	if n := len(got.frame) - 14; n > 1280 {
		t.Errorf("a packet of %d octets", n)
	}
	if a := m.Options.OneIANA().Options.OneAddress(); a == nil || !a.IPv6Addr.Equal(net.ParseIP("fd00:10:244::7")) {
		t.Errorf("first association %v", m.Options.OneIANA())
	}
	if fmt.Sprint(m.Options.DNS()) != "[]" && len(m.Options.IANA()) < 2 {
		t.Errorf("%d associations", len(m.Options.IANA()))
	}
}

// A guest with more addresses and prefixes than fit into half of a message gets the first ones, and the DNS servers.
func TestDHCPv6ManyLeased(t *testing.T) {
	for _, c := range []struct{ mtu, addresses, leased, prefixes, delegated int }{
		{1280, 22, 22, 0, 0}, {1280, 23, 22, 1, 0}, {1450, 200, 25, 2, 0}, {9000, 25, 25, 120, 120}, {576, 30, 22, 0, 0},
		{1280, 1, 1, 19, 19}, {1280, 1, 1, 20, 19}, {1450, 20, 20, 9, 4},
	} {
		rec := newRecord()
		rec.MTU = c.mtu
		for i := range c.addresses - 1 {
			rec.IPv6.Others = append(rec.IPv6.Others, addr(fmt.Sprintf("fd00:10:244::1:%x", i)))
		}
		for i := range c.prefixes {
			rec.IPv6.Delegated = append(rec.IPv6.Delegated, prefix(fmt.Sprintf("fd09:0:0:%x::/64", i)))
		}
		r := newResponder(t, rec, resolvConf)
		var want []string
		if c.leased < c.addresses {
			want = append(want, fmt.Sprintf("DHCPv6 leases %d of the %d addresses: more do not fit into a message", c.leased, c.addresses))
		}
		if c.delegated < c.prefixes {
			want = append(want, fmt.Sprintf("DHCPv6 delegates %d of the %d prefixes: more do not fit into a message", c.delegated, c.prefixes))
		}
		if !slices.Equal(r.warnings(), want) {
			t.Errorf("%+v: warnings %q, want %q", c, r.warnings(), want)
		}
		in := msg6(5, tlv(1, make([]byte, 130)), tlv(2, serverDUID), iaNA(1), iaPD(2))
		got, silent := ask(t, r, from6(guestLL, servers6, in))
		if silent {
			t.Fatalf("%+v: no reply", c)
		}
		m := read6(t, got)
		addresses, prefixes := len(m.Options.OneIANA().Options.Addresses()), len(m.Options.OneIAPD().Options.Prefixes())
		if addresses != c.leased || prefixes != c.delegated || len(got.frame)-14 > max(c.mtu, 1280) {
			t.Errorf("%+v: %d addresses and %d prefixes in a packet of %d octets", c, addresses, prefixes, len(got.frame)-14)
		}
		if fmt.Sprint(m.Options.DNS()) != "[fd00:10:96::a]" || m.Options.DomainSearchList() == nil {
			t.Errorf("%+v: DNS %v, search list %v", c, m.Options.DNS(), m.Options.DomainSearchList())
		}
	}
}

// Without room for an association the guest gets no address, and no event says that it has one.
func TestDHCPv6WithoutRoom(t *testing.T) {
	in := msg6(3, tlv(1, clientDUID), tlv(2, serverDUID))
	for i := range byte(160) {
		in = append(in, tlv(4, []byte{0, 0, 0, i})...) // IA_TA: its refusal is longer than itself
	}
	in = append(in, iaNA(1)...)
	r := newResponder(t, newRecord(), resolvConf)
	out, e := r.answers.Load().answer(nil, from6(guestLL, servers6, in))
	if len(read6(t, readReply(t, out)).Options.IANA()) > 0 {
		t.Fatal("there was room: this proves nothing")
	}
	if e != (result{kind: informed6}) {
		t.Errorf("%v %v, want %v", e.kind, e.address, informed6)
	}
}

// RFC 9915 section 18.3: a unicast is not answered; RFC 8200 section 8.1: checksums.
func TestDHCPv6Frames(t *testing.T) {
	r := newResponder(t, newRecord(), resolvConf)
	solicit := msg6(1, tlv(1, clientDUID), iaNA(1))
	good := from6(guestLL, servers6, solicit)
	for _, c := range []struct {
		name  string
		frame []byte
		why   Reason // empty: there is an answer
	}{
		{"as it is", good, ""},
		{"padding after", append(slices.Clone(good), 0, 0), ""},
		{"to a unicast address", from6(guestLL, eui64.LinkLocal(responderMAC), solicit), unicast},
		{"from ::", from6(addr("::"), servers6, solicit), badSource},
		{"from a multicast", from6(addr("ff02::1"), servers6, solicit), badSource},
		{"another source MAC", change(good, 11, 9), otherMAC},
		{"IP version 4", change(good, 14, 0x45), malformed},
		{"payload over the frame", change(good, 18, 9), malformed},
		{"hop-by-hop options", change(good, 20, 0), otherProtocol},
		{"port 546", change(good, 57, 0x22), otherProtocol},
		{"UDP length over the packet", change(good, 58, 9), malformed},
		{"UDP length under its header", change(change(good, 58, 0), 59, 7), malformed},
		{"wrong UDP checksum", change(good, 60, good[60]+1), badChecksum},
		{"no UDP checksum", change(change(good, 60, 0), 61, 0), badChecksum},
		{"three octets", from6(guestLL, servers6, []byte{1, 0, 0}), malformed},
	} {
		judge(t, r, c.name, c.frame, c.why)
	}
	for n := range good {
		judge(t, r, fmt.Sprintf("the first %d octets", n), good[:n], malformed)
	}
	rec := newRecord()
	rec.IPv6 = nil
	r = newResponder(t, rec, resolvConf)
	judge(t, r, "without an IPv6 address", good, noIPv6)
}

// change returns the frame with one octet replaced.
func change(frame []byte, at int, to byte) []byte {
	frame = slices.Clone(frame)
	frame[at] = to
	return frame
}

// UEFI's HTTP boot takes only an advertisement with its own vendor class.
func TestDHCPv6HTTPBoot(t *testing.T) {
	class := func(text string) []byte { return append([]byte{0, 0, 1, 0x57, 0, byte(len(text))}, text...) }
	uefi := class("HTTPClient:Arch:00016:UNDI:003000")
	for _, c := range []struct {
		name       string
		class      []byte
		file       string
		configured string
		want       []byte
	}{
		{"UEFI", uefi, "http://[fd00::1]/boot.efi", "", class("HTTPClient")},
		{"nothing to boot", uefi, "", "", nil},
		{"TFTP", uefi, "tftp://[fd00::1]/boot.efi", "", nil},
		{"another class", class("PXEClient:Arch:00007"), "http://[fd00::1]/boot.efi", "", nil},
		{"no class", nil, "http://[fd00::1]/boot.efi", "", nil},
		{"a class cut short", []byte{0, 0, 1, 0x57, 0}, "http://[fd00::1]/boot.efi", "", nil},
		{"configured", uefi, "http://[fd00::1]/boot.efi", "mine", []byte("mine")},
	} {
		rec := newRecord()
		rec.Options.BootFileURL = c.file
		if c.configured != "" {
			rec.Options.DHCPv6 = map[uint16]cache.Data{16: cache.Data(c.configured)}
		}
		parts := [][]byte{tlv(1, clientDUID), tlv(6, []byte{0, 16, 0, 59}), iaNA(1)}
		if c.class != nil {
			parts = append(parts, tlv(16, c.class))
		}
		got, silent := ask(t, newResponder(t, rec, resolvConf), from6(guestLL, servers6, msg6(1, parts...)))
		if silent {
			t.Fatal("no answer")
		}
		var have []byte
		for code, value := range options6(got.payload[4:]).all() {
			if code == 16 {
				have = value
			}
		}
		if !bytes.Equal(have, c.want) {
			t.Errorf("%s: option 16 %q, want %q", c.name, have, c.want)
		}
	}
}
