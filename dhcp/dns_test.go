package dhcp

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/rfc1035label"
	"github.com/mdlayher/ndp"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/served"
	"github.com/guestwire/guestwire/internal/syntax"
)

// TestResolver: each family has its servers, and what the guest cannot use has a warning.
func TestResolver(t *testing.T) {
	rec := newRecord()
	rec.Options.NTP = []netip.Addr{addr("fd00::7"), addr("192.0.2.7"), addr("127.0.0.1")}
	dns := cache.DNS{Servers: []netip.Addr{addr("10.0.0.1"), addr("::ffff:10.0.0.2"), addr("fe80::1%eth0"), addr("fe80::3%net1")}, Search: []string{"a.b.", "a..b"}}
	res := newResolver(dns, &rec)
	if have := fmt.Sprint(res.servers4, res.servers6, res.ntp6, res.search); have != "[10.0.0.1 10.0.0.2] [fe80::1] [fd00::7] [a.b]" {
		t.Error(have)
	}
	want := []cache.Finding{
		{Kind: "server", What: "fe80::3%net1", Why: "it is not on the guest's link"},
		{Kind: "server", What: "127.0.0.1", Why: "for the guest, that is the guest itself"},
		{Kind: "option", What: `search domain "a..b"`, Why: "it has an empty label, want 1 to 63 octets between two dots"},
	}
	if !slices.Equal(res.lost, want) {
		t.Errorf("%q", res.lost)
	}
}

// TestServersOfASecondNIC: a NIC whose routes lead to no server offers none, in each of the protocols. systemd-networkd
// 252 would route to the server by that NIC.
func TestServersOfASecondNIC(t *testing.T) {
	rec := newRecord()
	rec.IPv4 = &cache.IPv4{Address: prefix("192.168.50.7/24"), Server: addr("192.168.50.2")}
	rec.IPv6 = &cache.IPv6{Address: addr("fd50::7"), OnLink: []netip.Prefix{prefix("fd50::/64")}}
	rec.Options.NTP = []netip.Addr{addr("10.96.0.11"), addr("fd00:10:96::b")}
	for _, c := range []struct {
		dns  cache.DNS
		want string
	}{
		{resolvConf, "[] [] [] []"},
		{cache.DNS{}, "[] [] [] []"}, // the way out, of the Spec
		{cache.DNS{Servers: []netip.Addr{addr("192.168.50.53"), addr("fd50::53"), addr("10.96.0.10")}}, "[192.168.50.53] [fd50::53] [] []"},
	} {
		r := newResponder(t, rec, c.dns)
		got, _ := ask(t, r, client4{kind: discover}.frame())
		m := read4(t, got)
		got, _ = ask(t, r, from6(guestLL, servers6, msg6(11)))
		options := read6(t, got).Options
		if have := fmt.Sprint(m.DNS(), options.DNS(), m.NTPServers(), options.NTPServers()); have != c.want {
			t.Errorf("%v: %s, want %s", c.dns.Servers, have, c.want)
		}
		_, ra := advertisement(t, r)
		for _, o := range ra.Options {
			if list, ok := o.(*ndp.RecursiveDNSServer); ok && fmt.Sprint(list.Servers) != fmt.Sprint(options.DNS()) {
				t.Errorf("the advertisement has %v, DHCPv6 %v", list.Servers, options.DNS())
			}
		}
		if n := strings.Count(strings.Join(r.warnings(), "\n"), "no route of the guest by eth0 leads to it"); n != 2+len(c.dns.Servers)-len(m.DNS())-len(options.DNS()) {
			t.Errorf("%v: %q", c.dns.Servers, r.warnings())
		}
	}
}

// RFC 1035 section 4.1.4, RFC 3397.
func TestEncodeNames(t *testing.T) {
	names := []string{"default.svc.cluster.local", "svc.Cluster.local", "other.cluster.local", "cluster.local"}
	want := []byte("\x07default\x03svc\x07cluster\x05local\x00\xc0\x08\x05other\xc0\x0c\xc0\x0c")
	if got := slices.Concat(served.SearchList(names)...); !bytes.Equal(got, want) {
		t.Errorf("compressed %q, want %q", got, want)
	}
	plain := encodeNames(names...)
	if bytes.ContainsAny(plain, "\xc0") {
		t.Errorf("not compressed %q", plain)
	}
	got, err := rfc1035label.FromBytes(plain)
	if err != nil || !slices.Equal(got.Labels, names) {
		t.Errorf("not compressed: %v, %v", got, err)
	}
}

