package cache

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/longjson"
)

// TestOwnOptions: an option that the responder makes, or that belongs to the protocol, is refused in a
// configuration: a second one would contradict it. The codes are those of the fields of a record and of
// RFC 2132, 2131, 3442, 8910, 8925, and of RFC 8415, 3646, 5908, 8910 for DHCPv6.
func TestOwnOptions(t *testing.T) {
	own4 := []uint8{
		0, 255, // pad, end
		1, 3, 6, 12, 15, 26, 28, 42, // mask, router, DNS servers, hostname, domain, MTU, broadcast, NTP
		50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 61, // requested address to client identifier
		66, 67, 80, 82, 108, 114, 119, 121, 249, // TFTP server, boot file, rapid commit, relay, IPv6-only, portal, search list, routes
	}
	own6 := []uint16{
		1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 18, 19, 20, 25, 26, // identifiers, associations, status, relay, reconfiguration
		0, 23, 24, 31, 56, 59, 103, // none, DNS servers, search list, SNTP, NTP, boot file, portal
	}
	refused := func(o Options, field string) bool {
		err := o.Validate()
		var f *FieldError
		if err != nil && (!errors.As(err, &f) || !strings.HasPrefix(f.Field, field+".")) {
			t.Errorf("%v is not about %s", err, field)
		}
		return err != nil
	}
	for code := range 256 {
		want := slices.Contains(own4, uint8(code))
		if have := refused(Options{DHCPv4: map[uint8]Data{uint8(code): "x"}}, "dhcpv4"); have != want {
			t.Errorf("DHCPv4 option %d: refused %t, want %t", code, have, want)
		}
	}
	for code := range 65536 {
		want := slices.Contains(own6, uint16(code))
		if have := refused(Options{DHCPv6: map[uint16]Data{uint16(code): "x"}}, "dhcpv6"); have != want {
			t.Errorf("DHCPv6 option %d: refused %t, want %t", code, have, want)
		}
	}
}

