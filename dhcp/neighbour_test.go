package dhcp

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/ndp"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
)

func arp(op byte, sender cache.MAC, from, target netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, op}
	b = append(append(b, sender[:]...), from.AsSlice()...)
	b = append(append(b, make([]byte, 6)...), target.AsSlice()...)
	return ethernet(frame.Broadcast, guestMAC, header.ARPProtocolNumber, b)
}

// situation is a row of a table: what the guest sends, and the answer in words, or the reason why there is none.
type situation struct {
	name  string
	frame []byte
	want  string
	why   Reason
}

func situationsARP() []situation {
	const answer = "the gateway's MAC"
	own, gw := addr("10.244.1.7"), addr("169.254.1.1")
	return []situation{
		{"request for the gateway", arp(1, guestMAC, own, gw), answer, ""},
		{"probe for the gateway's address", arp(1, guestMAC, anyone, gw), answer, ""},
		{"padding after", append(arp(1, guestMAC, own, gw), make([]byte, 18)...), answer, ""},
		{"probe for the guest's own address", arp(1, guestMAC, anyone, own), "", otherTarget},
		{"announcement of the guest's own address", arp(1, guestMAC, own, own), "", otherTarget},
		{"request for another address", arp(1, guestMAC, own, addr("10.244.1.8")), "", otherTarget},
		{"a reply", arp(2, guestMAC, own, gw), "", otherProtocol},
		{"another sender", arp(1, gatewayMAC, own, gw), "", otherHardwareAddress},
		{"another hardware type", change(arp(1, guestMAC, own, gw), 15, 6), "", malformed},
		{"another source MAC", change(arp(1, guestMAC, own, gw), 11, 6), "", otherMAC},
		{"cut", arp(1, guestMAC, own, gw)[:41], "", malformed},
	}
}

// RFC 826; RFC 5227 for the probes.
func TestARP(t *testing.T) {
	r := newResponder(t, newRecord(), resolvConf)
	own, gw := addr("10.244.1.7"), addr("169.254.1.1")
	for _, c := range situationsARP() {
		got, answered := judge(t, r, c.name, c.frame, c.why)
		if !answered {
			continue
		}
		want := slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, 2}, gatewayMAC[:], gw.AsSlice(), guestMAC[:], c.frame[28:32])
		if !bytes.Equal(got.payload, want) || got.dstMAC != guestMAC || got.srcMAC != gatewayMAC {
			t.Errorf("%s: %x from %v to %v, want %x", c.name, got.payload, got.srcMAC, got.dstMAC, want)
		}
	}
	// The responder does not answer for the guest's own addresses, even if the record lists them.
	rec := newRecord()
	rec.Neighbours = []cache.Neighbour{{Address: own, MAC: gatewayMAC}, {Address: rec.IPv6.Address, MAC: gatewayMAC}, {Address: guestLL, MAC: gatewayMAC}}
	r = newResponder(t, rec, resolvConf)
	if _, silent := ask(t, r, arp(1, guestMAC, anyone, own)); !silent {
		t.Error("an answer for the guest's own IPv4 address")
	}
	for _, a := range []netip.Addr{rec.IPv6.Address, guestLL} {
		if _, silent := ask(t, r, solicitation(addr("::"), frame.SolicitedNode(a), a)); !silent {
			t.Errorf("an answer for the guest's own address %v", a)
		}
	}
}

func solicitation(src, dst, target netip.Addr, options ...byte) []byte {
	b := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	return icmp(src, dst, 255, append(b, options...))
}

