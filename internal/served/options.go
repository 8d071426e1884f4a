// Package served has the options of DHCPv4 that a record makes, and finds what of a record the guest is not sent. The
// responder serves by it, and a plan says by it what the guest will not get. It is pure.
package served

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/insomniacslk/dhcp/rfc1035label"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/servers"
)

// Codes of DHCPv4 options (RFC 2132 and others).
const (
	SubnetMask        = 1
	router            = 3
	domainNameServer  = 6
	hostName          = 12
	domainName        = 15
	interfaceMTU      = 26
	broadcastAddress  = 28
	ntpServers        = 42
	leaseTime         = 51
	renewalTime       = 58
	rebindingTime     = 59
	tftpServerName    = 66
	bootfileName      = 67
	ipv6OnlyPreferred = 108 // RFC 8925
	captivePortal     = 114 // RFC 8910 section 2.1
	domainSearch      = 119 // RFC 3397
	ClasslessRoutes   = 121 // RFC 3442
	MicrosoftRoutes   = 249 // [MS-DHCPE] section 2.2.8, the content of 121
	minDatagram       = 576 // the datagram that every client accepts (RFC 2131 section 2)
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

// AppendList appends an option whose value is a list of items of 1 to 255 octets. It cuts a long option between two
// items, as some clients read each part by itself.
func AppendList(b []byte, code uint8, items [][]byte) []byte {
	for len(items) > 0 {
		n, size := 0, 0
		for n < len(items) && size+len(items[n]) <= 255 {
			size += len(items[n])
			n++
		}
		b = Append(b, code, slices.Concat(items[:n]...))
		items = items[n:]
	}
	return b
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
	c := &Options{Mask: Append(nil, SubnetMask, binary.BigEndian.AppendUint32(nil, maskOf(address)))}
	// In the order of importance: Choose leaves out the last ones if a message is too small.
	addWire := func(code uint8, wire []byte) {
		c.options = append(c.options, Option{code, wire})
		c.at[code] = uint8(len(c.options))
	}
	add := func(code uint8, value []byte) {
		if len(value) > 0 {
			addWire(code, Append(nil, code, value))
		}
	}
	addList := func(code uint8, items [][]byte) {
		if len(items) > 0 {
			addWire(code, AppendList(nil, code, items))
		}
	}
	// The MTU and the servers take few octets, and routes can take all.
	add(interfaceMTU, binary.BigEndian.AppendUint16(nil, uint16(rec.MTU)))
	addList(domainNameServer, addresses(resolvers))
	addList(ClasslessRoutes, routes)
	if gateway.IsValid() {
		add(router, gateway.AsSlice())
	}
	addList(MicrosoftRoutes, routes)
	if len(search) > 0 {
		add(domainName, []byte(search[0]))
		addList(domainSearch, SearchList(search))
	}
	o := &rec.Options
	add(hostName, []byte(o.Hostname))
	add(tftpServerName, []byte(o.TFTPServer))
	add(bootfileName, []byte(o.BootFile))
	ntp, _ := servers.Leased(rec).Reachable(o.NTP)
	addList(ntpServers, addresses(ntp))
	if address.Bits() < 31 {
		ip := address.Addr().As4()
		add(broadcastAddress, binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(ip[:])|^maskOf(address)))
	}
	for _, code := range slices.Sorted(maps.Keys(o.DHCPv4)) {
		addWire(code, Append(nil, code, []byte(o.DHCPv4[code])))
	}
	c.unasked = len(c.options)
	add(captivePortal, []byte(o.CaptivePortal))
	if o.IPv6OnlySeconds > 0 {
		addWire(ipv6OnlyPreferred, IPv6Only(o))
	}
	return c
}

func maskOf(p netip.Prefix) uint32 { return ^uint32(0) << (32 - p.Bits()) }

// IPv6Only returns option 108 (RFC 8925).
func IPv6Only(o *cache.Options) []byte {
	return Append(nil, ipv6OnlyPreferred, binary.BigEndian.AppendUint32(nil, o.IPv6OnlySeconds))
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
	u32 := func(b []byte, code uint8, v uint32) []byte {
		return Append(b, code, binary.BigEndian.AppendUint32(nil, v))
	}
	b := u32(nil, leaseTime, seconds)
	if seconds == Infinite {
		return b
	}
	b = u32(b, renewalTime, seconds/2)
	return u32(b, rebindingTime, uint32(uint64(seconds)*7/8))
}

// addresses returns the IPv4 addresses of the list, as they are sent.
func addresses(list []netip.Addr) [][]byte {
	var items [][]byte
	for _, a := range list {
		if a.Is4() {
			items = append(items, a.AsSlice())
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
		bits := route.Destination.Bits()
		item := append([]byte{byte(bits)}, route.Destination.Addr().AsSlice()[:(bits+7)/8]...)
		routes = append(routes, append(item, hop.AsSlice()...))
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
