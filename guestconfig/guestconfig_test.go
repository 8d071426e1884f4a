package guestconfig_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/guestconfig"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/records"
)

func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }
func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

var plain, sbr, terway, leased = records.Plain, records.SBR, records.Terway, records.Leased

// TestGolden compares the texts with testdata: some whole, of the others what differs from one of these.
func TestGolden(t *testing.T) {
	dns := records.DNS()
	var wanted []string
	text := func(records []cache.Record) string {
		g := guestconfig.Guest{Records: records, DNS: dns}
		var b strings.Builder
		show := func(format string, files guestconfig.Files, err error) {
			fmt.Fprintf(&b, "==== %s\n", format)
			if err != nil {
				fmt.Fprintln(&b, "error:", err)
			}
			for _, name := range slices.Sorted(maps.Keys(files.Contents)) {
				fmt.Fprintf(&b, "--- %s\n%s", name, files.Contents[name])
			}
			for _, w := range files.Warnings {
				fmt.Fprintln(&b, "warning:", w)
			}
		}
		files, err := guestconfig.NoCloud(g, guestconfig.Instance{ID: "vm1"})
		show("cloud-init", files, err)
		files, err = guestconfig.Networkd(g)
		show("networkd", files, err)
		for _, r := range records {
			line, warnings, err := guestconfig.KernelIP(r, dns, "eth0")
			show("kernel", guestconfig.Files{Contents: map[string]string{r.Name: line + "\n"}, Warnings: warnings}, err)
		}
		return b.String()
	}
	guests := records.Guests()
	bases := map[string]string{"subdomain": "lease", "lease-several": "lease"}
	for _, name := range []string{"two-nics", "terway", "calico", "metrics", "source-and-mtu", "ipv4-alone", "ipv6-alone"} {
		bases[name] = "plain"
	}
	for name, all := range guests {
		is := text(all)
		if base, ok := bases[name]; ok {
			is = "# " + base + ".txt, but:\n" + golden.Variant(text(guests[base]), is)
		}
		wanted = append(wanted, name+".txt")
		golden.Compare(t, name+".txt", is)
	}
	golden.Only(t, ".txt", wanted...)
}

// TestKernelMask: the netmask of each prefix length.
func TestKernelMask(t *testing.T) {
	for bits, want := range map[int]string{1: "128.0.0.0", 8: "255.0.0.0", 23: "255.255.254.0", 32: "255.255.255.255"} {
		r := plain()
		r.Static.Addresses[0].Address = netip.PrefixFrom(ip("10.244.1.7"), bits)
		r.Static.Routes = nil
		line, _, err := guestconfig.KernelIP(r, cache.DNS{}, "")
		if want := "ip=10.244.1.7:::" + want + ":::off"; line != want || err != nil {
			t.Errorf("%s, %v, want %s", line, err, want)
		}
	}
}

// TestRefused: what cannot be configured is an error that says why.
func TestRefused(t *testing.T) {
	nameless := plain()
	nameless.Static = nil
	spoiled := plain()
	spoiled.MTU = 1
	only6 := plain()
	only6.Static.Addresses = only6.Static.Addresses[1:]
	noCloud := func(i guestconfig.Instance, records ...cache.Record) error {
		_, err := guestconfig.NoCloud(guestconfig.Guest{Records: records}, i)
		return err
	}
	kernel := func(r cache.Record, device string) error {
		_, _, err := guestconfig.KernelIP(r, cache.DNS{}, device)
		return err
	}
	_, networkd := guestconfig.Networkd(guestconfig.Guest{})
	for _, c := range []struct {
		err   error
		words string
	}{
		{networkd, "networkd configuration of the guest: it has no record"},
		{noCloud(guestconfig.Instance{ID: "i"}, nameless), "cloud-init configuration of eth0: its record has no addresses"},
		{noCloud(guestconfig.Instance{}, plain()), "the instance has no ID"},
		{kernel(terway(), "eth0"), "kernel configuration of eth0: the gateway 169.254.1.1 is not in the network of 10.22.0.20/32"},
		{kernel(only6, "eth0"), "no IPv4 address"},
		{kernel(plain(), "a:b"), `"a:b" is no link's name`},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.words) {
			t.Errorf("%v, want %q", c.err, c.words)
		}
	}
	var field *cache.FieldError
	if err := noCloud(guestconfig.Instance{ID: "i"}, spoiled); !errors.As(err, &field) || field.Field != "mtu" {
		t.Errorf("%v, want a *cache.FieldError of mtu", err)
	}
}