func situationsNS() []situation {
	router, other, node := addr("fe80::1"), addr("fd00::53"), addr("ff02::1:ff00:1")
	slla := append([]byte{1, 1}, guestMAC[:]...)
	good := solicitation(guestLL, node, router, slla...)
	return []situation{
		{"for the router", good, "RSO fe80::1 to " + guestLL.String(), ""},
		{"for the router, from a global address", solicitation(addr("fd00:10:244::7"), node, router, slla...), "RSO fe80::1 to fd00:10:244::7", ""},
		{"unicast, as unreachability detection sends it", solicitation(guestLL, router, router), "RSO fe80::1 to " + guestLL.String(), ""},
		{"for a host", solicitation(guestLL, addr("ff02::1:ff00:53"), other, slla...), "SO fd00::53 to " + guestLL.String(), ""},
		{"duplicate address detection of a neighbour's address", solicitation(addr("::"), node, router), "RO fe80::1 to ff02::1", ""},
		{"the same with a nonce, RFC 7527", solicitation(addr("::"), node, router, 14, 1, 1, 2, 3, 4, 5, 6), "RO fe80::1 to ff02::1", ""},
		{"from ::, not to the solicited-node address", solicitation(addr("::"), addr("ff02::1"), router), "", malformed},
		{"from ::, with a link-layer option", solicitation(addr("::"), node, router, slla...), "", malformed},
		{"duplicate address detection of the own address", solicitation(addr("::"), addr("ff02::1:ff00:7"), addr("fd00:10:244::7")), "", otherTarget},
		{"for an address that is not listed", solicitation(guestLL, addr("ff02::1:ff00:99"), addr("fd00::99"), slla...), "", otherTarget},
		{"for a multicast", solicitation(guestLL, node, addr("ff02::1"), slla...), "", otherTarget},
		{"from a multicast", solicitation(addr("ff02::5"), node, router), "", badSource},
		{"an option of length 0", solicitation(guestLL, node, router, 1, 0, 0, 0, 0, 0, 0, 0), "", malformed},
		{"an option over the end", solicitation(guestLL, node, router, 1, 2, 0, 0, 0, 0, 0, 0), "", malformed},
		{"half an option", solicitation(guestLL, node, router, 1), "", malformed},
		{"hop limit 254", icmp(guestLL, node, 254, good[54:]), "", badHopLimit},
		{"code 1", icmp(guestLL, node, 255, append([]byte{135, 1}, good[56:]...)), "", malformed},
		{"wrong checksum", change(good, 56, good[56]+1), "", badChecksum},
		{"too short", icmp(guestLL, node, 255, good[54:54+23]), "", malformed},
		{"an advertisement", icmp(guestLL, node, 255, append([]byte{136}, good[55:]...)), "", otherProtocol},
		{"an echo request", icmp(guestLL, router, 255, append([]byte{128}, good[55:]...)), "", otherProtocol},
	}
}

// RFC 4861 sections 7.1.1 and 7.2.4.
func TestNeighbourSolicitation(t *testing.T) {
	r := newResponder(t, newRecord(), resolvConf)
	other := addr("fd00::53")
	for _, c := range situationsNS() {
		got, answered := judge(t, r, c.name, c.frame, c.why)
		if !answered {
			continue
		}
		m, err := ndp.ParseMessage(got.payload)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		na := m.(*ndp.NeighborAdvertisement)
		var flags strings.Builder
		for _, f := range []struct {
			set  bool
			name string
		}{{na.Router, "R"}, {na.Solicited, "S"}, {na.Override, "O"}} {
			if f.set {
				flags.WriteString(f.name)
			}
		}
		if text := fmt.Sprintf("%s %v to %v", &flags, na.TargetAddress, got.dst); text != c.want {
			t.Errorf("%s: %q, want %q", c.name, text, c.want)
		}
		mac, wantDst := gatewayMAC, guestMAC
		if na.TargetAddress == other {
			mac = responderMAC
		}
		if got.dst.IsMulticast() {
			wantDst = cache.MAC{0x33, 0x33, 0, 0, 0, 1}
		}
		lla, ok := na.Options[0].(*ndp.LinkLayerAddress)
		if !ok || lla.Direction != ndp.Target || !bytes.Equal(lla.Addr, mac[:]) || got.srcMAC != mac || got.dstMAC != wantDst || got.src != na.TargetAddress || got.hops != 255 {
			t.Errorf("%s: options %v, from %v %v to %v, hop limit %d", c.name, na.Options, got.srcMAC, got.src, got.dstMAC, got.hops)
		}
	}
}

