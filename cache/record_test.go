package cache

import (
	"bytes"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// full returns a record with a value in every field that masquerade has.
func full() Record {
	ip, pfx := netip.MustParseAddr, netip.MustParsePrefix
	return Record{
		Version: Version, Name: "eth0", Namespace: "1f3a9c02-4026532281-17", Binding: BindingMasquerade, Firewall: FirewallIPTablesNFT, Tap: "eth0-tap", Queues: 4,
		ResponderTap: "eth0-dhcp", ResponderMAC: MAC{2, 0, 0, 0, 0, 9}, MAC: MAC{2, 0, 0, 0, 0, 7}, MACs: []MAC{{2, 0, 0, 0, 0, 8}}, GatewayMAC: MAC{2, 0, 0, 0, 0, 1}, MTU: 1450,
		IPv4: &IPv4{
			Address: pfx("10.244.1.7/24"), Server: ip("10.244.1.1"),
			Routes:  []Route{{Destination: pfx("10.9.9.9/32")}, {Destination: pfx("0.0.0.0/0"), Gateway: ip("10.244.1.1")}},
			StandIn: ip("10.244.1.6"), Shared: true,
		},
		IPv6: &IPv6{
			Address: ip("fd00::7"), Others: []netip.Addr{ip("fd00::17"), ip("fd02::7")}, Deprecated: []netip.Addr{ip("fd02::7")}, Gateway: ip("fd00::1"), OnLink: []netip.Prefix{pfx("fd00::/64")},
			Delegated: []netip.Prefix{pfx("2001:db8:9::/56"), pfx("fd09::/64")},
			Router:    &Router{Address: ip("fe80::1"), MAC: MAC{2, 0, 0, 0, 0, 1}, Default: true, Preference: -1, Routes: []netip.Prefix{pfx("fd01::/48")}},
		},
		Neighbours: []Neighbour{{Address: ip("fe80::1"), MAC: MAC{2, 0, 0, 0, 0, 1}, Station: ip("fd00::1")}},
		Static:     fullStatic(),
		DNS:        &DNS{Servers: []netip.Addr{ip("10.96.0.10"), ip("fe80::53%eth0")}, Search: []string{"a.b"}},
		Resolver:   ip("127.0.0.11"),
		DNSProxy:   []netip.AddrPort{netip.MustParseAddrPort("10.0.2.1:15353"), netip.MustParseAddrPort("[fd10:0:2::1]:15353")},
		Options: Options{
			NoDefaultRoute: true,
			Hostname:       "vm1", Subdomain: "vms", LeaseSeconds: 3600, NTP: []netip.Addr{ip("10.96.0.11")}, TFTPServer: "10.96.0.12",
			BootFile: "pxelinux.0", BootFileURL: "http://boot/ipxe",
			CaptivePortal: "https://portal/api", IPv6OnlySeconds: 1800, NAT64: pfx("64:ff9b::/96"),
			DHCPv4: map[uint8]Data{224: "a", 254: "b", 43: "\x01\x02\xff", 250: "0x"}, DHCPv6: map[uint16]Data{17: "\x00\x01", 32: "\x00\x00\x0e\x10"},
		},
		Device: Device{
			Model: "virtio", Driver: "qemu", BootOrder: 1, ROM: "/usr/share/rom.bin", PCIAddress: "0000:01:00.0",
			ACPIIndex: 7, Alias: "ua-eth0", LinkState: "down",
		},
		Role: RoleStandby, Source: "1f3a9c02-4026532280-16", Turn: 1<<53 - 1,
		Limits: Limits{
			FromGuest: Limit{BitsPerSecond: 100_000_000_000, PacketsPerSecond: 10_000_000, BurstBytes: 1<<32 - 1, BurstPackets: 1<<32 - 1},
			ToGuest:   Shape{BitsPerSecond: 8000, BurstBytes: 240_000},
		},
		Losses:   []Loss{{Kind: "route", What: "10.0.0.0/8", Why: "a phrase", Keeps: BindingRouted}},
		Warnings: []string{"a sentence"},
	}
}

// fullStatic has every field, some in an address or a route of its own, as no route has them all.
func fullStatic() *Static {
	ip, pfx := netip.MustParseAddr, netip.MustParsePrefix
	return &Static{
		Addresses: []StaticAddress{
			{Address: pfx("10.244.1.7/24"), Broadcast: ip("10.244.1.255"), Scope: 253, NoPrefixRoute: true, Deprecated: true},
			{Address: pfx("fd00::7/128"), Peer: pfx("fd00::8/64")},
		},
		Routes: []StaticRoute{
			{Destination: pfx("10.9.9.9/32"), Table: 100, Scope: 253, Source: ip("10.244.1.7")},
			{Destination: pfx("10.66.0.0/16"), Type: "blackhole", Table: 254},
			{Destination: pfx("0.0.0.0/0"), Table: 100, Gateway: ip("fe80::1"), OnLink: true, Metric: 5, MTU: 1400},
			{Destination: pfx("fd02::/16"), Table: 254, From: pfx("fd00::/64"), Metric: 1024,
				Hops: []StaticHop{{Gateway: ip("fe80::1"), OnLink: true, Weight: 1}, {Weight: 256}}},
		},
		Rules:      []StaticRule{{Priority: 100, Table: 100, Source: pfx("10.244.1.7/32")}, {Priority: 0, Table: 100, IPv6: true}},
		Neighbours: []Neighbour{{Address: ip("fe80::1"), MAC: MAC{2, 0, 0, 0, 0, 1}}},
		Warnings:   []string{"a sentence"},
	}
}

func TestRoundTrip(t *testing.T) {
	records := direct()
	records["full"], records["least"] = full(), least()
	for name, r := range records {
		text, err := Encode(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		have, err := Decode(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(have, r) {
			t.Errorf("%s: %+v, want %+v", name, have, r)
		}
	}
}

// TestFull: full() has a value in every field, of lists in one item at least, so that a new field is in the tests that
// use it.
func TestFull(t *testing.T) {
	given := map[string]bool{}
	var check func(path string, v reflect.Value)
	check = func(path string, v reflect.Value) {
		given[path] = given[path] || !v.IsZero()
		switch {
		case v.Kind() == reflect.Pointer && !v.IsNil():
			check(path, v.Elem())
		case v.Kind() == reflect.Struct && v.Type().PkgPath() == reflect.TypeFor[Record]().PkgPath():
			for i := range v.NumField() {
				check(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case v.Kind() == reflect.Slice:
			for i := range v.Len() {
				check(path+"[]", v.Index(i))
			}
		}
	}
	check("", reflect.ValueOf(full()))
	for path, given := range given {
		if !given && !slices.Contains([]string{".Options.NoResponder", ".SRIOV", ".Passt", ".Slirp", ".Static.Neighbours[].Station"}, path) {
			t.Errorf("full()%s is zero", path)
		}
	}
}

// TestTorn: Decode refuses a record that is cut short, wherever it is cut.
func TestTorn(t *testing.T) {
	text, err := Encode(full())
	if err != nil {
		t.Fatal(err)
	}
	whole := len(bytes.TrimRight(text, "\n"))
	for n := range whole {
		if _, err := Decode(text[:n]); err == nil {
			t.Fatalf("Decode takes the first %d of %d octets", n, len(text))
		}
	}
	if _, err := Decode(text[:whole]); err != nil {
		t.Errorf("a record without its final newline: %v", err)
	}
}

// TestEdited: Decode refuses a record that was edited by hand and is wrong now, and says what is wrong.
func TestEdited(t *testing.T) {
	text, err := Encode(full())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from, to string
		words    string // separated by |
	}{
		{`"version": 1`, `"version": 2`, "version: 2, and this program reads 1: use the version of guestwire that wrote it"},
		{`"version": 1`, `"version": 0`, "version: 0: this is no record"},
		{`"version": 1`, `"version": -1`, "version: -1, and this program reads 1"},
		{`"weight": 256`, `"weight": 256, "via": 1`, "static.routes[3].hops[1].via: no such field"},
		{`"version": 1`, `"version": "1"`, "version: want a number"},
		{`"version": 1`, `"version": null`, "version"},
		{`"version": 1,`, ``, "version: missing"},
		{`"version": 1,`, `"version": 1, "version": 1,`, `"version" is given twice`},
		{`"mtu": 1450`, `"mtu": 1450, "mtu": 1500`, `"mtu" is given twice`},
		{`"default": true`, `"default": true, "default": false`, `ipv6.router: field "default" is given twice`},
		{`"mtu": 1450`, `"mtv": 1450`, `mtv: no such field in this version: did you mean "mtu"?`},
		{`"mtu": 1450`, `"MTU": 1450`, `MTU: no such field in this version: did you mean "mtu"?`},
		{`"server":`, `"servers":`, `ipv4.servers: no such field in this version: did you mean "server"?`},
		{`"mtu": 1450`, `"mtu": "1450"`, "mtu: want a whole number, not a string"},
		{`"mtu": 1450`, `"mtu": 1450.5`, "mtu: want a whole number"},
		{`"mtu": 1450`, `"mtu": 1e99`, "mtu: want a whole number"},
		{`"mtu": 1450`, `"mtu": null`, "mtu: want a value"},
		{`"name": "eth0"`, `"name": ["eth0"]`, "name: want a string, not a list"},
		{`"mac": "02:00:00:00:00:07"`, `"mac": "2:0:0:0:0:7"`, "mac: MAC|want the form aa:bb:cc:dd:ee:ff"},
		{`"mac": "02:00:00:00:00:07"`, `"mac": "02:00:00:00:00:0g"`, "mac: MAC|want the form aa:bb:cc:dd:ee:ff"},
		{`"mac": "02:00:00:00:00:07"`, `"mac": 7`, "mac: "},
		{`"address": "10.244.1.7/24"`, `"address": "10.244.1.7"`, "ipv4.address: "},
		{`"address": "10.244.1.7/24"`, `"address": "10.244.1.7/33"`, "ipv4.address: "},
		{`"address": "10.244.1.7/24"`, `"address": ""`, "ipv4.address: "},
		{`"address": "fd00::7"`, `"address": "fd00::7/64"`, "ipv6.address: "},
		{`"default": true`, `"default": 1`, "ipv6.router.default: want true or false, not a number"},
		{`"leaseSeconds": 3600`, `"leaseSeconds": -1`, "options.leaseSeconds: "},
		{`"224": "a"`, `"256": "a"`, "options.dhcpv4.256: want a number"},
		{`"224": "a"`, `"0224": "a"`, "options.dhcpv4.0224: want a number"},
		{`"224": "a"`, `"254": "a"`, "options.dhcpv4: field \"254\" is given twice"},
		{`"43": "0x0102ff"`, `"43": "0x0102f"`, "options.dhcpv4.43: |hexadecimal"},
		{`"224": "a"`, `"53": "a"`, "options.dhcpv4.53: "},
		{`"224": "a"`, `"224": 1`, "options.dhcpv4.224: "},
		{`"bootOrder": 1`, `"bootOrder": -1`, "device.bootOrder: "},
		{`"warnings": [`, `"warnings": "none", "more": [`, "warnings: want a list"},
		{`"warnings": [`, `"warnings": null, "more": [`, "warnings: want a list"},
		{`"dhcpv4": {`, `"dhcpv4": null, "more": {`, "options.dhcpv4: want an object"},
		{`"queues": 4`, `"queues": 4 5`, "not a whole JSON object"},
	} {
		edited := strings.Replace(string(text), c.from, c.to, 1)
		if edited == string(text) {
			t.Fatalf("%s is not in the record", c.from)
		}
		r, err := Decode([]byte(edited))
		if err == nil {
			t.Errorf("%s: no error: %+v", c.to, r)
			continue
		}
		for word := range strings.SplitSeq(c.words, "|") {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q does not say %q", c.to, err, word)
			}
		}
	}
}

// TestForeign: Decode refuses documents that are no records.
func TestForeign(t *testing.T) {
	for text, word := range map[string]string{
		``:                                       "not a whole JSON object",
		`null`:                                   "version: missing",
		`[]`:                                     "not a whole JSON object (cut short, or no record): it is a JSON array",
		`"eth0"`:                                 "not a whole JSON object",
		`{}`:                                     "version: missing",
		`{"version":1}`:                          "name: ",
		`{"cniVersion":"1.0.0","interfaces":[]}`: "version: missing",
		`{"version":1} {}`:                       "not a whole JSON object",
		"\xef\xbb\xbf{}":                         "not a whole JSON object",
		"nonsense":                               "not a whole JSON object",
		`{"version":6,"interfaces":[{"new":true}]}`: "version: 6, and this program reads 1",
	} {
		if r, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q: %+v, %v, want an error with %q", text, r, err, word)
		}
	}
}

func TestMAC(t *testing.T) {
	m, err := ParseMAC("0A:58:0a:f4:01:07")
	if err != nil {
		t.Fatal(err)
	}
	if have := m.String(); have != "0a:58:0a:f4:01:07" {
		t.Errorf("String: %s", have)
	}
	if !m.Unicast() || m.IsZero() || (MAC{}).Unicast() || !(MAC{}).IsZero() || (MAC{1}).Unicast() {
		t.Error("Unicast or IsZero")
	}
	for _, bad := range []string{
		"", "0a", "0a:58:0a:f4:01", "0a:58:0a:f4:01:07:08", "0a-58-0a-f4-01-07", "0a580af40107", "a:58:0a:f4:01:07", "0a:58:0a:f4:01:+7", "0a:58:0a:f4:01:0g",
		"0a:58:0a:f4:01:", "0a:58:0a:f4:01:0007", "0a58:0a58:0a58:0a58:0a58:0a58", " 0a:58:0a:f4:01:07",
	} {
		if m, err := ParseMAC(bad); err == nil || !strings.Contains(err.Error(), "want the form") || !m.IsZero() {
			t.Errorf("ParseMAC(%q): %v, %v", bad, m, err)
		}
	}
}

// FuzzText: the text of a MAC, and of an option's data, is read as the same value again.
func FuzzText(f *testing.F) {
	for _, text := range []string{"", "0a:58:0A:f4:01:07", "0x", "0x00ff", "0xF", "0X41", "text", "a\x00b", "\xff"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var mac, sameMAC MAC
		if err := mac.UnmarshalText(text); err == nil {
			if err := sameMAC.UnmarshalText([]byte(mac.String())); err != nil || sameMAC != mac || !strings.EqualFold(mac.String(), string(text)) {
				t.Fatalf("%q was read as %v, and that as %v, %v", text, mac, sameMAC, err)
			}
		} else if !mac.IsZero() {
			t.Fatalf("%q was refused, and the MAC became %v", text, mac)
		}
		var data, sameData Data
		if err := data.UnmarshalText(text); err == nil {
			if err := sameData.UnmarshalText([]byte(data.String())); err != nil || sameData != data {
				t.Fatalf("%q was read as %q, and %s as %q, %v", text, string(data), data, string(sameData), err)
			}
		}
	})
}

// FuzzDecode: Decode does not panic, and a record that it returns is the same after Encode and Decode.
func FuzzDecode(f *testing.F) {
	direct := direct()
	for _, r := range []Record{full(), least(), direct[BindingMacvtap], direct[BindingSRIOV], direct[BindingPasst], direct[BindingSlirp]} {
		text, err := Encode(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"version":1,"name":"e","binding":"bridge","tap":"t","queues":1,"mac":"02:00:00:00:00:07","mtu":68,` +
		`"ipv4":null,"dns":{"servers":["::ffff:1.2.3.4%a"]},"neighbours":[],"options":{"dhcpv4":{},"dhcpv6":{"65535":"0x"}},"warnings":["\ud800\u2028<"]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Decode(text)
		if err != nil {
			return
		}
		written, err := Encode(r)
		if err != nil {
			t.Fatalf("decoded, but cannot be encoded: %v", err)
		}
		again, err := Decode(written)
		if err != nil {
			t.Fatalf("encoded, but cannot be decoded: %v\n%s", err, written)
		}
		if dropEmpty(reflect.ValueOf(&r)); !reflect.DeepEqual(r, again) {
			t.Fatalf("%+v was written and became %+v", r, again)
		}
	})
}

// dropEmpty makes empty lists and maps nil, as Encode leaves them out.
func dropEmpty(v reflect.Value) {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		dropEmpty(v.Elem())
	case v.Kind() == reflect.Struct && v.Type().PkgPath() == reflect.TypeFor[Record]().PkgPath():
		for i := range v.NumField() {
			dropEmpty(v.Field(i))
		}
	case (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0:
		v.SetZero()
	}
}

// TestAnnounces: a guest that shares the MAC of its next hop is not announced, as answers in the next hop's name would
// leave as well.
func TestAnnounces(t *testing.T) {
	guest, other := MAC{2, 0, 0, 0, 0, 7}, MAC{2, 0, 0, 0, 0, 1}
	for name, c := range map[string]struct {
		change func(*Record)
		want   bool
	}{
		"bridge":                        {func(*Record) {}, true},
		"redirect":                      {func(r *Record) { r.Binding = BindingRedirect }, true},
		"masquerade":                    {func(r *Record) { r.Binding = BindingMasquerade }, false},
		"routed":                        {func(r *Record) { r.Binding = BindingRouted }, false},
		"no responder":                  {func(r *Record) { r.ResponderTap = "" }, false},
		"another neighbour":             {func(r *Record) { r.Neighbours = []Neighbour{{MAC: other}} }, true},
		"a next hop with its MAC":       {func(r *Record) { r.Neighbours = []Neighbour{{MAC: other}, {MAC: guest}} }, false},
		"a router":                      {func(r *Record) { r.IPv6 = &IPv6{Router: &Router{MAC: other}} }, true},
		"a router with its MAC":         {func(r *Record) { r.IPv6 = &IPv6{Router: &Router{MAC: guest}} }, false},
		"a router whose MAC is unknown": {func(r *Record) { r.IPv6 = &IPv6{Router: &Router{}} }, true},
	} {
		r := Record{Version: Version, Binding: BindingBridge, ResponderTap: "eth0-dhcp", MAC: guest}
		c.change(&r)
		if have := r.Announces(); have != c.want {
			t.Errorf("%s: %v", name, have)
		}
	}
}

// TestSearch: the guest's own domain is made of the first search domain, and comes first.
func TestSearch(t *testing.T) {
	for _, c := range []struct {
		subdomain string
		domains   []string
		want      []string
	}{
		{"", []string{"ns.svc.cluster.local", "svc.cluster.local"}, []string{"ns.svc.cluster.local", "svc.cluster.local"}},
		{"vms", []string{"ns.svc.cluster.local", "svc.cluster.local"}, []string{"vms.ns.svc.cluster.local", "ns.svc.cluster.local", "svc.cluster.local"}},
		{"a.b", []string{"example."}, []string{"a.b.example.", "example."}},
		{"vms", nil, nil},
		{"vms", []string{".", ""}, []string{".", ""}},
		{"vms", []string{".", "example"}, []string{"vms.example", ".", "example"}},
		{"vms", []string{"VMs.ns.svc", "ns.svc"}, []string{"VMs.ns.svc", "ns.svc"}}, // the network's owner has put it there
		{"vms", []string{"vmsx.example"}, []string{"vms.vmsx.example", "vmsx.example"}},
	} {
		o := Options{Subdomain: c.subdomain}
		before := slices.Clone(c.domains)
		if have := o.Search(c.domains); !slices.Equal(have, c.want) || !slices.Equal(c.domains, before) {
			t.Errorf("%q and %q: %q, want %q", c.subdomain, before, have, c.want)
		}
	}
}
