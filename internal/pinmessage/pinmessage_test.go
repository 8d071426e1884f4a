package pinmessage

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/syntax"
)

func addresses(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// allowed reports whether any name may lead to the address, and whether a private one may.
func allowed(a netip.Addr, nat64 netip.Prefix) [2]bool {
	return [2]bool{Allowed(a, false, nat64), Allowed(a, true, nat64)}
}

// TestAllowed: to which addresses a name may lead, and to which a private one.
func TestAllowed(t *testing.T) {
	for texts, want := range map[string][2]bool{ // of any name, of a private one
		"198.51.100.9 2001:db8::9 9.9.9.9 192.0.1.1 172.15.0.1 172.32.0.1 100.63.0.1 100.128.0.1 192.167.0.1": {true, true},
		"64:ff9b::c633:6409 2002:c633:6409::1": {true, true},

		"10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 169.254.1.1 fd00::1 fc00::1 fe80::1 fec0::1": {false, true},
		"64:ff9b::a00:1 2002:a00:1::1 64:ff9b::a9fe:101 64:ff9b:1::c633:6409":                                   {false, true},

		"127.0.0.1 127.0.0.53 ::1 0.0.0.0 0.0.0.1 :: 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 ff02::1 ff0e::1": {},
		"169.254.169.254 168.63.129.16 100.100.100.200 fd00:ec2::254 192.0.0.192 fe80::a9fe:a9fe":                   {},
		"64:ff9b::7f00:1 2002:7f00:1::1 64:ff9b::a9fe:a9fe ::7f00:1 ::ffff:198.51.100.9 fe80::1%eth0":               {},
	} {
		for _, a := range addresses(strings.Fields(texts)...) {
			if have := allowed(a, netip.Prefix{}); have != want {
				t.Errorf("%v: %v, want %v", a, have, want)
			}
		}
	}
	if Allowed(netip.Addr{}, true, netip.Prefix{}) {
		t.Error("no address is allowed")
	}
}

// TestSpellings: an address of IPv6 that has one of IPv4 counts as that. A documentation address is spelled as it is in
// the sources: RFC 6052 section 2.4, RFC 3056, RFC 4380, RFC 2765, RFC 5214.
func TestSpellings(t *testing.T) {
	for name, spell := range map[string]struct {
		of     func(a, b, c, d byte) string
		sample string // of 192.0.2.33
		inside bool   // a private name alone may have it
		site   string // prefix of NAT64
	}{
		"NAT64":            {func(a, b, c, d byte) string { return fmt.Sprintf("64:ff9b::%d.%d.%d.%d", a, b, c, d) }, "64:ff9b::c000:221", false, ""},
		"local NAT64, /48": {func(a, b, c, d byte) string { return fmt.Sprintf("64:ff9b:1:%02x%02x:%x:%02x00::", a, b, c, d) }, "64:ff9b:1:c000:2:2100::", true, ""},
		"local NAT64, /56": {func(a, b, c, d byte) string { return fmt.Sprintf("64:ff9b:1:22%02x:%x:%02x%02x::", a, b, c, d) }, "64:ff9b:1:22c0:0:221::", true, ""},
		"local NAT64, /64": {func(a, b, c, d byte) string { return fmt.Sprintf("64:ff9b:1:abcd:%x:%02x%02x:%02x00:0", a, b, c, d) }, "64:ff9b:1:abcd:c0:2:2100::", true, ""},
		"local NAT64, /96": {func(a, b, c, d byte) string { return fmt.Sprintf("64:ff9b:1:fffe::%d.%d.%d.%d", a, b, c, d) }, "64:ff9b:1:fffe::c000:221", true, ""},
		"6to4":             {func(a, b, c, d byte) string { return fmt.Sprintf("2002:%02x%02x:%02x%02x::1", a, b, c, d) }, "2002:c000:221::1", false, ""},
		"Teredo": {func(a, b, c, d byte) string {
			return fmt.Sprintf("2001::c633:6409:0:fff0:%02x%02x:%02x%02x", ^a, ^b, ^c, ^d)
		}, "2001:0:c633:6409:0:fff0:3fff:fdde", false, ""},
		"translated":            {func(a, b, c, d byte) string { return fmt.Sprintf("::ffff:0:%d.%d.%d.%d", a, b, c, d) }, "::ffff:0:c000:221", false, ""},
		"ISATAP":                {func(a, b, c, d byte) string { return fmt.Sprintf("2001:db8::5efe:%d.%d.%d.%d", a, b, c, d) }, "2001:db8::5efe:c000:221", false, ""},
		"ISATAP, global":        {func(a, b, c, d byte) string { return fmt.Sprintf("2001:db8::200:5efe:%d.%d.%d.%d", a, b, c, d) }, "2001:db8::200:5efe:c000:221", false, ""},
		"ISATAP in a 6to4 site": {func(a, b, c, d byte) string { return fmt.Sprintf("2002:c633:6409::5efe:%d.%d.%d.%d", a, b, c, d) }, "2002:c633:6409::5efe:c000:221", false, ""},
		"the site's, /32":       {func(a, b, c, d byte) string { return fmt.Sprintf("2001:db8:%02x%02x:%02x%02x::", a, b, c, d) }, "2001:db8:c000:221::", false, "2001:db8::/32"},
		"the site's, /40":       {func(a, b, c, d byte) string { return fmt.Sprintf("2001:db8:1%02x:%02x%02x:%02x::", a, b, c, d) }, "2001:db8:1c0:2:21::", false, "2001:db8:100::/40"},
		"the site's, /64":       {func(a, b, c, d byte) string { return fmt.Sprintf("2001:db8:122:344:%x:%02x%02x:%02x00:0", a, b, c, d) }, "2001:db8:122:344:c0:2:2100::", false, "2001:db8:122:344::/64"},
		"the same, malformed": {func(a, b, c, d byte) string {
			return fmt.Sprintf("2001:db8:122:344:17%02x:%02x%02x:%02x00:7", a, b, c, d)
		}, "2001:db8:122:344:17c0:2:2100:7", false, "2001:db8:122:344::/64"},
		"the site's, its own":     {func(a, b, c, d byte) string { return fmt.Sprintf("fd64::%d.%d.%d.%d", a, b, c, d) }, "fd64::c000:221", false, "fd64::/96"},
		"the site's, local NAT64": {func(a, b, c, d byte) string { return fmt.Sprintf("64:ff9b:1:fffe::%d.%d.%d.%d", a, b, c, d) }, "64:ff9b:1:fffe::c000:221", false, "64:ff9b:1:fffe::/96"},
	} {
		if have, want := netip.MustParseAddr(spell.of(192, 0, 2, 33)), netip.MustParseAddr(spell.sample); have != want {
			t.Errorf("%s: the test spells %v, want %v", name, have, want)
		}
		var site netip.Prefix
		if spell.site != "" {
			site = netip.MustParsePrefix(spell.site)
		}
		for text, want := range map[string][2]bool{
			"198.51.100.9": {!spell.inside, true}, "192.0.2.33": {!spell.inside, true}, "10.1.2.3": {false, true}, "192.168.255.254": {false, true}, "100.64.1.1": {false, true},
			"127.0.0.1": {}, "169.254.169.254": {}, "168.63.129.16": {}, "192.0.0.192": {}, "0.0.0.1": {}, "224.0.0.1": {}, "255.255.255.255": {},
		} {
			o := netip.MustParseAddr(text).As4()
			a := netip.MustParseAddr(spell.of(o[0], o[1], o[2], o[3]))
			if strings.HasSuffix(name, "malformed") {
				want = [2]bool{}
			}
			if have := allowed(a, site); have != want {
				t.Errorf("%s of %s, %v: %v, want %v", name, text, a, have, want)
			}
		}
	}
	for _, a := range addresses("2001:db8::", "2001:db8::5eff:7f00:1", "2003::", "2001:4860:4860::8888", "2a00:1450::7f00:1", "2001:1::7f00:1") { // which have none
		if !Allowed(a, false, netip.Prefix{}) {
			t.Errorf("%v is not allowed", a)
		}
	}
}

// TestMessages: what is appended is parsed, and nothing is longer than MaxSize.
func TestMessages(t *testing.T) {
	for _, site := range []netip.Prefix{{}, netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2001:db8::/96")} {
		if n, have, err := Count(AppendCount(nil, 7, site)); n != 7 || have != site || err != nil {
			t.Error(n, have, err)
		}
	}
	most := addresses("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::4", "198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4")
	for _, n := range []Name{{Name: "*.example"}, {Name: "db.example", Private: true}, {Name: strings.Repeat("a", syntax.MaxName), Addresses: most}} {
		message := n.Append(nil)
		if have, err := ParseName(message); err != nil || !reflect.DeepEqual(have, n) || len(message) > MaxSize {
			t.Errorf("%+v becomes %+v, %v (%d octets)", n, have, err, len(message))
		}
	}
	r := Request{Name: 9999, Addresses: most, Life: Longest}
	if have, err := ParseRequest(r.Append(nil), 10000); err != nil || !reflect.DeepEqual(have, r) {
		t.Errorf("%+v becomes %+v, %v", r, have, err)
	}
	for _, reply := range []Reply{{Failed: true}, {}, {Pinned: most}, {Pinned: most[3:5]}} {
		if have, err := ParseReply(reply.Append(nil, r), r); err != nil || !reflect.DeepEqual(have, reply) {
			t.Errorf("%+v becomes %+v, %v", reply, have, err)
		}
	}
}

// TestMalformed: what is no message.
func TestMalformed(t *testing.T) {
	good := Request{Name: 2, Addresses: addresses("198.51.100.9"), Life: time.Minute}
	message := good.Append(nil)
	change := func(at int, to ...byte) []byte {
		m := slices.Clone(message)
		copy(m[at:], to)
		return m
	}
	if _, err := ParseRequest(message, 3); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string][]byte{
		"empty": nil, "cut": message[:len(message)-1], "long": append(slices.Clone(message), 0), "another name": change(0, 0, 0, 0, 3),
		"a negative name": change(0, 0xff, 0xff, 0xff, 0xff), "no life": change(4, 0, 0), "a long life": change(4, 0xff, 0xff), "no address": change(6, 0)[:7],
		"nine addresses": append(change(6, 9), make([]byte, 16*8)...), "an address twice": append(change(6, 2), message[7:]...),
	} {
		if r, err := ParseRequest(m, 3); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for _, m := range [][]byte{nil, {0}, {2, 0}, {0, 0, 0}} {
		if r, err := ParseReply(m, good); err == nil {
			t.Errorf("reply %x: %+v", m, r)
		}
	}
	for _, m := range [][]byte{nil, {2, 0, 0, 0, 1}, {3, 0, 0, 0}, {3, 0, 0, 0x40, 1}, {3, 0xff, 0xff, 0xff, 0xff}, {3, 0, 0, 0, 1, 96}, append([]byte{3, 0, 0, 0, 1, 95}, make([]byte, 16)...)} {
		if n, _, err := Count(m); err == nil {
			t.Errorf("count %x: %d", m, n)
		}
	}
	for _, m := range [][]byte{nil, {3}, {2, 0}, {3, 1}, {3, 0, 0}, message} {
		if CheckReady(m) == nil {
			t.Errorf("%x is ready", m)
		}
	}
	if err := CheckReady(AppendReady(nil)); err != nil {
		t.Error(err)
	}
	if r, err := ParseRequest(AppendReady(nil), 3); err == nil {
		t.Errorf("ready is the request %+v", r)
	}
	for _, m := range [][]byte{nil, {2, 0, 'a'}, {0}, {0, 9, 'a'}, {0, 1, 'a'}} {
		if n, err := ParseName(m); err == nil {
			t.Errorf("name %x: %+v", m, n)
		}
	}
}

// FuzzRequest: a request that is accepted is within the bounds, and becomes the same message.
func FuzzRequest(f *testing.F) {
	f.Add(Request{Name: 2, Addresses: addresses("198.51.100.9", "2001:db8::9"), Life: time.Minute}.Append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, message []byte) {
		r, err := ParseRequest(message, 3)
		if err != nil {
			return
		}
		if r.Name > 2 || len(r.Addresses) == 0 || len(r.Addresses) > MostAddresses || r.Life < Shortest || r.Life > Longest {
			t.Errorf("%+v", r)
		}
		if len(message) > MaxSize {
			t.Errorf("%d octets", len(message))
		}
		if again, err := ParseRequest(r.Append(nil), 3); err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%+v becomes %+v, %v", r, again, err)
		}
	})
}