func routerSolicitation(src netip.Addr, options ...byte) []byte {
	return icmp(src, addr("ff02::2"), 255, append([]byte{133, 0, 0, 0, 0, 0, 0, 0}, options...))
}

// advertisementTo begins the answer to a router solicitation, before its destination.
const advertisementTo = "advertisement to "

func situationsRS() []situation {
	slla := append([]byte{1, 1}, guestMAC[:]...)
	good := routerSolicitation(guestLL, slla...)
	return []situation{
		{"from a link-local address", good, advertisementTo + guestLL.String(), ""},
		{"without options", routerSolicitation(guestLL), advertisementTo + guestLL.String(), ""},
		{"from ::", routerSolicitation(addr("::")), advertisementTo + "ff02::1", ""},
		{"from ::, with a link-layer option", routerSolicitation(addr("::"), slla...), "", malformed},
		{"from a multicast", routerSolicitation(addr("ff02::1")), "", badSource},
		{"an option of length 0", routerSolicitation(guestLL, 1, 0), "", malformed},
		{"hop limit 64", icmp(guestLL, addr("ff02::2"), 64, good[54:]), "", badHopLimit},
		{"code 1", icmp(guestLL, addr("ff02::2"), 255, []byte{133, 1, 0, 0, 0, 0, 0, 0}), "", malformed},
		{"seven octets", icmp(guestLL, addr("ff02::2"), 255, []byte{133, 0, 0, 0, 0, 0, 0}), "", malformed},
		{"wrong checksum", change(good, 56, good[56]+1), "", badChecksum},
		{"an advertisement of the guest's", icmp(guestLL, addr("ff02::1"), 255, append([]byte{134}, make([]byte, 15)...)), "", otherProtocol},
	}
}

// RFC 4861 sections 6.1.1 and 6.2.6.
func TestRouterSolicitation(t *testing.T) {
	r := newResponder(t, newRecord(), resolvConf)
	slla := append([]byte{1, 1}, guestMAC[:]...)
	good := routerSolicitation(guestLL, slla...)
	for _, c := range situationsRS() {
		got, answered := judge(t, r, c.name, c.frame, c.why)
		if !answered {
			continue
		}
		mac, to := guestMAC, addr(strings.TrimPrefix(c.want, advertisementTo))
		if to.IsMulticast() {
			mac = cache.MAC{0x33, 0x33, 0, 0, 0, 1}
		}
		if got.dst != to || got.dstMAC != mac || got.src != addr("fe80::1") || got.srcMAC != gatewayMAC || got.hops != 255 || got.payload[0] != 134 {
			t.Errorf("%s: from %v %v to %v %v, hop limit %d, type %d", c.name, got.src, got.srcMAC, got.dst, got.dstMAC, got.hops, got.payload[0])
		}
	}
	rec := newRecord()
	rec.IPv6 = nil
	r = newResponder(t, rec, resolvConf)
	judge(t, r, "without IPv6", good, noIPv6)
}

func advertisement(t *testing.T, r *Responder) (reply, *ndp.RouterAdvertisement) {
	t.Helper()
	got, silent := ask(t, r, routerSolicitation(guestLL))
	if silent {
		t.Fatal("no advertisement")
	}
	m, err := ndp.ParseMessage(got.payload)
	if err != nil {
		t.Fatal(err)
	}
	return got, m.(*ndp.RouterAdvertisement)
}

