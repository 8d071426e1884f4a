package cache

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// FieldError says what is wrong with one field of a record or of a configuration.
type FieldError struct {
	Field  string // such as ipv4.routes[2].gateway; empty: the whole document
	Reason string
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + ": " + e.Reason
}

func fieldErrorf(field, format string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// CheckName says whether name can be a network interface's and a file's: 1 to 15 characters of
// A-Z a-z 0-9 _ . - and no dot first.
func CheckName(field, name string) error {
	if len(name) > MaxNameLen {
		return fieldErrorf(field, "%q has %d characters, a network interface's name has at most %d", name, len(name), MaxNameLen)
	}
	if !isWord(name, "_.-", MaxNameLen) || name[0] == '.' {
		return fieldErrorf(field, "%q is no network interface's name: want 1 to %d of A-Z a-z 0-9 _ . -, and no dot first", name, MaxNameLen)
	}
	return nil
}

// CheckFirewall says whether name is one of what translates, or empty.
func CheckFirewall(field, name string) error {
	switch name {
	case "", FirewallNFTables, FirewallIPTablesNFT, FirewallIPTablesLegacy:
		return nil
	}
	return fieldErrorf(field, "%q, want %q, %q or %q", name, FirewallNFTables, FirewallIPTablesNFT, FirewallIPTablesLegacy)
}

// Validate checks every field against what Phase2 relies on. The error is a *FieldError.
func (r *Record) Validate() error {
	if r.Version > Version {
		return fieldErrorf("version", "%d is newer than this program, which reads %d: update it, or run Setup again with the program that serves", r.Version, Version)
	}
	if r.Version != Version {
		return fieldErrorf("version", "%d, want %d", r.Version, Version)
	}
	if err := CheckName("name", r.Name); err != nil {
		return err
	}
	if err := r.validateBinding(); err != nil {
		return err
	}
	if r.Firewall != "" && r.Binding != BindingMasquerade {
		return fieldErrorf("firewall", "%q, but nothing is translated by the %s binding", r.Firewall, r.Binding)
	}
	if err := CheckFirewall("firewall", r.Firewall); err != nil {
		return err
	}
	if r.Queues < 1 || r.Queues > MaxQueues {
		return fieldErrorf("queues", "%d, want 1 to %d", r.Queues, MaxQueues)
	}
	if !r.MAC.Unicast() {
		return fieldErrorf("mac", "%v is no station's address", r.MAC)
	}
	if unknown := r.MTU == 0 && r.Binding == BindingSRIOV; !unknown && (r.MTU < MinMTU || r.MTU > MaxMTU) {
		return fieldErrorf("mtu", "%d, want %d to %d", r.MTU, MinMTU, MaxMTU)
	}
	if r.ResponderTap != "" {
		if err := CheckName("responderTap", r.ResponderTap); err != nil {
			return err
		}
		if r.ResponderTap == r.Tap {
			return fieldErrorf("responderTap", "%q is the guest's tap", r.ResponderTap)
		}
		if !r.ResponderMAC.Unicast() || r.ResponderMAC == r.MAC {
			return fieldErrorf("responderMAC", "%v, want a station's address other than the guest's", r.ResponderMAC)
		}
	}
	if r.Options.NoResponder && r.ResponderTap != "" {
		return fieldErrorf("responderTap", "%q, though options.noResponder is set", r.ResponderTap)
	}
	if err := r.IPv4.validate(); err != nil {
		return err
	}
	if err := r.IPv6.validate(); err != nil {
		return err
	}
	for i, n := range r.Neighbours {
		field := fmt.Sprintf("neighbours[%d]", i)
		if !unicast(n.Address) {
			return fieldErrorf(field+".address", "%v is no station's address", n.Address)
		}
		if !n.MAC.Unicast() {
			return fieldErrorf(field+".mac", "%v is no station's address", n.MAC)
		}
	}
	if r.DNS != nil {
		for i, s := range r.DNS.Servers {
			if !s.IsValid() {
				return fieldErrorf(fmt.Sprintf("dns.servers[%d]", i), "no address")
			}
		}
	}
	if err := r.Options.Validate("options"); err != nil {
		return err
	}
	return r.Device.Validate("device")
}

// unicast says that a station can have the address on a link.
func unicast(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == "" &&
		!a.Is4In6() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func (v *IPv4) validate() error {
	if v == nil {
		return nil
	}
	if !v.Address.Addr().Is4() || !unicast(v.Address.Addr()) {
		return fieldErrorf("ipv4.address", "%v is no station's IPv4 address with a prefix length", v.Address)
	}
	if !v.Server.Is4() || !unicast(v.Server) {
		return fieldErrorf("ipv4.server", "%v is no station's IPv4 address", v.Server)
	}
	for i, route := range v.Routes {
		field := fmt.Sprintf("ipv4.routes[%d]", i)
		if !route.Destination.IsValid() || !route.Destination.Addr().Is4() || route.Destination != route.Destination.Masked() {
			return fieldErrorf(field+".destination", "%v is no IPv4 network", route.Destination)
		}
		if route.Gateway.IsValid() && (!route.Gateway.Is4() || !unicast(route.Gateway)) {
			return fieldErrorf(field+".gateway", "%v is no station's IPv4 address", route.Gateway)
		}
	}
	return v.checkOrder()
}

// checkOrder checks that a guest can install the routes one after the other.
func (v *IPv4) checkOrder() error {
	onLink := []netip.Prefix{v.Address.Masked()}
	reachable := func(a netip.Addr) bool {
		return slices.ContainsFunc(onLink, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for i, route := range v.Routes {
		field := fmt.Sprintf("ipv4.routes[%d]", i)
		switch {
		case route.Default() && i < len(v.Routes)-1:
			return fieldErrorf(field, "the default route, want it last")
		case route.Gateway.IsValid() && !reachable(route.Gateway):
			return fieldErrorf(field+".gateway", "%v is not on the link: want a route to it, without a gateway, before this one", route.Gateway)
		case !route.Gateway.IsValid() && !route.Default():
			if i > 0 && v.Routes[i-1].Gateway.IsValid() {
				return fieldErrorf(field, "the route to %v is on the link, want it before routes with a gateway", route.Destination)
			}
			onLink = append(onLink, route.Destination)
		}
	}
	if !reachable(v.Server) {
		return fieldErrorf("ipv4.server", "%v is not on the link: want a route to it, without a gateway", v.Server)
	}
	return nil
}

func (v *IPv6) validate() error {
	if v == nil {
		return nil
	}
	if !v.Address.Is6() || !unicast(v.Address) {
		return fieldErrorf("ipv6.address", "%v is no station's IPv6 address", v.Address)
	}
	network6 := func(field string, p netip.Prefix) error {
		if !p.IsValid() || !p.Addr().Is6() || p != p.Masked() {
			return fieldErrorf(field, "%v is no IPv6 network", p)
		}
		return nil
	}
	for i, p := range v.OnLink {
		if err := network6(fmt.Sprintf("ipv6.onLink[%d]", i), p); err != nil {
			return err
		}
	}
	if v.Router == nil {
		return nil
	}
	if !v.Router.Address.Is6() || !v.Router.Address.IsLinkLocalUnicast() || v.Router.Address.Zone() != "" {
		return fieldErrorf("ipv6.router.address", "%v is no link-local IPv6 address", v.Router.Address)
	}
	if !v.Router.MAC.IsZero() && !v.Router.MAC.Unicast() {
		return fieldErrorf("ipv6.router.mac", "%v is no station's address", v.Router.MAC)
	}
	for i, p := range v.Router.Routes {
		if err := network6(fmt.Sprintf("ipv6.router.routes[%d]", i), p); err != nil {
			return err
		}
	}
	return nil
}

// Validate checks the options; field is the prefix of the names in a *FieldError.
func (o *Options) Validate(field string) error {
	for _, f := range []struct{ name, text string }{
		{"hostname", o.Hostname}, {"tftpServer", o.TFTPServer}, {"bootFile", o.BootFile}, {"bootFileURL", o.BootFileURL}, {"captivePortal", o.CaptivePortal},
	} {
		if err := checkText(field+"."+f.name, f.text); err != nil {
			return err
		}
	}
	if err := checkHostname(field+".hostname", o.Hostname); err != nil {
		return err
	}
	for i, a := range o.NTP {
		if !unicast(a) {
			return fieldErrorf(fmt.Sprintf("%s.ntp[%d]", field, i), "%v is no station's address", a)
		}
	}
	for code, value := range o.DHCPv4 {
		if err := checkOption(fmt.Sprintf("%s.dhcpv4.%d", field, code), uint16(code), value, own4); err != nil {
			return err
		}
	}
	for code, value := range o.DHCPv6 {
		if err := checkOption(fmt.Sprintf("%s.dhcpv6.%d", field, code), code, value, own6); err != nil {
			return err
		}
	}
	return nil
}

// The options that the responder makes by itself, and those of the protocols' own.
var (
	own4 = []uint16{
		0, 1, 3, 6, 12, 15, 26, 28, 42, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 61, 66, 67, 80, 82, 108, 114, 119, 121, 249, 255,
	}
	own6 = []uint16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 18, 19, 20, 23, 24, 25, 26, 31, 56, 59, 103}
)

// maxData is more than fits into a message of the usual MTU.
const maxData = 1400

func checkOption(field string, code uint16, value Data, own []uint16) error {
	if slices.Contains(own, code) {
		return fieldErrorf(field, "option %d is made by the responder: it has a field of its own, or comes of the addresses, or belongs to the protocol", code)
	}
	if len(value) > maxData {
		return fieldErrorf(field, "%d octets, want at most %d", len(value), maxData)
	}
	return nil
}

// checkHostname takes what can be a host's name, in one label or several (RFC 1123 section 2.1),
// and underscores, which are in use.
func checkHostname(field, name string) error {
	bad := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-._", c)
	}
	if strings.ContainsFunc(name, bad) || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "-") {
		return fieldErrorf(field, "%q is no host's name: want letters, digits, -, _ and dots", name)
	}
	return nil
}

// checkText refuses what no option of this kind can carry: over 255 octets, control characters.
func checkText(field, text string) error {
	if len(text) > 255 {
		return fieldErrorf(field, "%d octets, an option has at most 255", len(text))
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return fieldErrorf(field, "%q has control characters", text)
	}
	return nil
}

// Validate checks the device; field is the prefix of the names in a *FieldError. Any word is taken
// for a model: libvirt and QEMU know which ones they have.
func (d *Device) Validate(field string) error {
	if d.Model != "" && !isWord(d.Model, "_.+-", maxWord) {
		return fieldErrorf(field+".model", "%q is no device model", d.Model)
	}
	if d.Driver != "" && d.Driver != "qemu" && d.Driver != "vhost" {
		return fieldErrorf(field+".driver", "%q, want qemu or vhost", d.Driver)
	}
	if d.ROM != "" && d.ROM != "on" && d.ROM != "off" {
		if !path.IsAbs(d.ROM) {
			return fieldErrorf(field+".rom", "%q, want on, off or the absolute path of an image", d.ROM)
		}
		if err := checkText(field+".rom", d.ROM); err != nil {
			return err
		}
	}
	if d.PCIAddress != "" && !isPCIAddress(d.PCIAddress) {
		return fieldErrorf(field+".pciAddress", "%q, want the form 0000:01:00.0", d.PCIAddress)
	}
	if d.Alias != "" && !isWord(d.Alias, "_-", maxWord) {
		return fieldErrorf(field+".alias", "%q, want letters, digits, _ and -", d.Alias)
	}
	if d.LinkState != "" && d.LinkState != "up" && d.LinkState != "down" {
		return fieldErrorf(field+".linkState", "%q, want up or down", d.LinkState)
	}
	return nil
}

// maxWord is longer than any name of a model or device.
const maxWord = 64

// isWord says that text is 1 to most letters, digits and characters of more. Regular expressions
// would stay in the memory of whoever serves, for one look at the start.
func isWord(text, more string, most int) bool {
	other := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune(more, c)
	}
	return text != "" && len(text) <= most && !strings.ContainsFunc(text, other)
}

// lastPCIAddress has the largest hexadecimal digit at each of its places.
const lastPCIAddress = "ffff:ff:1f.7"

// CheckPCIAddress says whether text has the form 0000:03:10.1.
func CheckPCIAddress(field, text string) error {
	if !isPCIAddress(text) {
		return fieldErrorf(field, "%q, want the form 0000:03:10.1", text)
	}
	return nil
}

func isPCIAddress(text string) bool {
	if len(text) != len(lastPCIAddress) {
		return false
	}
	for i := range len(text) {
		c, last := text[i], lastPCIAddress[i]
		if 'A' <= c && c <= 'F' {
			c += 'a' - 'A'
		}
		switch {
		case isHexDigit(last) && (!isHexDigit(c) || c > last):
			return false
		case !isHexDigit(last) && c != last:
			return false
		}
	}
	return true
}

func isHexDigit(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }
