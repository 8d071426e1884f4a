package cache

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/syntax"
)

// least returns a record without the fields that can be left out.
func least() Record {
	return Record{Version: Version, Name: "eth0", Binding: BindingMasquerade, Tap: "eth0-tap", Queues: 1, MAC: MAC{2, 0, 0, 0, 0, 7}, MTU: 1500}
}

// direct returns a full record of each binding that has no responder.
func direct() map[Kind]Record {
	device := Device{BootOrder: 1, ROM: "/usr/share/rom.bin", PCIAddress: "0000:01:00.0", ACPIIndex: 7, Alias: "ua-eth0"}
	of := func(binding Kind, edit func(*Record)) Record {
		r := Record{
			Version: Version, Name: "eth0", Binding: binding, Queues: 1, MAC: MAC{2, 0, 0, 0, 0, 7}, MTU: 1450,
			Options: Options{NoResponder: true}, Device: device, Warnings: []string{"a sentence"},
		}
		edit(&r)
		return r
	}
	return map[Kind]Record{
		BindingMacvtap: of(BindingMacvtap, func(r *Record) { r.Tap, r.Queues, r.Device.Driver = "eth0", 4, "vhost" }),
		BindingSRIOV: of(BindingSRIOV, func(r *Record) {
			r.MTU, r.SRIOV = 0, &SRIOV{PCIAddress: "0000:03:10.1", VLAN: 42, Managed: true}
		}),
		BindingPasst: of(BindingPasst, func(r *Record) {
			r.Device.Driver = "qemu"
			r.Passt = &Passt{Forwards: []Forward{{"tcp", 80, 80, 8080}, {"udp", 1, 65535, 1}}, VhostUser: true}
		}),
		BindingSlirp: of(BindingSlirp, func(r *Record) {
			r.DNS = &DNS{Search: []string{"pod.example"}}
			r.Slirp = &Slirp{IPv4: netip.MustParsePrefix("10.0.2.0/24"), IPv6: netip.MustParsePrefix("fd10:0:2::/64"), Forwards: []Forward{{"tcp", 80, 80, 8080}}}
		}),
	}
}