// TestFlat: what a guest without routes gets, and which of the namespace's routes the warnings name.
func TestFlat(t *testing.T) {
	hop, server := ip("169.254.75.1"), ip("10.244.1.53") // on the link of a guest without a default route
	routed := plain()
	routed.Static, routed.Binding = nil, cache.BindingRouted
	routed.IPv4 = &cache.IPv4{Address: pfx("10.244.1.7/32"), Server: hop, StandIn: ip("10.244.1.6"), Routes: []cache.Route{
		{Destination: pfx("169.254.75.1/32")}, {Destination: pfx("10.244.0.0/16"), Gateway: hop}, {Destination: pfx("0.0.0.0/0"), Gateway: hop},
	}}
	unserved := routed
	unserved.IPv4 = &cache.IPv4{Address: routed.IPv4.Address, Server: hop, Routes: routed.IPv4.Routes}
	outside := terway()
	outside.IPv4 = &cache.IPv4{Address: pfx("10.22.0.20/32"), Server: ip("169.254.1.1"), StandIn: ip("10.22.0.21"), Routes: []cache.Route{
		{Destination: pfx("169.254.1.1/32")}, {Destination: pfx("0.0.0.0/0"), Gateway: ip("169.254.1.1")},
	}}
	alone := plain()
	alone.Static.Addresses, alone.Static.Routes = alone.Static.Addresses[:1], nil
	half := plain()
	for i, r := range half.Static.Routes {
		if r.Destination == pfx("0.0.0.0/0") {
			half.Static.Routes[i].Destination = pfx("0.0.0.0/1")
			other := half.Static.Routes[i]
			other.Destination = pfx("128.0.0.0/1")
			half.Static.Routes = append(half.Static.Routes, other)
			break
		}
	}
	ofLink := plain()
	ofLink.Static.Addresses = append([]cache.StaticAddress{{Address: pfx("169.254.7.7/32"), Scope: 253}}, ofLink.Static.Addresses...)
	ofLink.IPv4 = &cache.IPv4{Address: pfx("10.244.1.7/24"), Server: ip("10.244.1.1")}
	only6 := plain()
	only6.Static.Addresses = only6.Static.Addresses[1:]
	const v6, noRoute = "the address fd", "the route to ::/0 "
	for name, c := range map[string]struct {
		record   cache.Record
		want     string
		warnings []string // what each of them has
	}{
		"plain":            {plain(), "10.244.1.7/24 10.244.1.1", []string{v6, noRoute}},
		"halves":           {half, "10.244.1.7/24 10.244.1.1", []string{v6, noRoute}},
		"routed":           {routed, "10.244.1.7/31 10.244.1.6", []string{"the gateway 169.254.75.1 is replaced by 10.244.1.6"}},
		"routed, unserved": {unserved, "the gateway 169.254.75.1 is not in the network of 10.244.1.7/32", nil},
		"outside":          {outside, "10.22.0.20/31 10.22.0.21", []string{v6, "the gateway 169.254.1.1 is replaced by 10.22.0.21", noRoute, "neighbour 169.254.1.1", "neighbour fe80::1"}},
		"of the link":      {ofLink, "10.244.1.7/24 10.244.1.1", []string{"the address 169.254.7.7/32 is left out", v6, noRoute}},
		"no default route": {alone, "10.244.1.7/24 invalid IP", nil},
		"no IPv4":          {only6, "it has no IPv4 address", nil},
	} {
		f, err := guestconfig.FlatIPv4(c.record, cache.DNS{Servers: []netip.Addr{server}})
		have := fmt.Sprint(f.Address, f.Gateway)
		if err != nil {
			have = err.Error()
		} else if f.MTU != 1450 || !slices.Equal(f.DNS.Servers, []netip.Addr{server}) {
			t.Errorf("%s: %+v", name, f)
		}
		if !strings.Contains(have, c.want) || !slices.EqualFunc(f.Warnings, c.warnings, strings.Contains) {
			t.Errorf("%s: %s, %q; want %s, %q", name, have, f.Warnings, c.want, c.warnings)
		}
	}
}

