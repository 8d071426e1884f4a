package dhcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/cache"
)

// RFC 2132 section 9.8: the order of option 55; section 3.3: the mask before the router; section 2: an option without
// data.
func TestDHCPv4Order(t *testing.T) {
	rec := newRecord()
	rec.Options.Hostname = "vm1"
	rec.Options.DHCPv4 = map[uint8]cache.Data{252: "http://wpad/", 224: "x", 225: ""}
	everything := []int{53, 54, 51, 1, 26, 6, 121, 3, 249, 15, 119, 12, 224, 225, 252}
	for _, c := range []struct {
		asked []byte
		want  []int
	}{
		{nil, everything},
		{[]byte{}, everything},
		{[]byte{252, 15, 6, 3, 1, 51}, []int{53, 54, 51, 1, 252, 15, 6, 3, 26, 121, 249, 119, 12, 224, 225}},
		{[]byte{26, 26, 77, 26, 249, 121}, []int{53, 54, 51, 1, 26, 249, 121, 6, 3, 15, 119, 12, 224, 225, 252}},
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