// TestValidate: for each field with a bad value, the error names the field.
func TestValidate(t *testing.T) {
	ip, pfx := netip.MustParseAddr, netip.MustParsePrefix
	long := strings.Repeat("x", 256)
	for _, c := range []struct {
		field string
		spoil func(*Record)
	}{
		{"version", func(r *Record) { r.Version = 0 }},
		{"version", func(r *Record) { r.Version = Version + 1 }},
		{"name", func(r *Record) { r.Name = "" }},
		{"name", func(r *Record) { r.Name = "sixteencharacter" }},
		{"name", func(r *Record) { r.Name = "a/b" }},
		{"name", func(r *Record) { r.Name = "." }},
		{"name", func(r *Record) { r.Name = ".." }},
		{"name", func(r *Record) { r.Name = "eth0\n" }},
		{"name", func(r *Record) { r.Name = "eth 0" }},
		{"tap", func(r *Record) { r.Tap = "" }},
		{"tap", func(r *Record) { r.Tap = "ä" }},
		{"binding", func(r *Record) { r.Binding = "" }},
		{"binding", func(r *Record) { r.Binding = "vde" }},
		{"firewall", func(r *Record) { r.Firewall = "iptables" }},
		{"firewall", func(r *Record) { r.Binding = BindingBridge }},
		{"queues", func(r *Record) { r.Queues = 0 }},
		{"queues", func(r *Record) { r.Queues = syntax.MaxQueues + 1 }},
		{"mac", func(r *Record) { r.MAC = MAC{} }},
		{"mac", func(r *Record) { r.MAC[0] |= 1 }},
		{"mtu", func(r *Record) { r.MTU = syntax.MinMTU - 1 }},
		{"mtu", func(r *Record) { r.MTU = syntax.MaxMTU + 1 }},
		{"responderTap", func(r *Record) { r.ResponderTap = "a b" }},
		{"responderTap", func(r *Record) { r.ResponderTap = r.Tap }},
		{"responderTap", func(r *Record) { r.Options.NoResponder = true }},
		{"macs[0]", func(r *Record) { r.MACs = []MAC{r.MAC} }},
		{"macs[0]", func(r *Record) { r.MACs = []MAC{r.ResponderMAC} }},
		{"macs[0]", func(r *Record) { r.MACs = []MAC{r.GatewayMAC} }},
		{"macs[1]", func(r *Record) { r.MACs = []MAC{{2, 0, 0, 0, 0, 8}, {1}} }},
		{"responderMAC", func(r *Record) { r.ResponderMAC = MAC{} }},
		{"responderMAC", func(r *Record) { r.ResponderMAC = r.MAC }},
		{"responderMAC", func(r *Record) { r.ResponderMAC = MAC{1} }},
		{"ipv4.address", func(r *Record) { r.IPv4.Address = netip.Prefix{} }},
		{"ipv4.address", func(r *Record) { r.IPv4.Address = pfx("fd00::7/64") }},
		{"ipv4.address", func(r *Record) { r.IPv4.Address = pfx("224.0.0.1/24") }},
		{"ipv4.address", func(r *Record) { r.IPv4.Address = pfx("0.0.0.0/24") }},
		{"ipv4.address", func(r *Record) { r.IPv4.Address = pfx("255.255.255.255/24") }},
		{"ipv4.server", func(r *Record) { r.IPv4.Server = netip.Addr{} }},
		{"ipv4.server", func(r *Record) { r.IPv4.Server = ip("::1") }},
		{"ipv4.server", func(r *Record) { r.IPv4.Server = ip("169.254.75.1") }},
		{"ipv4.standIn", func(r *Record) { r.IPv4.StandIn = ip("10.244.1.8") }},
		{"ipv4.standIn", func(r *Record) { r.IPv4.StandIn = ip("fd00::6") }},
		{"options.ipv6OnlySeconds", func(r *Record) { r.IPv6 = nil }},
		{"ipv4.standIn", func(r *Record) { r.IPv4.Routes = r.IPv4.Routes[:1] }},
		{"ipv4.routes[1].destination", func(r *Record) { r.IPv4.Routes[1].Destination = netip.Prefix{} }},
		{"ipv4.routes[1].destination", func(r *Record) { r.IPv4.Routes[1].Destination = pfx("10.0.0.1/8") }},
		{"ipv4.routes[0].destination", func(r *Record) { r.IPv4.Routes[0].Destination = pfx("::/0") }},
		{"ipv4.routes[1].gateway", func(r *Record) { r.IPv4.Routes[1].Gateway = ip("fe80::1") }},
		{"ipv4.routes[1].gateway", func(r *Record) { r.IPv4.Routes[1].Gateway = ip("0.0.0.0") }},
		{"ipv4.routes[1].gateway", func(r *Record) { r.IPv4.Routes[1].Gateway = ip("10.9.9.10") }},
		{"ipv4.routes[0].gateway", func(r *Record) { r.IPv4.Address = pfx("10.244.1.7/32"); r.IPv4.Routes = r.IPv4.Routes[1:] }},
		{"ipv4.routes[0]", func(r *Record) { slices.Reverse(r.IPv4.Routes) }},
		{"ipv4.routes[1]", func(r *Record) { r.IPv4.Routes = append(r.IPv4.Routes, r.IPv4.Routes[1]) }},
		{"ipv4.routes[1]", func(r *Record) {
			r.IPv4.Routes[0].Gateway, r.IPv4.Routes[1].Destination, r.IPv4.Routes[1].Gateway = ip("10.244.1.9"), pfx("10.9.8.0/24"), netip.Addr{}
		}},
		{"ipv6.address", func(r *Record) { r.IPv6.Address = netip.Addr{} }},
		{"ipv6.address", func(r *Record) { r.IPv6.Address = ip("10.0.0.1") }},
		{"ipv6.address", func(r *Record) { r.IPv6.Address = ip("::ffff:10.0.0.1") }},
		{"ipv6.address", func(r *Record) { r.IPv6.Address = ip("fe80::1%eth0") }},
		{"ipv6.address", func(r *Record) { r.IPv6.Address = ip("ff02::1") }},
		{"ipv6.others[0]", func(r *Record) { r.IPv6.Others[0] = netip.Addr{} }},
		{"ipv6.others[1]", func(r *Record) { r.IPv6.Others[1] = ip("10.0.0.1") }},
		{"ipv6.others[1]", func(r *Record) { r.IPv6.Others[1] = ip("fe80::1%eth0") }},
		{"ipv6.others[0]", func(r *Record) { r.IPv6.Others[0] = r.IPv6.Address }},
		{"ipv6.others[1]", func(r *Record) { r.IPv6.Others[1] = r.IPv6.Others[0] }},
		{"ipv6.deprecated[0]", func(r *Record) { r.IPv6.Deprecated[0] = r.IPv6.Gateway }},
		{"ipv6.gateway", func(r *Record) { r.IPv6.Gateway = ip("10.0.0.1") }},
		{"ipv6.onLink[0]", func(r *Record) { r.IPv6.OnLink[0] = pfx("fd00::1/64") }},
		{"ipv6.onLink[0]", func(r *Record) { r.IPv6.OnLink[0] = pfx("10.0.0.0/8") }},
		{"ipv6.delegated[0]", func(r *Record) { r.IPv6.Delegated[0] = pfx("2001:db8:9::1/56") }},
		{"ipv6.delegated[0]", func(r *Record) { r.IPv6.Delegated[0] = pfx("10.0.0.0/8") }},
		{"ipv6.delegated[0]", func(r *Record) { r.IPv6.Delegated[0] = pfx("2001:db8:9::1/128") }},
		{"ipv6.delegated[1]", func(r *Record) { r.IPv6.Delegated[1] = pfx("fe80::/64") }},
		{"ipv6.router.address", func(r *Record) { r.IPv6.Router.Address = ip("fd00::1") }},
		{"ipv6.router.address", func(r *Record) { r.IPv6.Router.Address = ip("fe80::1%eth0") }},
		{"ipv6.router.address", func(r *Record) { r.IPv6.Router.Address = ip("169.254.1.1") }},
		{"ipv6.router.mac", func(r *Record) { r.IPv6.Router.MAC = MAC{1} }},
		{"ipv6.router.routes[0]", func(r *Record) { r.IPv6.Router.Routes[0] = pfx("fd01::1/48") }},
		{"neighbours[0].address", func(r *Record) { r.Neighbours[0].Address = netip.Addr{} }},
		{"neighbours[0].address", func(r *Record) { r.Neighbours[0].Address = ip("ff02::1") }},
		{"neighbours[0].mac", func(r *Record) { r.Neighbours[0].MAC = MAC{} }},
		{"neighbours[0].station", func(r *Record) { r.Neighbours[0].Station = ip("ff02::1") }},
		{"role", func(r *Record) { r.Role = "active" }},
		{"turn", func(r *Record) { r.Role, r.Turn = RoleInactive, 0 }},
		{"turn", func(r *Record) { r.Turn = 1 << 53 }},
		{"turn", func(r *Record) { r.Role, r.Turn = RoleActive, 1<<64-1 }},
		{"limits.fromGuest.bitsPerSecond", func(r *Record) { r.Limits.FromGuest.BitsPerSecond = 7999 }},
		{"limits.toGuest.bitsPerSecond", func(r *Record) { r.Limits.ToGuest.BitsPerSecond = 100_000_000_001 }},
		{"limits.fromGuest.packetsPerSecond", func(r *Record) { r.Limits.FromGuest.PacketsPerSecond = 10_000_001 }},
		{"limits.fromGuest.burstBytes", func(r *Record) { r.Limits.FromGuest.BurstBytes = 1 << 32 }},
		{"limits.fromGuest.burstBytes", func(r *Record) { r.Limits.FromGuest = Limit{BitsPerSecond: 8000, BurstBytes: 64535} }},
		{"limits.fromGuest.burstBytes", func(r *Record) { r.Limits.FromGuest = Limit{BurstBytes: 65536} }},
		{"limits.toGuest.burstBytes", func(r *Record) { r.Limits.ToGuest.BurstBytes = 240_001 }},
		{"limits.toGuest.burstBytes", func(r *Record) { r.Limits.ToGuest = Shape{BitsPerSecond: 100_000_000_000, BurstBytes: 1<<31 + 1} }},
		{"limits.toGuest.burstBytes", func(r *Record) { r.Limits.ToGuest = Shape{BurstBytes: 65536} }},
		{"limits.fromGuest.burstPackets", func(r *Record) { r.Limits.FromGuest.BurstPackets = 1 << 32 }},
		{"limits.fromGuest.burstPackets", func(r *Record) { r.Limits.FromGuest = Limit{BitsPerSecond: 8000, BurstPackets: 1} }},
		{"gatewayMAC", func(r *Record) { r.GatewayMAC = r.MAC }},
		{"resolver", func(r *Record) { r.Binding, r.Firewall, r.GatewayMAC = BindingBridge, "", MAC{} }},
		{"resolver", func(r *Record) { r.Resolver = netip.IPv6Loopback() }},
		{"dnsProxy[0]", func(r *Record) { r.DNSProxy[0] = netip.AddrPortFrom(r.DNSProxy[0].Addr(), 0) }},
		{"dnsProxy[0]", func(r *Record) {
			r.Binding, r.Firewall, r.GatewayMAC, r.Resolver = BindingBridge, "", MAC{}, netip.Addr{}
		}},
		{"resolver", func(r *Record) { r.Resolver = r.IPv4.Server }},
		{"gatewayMAC", func(r *Record) { r.GatewayMAC = MAC{1} }},
		{"gatewayMAC", func(r *Record) { r.Binding, r.Firewall = BindingBridge, "" }},
		{"static.addresses", func(r *Record) { r.Static.Addresses = nil }},
		{"static.addresses[0].address", func(r *Record) { r.Static.Addresses[0].Address = netip.Prefix{} }},
		{"static.addresses[0].address", func(r *Record) { r.Static.Addresses[0].Address = pfx("224.0.0.1/24") }},
		{"static.addresses[1].address", func(r *Record) { r.Static.Addresses[1].Address = pfx("fd00::7/64") }},
		{"static.addresses[1].address", func(r *Record) { r.Static.Addresses[1].Address = pfx("::ffff:10.0.0.1/128") }},
		{"static.addresses[1].peer", func(r *Record) { r.Static.Addresses[1].Peer = pfx("10.0.0.1/32") }},
		{"static.addresses[1].peer", func(r *Record) { r.Static.Addresses[1].Peer = pfx("ff02::1/64") }},
		{"static.addresses[0].broadcast", func(r *Record) { r.Static.Addresses[0].Broadcast = ip("fd00::1") }},
		{"static.addresses[1].broadcast", func(r *Record) { r.Static.Addresses[1].Broadcast = ip("10.0.0.255") }},
		{"static.routes[0].destination", func(r *Record) { r.Static.Routes[0].Destination = netip.Prefix{} }},
		{"static.routes[0].destination", func(r *Record) { r.Static.Routes[0].Destination = pfx("10.9.9.9/24") }},
		{"static.routes[0].table", func(r *Record) { r.Static.Routes[0].Table = 0 }},
		{"static.routes[0].table", func(r *Record) { r.Static.Routes[0].Table = 255 }},
		{"static.routes[1].type", func(r *Record) { r.Static.Routes[1].Type = "nat" }},
		{"static.routes[1].gateway", func(r *Record) { r.Static.Routes[1].Gateway = ip("10.0.0.1") }},
		{"static.routes[1].hops", func(r *Record) { r.Static.Routes[1].Hops = r.Static.Routes[3].Hops }},
		{"static.routes[2].gateway", func(r *Record) { r.Static.Routes[2].Gateway = ip("0.0.0.0") }},
		{"static.routes[0].onLink", func(r *Record) { r.Static.Routes[0].OnLink = true }},
		{"static.routes[2].mtu", func(r *Record) { r.Static.Routes[2].MTU = -1 }},
		{"static.routes[2].mtu", func(r *Record) { r.Static.Routes[2].MTU = 1<<20 + 1 }},
		{"static.routes[0].source", func(r *Record) { r.Static.Routes[0].Source = ip("fd00::7") }},
		{"static.routes[0].from", func(r *Record) { r.Static.Routes[0].From = pfx("10.0.0.0/8") }},
		{"static.routes[3].from", func(r *Record) { r.Static.Routes[3].From = pfx("fd00::1/64") }},
		{"static.routes[3].gateway", func(r *Record) { r.Static.Routes[3].Gateway = ip("fe80::1") }},
		{"static.routes[3].hops[0].gateway", func(r *Record) { r.Static.Routes[3].Hops[0].Gateway = ip("10.0.0.1") }},
		{"static.routes[3].hops[1].weight", func(r *Record) { r.Static.Routes[3].Hops[1].Weight = 257 }},
		{"static.routes[3].hops[1].weight", func(r *Record) { r.Static.Routes[3].Hops[1].Weight = 0 }},
		{"static.rules[0].table", func(r *Record) { r.Static.Rules[0].Table = 255 }},
		{"static.rules[0].source", func(r *Record) { r.Static.Rules[0].Source = pfx("10.244.1.7/24") }},
		{"static.rules[0].source", func(r *Record) { r.Static.Rules[0].IPv6 = true }},
		{"static.neighbours[0].address", func(r *Record) { r.Static.Neighbours[0].Address = netip.Addr{} }},
		{"static.neighbours[0].mac", func(r *Record) { r.Static.Neighbours[0].MAC = MAC{1} }},
		{"dns.servers[1]", func(r *Record) { r.DNS.Servers[1] = netip.Addr{} }},
		{"options.hostname", func(r *Record) { r.Options.Hostname = "a\x00b" }},
		{"options.hostname", func(r *Record) { r.Options.Hostname = long }},
		{"options.tftpServer", func(r *Record) { r.Options.TFTPServer = "a\nb" }},
		{"options.bootFile", func(r *Record) { r.Options.BootFile = "\xff" }},
		{"options.bootFileURL", func(r *Record) { r.Options.BootFileURL = long }},
		{"options.nat64", func(r *Record) { r.Options.NAT64 = pfx("64:ff9b::/80") }},
		{"options.nat64", func(r *Record) { r.Options.NAT64 = pfx("10.0.0.0/32") }},
		{"options.nat64", func(r *Record) { r.Options.NAT64 = netip.PrefixFrom(ip("64:ff9b::1"), 96) }},
		{"options.nat64", func(r *Record) { r.Options.NAT64 = pfx("2001:db8:0:0:100::/96") }},
		{"options.nat64", func(r *Record) { r.Options.NAT64 = pfx("ff0e::/96") }},
		{"options.nat64", func(r *Record) { r.Options.NAT64 = pfx("fe80::/64") }},
		{"options.nat64", func(r *Record) { r.Options.NAT64 = pfx("::/96") }},
		{"ipv6.router.preference", func(r *Record) { r.IPv6.Router.Preference = 2 }},
		{"options.ntp[0]", func(r *Record) { r.Options.NTP[0] = ip("0.0.0.0") }},
		{"dns.search[1]", func(r *Record) { r.DNS.Search = []string{"a.b.", "a-.b"} }},
		{"options.hostname", func(r *Record) { r.Options.Hostname = "my vm" }},
		{"options.hostname", func(r *Record) { r.Options.Hostname = "a..b" }},
		{"options.hostname", func(r *Record) { r.Options.Hostname = "vm." }},
		{"options.hostname", func(r *Record) { r.Options.Hostname = "vm-.example" }},
		{"options.subdomain", func(r *Record) { r.Options.Subdomain = "vms.-a" }},
		{"options.hostname", func(r *Record) { r.Options.Hostname = "-vm" }},
		{"options.subdomain", func(r *Record) { r.Options.Subdomain = "my vms" }},
		{"options.subdomain", func(r *Record) { r.Options.Subdomain = "vms." }},
		{"options.subdomain", func(r *Record) { r.Options.Subdomain = "a..b" }},
		{"options.subdomain", func(r *Record) { r.Options.Subdomain = strings.Repeat("x", 64) }},
		{"options.subdomain", func(r *Record) { r.Options.Subdomain = "a\nb" }},
		{"options.captivePortal", func(r *Record) { r.Options.CaptivePortal = "\n" }},
		{"options.dhcpv4.53", func(r *Record) { r.Options.DHCPv4 = map[uint8]Data{53: "a"} }},
		{"options.dhcpv4.121", func(r *Record) { r.Options.DHCPv4 = map[uint8]Data{121: "a"} }},
		{"options.dhcpv4.255", func(r *Record) { r.Options.DHCPv4 = map[uint8]Data{255: "a"} }},
		{"options.dhcpv4.224", func(r *Record) { r.Options.DHCPv4 = map[uint8]Data{224: Data(strings.Repeat("a", 1401))} }},
		{"options.dhcpv6.3", func(r *Record) { r.Options.DHCPv6 = map[uint16]Data{3: "a"} }},
		{"options.dhcpv6.600", func(r *Record) { r.Options.DHCPv6 = map[uint16]Data{600: Data(strings.Repeat("a", 1401))} }},
		{"device.model", func(r *Record) { r.Device.Model = "a'/>" }},
		{"device.driver", func(r *Record) { r.Device.Driver = "vfio" }},
		{"device.rom", func(r *Record) { r.Device.ROM = "rom.bin" }},
		{"device.rom", func(r *Record) { r.Device.ROM = "/rom\n" }},
		{"device.pciAddress", func(r *Record) { r.Device.PCIAddress = "01:00.0" }},
		{"device.pciAddress", func(r *Record) { r.Device.PCIAddress = "0000:01:20.0" }},
		{"device.alias", func(r *Record) { r.Device.Alias = "a b" }},
		{"device.linkState", func(r *Record) { r.Device.LinkState = "sideways" }},
	} {
		r := full()
		c.spoil(&r)
		err := r.Validate()
		var field *FieldError
		if !errors.As(err, &field) || field.Field != c.field || !strings.HasPrefix(err.Error(), c.field+": ") {
			t.Errorf("%v, want an error of %s", err, c.field)
		}
		if _, err := Encode(r); !errors.As(err, &field) {
			t.Errorf("%s: Encode of a bad record: %v, want a *FieldError", c.field, err)
		}
		// The same in a file that Encode has not checked.
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if have, err := Decode(text); !errors.As(err, &field) && c.field != "options.bootFile" { // JSON has no octet 0xff
			t.Errorf("%s: Decode of a bad record: %+v, %v, want a *FieldError", c.field, have, err)
		}
	}
}