// TestShared: a route that leads through no NIC, and a rule, are in the records of both NICs, and in the guest once.
func TestShared(t *testing.T) {
	a, b := plain(), sbr()
	refuses := cache.StaticRoute{Destination: pfx("10.66.0.0/16"), Type: "blackhole", Table: 254}
	rule := cache.StaticRule{Priority: 5, Table: 77}
	for _, s := range []*cache.Static{a.Static, b.Static} {
		s.Routes, s.Rules = append(s.Routes, refuses), append(s.Rules, rule)
	}
	g := guestconfig.Guest{Records: []cache.Record{a, b}}
	for range 2 { // the records are not changed
		for _, of := range []func() (guestconfig.Files, error){
			func() (guestconfig.Files, error) { return guestconfig.Networkd(g) },
			func() (guestconfig.Files, error) { return guestconfig.NoCloud(g, guestconfig.Instance{ID: "i"}) },
		} {
			files, err := of()
			if err != nil {
				t.Fatal(err)
			}
			all := strings.Join(slices.Collect(maps.Values(files.Contents)), "")
			for _, word := range []string{"blackhole", "77"} {
				if n := strings.Count(all, word); n != 1 {
					t.Errorf("%q is there %d times, want once:\n%s", word, n, all)
				}
			}
		}
	}
}

// TestQuoted: text of the launcher's is one line of ASCII, which each reader of YAML takes.
func TestQuoted(t *testing.T) {
	files, err := guestconfig.NoCloud(guestconfig.Guest{Records: []cache.Record{plain()}}, guestconfig.Instance{ID: "a\"\n\x7f\u0080\u2028😀", Hostname: "{b: c}"})
	if want := "instance-id: \"a\\\"\\n\\x7f\\u0080\\u2028\\U0001f600\"\nlocal-hostname: \"{b: c}\"\n"; err != nil || files.Contents["meta-data"] != want {
		t.Errorf("%q, %v, want %q", files.Contents["meta-data"], err, want)
	}
}

// TestWarns: each format says what it leaves out of a route.
func TestWarns(t *testing.T) {
	ptp := plain() // as CNI's plugin of that name creates it
	ptp.Static.Addresses[0].NoPrefixRoute = true
	ptp.Static.Routes = []cache.StaticRoute{
		{Destination: pfx("10.244.1.1/32"), Table: 254, Scope: 253},
		{Destination: pfx("10.244.1.0/24"), Table: 254, Gateway: ip("10.244.1.1"), Source: ip("10.244.1.7")},
		{Destination: pfx("0.0.0.0/0"), Table: 254, Gateway: ip("10.244.1.1"), MTU: 1400},
	}
	hops := plain()
	hops.Static.Routes = []cache.StaticRoute{{Destination: pfx("10.3.0.0/16"), Table: 254, Hops: []cache.StaticHop{{Weight: 1}, {Gateway: ip("10.244.1.2"), Weight: 5}}}}
	_, kernel, err := guestconfig.KernelIP(ptp, cache.DNS{Search: []string{"evil\n[Route]"}}, "")
	if err != nil {
		t.Fatal(err)
	}
	files, err := guestconfig.NoCloud(guestconfig.Guest{Records: []cache.Record{hops}}, guestconfig.Instance{ID: "i"})
	if err != nil {
		t.Fatal(err)
	}
	default6, err := guestconfig.NoCloud(guestconfig.Guest{Records: []cache.Record{plain()}}, guestconfig.Instance{ID: "i"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		have  []string
		words string
	}{
		{kernel, "the route to 10.244.1.0/24 of table 254 is left out"},
		{kernel, "the guest gets a route to 10.244.1.0/24, which the namespace does not have"},
		{kernel, `option search domain "evil\n[Route]": it has the label`},
		{kernel, "the MTU and the source of the default route are left out"},
		{files.Warnings, "the guest gets the first, on the link,"},
		{default6.Warnings, "for the IPv6 default route"},
	} {
		if !strings.Contains(strings.Join(c.have, "\n"), c.words) {
			t.Errorf("no warning has %q: %q", c.words, c.have)
		}
	}
}

// TestLostOnce: a server that the guest cannot reach is named once, also if Setup has named it as a loss, and as one.
func TestLostOnce(t *testing.T) {
	r := leased()
	r.Losses = []cache.Finding{{Kind: "server", What: "127.0.0.53", Why: "for the guest, that is the guest itself"}}
	r.DNS = &cache.DNS{Servers: []netip.Addr{ip("127.0.0.53"), ip("127.0.0.54")}}
	files, err := guestconfig.Networkd(guestconfig.Guest{Records: []cache.Record{r}})
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"127.0.0.53", "127.0.0.54"} {
		want := r.Name + ": lost: server " + server + ": for the guest, that is the guest itself"
		if named := strings.Count(strings.Join(files.Warnings, "\n"), server); named != 1 || !slices.Contains(files.Warnings, want) {
			t.Errorf("%s is named %d times: %q", server, named, files.Warnings)
		}
	}
}
