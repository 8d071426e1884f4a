package dhcp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/mdlayher/ndp"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/served"
)

// withRoutes is newRecord's with further IPv4 routes.
func withRoutes(rec cache.Record, n int) cache.Record {
	v4 := *rec.IPv4
	v4.Routes = slices.Clone(v4.Routes)
	for i := range n {
		to := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100, byte(i), 0}), 24)
		v4.Routes = slices.Insert(v4.Routes, 1, cache.Route{Destination: to, Gateway: addr("169.254.1.1")})
	}
	rec.IPv4 = &v4
	return rec
}

// TestTooLong: what is said to be too long for a client is what the messages of that client get no answer about, and
// nothing else.
func TestTooLong(t *testing.T) {
	clients := map[string]string{"dhclient": "dhclient", "udhcpc": "udhcpc", "networkd": "systemd-networkd", "dhcpcd": "dhcpcd", "ipxe": "iPXE"}
	long := cache.DNS{Servers: resolvConf.Servers}
	for i := range 9 {
		long.Search = append(long.Search, strings.Repeat(string(rune('a'+i)), 60)+".example")
	}
	seen := map[string]int{}
	for _, rec := range []cache.Record{newRecord(), withStandIn()} {
		for n := range 200 {
			rec := withRoutes(rec, n)
			dns := []cache.DNS{{}, resolvConf, long}[n%3]
			if n%2 == 1 {
				rec.Options = cache.Options{LeaseSeconds: 60, Hostname: strings.Repeat("h", 60), TFTPServer: "192.0.2.1", BootFile: strings.Repeat("f", 200),
					NTP: []netip.Addr{addr("192.0.2.7")}, DHCPv4: map[uint8]cache.Data{43: cache.Data(make([]byte, 10*n%400))}}
			}
			res := newResolver(dns, &rec)
			losses := served.TooLong4(&rec, res.servers4, res.search)
			large := rec
			large.MTU = 60000
			r, whole := newResponder(t, rec, dns), newResponder(t, large, dns)
			for name, frames := range captures(t) {
				client := clients[strings.Split(name, "-")[0]]
				if client == "" || strings.HasPrefix(name, "udhcpc-debian") {
					continue
				}
				i := slices.IndexFunc(frames, func(f []byte) bool {
					return f[23] == frame.UDP && len(f) > udp4Len+fixedLen4+2 && f[37] == portServer4 && f[udp4Len+fixedLen4+2] == byte(discover)
				})
				if i < 0 {
					continue
				}
				options, ok := parseOptions4(frames[i][udp4Len+fixedLen4:])
				if !ok {
					t.Fatal(name)
				}
				got, _ := ask(t, r, frames[i])
				have := order4(t, got.payload)
				asked, _ := options.get(55)
				big := client4{kind: discover, options: map[uint8][]byte{55: asked, 57: {255, 255}}}
				got, _ = ask(t, whole, big.frame())
				for _, code := range order4(t, got.payload) {
					if !slices.Contains(asked, byte(code)) || code == 3 && slices.Contains(have, 121) {
						continue // RFC 3442: the client ignores the router
					}
					lost := slices.ContainsFunc(losses, func(l cache.Finding) bool {
						return strings.HasPrefix(l.What+" ", fmt.Sprintf("DHCPv4 option %d ", code)) && (strings.Contains(l.Why, client) || strings.HasSuffix(l.Why, "any client"))
					})
					if lost == slices.Contains(have, code) {
						t.Fatalf("%d routes: %s has the options %v, and the losses are %v", n, name, have, losses)
					}
					if lost {
						seen[client]++
					}
				}
			}
		}
	}
	if len(seen) != len(clients) {
		t.Errorf("losses of %v alone", seen)
	}
}