// TestValidateDirect is TestValidate for the bindings without a responder.
func TestValidateDirect(t *testing.T) {
	const macvtap, sriov, passt, slirp = BindingMacvtap, BindingSRIOV, BindingPasst, BindingSlirp
	for _, c := range []struct {
		binding Kind
		field   string
		spoil   func(*Record)
	}{
		{macvtap, "tap", func(r *Record) { r.Tap = "" }},
		{macvtap, "tap", func(r *Record) { r.Tap = "eth0-tap" }},
		{macvtap, "mtu", func(r *Record) { r.MTU = 0 }},
		{macvtap, "queues", func(r *Record) { r.Queues = 0 }},
		{macvtap, "responderTap", func(r *Record) { r.ResponderTap = "eth0-dhcp" }},
		{macvtap, "ipv4", func(r *Record) { r.IPv4 = full().IPv4 }},
		{macvtap, "ipv6", func(r *Record) { r.IPv6 = full().IPv6 }},
		{macvtap, "neighbours", func(r *Record) { r.Neighbours = full().Neighbours }},
		{macvtap, "dns", func(r *Record) { r.DNS = &DNS{} }},
		{macvtap, "options", func(r *Record) { r.Options.Hostname = "vm1" }},
		{macvtap, "sriov", func(r *Record) { r.SRIOV = &SRIOV{} }},
		{macvtap, "passt", func(r *Record) { r.Passt = &Passt{} }},
		{macvtap, "firewall", func(r *Record) { r.Firewall = FirewallNFTables }},
		{sriov, "sriov", func(r *Record) { r.SRIOV = nil }},
		{sriov, "sriov.pciAddress", func(r *Record) { r.SRIOV.PCIAddress = "" }},
		{sriov, "sriov.pciAddress", func(r *Record) { r.SRIOV.PCIAddress = "03:10.1" }},
		{sriov, "sriov.vlan", func(r *Record) { r.SRIOV.VLAN = maxVLAN + 1 }},
		{sriov, "tap", func(r *Record) { r.Tap = "eth0" }},
		{sriov, "mtu", func(r *Record) { r.MTU = syntax.MinMTU - 1 }},
		{sriov, "queues", func(r *Record) { r.Queues = 2 }},
		{sriov, "dns", func(r *Record) { r.DNS = &DNS{} }},
		{sriov, "device.model", func(r *Record) { r.Device.Model = "virtio" }},
		{sriov, "device.driver", func(r *Record) { r.Device.Driver = "qemu" }},
		{macvtap, "limits", func(r *Record) { r.Limits.ToGuest.BitsPerSecond = 8000 }},
		{macvtap, "role", func(r *Record) { r.Role = RoleStandby }},
		{passt, "role", func(r *Record) { r.Role = RoleStandby }},
		{sriov, "device.linkState", func(r *Record) { r.Device.LinkState = "up" }},
		{passt, "passt", func(r *Record) { r.Passt = nil }},
		{passt, "dns", func(r *Record) { r.DNS = &DNS{} }},
		{passt, "slirp", func(r *Record) { r.Slirp = direct()[slirp].Slirp }},
		{slirp, "slirp", func(r *Record) { r.Slirp = nil }},
		{slirp, "slirp", func(r *Record) { r.Slirp = &Slirp{} }},
		{slirp, "slirp.ipv4", func(r *Record) { r.Slirp.IPv4 = netip.MustParsePrefix("10.0.2.0/28") }},
		{slirp, "slirp.ipv4", func(r *Record) { r.Slirp.IPv4 = netip.MustParsePrefix("10.0.2.1/24") }},
		{slirp, "slirp.ipv4", func(r *Record) { r.Slirp.IPv4 = netip.MustParsePrefix("fd10:0:2::/64") }},
		{slirp, "slirp.ipv6", func(r *Record) { r.Slirp.IPv6 = netip.MustParsePrefix("fd10:0:2::/96") }},
		{slirp, "slirp.ipv6", func(r *Record) { r.Slirp.IPv6 = netip.MustParsePrefix("10.0.2.0/24") }},
		{slirp, "slirp.forwards", func(r *Record) { r.Slirp.IPv4 = netip.Prefix{} }},
		{slirp, "slirp.forwards[0].protocol", func(r *Record) { r.Slirp.Forwards[0].Protocol = "sctp" }},
		{slirp, "dns.servers", func(r *Record) { r.DNS.Servers = []netip.Addr{netip.MustParseAddr("10.0.0.1")} }},
		{slirp, "tap", func(r *Record) { r.Tap = "eth0-tap" }},
		{slirp, "device.driver", func(r *Record) { r.Device.Driver = "vhost" }},
		{passt, "passt.forwards[1].protocol", func(r *Record) { r.Passt.Forwards[1].Protocol = "sctp" }},
		{passt, "passt.forwards[0].first", func(r *Record) { r.Passt.Forwards[0].First = 0 }},
		{passt, "passt.forwards[0].last", func(r *Record) { r.Passt.Forwards[0].Last = 79 }},
		{passt, "passt.forwards[0].guest", func(r *Record) { r.Passt.Forwards[0].Guest = 0 }},
		{passt, "passt.forwards[1].guest", func(r *Record) { r.Passt.Forwards[1].Guest = 2 }},
		{passt, "tap", func(r *Record) { r.Tap = "eth0-tap" }},
		{passt, "mtu", func(r *Record) { r.MTU = 0 }},
		{passt, "queues", func(r *Record) { r.Queues = 2 }},
		{passt, "options", func(r *Record) { r.Options.LeaseSeconds = 60 }},
		{passt, "device.driver", func(r *Record) { r.Device.Driver = "vhost" }},
	} {
		r := direct()[c.binding]
		c.spoil(&r)
		var field *FieldError
		if err := r.Validate(); !errors.As(err, &field) || field.Field != c.field {
			t.Errorf("%s: %v, want an error of %s", c.binding, err, c.field)
		}
	}
	r := least()
	r.SRIOV = direct()[sriov].SRIOV
	var field *FieldError
	if err := r.Validate(); !errors.As(err, &field) || field.Field != "sriov" {
		t.Errorf("%v, want an error of sriov", err)
	}
}