// TestEncodeManyNames: pointers end with the first 255 octets, so that a list of any length can be read.
func TestEncodeManyNames(t *testing.T) {
	var names []string
	for i := range 1500 {
		names = append(names, fmt.Sprintf("zone-number-%d.of.net-%d", i, i/2))
	}
	wire := served.List(119, served.SearchList(names))
	if len(wire) < 1<<14 {
		t.Fatalf("%d octets prove nothing", len(wire))
	}
	checkNames(t, wire, names)
}

// checkNames checks that both kinds of clients read the names from the parts of an option: those that join the parts,
// and those that read each by itself.
func checkNames(t *testing.T, wire []byte, names []string) {
	t.Helper()
	var joined []byte
	var each []string
	for _, part := range parts4(t, wire, 119) {
		joined = append(joined, part...)
		each = append(each, expand(t, part)...)
	}
	same := func(list []string) bool { return slices.EqualFunc(list, names, strings.EqualFold) }
	if got := expand(t, joined); !same(got) {
		t.Fatalf("joined, the parts of %q are %q", names, got)
	}
	if !same(each) {
		t.Fatalf("one by one, the parts of %q are %q", names, each)
	}
}

// FuzzNames: New accepts every search list, and another library reads the same names from the options.
func FuzzNames(f *testing.F) {
	for _, s := range []string{".", "cluster.local.", "a..b", strings.Repeat("x", 64), "ä", "A.b a.B", "1.2 _x.y", "b a.b c.a.b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		res := newResolver(cache.DNS{Search: strings.Split(text, " ")}, &cache.Record{})
		for _, name := range res.search {
			if err := syntax.CheckName(name, syntax.MaxName); err != nil {
				t.Fatalf("%q: %v", name, err)
			}
		}
		if len(res.search) == 0 {
			return
		}
		got, err := rfc1035label.FromBytes(encodeNames(res.search...))
		if err != nil || !slices.Equal(got.Labels, res.search) {
			t.Fatalf("%q became %v, %v", res.search, got, err)
		}
		checkNames(t, served.List(119, served.SearchList(res.search)), res.search)
	})
}

// expand decodes compressed names.
func expand(t *testing.T, b []byte) []string {
	t.Helper()
	got, err := rfc1035label.FromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	return got.Labels
}

// TestSubdomain: the guest's own domain follows the search list of a resolv.conf, in each of the protocols.
func TestSubdomain(t *testing.T) {
	rec := newRecord()
	rec.Options.Hostname, rec.Options.Subdomain = "vm1", "vms"
	r := newResponder(t, rec, resolvConf)
	check := func(domain string, want ...string) {
		t.Helper()
		got, _ := ask(t, r, client4{kind: discover}.frame())
		m := read4(t, got)
		if host, d := string(m.Options[12]), string(m.Options[15]); host != "vm1" || d != domain {
			t.Errorf("host name %q, domain %q, want vm1 and %q", host, d, domain)
		}
		var search []string
		if list := m.DomainSearch(); list != nil {
			search = list.Labels
		}
		if !slices.Equal(search, want) {
			t.Errorf("DHCPv4 search list %q, want %q", search, want)
		}
		got, _ = ask(t, r, from6(guestLL, servers6, msg6(11)))
		search = nil
		if list := read6(t, got).Options.DomainSearchList(); list != nil {
			search = list.Labels
		}
		if !slices.Equal(search, want) {
			t.Errorf("DHCPv6 search list %q, want %q", search, want)
		}
		_, ra := advertisement(t, r)
		search = nil
		for _, o := range ra.Options {
			if list, ok := o.(*ndp.DNSSearchList); ok {
				search = append(search, list.DomainNames...)
			}
		}
		if !slices.Equal(search, want) {
			t.Errorf("search list of the advertisement %q, want %q", search, want)
		}
	}
	check("vms.default.svc.cluster.local", "vms.default.svc.cluster.local", "default.svc.cluster.local", "svc.cluster.local", "cluster.local")
	for _, c := range []struct {
		search []string
		domain string
		want   []string
	}{
		{[]string{"other.example"}, "vms.other.example", []string{"vms.other.example", "other.example"}},
		{[]string{"vms.other.example", "other.example"}, "vms.other.example", []string{"vms.other.example", "other.example"}},
		{[]string{"other.example", "vms.other.example"}, "vms.other.example", []string{"vms.other.example", "other.example"}},
		{nil, "", nil},
	} {
		if err := r.Update(rec, cache.DNS{Servers: resolvConf.Servers, Search: c.search}); err != nil {
			t.Fatal(err)
		}
		check(c.domain, c.want...)
	}
}