// TestTooMany6: what is said not to fit is what the messages do not have.
func TestTooMany6(t *testing.T) {
	for _, mtu := range []int{1279, 1280, 1450, 9000} {
		for _, n := range []int{0, 3, 24, 26, 40, 60, 300} {
			rec := newRecord()
			rec.MTU = mtu
			v6 := *rec.IPv6
			v6.OnLink, v6.Others = nil, nil
			router := *v6.Router
			router.Routes = nil
			if n%2 == 1 {
				router.MAC = cache.MAC{}
			}
			for i := range n {
				v6.Others = append(v6.Others, netip.AddrFrom16([16]byte{0xfd, 1, 14: byte(i >> 8), 15: byte(i)}))
				if i%4 == 0 {
					v6.OnLink = append(v6.OnLink, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 2, 6: byte(i >> 8), 7: byte(i)}), 64))
				}
				if i%3 == 0 {
					v6.Delegated = append(v6.Delegated, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 4, 6: byte(i >> 8), 7: byte(i)}), 64))
				}
				bits := []int{48, 80, 128}[i%3]
				router.Routes = append(router.Routes, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 3, 4: byte(i >> 8), 5: byte(i)}), bits))
			}
			v6.Router = &router
			rec.IPv6 = &v6
			var lost []string
			for _, l := range served.TooMany6(&rec) {
				lost = append(lost, l.What)
			}
			r := newResponder(t, rec, cache.DNS{})
			got, _ := ask(t, r, from6(guestLL, servers6, msg6(1, tlv(1, clientDUID), iaNA(1), iaPD(2))))
			leased := fmt.Sprint(read6(t, got).Options.OneIANA())
			delegated := outline(read6(t, got))
			for _, p := range v6.Delegated {
				if strings.Contains(delegated, " "+p.String()+"/inf") == slices.Contains(lost, "the prefix "+p.String()) {
					t.Fatalf("MTU %d, %d: %v of %s, lost %v", mtu, n, p, delegated, lost)
				}
			}
			for _, a := range v6.Addresses() {
				if strings.Contains(leased, "="+a.String()+" ") == slices.Contains(lost, a.String()) {
					t.Fatalf("MTU %d, %d: %v of %s, lost %v", mtu, n, a, leased, lost)
				}
			}
			_, ra := advertisement(t, r)
			var told []netip.Prefix
			for _, o := range ra.Options {
				switch o := o.(type) {
				case *ndp.PrefixInformation:
					told = append(told, netip.PrefixFrom(o.Prefix, int(o.PrefixLength)))
				case *ndp.RouteInformation:
					told = append(told, netip.PrefixFrom(o.Prefix, int(o.PrefixLength)))
				}
			}
			for _, p := range slices.Concat(v6.OnLink, router.Routes) {
				if slices.Contains(told, p) == slices.Contains(lost, p.String()) {
					t.Fatalf("MTU %d, %d: %v of %v, lost %v", mtu, n, p, told, lost)
				}
			}
		}
	}
}

// known has the losses that the plan found.
func known(rec cache.Record) cache.Record {
	rec.Losses = served.TooLong4(&rec, nil, nil)
	return rec
}

// TestUnsentWarnings: New warns of each value that is for a family without an address, and of what is too long.
func TestUnsentWarnings(t *testing.T) {
	all := cache.Options{
		Hostname: "vm1", TFTPServer: "192.0.2.1", BootFile: "f", BootFileURL: "tftp://[fd00::1]/f", NTP: []netip.Addr{addr("192.0.2.7"), addr("fd00::7")},
		CaptivePortal: "https://portal.example/api", DHCPv4: map[uint8]cache.Data{43: "a", 224: "b"}, DHCPv6: map[uint16]cache.Data{17: "a"},
	}
	dns := cache.DNS{Servers: []netip.Addr{addr("10.96.0.10"), addr("fd00::53"), addr("fd00::54")}, Search: []string{"a.example"}}
	long := cache.DNS{Servers: dns.Servers[:1]}
	for _, c := range "abcd" {
		long.Search = append(long.Search, strings.Repeat(string(c), 60)+".example")
	}
	only4, only6 := newRecord(), newRecord()
	only4.IPv6, only6.IPv4 = nil, nil
	own := newRecord()
	own.Losses = []cache.Finding{{Kind: "server", What: "127.0.0.1", Why: "for the guest, that is the guest itself"}}
	for _, c := range []struct {
		name    string
		rec     cache.Record
		options cache.Options
		dns     cache.DNS
		want    []string
	}{
		{"both", newRecord(), all, dns, nil},
		{"IPv4 alone", only4, all, dns, []string{"server fd00::53", "server fd00::54", "server fd00::7", "option bootFileURL", "option dhcpv6.17"}},
		{"IPv4 alone, resolvers of IPv6 alone", only4, cache.Options{}, cache.DNS{Servers: dns.Servers[1:2]}, []string{"server fd00::53"}},
		{"IPv6 alone", only6, all, dns, []string{"server 10.96.0.10", "server 192.0.2.7", "option hostname", "option tftpServer", "option bootFile", "option dhcpv4.43", "option dhcpv4.224"}},
		{"a long search list", newRecord(), cache.Options{}, long, []string{"option DHCPv4 option 119 (search domains)"}},
		{"a long search list, IPv4 alone", only4, cache.Options{}, long, []string{"option DHCPv4 option 119 (search domains)", "option part of DHCPv4 option 119 (search domains)"}},
		{"45 routes", withRoutes(newRecord(), 45), cache.Options{}, dns, []string{"option DHCPv4 option 121 (routes)"}},
		{"known losses", known(withRoutes(newRecord(), 45)), cache.Options{}, dns, nil},
		{"a known server, and another one", own, cache.Options{}, cache.DNS{Servers: []netip.Addr{addr("127.0.0.1"), addr("127.0.0.2")}}, []string{"server 127.0.0.2"}},
		{"180 routes", withRoutes(newRecord(), 180), cache.Options{}, dns, []string{"route DHCPv4 option 121 (routes)"}},
	} {
		c.rec.Options = c.options
		have := newResponder(t, c.rec, c.dns).warnings()
		if !slices.EqualFunc(have, c.want, func(w, begin string) bool { return strings.HasPrefix(w, "lost: "+begin+": ") }) {
			t.Errorf("%s: %q, want %q", c.name, have, c.want)
		}
	}
}