// TestLimits: a record is accepted up to each limit, and no further.
func TestLimits(t *testing.T) {
	ip, pfx := netip.MustParseAddr, netip.MustParsePrefix
	for name, c := range map[string]struct {
		edit  func(*Record)
		field string // of the error; empty: accepted
	}{
		"name of 15":                {func(r *Record) { r.Name = "fifteencharacte" }, ""},
		"name of 16":                {func(r *Record) { r.Name = "sixteencharacter" }, "name"},
		"256 queues":                {func(r *Record) { r.Queues = 256 }, ""},
		"257 queues":                {func(r *Record) { r.Queues = 257 }, "queues"},
		"smallest MTU":              {func(r *Record) { r.MTU = 68 }, ""},
		"MTU of 67":                 {func(r *Record) { r.MTU = 67 }, "mtu"},
		"largest MTU":               {func(r *Record) { r.MTU = 65521 }, ""},
		"MTU of 65522":              {func(r *Record) { r.MTU = 65522 }, "mtu"},
		"nftables":                  {func(r *Record) { r.Firewall = FirewallNFTables }, ""},
		"iptables-nft":              {func(r *Record) { r.Firewall = FirewallIPTablesNFT }, ""},
		"iptables-legacy":           {func(r *Record) { r.Firewall = FirewallIPTablesLegacy }, ""},
		"no such server":            {func(r *Record) { r.IPv4.Server = ip("255.255.255.255") }, "ipv4.server"},
		"next hop that is a group":  {func(r *Record) { r.IPv4.Routes[1].Gateway = ip("224.0.0.1") }, "ipv4.routes[1].gateway"},
		"no network":                {func(r *Record) { r.IPv6.OnLink[0] = netip.Prefix{} }, "ipv6.onLink[0]"},
		"host bits":                 {func(r *Record) { r.IPv6.OnLink[0] = pfx("fd00::1/64") }, "ipv6.onLink[0]"},
		"no IPv6 router":            {func(r *Record) { r.IPv6.Router = nil }, ""},
		"IPv6 router without a MAC": {func(r *Record) { r.IPv6.Router.MAC = MAC{} }, ""},
		"option of 1400 octets":     {func(r *Record) { r.Options.DHCPv4[224] = Data(strings.Repeat("a", 1400)) }, ""},
		"option of 1401 octets":     {func(r *Record) { r.Options.DHCPv4[224] = Data(strings.Repeat("a", 1401)) }, "options.dhcpv4.224"},
		"text of 255 octets":        {func(r *Record) { r.Options.BootFile = strings.Repeat("a", 255) }, ""},
		"text of 256 octets":        {func(r *Record) { r.Options.BootFile = strings.Repeat("a", 256) }, "options.bootFile"},
		"last place in the boot":    {func(r *Record) { r.Device.BootOrder = 2147483647 }, ""},
		"after the last place":      {func(r *Record) { r.Device.BootOrder = 2147483648 }, "device.bootOrder"},
		"ACPI index of 16383":       {func(r *Record) { r.Device.ACPIIndex = 16383 }, ""},
		"ACPI index of 16384":       {func(r *Record) { r.Device.ACPIIndex = 16384 }, "device.acpiIndex"},
		"the last slot":             {func(r *Record) { r.Device.PCIAddress = "0000:00:1f.7" }, ""},
		"the host bridge":           {func(r *Record) { r.Device.PCIAddress = "0000:00:00.1" }, "device.pciAddress"},
		"the first slot of a bus":   {func(r *Record) { r.Device.PCIAddress = "0000:01:00.0" }, ""},
		"model of 64 letters":       {func(r *Record) { r.Device.Model = strings.Repeat("m", 62) + "_-" }, ""},
		"model with a dot":          {func(r *Record) { r.Device.Model = "a.b" }, "device.model"},
		"model with a plus":         {func(r *Record) { r.Device.Model = "a+b" }, "device.model"},
		"a directory as ROM":        {func(r *Record) { r.Device.ROM = "/" }, "device.rom"},
		"hostname with a dot first": {func(r *Record) { r.Options.Hostname = ".vm" }, "options.hostname"},
		"hostname of 64 octets":     {func(r *Record) { r.Options.Hostname = strings.Repeat("a", 60) + ".b-c" }, ""},
		"hostname of 65 octets":     {func(r *Record) { r.Options.Hostname = strings.Repeat("a", 61) + ".b-c" }, "options.hostname"},
		"hostname label of 64":      {func(r *Record) { r.Options.Hostname = strings.Repeat("a", 64) }, "options.hostname"},
		"subdomain of 253 octets":   {func(r *Record) { r.Options.Subdomain = strings.Repeat("a.", 126) + "a" }, ""},
		"subdomain of 254 octets":   {func(r *Record) { r.Options.Subdomain = strings.Repeat("a.", 126) + "aa" }, "options.subdomain"},
		"hostname with a - first":   {func(r *Record) { r.Options.Hostname = "-vm" }, "options.hostname"},
	} {
		r := full()
		c.edit(&r)
		err := r.Validate()
		var field *FieldError
		if c.field == "" && err != nil || c.field != "" && (!errors.As(err, &field) || field.Field != c.field) {
			t.Errorf("%s: have %v, want a FieldError of %q", name, err, c.field)
		}
	}
	card := direct()[BindingSRIOV]
	card.SRIOV = &SRIOV{PCIAddress: "0000:03:10.1", VLAN: 4094}
	if err := card.Validate(); err != nil {
		t.Error(err)
	}
	card.SRIOV.VLAN = 4095
	if err := card.Validate(); err == nil {
		t.Error("VLAN 4095, which is reserved, is accepted")
	}
}

// TestHostnameCharacters: a hostname reaches the guest's scripts, so it has only characters that a name may have.
func TestHostnameCharacters(t *testing.T) {
	allowed := regexp.MustCompile(`^[A-Za-z0-9._-]$`)
	for c := range rune(0x250) {
		o := Options{Hostname: "a" + string(c) + "b"}
		if err := o.Validate(); (err == nil) != allowed.MatchString(string(c)) {
			t.Errorf("%q: %v", o.Hostname, err)
		}
	}
}

// TestDataText: what is not to be read, or could be taken for hexadecimal, is written as hexadecimal.
func TestDataText(t *testing.T) {
	for data, want := range map[Data]string{
		"text": "text", "": "", "a\nb": "0x610a62", "\x7f": "0x7f", "\xff\xfe": "0xfffe", "0x41": "0x30783431", "é": "é",
	} {
		if have := data.String(); have != want {
			t.Errorf("%q: %s, want %s", string(data), have, want)
		}
		var back Data
		if err := back.UnmarshalText([]byte(want)); err != nil || back != data {
			t.Errorf("%s is read as %q, %v", want, string(back), err)
		}
	}
}

// TestLongValues: a value of a record that is far too long has a short error.
func TestLongValues(t *testing.T) {
	text, err := Encode(full())
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for path, text := range longjson.Documents(t, text, 20_000) {
		_, err := Decode(text)
		if said := fmt.Sprint(err); len(said) > longjson.MostError {
			t.Errorf("%s: an error of %d octets: %.200s", path, len(said), said)
		}
		if err != nil { // the texts of losses and warnings can be long
			refused++
		}
	}
	if refused < 200 {
		t.Errorf("%d documents are refused: the test does not make them long", refused)
	}
}
