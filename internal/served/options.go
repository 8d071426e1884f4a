// Package served has the options of DHCPv4 that a record makes, and finds what of a record the guest is not sent. The
// responder serves by it, and a plan says by it what the guest will not get. It is pure.
package served

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/rfc1035label"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/servers"
)

const (
	router          = uint8(dhcpv4.OptionRouter)
	ClasslessRoutes = uint8(dhcpv4.OptionClasslessStaticRoute)
	MicrosoftRoutes = 249 // [MS-DHCPE] section 2.2.8, the content of ClasslessRoutes
	minDatagram     = 576 // the datagram that every client accepts (RFC 2131 section 2)
)

// Infinite is the lifetime that does not end: RFC 2131 section 3.3, RFC 9915 section 7.7.
const Infinite uint32 = 0xffffffff

// Option is one option as it is sent: in several parts if the value has more than 255 octets (RFC 3396).
type Option struct {
	Code uint8
	Wire []byte
}

// Append appends an option.
func Append(b []byte, code uint8, value []byte) []byte {
	for {
		n := min(len(value), 255)
		b = append(b, code, byte(n))
		b = append(b, value[:n]...)
		if value = value[n:]; len(value) == 0 {
			return b
		}
	}
}

// Wire returns the library's options as they are sent. Its own Options.ToBytes would link the decoders of all options,
// which are 0.4 MB of guestwire-launcher.
func Wire(options ...dhcpv4.Option) (wire []byte) {
	for _, o := range options {
		wire = Append(wire, o.Code.Code(), o.Value.ToBytes())
	}
	return wire
}

// List returns an option whose value is a list of items of 1 to 255 octets. It cuts a long option between two items, as
// some clients read each part by itself. The library cuts after 255 octets.
func List(code uint8, items [][]byte) (wire []byte) {
	for len(items) > 0 {
		n, size := 0, 0
		for n < len(items) && size+len(items[n]) <= 255 {
			size += len(items[n])
			n++
		}
		wire = Append(wire, code, slices.Concat(items[:n]...))
		items = items[n:]
	}
	return wire
}

// Options are what the guest learns of its network.
type Options struct {
	Mask    []byte   // option 1
	options []Option // in the order of importance
	unasked int      // options[:unasked] are sent without being asked for
	at      [256]uint8
}

// Exact returns the options with the record's own address and routes.
func Exact(rec *cache.Record, resolvers []netip.Addr, search []string) *Options {
	return newOptions(rec, resolvers, search, rec.IPv4.Address, rec.IPv4.Gateway(), routes(rec.IPv4))
}

// StandIn returns the options with the record's stand-in; nil: it has none.
func StandIn(rec *cache.Record, resolvers []netip.Addr, search []string) *Options {
	if !rec.IPv4.StandIn.IsValid() {
		return nil
	}
	return newOptions(rec, resolvers, search, netip.PrefixFrom(rec.IPv4.Address.Addr(), 31), rec.IPv4.StandIn, nil)
}

// newOptions returns what a guest learns that has the address, the gateway, if there is one, and the content of option
// 121.
func newOptions(rec *cache.Record, resolvers []netip.Addr, search []string, address netip.Prefix, gateway netip.Addr, routes [][]byte) *Options {
	mask := net.CIDRMask(address.Bits(), 32)
	c := &Options{Mask: Wire(dhcpv4.OptSubnetMask(mask))}
	// In the order of importance: Choose leaves out the last ones if a message is too small.
	addWire := func(code uint8, wire []byte) {
		if len(wire) > 0 {
			c.options = append(c.options, Option{code, wire})
			c.at[code] = uint8(len(c.options))
		}
	}
	add := func(o dhcpv4.Option) {
		if len(o.Value.ToBytes()) > 0 {
			addWire(o.Code.Code(), Wire(o))
		}
	}
	addList := func(code uint8, items [][]byte) { addWire(code, List(code, items)) }
	// The MTU and the servers take few octets, and routes can take all.
	add(dhcpv4.Option{Code: dhcpv4.OptionInterfaceMTU, Value: dhcpv4.Uint16(rec.MTU)})
	addList(uint8(dhcpv4.OptionDomainNameServer), addresses(resolvers))
	addList(ClasslessRoutes, routes)
	if gateway.IsValid() {
		add(dhcpv4.OptRouter(gateway.AsSlice()))
	}
	addList(MicrosoftRoutes, routes)
	if len(search) > 0 {
		add(dhcpv4.OptDomainName(search[0]))
		addList(uint8(dhcpv4.OptionDNSDomainSearchList), SearchList(search))
	}
	o := &rec.Options
	add(dhcpv4.OptHostName(o.Hostname))
	add(dhcpv4.OptTFTPServerName(o.TFTPServer))
	add(dhcpv4.OptBootFileName(o.BootFile))
	ntp, _ := servers.Leased(rec).Reachable(o.NTP)
	addList(uint8(dhcpv4.OptionNTPServers), addresses(ntp))
	if address.Bits() < 31 {
		broadcast := address.Addr().AsSlice()
		for i := range broadcast {
			broadcast[i] |= ^mask[i]
		}
		add(dhcpv4.OptBroadcastAddress(broadcast))
	}
	for _, code := range slices.Sorted(maps.Keys(o.DHCPv4)) {
		addWire(code, Append(nil, code, []byte(o.DHCPv4[code])))
	}
	c.unasked = len(c.options)
	add(dhcpv4.OptGeneric(dhcpv4.OptionURL, []byte(o.CaptivePortal))) // RFC 8910 section 2.1
	if o.IPv6OnlySeconds > 0 {
		addWire(uint8(dhcpv4.OptionIPv6OnlyPreferred), IPv6Only(o))
	}
	return c
}

