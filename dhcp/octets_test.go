package dhcp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/test/golden"
)

// manyOptions is a record with each option that a record can have, lists of which some need several parts, and an MTU
// for all of them.
func manyOptions() (cache.Record, cache.DNS) {
	rec := severalRecord()
	rec.MTU = 9000
	rec.IPv6.Deprecated = rec.IPv6.Others[:1]
	rec.IPv4.Address = prefix("10.244.1.7/23")
	rec.IPv4.Server, rec.IPv4.Routes = addr("10.244.0.1"), []cache.Route{{Destination: prefix("0.0.0.0/0"), Gateway: addr("10.244.0.1")}}
	rec.IPv6.OnLink = []netip.Prefix{prefix("fd00:10:244::/64")}
	rec.IPv6.Router.Routes = []netip.Prefix{prefix("fd00:8::/45"), prefix("fd00:9::1/128")}
	rec.Options = cache.Options{
		Hostname: "vm1", LeaseSeconds: 3601, TFTPServer: "pxe.example", BootFile: "boot/x.ipxe", BootFileURL: "tftp://[fd00::1]/x",
		CaptivePortal: "https://portal.example/api", IPv6OnlySeconds: 1800, NAT64: prefix("64:ff9b::/96"),
		DHCPv4: map[uint8]cache.Data{43: "\x01\x02\x00\xff", 224: cache.Data(strings.Repeat("p", 300)), 225: ""},
		DHCPv6: map[uint16]cache.Data{17: "\x00\x00\x00\x09", 32: "\x00\x00\x0e\x10", 65001: ""},
	}
	dns := cache.DNS{Search: []string{"A.example", "b.a.example.", strings.Repeat("l", 63) + ".example"}}
	for i := range 40 {
		bits := []int{24, 32, 16, 25, 12, 9, 8}[i%7]
		to := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + i), byte(3 * i), byte(i), byte(i)}), bits).Masked()
		rec.IPv4.Routes = append([]cache.Route{{Destination: to, Gateway: addr("10.244.0.9")}}, rec.IPv4.Routes...)
		dns.Search = append(dns.Search, fmt.Sprintf("zone-%d.of.net-%d", i, i/2))
	}
	rec.IPv4.Routes = append([]cache.Route{{Destination: prefix("192.168.7.0/25")}}, rec.IPv4.Routes...)
	for i := range byte(70) {
		dns.Servers = append(dns.Servers, netip.AddrFrom4([4]byte{192, 0, 2, i}), netip.AddrFrom16([16]byte{0xfd, 15: i}))
		rec.Options.NTP = append(rec.Options.NTP, netip.AddrFrom4([4]byte{192, 0, 3, i}), netip.AddrFrom16([16]byte{0xfd, 14: 1, 15: i}))
	}
	return rec, dns
}

// TestOctets: the octets of each option, of a record with few and of one with all of them.
func TestOctets(t *testing.T) {
	few := newRecord()
	all, dns := manyOptions()
	cid, sid := tlv(1, clientDUID), tlv(2, serverDUID)
	for _, c := range []struct {
		name string
		rec  cache.Record
		dns  cache.DNS
	}{{"few", few, resolvConf}, {"stand-in", withStandIn(), resolvConf}, {"all", all, dns}} {
		r := newResponder(t, c.rec, c.dns)
		asked := map[uint8][]byte{55: {1, 121, 249, 3, 6, 42, 15, 119, 12, 26, 28, 66, 67, 108, 114, 43, 224, 225}, 57: {255, 255}}
		var text strings.Builder
		for _, q := range []struct {
			name  string
			frame []byte
		}{
			{"DISCOVER, all options", client4{kind: discover, options: asked}.frame()},
			{"DISCOVER, no list", client4{kind: discover}.frame()},
			{"DISCOVER, a router and no routes", client4{kind: discover, options: map[uint8][]byte{55: {3}}}.frame()},
			{"REQUEST, another address", client4{kind: request, options: map[uint8][]byte{50: {10, 9, 9, 9}, 61: {1, 2}}}.frame()},
			{"SOLICIT", from6(guestLL, servers6, msg6(1, cid, iaNA(5), iaNA(6), tlv(4, make([]byte, 4))))},
			{"RENEW, another address", from6(guestLL, servers6, msg6(5, cid, sid, iaNA(5, iaAddr("fd00::9"))))},
			{"CONFIRM", from6(guestLL, servers6, msg6(4, cid, iaNA(5, iaAddr("fd00:10:244::7"))))},
			{"CONFIRM, another address", from6(guestLL, servers6, msg6(4, cid, iaNA(5, iaAddr("fd00::9"))))},
			{"INFORMATION-REQUEST", from6(guestLL, servers6, msg6(11))},
			{"router solicitation", routerSolicitation(guestLL)},
		} {
			got, _ := ask(t, r, q.frame)
			fmt.Fprintf(&text, "%s:\n", q.name)
			switch {
			case got.next == frame.ICMPv6:
				fmt.Fprintf(&text, "    %x\n", got.payload[:icmpLenRA])
				for o := range frame.Options(got.payload[icmpLenRA:]) {
					fmt.Fprintf(&text, "    %d: %x\n", o[0], o[2:])
				}
			case got.from == portServer6:
				for code, value := range options6(got.payload[headLen6:]).all() {
					fmt.Fprintf(&text, "    %d: %x\n", code, value)
				}
			default:
				for b := got.payload[fixedLen4:]; b[0] != 255; b = b[2+int(b[1]):] {
					fmt.Fprintf(&text, "    %d: %x\n", b[0], b[2:2+int(b[1])])
				}
			}
		}
		golden.Compare(t, "octets-"+c.name+".txt", text.String())
	}
}
