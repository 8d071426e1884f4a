package served

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/ip"
)

// client is a DHCPv4 client: what it asks for (option 55), the largest message that it takes (option 57; 0: it says
// none), and the octets of its options 61 and 80, which the answer has too.
type client struct {
	name   string
	asked  []byte
	size   int
	echoed int
}

// clients are those of the captures in package dhcp, and Windows as its documentation has it.
var clients = []client{
	{"dhclient", []byte{1, 28, 2, 3, 15, 6, 119, 12, 44, 47, 26, 121, 42}, 0, 0},
	{"udhcpc", []byte{1, 3, 6, 12, 15, 26, 28, 42, 119, 121}, 576, 9},
	{"Windows", []byte{1, 3, 6, 15, 31, 33, 43, 44, 46, 47, 119, 121, 249, 252}, 0, 9},
	{"systemd-networkd", []byte{1, 3, 6, 12, 15, 26, 33, 42, 119, 120, 121}, 1472, 21},
	{"dhcpcd", []byte{1, 121, 3, 6, 12, 15, 26, 28, 33, 51, 54, 58, 59, 119}, 1472, 23},
	{"iPXE", []byte{1, 3, 6, 7, 12, 15, 17, 26, 43, 60, 66, 67, 119, 128, 129, 130, 131, 132, 133, 134, 135, 175, 203}, 1472, 9},
}

// fixed4 is the size of an answer without the options that Choose chooses: headers, fixed part, options 53 and 54, END.
const fixed4 = 20 + 8 + 240 + 3 + 6 + 1

// left returns the options that do not fit into the answer to the client. An option that no client asks for by itself
// counts for each, as a guest can be configured to ask for it.
func (c client) left(rec *cache.Record, exact, standIn *Options) []Option {
	o := exact
	if standIn != nil && !slices.Contains(c.asked, ClasslessRoutes) && !slices.Contains(c.asked, MicrosoftRoutes) {
		o = standIn
	}
	room := Limit(c.size, rec.MTU) - fixed4 - len(o.Mask) - len(Lease(LeaseSeconds(&rec.Options))) - c.echoed
	asked := slices.AppendSeq(slices.Clone(c.asked), maps.Keys(rec.Options.DHCPv4))
	chosen := o.Choose(asked, room)
	return slices.DeleteFunc(slices.Clone(o.options), func(o Option) bool {
		// Option 249 says the same as 121, and the guest ignores the router if it gets 121.
		return chosen[o.Code] || !slices.Contains(asked, o.Code) || o.Code == MicrosoftRoutes || o.Code == router && chosen[ClasslessRoutes]
	})
}

// names are what options hold that can be long.
var names = map[uint8]string{
	uint8(dhcpv4.OptionDomainNameServer): "DNS servers", uint8(dhcpv4.OptionNTPServers): "time servers",
	uint8(dhcpv4.OptionDNSDomainSearchList): "search domains", ClasslessRoutes: "routes",
}

// maxPart is the size of an option of one part, with its code and its length.
const maxPart = 2 + 255

// TooLong4 returns the options of DHCPv4 that some clients do not get, as they do not fit into a message.
func TooLong4(rec *cache.Record, servers []netip.Addr, search []string) []cache.Finding {
	if rec.IPv4 == nil {
		return nil
	}
	exact, standIn := Exact(rec, servers, search), StandIn(rec, servers, search)
	lost, octets, asking := map[uint8][]string{}, map[uint8]int{}, map[uint8]int{}
	for _, c := range clients {
		for _, code := range slices.AppendSeq(slices.Clone(c.asked), maps.Keys(rec.Options.DHCPv4)) {
			asking[code]++
		}
		for _, o := range c.left(rec, exact, standIn) {
			lost[o.Code] = append(lost[o.Code], c.name)
			octets[o.Code] = len(o.Wire)
		}
	}
	var losses []cache.Finding
	for _, code := range slices.Sorted(maps.Keys(lost)) {
		l := cache.Finding{Kind: "option", What: fmt.Sprintf("DHCPv4 option %d", code)}
		if name := names[code]; name != "" {
			l.What += " (" + name + ")"
		}
		to := strings.Join(lost[code], ", ")
		if len(lost[code]) == asking[code] {
			to = "any client"
			if code == ClasslessRoutes { // the guest has the default route alone, whatever its client
				l.Kind = "route"
			}
		}
		l.Why = fmt.Sprintf("its %d octets do not fit into the answer to %s", octets[code], to)
		losses = append(losses, l)
	}
	if rec.IPv6 == nil { // else DHCPv6 and router advertisements have all
		for _, o := range exact.options {
			if name := names[o.Code]; name != "" && o.Code != ClasslessRoutes && len(o.Wire) > maxPart {
				losses = append(losses, cache.Finding{Kind: "option", What: fmt.Sprintf("part of DHCPv4 option %d (%s)", o.Code, name),
					Why: fmt.Sprintf("it has %d octets, and systemd-networkd reads the last part of such an option alone", len(o.Wire))})
			}
		}
	}
	return losses
}

