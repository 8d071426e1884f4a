package dhcp

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/guestwire/guestwire/cache"
)

// TestDHCPv4BroadcastAddress: a network of two addresses has none (RFC 3021), nor has a single address.
func TestDHCPv4BroadcastAddress(t *testing.T) {
	for address, want := range map[string]net.IP{
		"10.0.2.2/24": {10, 0, 2, 255}, "10.0.2.2/30": {10, 0, 2, 3}, "10.0.2.2/31": nil, "10.0.2.2/32": nil, "10.0.2.2/8": {10, 255, 255, 255},
	} {
		rec := newRecord()
		rec.IPv4 = &cache.IPv4{Address: prefix(address), Server: addr("10.0.2.1"), Routes: []cache.Route{{Destination: prefix("10.0.2.1/32")}}}
		_, m := acked(t, rec, resolvConf, map[uint8][]byte{55: {28}})
		if have := m.Options[28]; string(have) != string(want) {
			t.Errorf("%s: %v, want %v", address, have, want)
		}
	}
}

// TestDHCPv4BootHeader: a boot server's address goes into siaddr, any other name into sname, and what is too long
// for a field, which ends with a zero, into no field.
func TestDHCPv4BootHeader(t *testing.T) {
	long := strings.Repeat("a", 128)
	for _, c := range []struct {
		server, file           string
		siaddr, sname, fileOut string
	}{
		{"10.0.0.9", "f", "10.0.0.9", "", "f"},
		{"tftp.example", "f", "0.0.0.0", "tftp.example", "f"},
		{"fd00::9", "f", "0.0.0.0", "fd00::9", "f"},
		{long[:63], long[:127], "0.0.0.0", long[:63], long[:127]},
		{long[:64], long[:128], "0.0.0.0", "", ""},
	} {
		rec := newRecord()
		rec.Options.TFTPServer, rec.Options.BootFile = c.server, c.file
		_, m := acked(t, rec, resolvConf, nil)
		if m.ServerIPAddr.String() != c.siaddr || m.ServerHostName != c.sname || m.BootFileName != c.fileOut {
			t.Errorf("%q, %q: siaddr %v, sname %q, file %q; want %q, %q, %q", c.server, c.file, m.ServerIPAddr, m.ServerHostName, m.BootFileName, c.siaddr, c.sname, c.fileOut)
		}
	}
}

// TestDHCPv6OptionsThatFit: options are taken as long as the smallest message has room for them; each of the others
// is named in a warning, and a small one after them is taken.
func TestDHCPv6OptionsThatFit(t *testing.T) {
	rec := newRecord()
	rec.Options.DHCPv6 = map[uint16]cache.Data{}
	for code := uint16(200); code < 206; code++ {
		rec.Options.DHCPv6[code] = cache.Data(strings.Repeat("x", 300))
	}
	rec.Options.DHCPv6[210] = "small"
	r := newResponder(t, rec, cache.DNS{})
	var asked []byte
	for _, code := range []byte{200, 201, 202, 203, 204, 205, 210} {
		asked = append(asked, 0, code)
	}
	got, silent := ask(t, r, from6(guestLL, servers6, msg6(1, tlv(1, clientDUID), iaNA(1), tlv(6, asked))))
	if silent {
		t.Fatal("no reply")
	}
	if len(got.payload) > 1280-40-8 {
		t.Errorf("a message of %d octets, want one that fits into the smallest packet", len(got.payload))
	}
	m := read6(t, got)
	if len(m.Options.IANA()) != 1 {
		t.Error("the options have taken the address's room")
	}
	taken := 0
	for code := uint16(200); code < 206; code++ {
		there := len(m.GetOption(dhcpv6.OptionCode(code))) > 0
		warned := slices.ContainsFunc(r.warnings(), func(w string) bool { return strings.Contains(w, fmt.Sprintf("DHCPv6 option %d is left out", code)) })
		if there == warned {
			t.Errorf("option %d is there: %t, and warned of: %t", code, there, warned)
		}
		if there {
			taken++
		}
	}
	if taken != 3 {
		t.Errorf("%d options of 300 octets are taken, want 3", taken)
	}
	if small := m.GetOption(210); len(small) != 1 || string(small[0].ToBytes()) != "small" {
		t.Errorf("the small option is %v", small)
	}
}