// RFC 4861 section 4.2, RFC 4191, RFC 8106.
func TestRouterAdvertisement(t *testing.T) {
	lla := func(m cache.MAC) ndp.Option {
		return &ndp.LinkLayerAddress{Direction: ndp.Source, Addr: net.HardwareAddr(m[:])}
	}
	rdnss := &ndp.RecursiveDNSServer{Lifetime: 9000 * time.Second, Servers: []netip.Addr{addr("fd00:10:96::a")}}
	dnssl := &ndp.DNSSearchList{Lifetime: 9000 * time.Second, DomainNames: resolvConf.Search}
	for _, c := range []struct {
		name     string
		change   func(*cache.Record)
		dns      cache.DNS
		source   netip.Addr
		mac      cache.MAC
		lifetime time.Duration
		options  []ndp.Option
	}{
		{"a link-local gateway", func(*cache.Record) {}, resolvConf, addr("fe80::1"), gatewayMAC, 9000 * time.Second,
			[]ndp.Option{lla(gatewayMAC), ndp.NewMTU(1450), rdnss, dnssl}},
		{"no gateway", func(r *cache.Record) { r.IPv6.Router = nil }, cache.DNS{}, eui64.LinkLocal(responderMAC), responderMAC, 0,
			[]ndp.Option{lla(responderMAC), ndp.NewMTU(1450)}},
		{"a gateway that answers for itself, no default route", func(r *cache.Record) {
			r.IPv6.Router.MAC, r.IPv6.Router.Default = cache.MAC{}, false
			r.IPv6.Router.Routes = []netip.Prefix{prefix("fd00:96::/108"), prefix("fd00:1::/48"), prefix("::/0")}
		}, cache.DNS{}, addr("fe80::1"), responderMAC, 0,
			[]ndp.Option{ndp.NewMTU(1450),
				&ndp.RouteInformation{Prefix: addr("fd00:96::"), PrefixLength: 108, RouteLifetime: 9000 * time.Second},
				&ndp.RouteInformation{Prefix: addr("fd00:1::"), PrefixLength: 48, RouteLifetime: 9000 * time.Second},
				&ndp.RouteInformation{Prefix: addr("::"), PrefixLength: 0, RouteLifetime: 9000 * time.Second}}},
		{"prefixes on the link", func(r *cache.Record) {
			r.IPv6.OnLink = []netip.Prefix{prefix("fe80::/64"), prefix("fd00:10:244::/64")}
		}, cache.DNS{}, addr("fe80::1"), gatewayMAC, 9000 * time.Second,
			[]ndp.Option{lla(gatewayMAC), ndp.NewMTU(1450), &ndp.PrefixInformation{
				Prefix: addr("fd00:10:244::"), PrefixLength: 64, OnLink: true, ValidLifetime: ndp.Infinity, PreferredLifetime: ndp.Infinity}}},
		{"an MTU that IPv6 cannot have", func(r *cache.Record) { r.MTU = 1000 }, cache.DNS{}, addr("fe80::1"), gatewayMAC, 9000 * time.Second,
			[]ndp.Option{lla(gatewayMAC)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := newRecord()
			c.change(&rec)
			r := newResponder(t, rec, c.dns)
			got, ra := advertisement(t, r)
			if !ra.ManagedConfiguration || !ra.OtherConfiguration || ra.RouterLifetime != c.lifetime || ra.CurrentHopLimit != 64 {
				t.Errorf("%+v", ra)
			}
			if got.src != c.source || got.srcMAC != c.mac {
				t.Errorf("from %v %v, want %v %v", got.src, got.srcMAC, c.source, c.mac)
			}
			if g, w := describe(ra.Options), describe(c.options); g != w {
				t.Errorf("got  %s\nwant %s", g, w)
			}
			if w := r.warnings(); len(w) != 0 {
				t.Errorf("warnings %q", w)
			}
		})
	}
}

// RFC 4191 section 2.2: the preference of a default router. One with a lifetime of zero has none.
func TestRouterAdvertisementPreference(t *testing.T) {
	for preference, want := range map[int]ndp.Preference{-1: ndp.Low, 0: ndp.Medium, 1: ndp.High} {
		for _, isDefault := range []bool{true, false} {
			rec := newRecord()
			rec.IPv6.Router.Preference, rec.IPv6.Router.Default = preference, isDefault
			if !isDefault {
				want = ndp.Medium
			}
			if _, ra := advertisement(t, newResponder(t, rec, resolvConf)); ra.RouterSelectionPreference != want {
				t.Errorf("%d, default router %v: %v, want %v", preference, isDefault, ra.RouterSelectionPreference, want)
			}
		}
	}
}

