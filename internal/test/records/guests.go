package records

import (
	"net/netip"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
)

func addr(s string) netip.Addr  { return netip.MustParseAddr(s) }
func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// DNS is that of a node, for guests whose record has none.
func DNS() cache.DNS {
	return cache.DNS{Servers: []netip.Addr{addr("10.96.0.53")}, Search: []string{"node.example"}}
}

var gatewayMAC = cache.MAC{0xee, 0xff, 0xff, 0xff, 0xff, 0x14}

// static is a bridge's with this configuration, and the link-local address of its MAC.
func static(name string, last byte, s cache.Static) cache.Record {
	mac := cache.MAC{2, 0, 0, 0, 0, last}
	s.Addresses = append(s.Addresses, cache.StaticAddress{Address: netip.PrefixFrom(eui64.LinkLocal(mac), 64), Scope: 253})
	return cache.Record{
		Version: cache.Version, Name: name, Binding: cache.BindingBridge, Tap: name + "-tap", Queues: 1,
		ResponderTap: name + "-dhcp", ResponderMAC: cache.MAC{2, 0, 0, 0, 1, last}, MAC: mac, MTU: 1450, Static: &s,
	}
}

// Plain has one address of each family and default routes.
func Plain() cache.Record {
	return static("eth0", 7, cache.Static{
		Addresses: []cache.StaticAddress{{Address: pfx("10.244.1.7/24"), Broadcast: addr("10.244.1.255")}, {Address: pfx("fd00:244::7/64")}},
		Routes: []cache.StaticRoute{
			{Destination: pfx("0.0.0.0/0"), Table: 254, Gateway: addr("10.244.1.1")},
			{Destination: pfx("::/0"), Table: 254, Gateway: addr("fd00:244::1"), Metric: 1024},
		},
	})
}

// SBR is what CNI's plugin of that name makes of a second NIC.
func SBR() cache.Record {
	return static("net1", 8, cache.Static{
		Addresses: []cache.StaticAddress{
			{Address: pfx("10.26.0.10/24"), Broadcast: addr("10.26.0.255"), NoPrefixRoute: true}, {Address: pfx("fd00:26::10/64"), NoPrefixRoute: true},
		},
		Routes: []cache.StaticRoute{
			{Destination: pfx("10.26.0.0/24"), Table: 100, Source: addr("10.26.0.10"), Scope: 253},
			{Destination: pfx("fd00:26::/64"), Table: 101, Metric: 256},
			{Destination: pfx("10.27.0.0/16"), Table: 100, Gateway: addr("10.26.0.1")},
			{Destination: pfx("fd00:27::/32"), Table: 101, Gateway: addr("fd00:26::1"), Metric: 1024},
		},
		Rules: []cache.StaticRule{
			{Priority: 32765, Table: 100, Source: pfx("10.26.0.10/32")}, {Priority: 32765, Table: 101, Source: pfx("fd00:26::10/128"), IPv6: true},
		},
	})
}

func Terway() cache.Record {
	r := static("eth0", 7, cache.Static{
		Addresses: []cache.StaticAddress{{Address: pfx("10.22.0.20/32")}, {Address: pfx("fd00:22::20/128")}},
		Routes: []cache.StaticRoute{
			{Destination: pfx("0.0.0.0/0"), Table: 254, Gateway: addr("169.254.1.1"), OnLink: true},
			{Destination: pfx("::/0"), Table: 254, Gateway: addr("fe80::1"), OnLink: true, Metric: 1024},
		},
		Neighbours: []cache.Neighbour{{Address: addr("169.254.1.1"), MAC: gatewayMAC}, {Address: addr("fe80::1"), MAC: gatewayMAC}},
	})
	r.Neighbours = r.Static.Neighbours[:1]
	return r
}

