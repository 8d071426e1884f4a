package cache

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/eui64"
)

// unnoticed are the fields of a record that neither a guest nor a snapshot of its VMM has.
var unnoticed = []string{
	"version", "namespace", "binding", "firewall", "passt", "responderTap", "role", "source", "turn", "losses", "warnings",
}

// TestChanges: each field of the record is a change, but for those that a guest does not notice, and a new field has to
// be one of either.
func TestChanges(t *testing.T) {
	if have := Changes(full(), full()); len(have) > 0 {
		t.Errorf("the same record: %v", have)
	}
	none, all := Record{}, full()
	all.SRIOV = &SRIOV{PCIAddress: "0000:03:10.1"} // full has another binding
	all.Slirp = &Slirp{IPv4: netip.MustParsePrefix("10.0.2.0/24")}
	found := map[string]bool{}
	for _, c := range Changes(none, all) {
		field, _, _ := strings.Cut(c.Field, ".")
		found[field] = true
		if c.From != "" || c.To == "" {
			t.Errorf("from nothing: %+v", c)
		}
	}
	record := reflect.TypeFor[Record]()
	for i := range record.NumField() {
		field, _, _ := strings.Cut(record.Field(i).Tag.Get("json"), ",")
		if found[field] == slices.Contains(unnoticed, field) {
			t.Errorf("%s is a change: %v", field, found[field])
		}
	}
	local := all
	own := *all.Static
	own.Addresses = append(slices.Clone(own.Addresses), StaticAddress{Address: netip.PrefixFrom(eui64.LinkLocal(all.MAC), 64), Scope: 253})
	local.Static = &own
	if have := Changes(all, local); len(have) > 0 {
		t.Errorf("the link-local address of the MAC: %v", have)
	}
	back := Changes(all, none)
	for i, c := range Changes(none, all) {
		if back[i] != (Change{c.Field, c.To, c.From}) {
			t.Errorf("back: %+v, there: %+v", back[i], c)
		}
	}
}

func TestChangeText(t *testing.T) {
	ip, pfx := netip.MustParseAddr, netip.MustParsePrefix
	from, to := full(), full()
	to.MTU = 1400
	to.IPv4 = &IPv4{Address: pfx("10.244.2.9/24"), Server: from.IPv4.Server, Routes: from.IPv4.Routes, StandIn: from.IPv4.StandIn, Shared: true}
	to.IPv6 = nil
	to.DNS = &DNS{Servers: []netip.Addr{ip("10.96.0.11")}, Search: []string{}}
	to.Options.Hostname = ""
	to.Options.DHCPv4 = map[uint8]Data{}
	to.Namespace, to.Losses, to.Warnings, to.Role, to.Source, to.Turn = "", nil, nil, "", "", 0
	var have []string
	for _, c := range Changes(from, to) {
		have = append(have, c.String())
	}
	want := []string{
		"mtu: 1450 becomes 1400",
		"ipv4.address: 10.244.1.7/24 becomes 10.244.2.9/24",
		"ipv6.address: fd00::7 becomes nothing",
		`ipv6.others: ["fd00::17","fd02::7"] becomes nothing`,
		`ipv6.deprecated: ["fd02::7"] becomes nothing`,
		"ipv6.gateway: fd00::1 becomes nothing",
		`ipv6.onLink: ["fd00::/64"] becomes nothing`,
		`ipv6.delegated: ["2001:db8:9::/56","fd09::/64"] becomes nothing`,
		`ipv6.router: {"address":"fe80::1","mac":"02:00:00:00:00:01","default":true,"preference":-1,"routes":["fd01::/48"]} becomes nothing`,
		`dns.servers: ["10.96.0.10","fe80::53%eth0"] becomes ["10.96.0.11"]`,
		`dns.search: ["a.b"] becomes nothing`,
		"options.hostname: vm1 becomes nothing",
		`options.dhcpv4: {"224":"a","250":"0x3078","254":"b","43":"0x0102ff"} becomes nothing`,
	}
	if fmt.Sprint(have) != fmt.Sprint(want) {
		t.Errorf("have\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}
