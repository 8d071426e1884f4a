package cache

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/internal/syntax"
)

// maxTurn is more than all moves of a guest, and the largest number that each reader of JSON can distinguish from the
// next one (RFC 8259 section 6).
const maxTurn = 1<<53 - 1

// Validate checks each field on which Phase2 relies. The error is a [*FieldError].
func (r *Record) Validate() error {
	if r.Version == 0 {
		return fieldErrorf("version", "0: this is no record: use the one that Setup returned or wrote")
	}
	if r.Version != Version {
		return fieldErrorf("version", "%d, and this program reads %d: use the version of guestwire that wrote it", r.Version, Version)
	}
	if !slices.Contains([]Role{RoleActive, RoleStandby, RoleInactive}, r.Role) {
		return fieldErrorf("role", "%q, want %q, %q, or nothing for an active guest", r.Role, RoleStandby, RoleInactive)
	}
	if r.Role == RoleInactive && r.Turn == 0 {
		return fieldErrorf("turn", "0, but each Deactivate raises it: use the record that Deactivate returned")
	}
	if r.Turn > maxTurn {
		return fieldErrorf("turn", "%d, want at most %d: Teardown the guest's NICs in all namespaces, and Setup anew without From", r.Turn, uint64(maxTurn))
	}
	if err := checkLinkName("name", r.Name); err != nil {
		return err
	}
	if err := r.checkBinding(); err != nil {
		return err
	}
	if r.Firewall != "" && r.Binding != BindingMasquerade {
		return fieldErrorf("firewall", "%q, but the %s binding translates no addresses: leave this field out", r.Firewall, r.Binding)
	}
	if r.Firewall != "" && !slices.Contains(firewalls, r.Firewall) {
		return fieldErrorf("firewall", "%q, want one of %q", r.Firewall, firewalls)
	}
	if r.Queues < 1 || r.Queues > syntax.MaxQueues {
		return fieldErrorf("queues", "%d, want 1 to %d", r.Queues, syntax.MaxQueues)
	}
	if !r.MAC.Unicast() {
		return fieldErrorf("mac", "%v, want a unicast address", r.MAC)
	}
	for i, m := range r.MACs {
		if !m.Unicast() || m == r.MAC || m == r.ResponderMAC || m == r.GatewayMAC {
			return fieldErrorf(fmt.Sprintf("macs[%d]", i), "%v, want a unicast address other than mac, responderMAC and gatewayMAC", m)
		}
	}
	if !r.GatewayMAC.IsZero() && r.Binding != BindingMasquerade && r.Binding != BindingRouted {
		return fieldErrorf("gatewayMAC", "%v, but with the %s binding the gateway is a station of the network: leave this field out", r.GatewayMAC, r.Binding)
	}
	if r.Resolver.IsValid() && r.Binding != BindingMasquerade && r.Binding != BindingRouted {
		return fieldErrorf("resolver", "%v, but with the %s binding the guest reaches no service of the namespace: leave this field out", r.Resolver, r.Binding)
	}
	if r.Resolver.IsValid() && (!r.Resolver.Is4() || !r.Resolver.IsLoopback() || r.IPv4 == nil) {
		return fieldErrorf("resolver", "%v, want an IPv4 loopback address, for a guest with IPv4", r.Resolver)
	}
	for i, a := range r.DNSProxy {
		if !a.IsValid() || a.Port() == 0 || r.Binding != BindingMasquerade && r.Binding != BindingRouted {
			return fieldErrorf(fmt.Sprintf("dnsProxy[%d]", i), "%v, want an address and a port of the gateway, with the binding masquerade or routed", a)
		}
	}
	if !r.GatewayMAC.IsZero() && (!r.GatewayMAC.Unicast() || r.GatewayMAC == r.MAC) {
		return fieldErrorf("gatewayMAC", "%v, want a unicast address other than the guest's", r.GatewayMAC)
	}
	if unknown := r.MTU == 0 && r.Binding == BindingSRIOV; !unknown && (r.MTU < syntax.MinMTU || r.MTU > syntax.MaxMTU) {
		return fieldErrorf("mtu", "%d, want %d to %d", r.MTU, syntax.MinMTU, syntax.MaxMTU)
	}
	if r.ResponderTap != "" {
		if err := checkLinkName("responderTap", r.ResponderTap); err != nil {
			return err
		}
		if r.ResponderTap == r.Tap {
			return fieldErrorf("responderTap", "%q is the guest's tap", r.ResponderTap)
		}
		if !r.ResponderMAC.Unicast() || r.ResponderMAC == r.MAC {
			return fieldErrorf("responderMAC", "%v, want a unicast address other than the guest's", r.ResponderMAC)
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
	if err := checkNeighbours("neighbours", r.Neighbours); err != nil {
		return err
	}
	if err := r.Static.validate(); err != nil {
		return err
	}
	if r.DNS != nil {
		for i, s := range r.DNS.Servers {
			if !s.IsValid() {
				return fieldErrorf(fmt.Sprintf("dns.servers[%d]", i), "missing, want an address")
			}
		}
		for i, domain := range r.DNS.Search {
			if _, err := syntax.SearchDomain(domain); err != nil {
				return fieldErrorf(fmt.Sprintf("dns.search[%d]", i), "%q has %v", domain, err)
			}
		}
	}
	if err := r.Options.Validate(); err != nil {
		return within("options", err)
	}
	if r.Options.IPv6OnlySeconds > 0 && r.IPv4 != nil && r.IPv6 == nil {
		return fieldErrorf("options.ipv6OnlySeconds", "%d, but the guest has no IPv6 address, and would give up its IPv4 address: leave this field out", r.Options.IPv6OnlySeconds)
	}
	if err := r.Limits.Validate(); err != nil {
		return within("limits", err)
	}
	return within("device", r.Device.Validate())
}

func (v *IPv4) validate() error {
	if v == nil {
		return nil
	}
	if !v.Address.Addr().Is4() || !isUnicast(v.Address.Addr()) {
		return fieldErrorf("ipv4.address", "%v, want a unicast IPv4 address with a prefix length", v.Address)
	}
	if !v.Server.Is4() || !isUnicast(v.Server) {
		return fieldErrorf("ipv4.server", "%v, want a unicast IPv4 address", v.Server)
	}
	for i, route := range v.Routes {
		field := fmt.Sprintf("ipv4.routes[%d]", i)
		if !route.Destination.IsValid() || !route.Destination.Addr().Is4() || route.Destination != route.Destination.Masked() {
			return fieldErrorf(field+".destination", "%v, want an IPv4 network without host bits", route.Destination)
		}
		if route.Gateway.IsValid() && (!route.Gateway.Is4() || !isUnicast(route.Gateway)) {
			return fieldErrorf(field+".gateway", "%v, want a unicast IPv4 address", route.Gateway)
		}
	}
	if err := v.checkOrder(); err != nil || !v.StandIn.IsValid() {
		return err
	}
	other := v.Address.Addr().As4()
	other[3] ^= 1
	if v.StandIn != netip.AddrFrom4(other) || !isUnicast(v.StandIn) {
		return fieldErrorf("ipv4.standIn", "%v, want the other address of the /31 of %v", v.StandIn, v.Address.Addr())
	}
	if !v.Gateway().IsValid() {
		return fieldErrorf("ipv4.standIn", "%v, but there is no gateway: leave this field out", v.StandIn)
	}
	return nil
}

// checkOrder checks that a guest can install the routes in their order.
func (v *IPv4) checkOrder() error {
	onLink := map[netip.Prefix]bool{v.Address.Masked(): true}
	reachable := func(a netip.Addr) bool {
		for bits := range a.BitLen() + 1 {
			if network, err := a.Prefix(bits); err == nil && onLink[network] {
				return true
			}
		}
		return false
	}
	for i, route := range v.Routes {
		field := fmt.Sprintf("ipv4.routes[%d]", i)
		switch {
		case route.Default() && i < len(v.Routes)-1 && (route.Destination.Bits() == 0 || !v.Routes[i+1].Default()):
			return fieldErrorf(field, "the default route, want it last")
		case route.Gateway.IsValid() && !reachable(route.Gateway):
			return fieldErrorf(field+".gateway", "%v is not on the link: want a route to it, without a gateway, before this one", route.Gateway)
		case !route.Gateway.IsValid() && !route.Default():
			if i > 0 && v.Routes[i-1].Gateway.IsValid() {
				return fieldErrorf(field, "the route to %v is on the link, want it before routes with a gateway", route.Destination)
			}
			onLink[route.Destination] = true
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
	if !v.Address.Is6() || !isUnicast(v.Address) {
		return fieldErrorf("ipv6.address", "%v, want a unicast IPv6 address", v.Address)
	}
	own := map[netip.Addr]bool{v.Address: true}
	for i, a := range v.Others {
		field := fmt.Sprintf("ipv6.others[%d]", i)
		if !a.Is6() || !isUnicast(a) {
			return fieldErrorf(field, "%v, want a unicast IPv6 address", a)
		}
		if own[a] {
			return fieldErrorf(field, "%v is listed before", a)
		}
		own[a] = true
	}
	for i, a := range v.Deprecated {
		if !own[a] {
			return fieldErrorf(fmt.Sprintf("ipv6.deprecated[%d]", i), "%v, want ipv6.address or one of ipv6.others", a)
		}
	}
	if v.Gateway.IsValid() && (!v.Gateway.Is6() || !isUnicast(v.Gateway)) {
		return fieldErrorf("ipv6.gateway", "%v, want a unicast IPv6 address", v.Gateway)
	}
	network6 := func(field string, p netip.Prefix) error {
		if !p.IsValid() || !p.Addr().Is6() || p != p.Masked() {
			return fieldErrorf(field, "%v, want an IPv6 network without host bits", p)
		}
		return nil
	}
	for i, p := range v.OnLink {
		if err := network6(fmt.Sprintf("ipv6.onLink[%d]", i), p); err != nil {
			return err
		}
	}
	for i, p := range v.Delegated {
		field := fmt.Sprintf("ipv6.delegated[%d]", i)
		if err := network6(field, p); err != nil {
			return err
		}
		if p.IsSingleIP() || p.Addr().IsLinkLocalUnicast() {
			return fieldErrorf(field, "%v, want a network of several addresses that is not link-local", p)
		}
	}
	if v.Router == nil {
		return nil
	}
	if !v.Router.Address.Is6() || !v.Router.Address.IsLinkLocalUnicast() || v.Router.Address.Zone() != "" {
		return fieldErrorf("ipv6.router.address", "%v, want a link-local IPv6 address without a zone", v.Router.Address)
	}
	if !v.Router.MAC.IsZero() && !v.Router.MAC.Unicast() {
		return fieldErrorf("ipv6.router.mac", "%v, want a unicast address", v.Router.MAC)
	}
	if p := v.Router.Preference; p < -1 || p > 1 {
		return fieldErrorf("ipv6.router.preference", "%d, want -1, 0 or 1", p)
	}
	for i, p := range v.Router.Routes {
		if err := network6(fmt.Sprintf("ipv6.router.routes[%d]", i), p); err != nil {
			return err
		}
	}
	return nil
}

// Validate checks the options. The error is a [*FieldError] with a path in the Options, such as ntp[0].
func (o *Options) Validate() error {
	for _, f := range []struct{ name, text string }{
		{"hostname", o.Hostname}, {"subdomain", o.Subdomain}, {"tftpServer", o.TFTPServer}, {"bootFile", o.BootFile}, {"bootFileURL", o.BootFileURL}, {"captivePortal", o.CaptivePortal},
	} {
		if err := checkText(f.name, f.text); err != nil {
			return err
		}
	}
	if err := checkName("hostname", o.Hostname, syntax.MaxHostname); err != nil {
		return err
	}
	if err := checkName("subdomain", o.Subdomain, syntax.MaxName); err != nil {
		return err
	}
	if reason := checkNAT64(o.NAT64); reason != "" {
		return fieldErrorf("nat64", "%v: %s", o.NAT64, reason)
	}
	for i, a := range o.NTP {
		if !isUnicast(a) {
			return fieldErrorf(fmt.Sprintf("ntp[%d]", i), "%v, want a unicast address without a zone, such as 192.0.2.1 or 2001:db8::1", a)
		}
	}
	for code, value := range o.DHCPv4 {
		if err := checkOption(fmt.Sprintf("dhcpv4.%d", code), uint16(code), value, own4); err != nil {
			return err
		}
	}
	for code, value := range o.DHCPv6 {
		if err := checkOption(fmt.Sprintf("dhcpv6.%d", code), code, value, own6); err != nil {
			return err
		}
	}
	return nil
}

// checkNAT64 is what is wrong with a prefix of RFC 6052; empty: nothing, or there is none.
func checkNAT64(p netip.Prefix) string {
	const octet = 8 // bits 64 to 71
	switch {
	case p == netip.Prefix{}:
	case !p.IsValid() || !p.Addr().Is6() || !isUnicast(p.Addr()) || p.Addr().IsLinkLocalUnicast():
		return "want a unicast prefix of IPv6, such as 64:ff9b::/96"
	case !slices.Contains(syntax.NAT64Bits, p.Bits()):
		return "want 96, 64, 56, 48, 40 or 32 bits"
	case p != p.Masked():
		return fmt.Sprintf("has bits after its length, want %v", p.Masked())
	case p.Addr().As16()[octet] != 0:
		return "bits 64 to 71 are to be zero (RFC 6052 section 2.2)"
	}
	return ""
}

// The options that have a field in Options, that the responder makes from addresses, and that belong to the protocols
// themselves.
var (
	own4 = []uint16{
		0, 1, 3, 6, 12, 15, 26, 28, 42, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 61, 66, 67, 80, 82, 108, 114, 119, 121, 249, 255,
	}
	own6 = []uint16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 18, 19, 20, 23, 24, 25, 26, 31, 56, 59, 103}
)

// maxData is the largest value of an option. The options of a message with the usual MTU have less room.
const maxData = 1400

func checkOption(field string, code uint16, value Data, own []uint16) error {
	if slices.Contains(own, code) {
		return fieldErrorf(field, "option %d has a field of its own, or is made from the addresses, or belongs to the protocol: leave it out", code)
	}
	if len(value) > maxData {
		return fieldErrorf(field, "%d octets, want at most %d", len(value), maxData)
	}
	return nil
}

// Validate checks the device. The error is a [*FieldError] with a path in the Device, such as rom. Validate takes any
// word as a model, as each version of libvirt and QEMU has its own. It refuses numbers that libvirt accepts and QEMU
// does not.
func (d *Device) Validate() error {
	if d.Model != "" && !syntax.IsWord(d.Model, "_-", maxWord) { // NET_MODEL_CHARS of libvirt
		return fieldErrorf("model", "%q is no device model: want letters, digits, _ and -", d.Model)
	}
	if d.BootOrder > math.MaxInt32 {
		return fieldErrorf("bootOrder", "%d, want at most %d", d.BootOrder, math.MaxInt32)
	}
	if d.ACPIIndex > maxACPIIndex {
		return fieldErrorf("acpiIndex", "%d, want at most %d", d.ACPIIndex, maxACPIIndex)
	}
	if d.Driver != "" && d.Driver != "qemu" && d.Driver != "vhost" {
		return fieldErrorf("driver", "%q, want qemu or vhost", d.Driver)
	}
	if d.ROM != "" && d.ROM != "on" && d.ROM != "off" {
		if !path.IsAbs(d.ROM) || strings.HasSuffix(d.ROM, "/") {
			return fieldErrorf("rom", "%q, want on, off or the absolute path of an image", d.ROM)
		}
		if err := checkText("rom", d.ROM); err != nil {
			return err
		}
	}
	if d.PCIAddress != "" {
		if err := checkPCIAddress("pciAddress", d.PCIAddress); err != nil {
			return err
		}
		if bridge := "0000:00:00."; strings.HasPrefix(d.PCIAddress, bridge) { // libvirt would take it as no address
			return fieldErrorf("pciAddress", "%q is the place of the host bridge: want another slot", d.PCIAddress)
		}
	}
	if d.Alias != "" && !syntax.IsWord(d.Alias, "_-", maxWord) {
		return fieldErrorf("alias", "%q, want letters, digits, _ and -", d.Alias)
	}
	if d.LinkState != "" && d.LinkState != "up" && d.LinkState != "down" {
		return fieldErrorf("linkState", "%q, want up or down", d.LinkState)
	}
	return nil
}

// maxACPIIndex is QEMU's ONBOARD_INDEX_MAX.
const maxACPIIndex = 16*1024 - 1

// maxWord is longer than any name of a model or device.
const maxWord = 64