// everything has each field, and what only some formats can say.
func everything() cache.Record {
	r := static("eth0", 7, cache.Static{
		Addresses: []cache.StaticAddress{
			{Address: pfx("10.244.1.7/24"), Scope: 253}, {Address: pfx("10.244.1.8/24"), Broadcast: addr("10.244.1.255"), Deprecated: true},
			{Address: pfx("10.1.1.7/32"), Peer: pfx("10.1.1.8/32")}, {Address: pfx("fd00::7/64")}, {Address: pfx("fd01::7/64")}, {Address: pfx("fe80::7/64"), Scope: 253},
		},
		Routes: []cache.StaticRoute{
			{Destination: pfx("10.66.0.0/16"), Type: "blackhole", Table: 254},
			{Destination: pfx("10.2.0.0/16"), Table: 254, Gateway: addr("fe80::1"), Metric: 7},
			{Destination: pfx("fd02::/48"), Table: 254, Gateway: addr("fd00::1"), From: pfx("fd00::/64"), Metric: 1024, MTU: 1400},
			{Destination: pfx("10.3.0.0/16"), Table: 254, Hops: []cache.StaticHop{{Gateway: addr("10.244.1.1"), Weight: 1}, {Gateway: addr("10.244.1.2"), Weight: 5}}},
			{Destination: pfx("10.4.0.0/16"), Table: 254, Hops: []cache.StaticHop{{Gateway: addr("10.9.9.1"), Weight: 1, OnLink: true}}},
			{Destination: pfx("0.0.0.0/0"), Table: 254, Gateway: addr("10.244.1.1")},
		},
		Rules:    []cache.StaticRule{{Priority: 0, Table: 254}, {Priority: 9, Table: 254, IPv6: true}},
		Warnings: []string{"a sentence of Phase1"},
	})
	r.DNS = &cache.DNS{Servers: []netip.Addr{addr("10.96.0.10"), addr("fe80::53%eth0"), addr("127.0.0.53"), addr("fe80::54%net1"), addr("10.244.1.8"), addr("::ffff:10.96.0.10"), addr("10.96.0.11"), addr("10.96.0.12")}, Search: []string{"pod.example.", ".", "Pod.example"}}
	r.Options.Hostname, r.Options.NTP = "vm1", []netip.Addr{addr("10.96.0.13"), addr("fd00::13"), addr("fd0f::13")}
	return r
}

// Leased is masquerade's: its configuration is that of the lease.
func Leased() cache.Record {
	return cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingMasquerade, Tap: "eth0-tap", Queues: 1, MAC: cache.MAC{2, 0, 0, 0, 0, 7}, MTU: 1500,
		IPv4: &cache.IPv4{Address: pfx("10.0.2.2/24"), Server: addr("10.0.2.1"), Routes: []cache.Route{{Destination: pfx("0.0.0.0/0"), Gateway: addr("10.0.2.1")}}},
		IPv6: &cache.IPv6{Address: addr("fd10:0:2::2"), OnLink: []netip.Prefix{pfx("fd10:0:2::/120")},
			Router: &cache.Router{Address: addr("fe80::1"), Default: true, Routes: []netip.Prefix{pfx("fd99::/48")}}},
		Neighbours: []cache.Neighbour{{Address: addr("fe80::1"), MAC: gatewayMAC}, {Address: addr("10.0.2.9"), MAC: gatewayMAC}},
		Warnings:   []string{"a sentence about the lease"},
	}
}

// Guests are the records of guests, by name.
func Guests() map[string][]cache.Record {
	return map[string][]cache.Record{
		"plain":      {Plain()},
		"two-nics":   {Plain(), SBR()},
		"terway":     {Terway()},
		"everything": {everything()},
		"lease":      {Leased()},
		"subdomain": {func() cache.Record {
			r := Leased()
			r.Options.Hostname, r.Options.Subdomain = "vm1", "vms"
			return r
		}()},
		"lease-several": {func() cache.Record { // of a NIC without ARP
			r := Leased()
			r.Binding = cache.BindingRedirect
			r.IPv6.Others = []netip.Addr{addr("fd10:0:2::3"), addr("2001:db8:1::7")}
			return r
		}()},
		"calico": {static("eth0", 7, cache.Static{
			Addresses: []cache.StaticAddress{{Address: pfx("10.244.1.7/32")}, {Address: pfx("fd00:244::7/128")}},
			Routes: []cache.StaticRoute{
				{Destination: pfx("169.254.1.1/32"), Table: 254, Scope: 253},
				{Destination: pfx("0.0.0.0/0"), Table: 254, Gateway: addr("169.254.1.1")},
				{Destination: pfx("::/0"), Table: 254, Gateway: addr("fe80::1"), Metric: 1024},
			},
		})},
		"metrics": {func() cache.Record {
			r := Plain()
			r.Static.Routes[0].Metric, r.Static.Routes[1].Metric = 50, 100
			return r
		}()},
		"source-and-mtu": {func() cache.Record {
			r := Plain()
			r.Static.Routes = append(r.Static.Routes, cache.StaticRoute{Destination: pfx("10.9.0.0/16"), Table: 254, Gateway: addr("10.244.1.9"), Source: addr("10.244.1.7"), MTU: 1400})
			return r
		}()},
		"ipv6-alone": {func() cache.Record {
			r := Plain()
			r.Static.Addresses = r.Static.Addresses[1:]
			r.Static.Routes = append(r.Static.Routes[1:], cache.StaticRoute{Destination: pfx("fd00:9::/64"), Table: 254, Metric: 7}, cache.StaticRoute{Destination: pfx("fd00:8::/64"), Table: 254, Gateway: addr("fe80::1"), Metric: 1024})
			return r
		}()},
		"ipv4-alone": {func() cache.Record {
			r := Plain()
			r.Static.Addresses = r.Static.Addresses[:1]
			r.Static.Routes = r.Static.Routes[:1]
			return r
		}()},
	}
}