func describe(options []ndp.Option) string {
	var b strings.Builder
	for _, o := range options {
		fmt.Fprintf(&b, "%T%+v ", o, o)
	}
	return b.String()
}

// RFC 8910 section 2.3.
func TestRouterAdvertisementPortal(t *testing.T) {
	for uri, fits := range map[string]bool{"https://portal.example/api": true, "https://" + strings.Repeat("p", 240): false} {
		rec := newRecord()
		rec.Options.CaptivePortal = uri
		r := newResponder(t, rec, resolvConf)
		got, _ := ask(t, r, routerSolicitation(guestLL))
		msg, err := ndp.ParseMessage(got.payload)
		if err != nil {
			t.Fatal(err)
		}
		there := slices.ContainsFunc(msg.(*ndp.RouterAdvertisement).Options, func(o ndp.Option) bool {
			portal, ok := o.(*ndp.CaptivePortal)
			return ok && portal.URI == uri
		})
		if there != fits || (len(r.warnings()) == 0) != fits {
			t.Errorf("%s is there: %v, warnings %v; want %v", uri, there, r.warnings(), fits)
		}
	}
}

// RFC 8781 section 4: the prefix, and a lifetime of zero at the end.
func TestRouterAdvertisementNAT64(t *testing.T) {
	for _, p := range []string{"64:ff9b::/96", "2001:db8:1:2::/64", "2001:db8::/32"} {
		rec := newRecord()
		rec.Options.NAT64 = prefix(p)
		r := newResponder(t, rec, resolvConf)
		_, ra := advertisement(t, r)
		last, err := ndp.ParseMessage(r.answers.Load().router.last)
		if err != nil {
			t.Fatal(err)
		}
		for lifetime, options := range map[time.Duration][]ndp.Option{9000 * time.Second: ra.Options, 0: last.(*ndp.RouterAdvertisement).Options} {
			if !slices.ContainsFunc(options, func(o ndp.Option) bool {
				is, ok := o.(*ndp.PREF64)
				return ok && is.Prefix == prefix(p) && is.Lifetime == lifetime
			}) {
				t.Errorf("%s, %v: %s", p, lifetime, describe(options))
			}
		}
	}
}

// Lists that are too long for an option (the library's limit is 248 octets), and for a packet.
func TestRouterAdvertisementLimits(t *testing.T) {
	rec := newRecord()
	var dns cache.DNS
	for i := range 20 {
		dns.Servers = append(dns.Servers, addr(fmt.Sprintf("fd00::%d", i+1)))
		dns.Search = append(dns.Search, fmt.Sprintf("zone-%02d.example.com", i))
	}
	r := newResponder(t, rec, dns)
	_, ra := advertisement(t, r)
	var servers []netip.Addr
	var names []string
	for _, o := range ra.Options {
		switch o := o.(type) {
		case *ndp.RecursiveDNSServer:
			servers = append(servers, o.Servers...)
		case *ndp.DNSSearchList:
			names = append(names, o.DomainNames...)
		}
	}
	if !slices.Equal(servers, dns.Servers) || !slices.Equal(names, dns.Search) || len(r.warnings()) != 0 {
		t.Errorf("servers %v, names %v, warnings %q", servers, names, r.warnings())
	}

	rec.MTU = 1280
	for i := range 200 {
		rec.IPv6.Router.Routes = append(rec.IPv6.Router.Routes, prefix(fmt.Sprintf("fd00:%x::/32", i+1)))
	}
	dns = cache.DNS{Search: []string{strings.Repeat(strings.Repeat("x", 59)+".", 4) + "example"}} // 247 octets
	r = newResponder(t, rec, dns)
	got, ra := advertisement(t, r)
	if n := len(got.frame) - 14; n > 1280 || n < 1240 {
		t.Errorf("a packet of %d octets, want 1240 to 1280", n)
	}
	if ra.RouterLifetime == 0 || len(r.warnings()) < 100 {
		t.Errorf("lifetime %v, %d warnings", ra.RouterLifetime, len(r.warnings()))
	}
}