// IPv6Only returns option 108 (RFC 8925).
func IPv6Only(o *cache.Options) []byte {
	return Wire(dhcpv4.OptIPv6OnlyPreferred(time.Duration(o.IPv6OnlySeconds) * time.Second))
}

// LeaseSeconds returns the time of a lease.
func LeaseSeconds(o *cache.Options) uint32 {
	if o.LeaseSeconds == 0 {
		return Infinite
	}
	return o.LeaseSeconds
}

// Lease returns the options 51, 58 and 59 (RFC 2131 section 4.4.5). The time is infinite without 58 and 59.
func Lease(seconds uint32) []byte {
	t := time.Duration(seconds) * time.Second
	wire := Wire(dhcpv4.OptIPAddressLeaseTime(t))
	if seconds != Infinite {
		wire = append(wire, Wire(dhcpv4.OptRenewTimeValue(t/2), dhcpv4.OptRebindingTimeValue(t-t/8))...)
	}
	return wire
}

// addresses returns the IPv4 addresses of the list, as they are sent.
func addresses(list []netip.Addr) [][]byte {
	var items [][]byte
	for _, a := range list {
		if a.Is4() {
			items = append(items, dhcpv4.IP(a.AsSlice()).ToBytes())
		}
	}
	return items
}

// routes returns the content of option 121 (RFC 3442): the record's routes in the record's order, as
// clients install them one after the other. The content is empty if it would say no more than options
// 1 and 3 do.
func routes(v4 *cache.IPv4) [][]byte {
	if len(v4.Routes) == 1 && v4.Gateway().IsValid() {
		return nil
	}
	var routes [][]byte
	for _, route := range v4.Routes {
		hop := netip.IPv4Unspecified() // the destination is on the link
		if route.Gateway.IsValid() {
			hop = route.Gateway
		}
		to := &net.IPNet{IP: route.Destination.Addr().AsSlice(), Mask: net.CIDRMask(route.Destination.Bits(), 32)}
		routes = append(routes, dhcpv4.Routes{{Dest: to, Router: hop.AsSlice()}}.ToBytes())
	}
	return routes
}

// Wire returns the option as it is sent; nil: there is none.
func (c *Options) Wire(code uint8) []byte {
	if at := c.at[code]; at > 0 {
		return c.options[at-1].Wire
	}
	return nil
}

// All returns the options in the order of importance.
func (c *Options) All() []Option { return c.options }

// Choose chooses the options that fit into the room: those that the guest asks for first, and then the others, each
// time the important ones first. A guest that gets option 121 needs neither routes in Microsoft's form nor a router
// (RFC 3442).
func (c *Options) Choose(asked []byte, room int) (chosen [256]bool) {
	var wanted [256]bool
	for _, code := range asked {
		wanted[code] = true
	}
	for _, first := range [...]bool{true, false} {
		for i, o := range c.options {
			again := (o.Code == MicrosoftRoutes || o.Code == router) && chosen[ClasslessRoutes]
			if !chosen[o.Code] && (wanted[o.Code] && !again) == first && (first || i < c.unasked) && len(o.Wire) <= room {
				chosen[o.Code] = true
				room -= len(o.Wire)
			}
		}
	}
	return chosen
}

// Limit returns the size of the largest IPv4 datagram for a guest that sends the option 57 (RFC 2132 section 9.10), or
// zero: at least minDatagram and at most the MTU.
func Limit(size, mtu int) int { return max(minDatagram, min(size, mtu)) }

// SearchList returns the names of option 119. Those in the first 255 octets are compressed, the others are not. So
// pointers are right for clients that join the parts of an option, and for those that read each part by itself.
func SearchList(names []string) [][]byte {
	var items [][]byte
	size, offsets := 0, map[string]int{}
	for _, name := range names {
		item := compress(name, size, offsets)
		if size += len(item); size > 255 {
			item = (&rfc1035label.Labels{Labels: []string{name}}).ToBytes()
		}
		items = append(items, item)
	}
	return items
}

// compress returns the labels of a name that begins at an offset of the option, with a pointer in place of the end of
// an earlier name (RFC 1035 section 4.1.4). RFC 3397 section 2 demands that, and the library writes no pointers.
//
// Offsets maps ends of names to their places, and gets those of this name. A name with a pointer in it is not pointed
// to, as some clients follow one pointer alone.
func compress(name string, offset int, offsets map[string]int) []byte {
	var b []byte
	own := map[string]int{}
	for name != "" {
		known := strings.ToLower(name)
		if at, ok := offsets[known]; ok {
			return append(b, 0xc0|byte(at>>8), byte(at))
		}
		own[known] = offset + len(b)
		label, rest, _ := strings.Cut(name, ".")
		b = append(append(b, byte(len(label))), label...)
		name = rest
	}
	maps.Copy(offsets, own)
	return append(b, 0)
}