// OtherFamily returns the options of the family that the record does not have.
func OtherFamily(rec *cache.Record) []cache.Finding {
	o, version := &rec.Options, ip.V4
	var losses []cache.Finding
	lose := func(set bool, what string, args ...any) {
		if set {
			why := fmt.Sprintf("the guest has no %v address", version)
			losses = append(losses, cache.Finding{Kind: "option", What: fmt.Sprintf(what, args...), Why: why})
		}
	}
	switch {
	case rec.IPv4 == nil && rec.IPv6 != nil:
		lose(o.Hostname != "", "hostname")
		lose(o.TFTPServer != "", "tftpServer")
		lose(o.BootFile != "", "bootFile")
		for _, code := range slices.Sorted(maps.Keys(o.DHCPv4)) {
			lose(true, "dhcpv4.%d", code)
		}
	case rec.IPv6 == nil && rec.IPv4 != nil:
		version = ip.V6
		lose(o.BootFileURL != "", "bootFileURL")
		lose(o.NAT64.IsValid(), "nat64")
		for _, code := range slices.Sorted(maps.Keys(o.DHCPv6)) {
			lose(true, "dhcpv6.%d", code)
		}
	default:
		return nil
	}
	return losses
}

const minMTU6 = 1280 // RFC 8200 section 5

// Leased6 returns the addresses that DHCPv6 leases, and the prefixes that it delegates. They fill half of a message.
// The other half is for identifiers, DNS and the other options.
func Leased6(rec *cache.Record) (addresses []netip.Addr, prefixes []netip.Prefix) {
	const headers, address, association, prefix = 40 + 8, 4 + 24, 4 + 12, 4 + 25
	room := (max(rec.MTU, minMTU6) - headers) / 2
	addresses, prefixes = rec.IPv6.Addresses(), rec.IPv6.Delegated
	addresses = addresses[:min(len(addresses), room/address)]
	room -= len(addresses)*address + association
	return addresses, prefixes[:min(len(prefixes), max(0, room/prefix))]
}

// TooMany6 returns the addresses that DHCPv6 does not lease, and the prefixes that it does not delegate, or that do not
// fit into a router advertisement beside the others. DNS servers may take the room of more.
func TooMany6(rec *cache.Record) []cache.Finding {
	if rec.IPv6 == nil {
		return nil
	}
	var losses []cache.Finding
	addresses, prefixes := Leased6(rec)
	for _, a := range rec.IPv6.Addresses()[len(addresses):] {
		losses = append(losses, cache.Finding{Kind: "address", What: a.String(), Why: fmt.Sprintf("DHCPv6 leases %d addresses, as more do not fit into a message", len(addresses))})
	}
	for _, p := range rec.IPv6.Delegated[len(prefixes):] {
		losses = append(losses, cache.Finding{Kind: "option", What: "the prefix " + p.String(), Why: fmt.Sprintf("DHCPv6 delegates %d prefixes, as more do not fit into a message", len(prefixes))})
	}
	room := max(rec.MTU, minMTU6) - 40 - 16 // headers
	if rec.IPv6.Router == nil || !rec.IPv6.Router.MAC.IsZero() {
		room -= 8 // the link-layer address
	}
	if rec.MTU >= minMTU6 {
		room -= 8
	}
	add := func(p netip.Prefix, size int) {
		if size > room {
			losses = append(losses, cache.Finding{Kind: "route", What: p.String(), Why: "it does not fit into a router advertisement beside the others"})
			return
		}
		room -= size
	}
	for _, p := range rec.IPv6.OnLink {
		if !p.Addr().IsLinkLocalUnicast() {
			add(p, 32)
		}
	}
	if rec.IPv6.Router != nil {
		for _, p := range rec.IPv6.Router.Routes {
			add(p, RouteInformationLen(p))
		}
	}
	return losses
}

// RouteInformationLen is the length of the option for a route (RFC 4191 section 2.3).
func RouteInformationLen(p netip.Prefix) int { return 8 + (p.Bits()+63)/64*8 }
