package frametext_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/frametext"
)

// octets are those of a frame, in hexadecimal with spaces.
func octets(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	macs  = "020000000001 020000000007 "
	head4 = "4500 001c 0000 0000 4011 0000 0a000007 0a000001 "
	from6 = "fd000000000000000000000000000007 fd000000000000000000000000000001 "
)

var lines = []struct{ frame, want string }{
	{"ffffffffffff 020000000007 0806 0001 0800 06 04 0001 020000000007 0a000007 000000000000 0a000001",
		"02:00:00:00:00:07 > ff:ff:ff:ff:ff:ff ARP 10.0.0.7 (02:00:00:00:00:07) asks for 10.0.0.1"},
	{macs + "0806 0001 0800 06 04 0002 020000000009 0a000009 020000000001 0a000001",
		"02:00:00:00:00:07 > 02:00:00:00:00:01 ARP 10.0.0.9 is at 02:00:00:00:00:09, says to 10.0.0.1"},
	{macs + "0806 0001 0800 06 04 0008 020000000009 0a000009 020000000001 0a000001", "02:00:00:00:00:07 > 02:00:00:00:00:01 ARP operation 8"},
	{macs + "0806 0006 0800 06 04 0001 020000000009 0a000009 020000000001 0a000001", "02:00:00:00:00:07 > 02:00:00:00:00:01 ARP, not for IPv4 and Ethernet"},
	{macs + "0806 0001", "02:00:00:00:00:07 > 02:00:00:00:00:01 ARP, cut short"},
	{macs + "0800 " + head4 + "0044 0043 0008 0000", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv4 10.0.0.7:68 > 10.0.0.1:67 UDP"},
	{macs + "0800 4600 001c 0000 0000 4006 0000 0a000007 0a000001 01010100 1388 0050 0000", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv4 10.0.0.7:5000 > 10.0.0.1:80 TCP"},
	{macs + "0800 4500 001c 0000 2000 4011 0000 0a000007 0a000001 0044 0043", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv4 10.0.0.7:68 > 10.0.0.1:67 UDP, fragment"},
	{macs + "0800 4500 001c 0000 0001 4011 0000 0a000007 0a000001 0044 0043", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv4 10.0.0.7 > 10.0.0.1 UDP, fragment"},
	{macs + "0800 4500 001c 0000 4000 4001 0000 0a000007 0a000001 05010000", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv4 10.0.0.7 > 10.0.0.1 ICMP type 5"},
	{macs + "0800 4500 001c 0000 0000 402f 0000 0a000007 0a000001", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv4 10.0.0.7 > 10.0.0.1 protocol 47"},
	{macs + "0800 4500 001c 0000 0000 4011 0000 0a000007 0a000001 00", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv4 10.0.0.7 > 10.0.0.1 UDP"},
	{macs + "0800 4500", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv4, header cannot be read"},
	{macs + "0800 6500 001c 0000 0000 4011 0000 0a000007 0a000001", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv4, header cannot be read"},
	{macs + "0800 4400 001c 0000 0000 4011 0000 0a000007 0a000001", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv4, header cannot be read"},
	{macs + "86dd 60000000 0008 11 40 " + from6 + "0222 0223 0008 0000", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv6 [fd00::7]:546 > [fd00::1]:547 UDP"},
	{macs + "86dd 60000000 0018 3a ff " + from6 + "88000000 20000000 fd000000000000000000000000000009",
		"02:00:00:00:00:07 > 02:00:00:00:00:01 IPv6 fd00::7 > fd00::1 ICMPv6 type 136 about fd00::9"},
	{macs + "86dd 60000000 0018 3a ff " + from6 + "86000000 20000000 fd000000000000000000000000000009",
		"02:00:00:00:00:07 > 02:00:00:00:00:01 IPv6 fd00::7 > fd00::1 ICMPv6 type 134"},
	{macs + "86dd 60000000 0010 3c ff " + from6 + "3a00010400000000 8600000000000000",
		"02:00:00:00:00:07 > 02:00:00:00:00:01 IPv6 fd00::7 > fd00::1 ICMPv6 type 134, after extension headers"},
	{macs + "86dd 60000000 0010 2c ff " + from6 + "3a00000100000000 8600000000000000",
		"02:00:00:00:00:07 > 02:00:00:00:00:01 IPv6 fd00::7 > fd00::1 ICMPv6 type 134, fragment"},
	{macs + "86dd 60000000 0010 2c ff " + from6 + "3a00000900000000 8600000000000000",
		"02:00:00:00:00:07 > 02:00:00:00:00:01 IPv6 fd00::7 > fd00::1 ICMPv6, fragment"},
	{macs + "86dd 60000000", "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv6, header cannot be read"},
	{macs + "86dd 40000000 0008 11 40 " + from6, "02:00:00:00:00:07 > 02:00:00:00:00:01 IPv6, header cannot be read"},
	{macs + "88cc 0207", "02:00:00:00:00:07 > 02:00:00:00:00:01 EtherType 0x88cc"},
	{macs + "0026 424203", "02:00:00:00:00:07 > 02:00:00:00:00:01 LLC"},
}

func TestLine(t *testing.T) {
	for _, c := range lines {
		frame := octets(t, c.frame)
		if have := frametext.Line(frame[:14], [2]uint16{}, 0xffff, frame[14:]); have != c.want {
			t.Errorf("%s: have\n%s\nwant\n%s", c.frame, have, c.want)
		}
	}
	packet := octets(t, head4+"00440043")
	if have, want := frametext.Line(nil, [2]uint16{0x8100, 0x6005}, 0x0800, packet), "VLAN 5 IPv4 10.0.0.7:68 > 10.0.0.1:67 UDP"; have != want {
		t.Errorf("without an Ethernet header: %s, want %s", have, want)
	}
}

// FuzzLine: no octets make Line panic, and the description is a line of a bounded length.
func FuzzLine(f *testing.F) {
	for _, c := range lines {
		frame := octets(f, c.frame)
		f.Add(frame[:14], uint16(0x0800), frame[14:])
		f.Add([]byte(nil), uint16(0x86dd), frame[14:])
	}
	f.Fuzz(func(t *testing.T, ethernet []byte, etherType uint16, packet []byte) {
		line := frametext.Line(ethernet, [2]uint16{}, etherType, packet)
		if len(line) > 300 || strings.ContainsAny(line, "\n\r\x1b") {
			t.Errorf("%q", line)
		}
	})
}
