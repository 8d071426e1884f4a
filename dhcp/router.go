package dhcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/served"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Intervals and lifetimes of router advertisements (RFC 4861 section 6.2.1). The interval is the longest
// that the RFC allows, so that an idle responder sleeps. The lifetime is the longest as well, so that a guest
// keeps its routes for hours if the responder is killed.
const (
	raLifetime    = 9000 * time.Second // of the router, routes and DNS: 5 intervals, RFC 8106 wants 3
	raIntervalMax = 1800 * time.Second
	raIntervalMin = raIntervalMax * 3 / 4
	raInitial     = 16 * time.Second // MAX_INITIAL_RTR_ADVERT_INTERVAL
	raInitials    = 3                // MAX_INITIAL_RTR_ADVERTISEMENTS
	raDistance    = 3 * time.Second  // MIN_DELAY_BETWEEN_RAS, between multicast advertisements
)

const (
	icmpLenRA     = 16 // without options
	hopLimitGuest = 64
	managedRA     = 0x80 // the flags M and O
	otherRA       = 0x40
	// The longest option that is sent. A longer one is allowed, but not every implementation has its octets in
	// more than 8 bits.
	maxOptionND = 248
)

// Types of options (RFC 4861 section 4.6, RFC 4191 section 2.3, RFC 8106 section 5, RFC 8910 section 2.3, RFC 8781
// section 4).
const (
	optionPrefix = 3
	optionMTU    = 5
	optionRoute  = 24
	optionRDNSS  = 25
	optionDNSSL  = 31
	optionPortal = 37
	optionPREF64 = 38
)

// router is the router advertisement for the guest.
type router struct {
	source netip.Addr // of the advertisements: the guest's next hop, or the responder
	mac    cache.MAC  // of the frames
	// The advertisement, and the one that withdraws it, without a checksum.
	icmp, last []byte
}

// newRouter makes the advertisement, and returns warnings about what is left out of it. The router lifetime
// is zero if there is no default route. The flags M and O always have the guest use DHCPv6.
func newRouter(rec cache.Record, res resolver) (*router, []string) {
	r := &router{source: eui64.LinkLocal(rec.ResponderMAC), mac: rec.ResponderMAC}
	r.icmp = append([]byte{frame.RouterAdvertisement, 0, 0, 0, hopLimitGuest, managedRA | otherRA}, make([]byte, icmpLenRA-6)...)
	lifetime := binary.BigEndian.AppendUint32(nil, uint32(raLifetime/time.Second))
	link := rec.ResponderMAC
	var routes []netip.Prefix
	if to := rec.IPv6.Router; to != nil {
		r.source, link, routes = to.Address, to.MAC, to.Routes
		if to.Default {
			r.icmp[5] |= byte(to.Preference&3) << 3 // RFC 4191 section 2.2
			copy(r.icmp[6:], lifetime[2:])
		}
	}
	room := max(rec.MTU, minMTU6) - frame.IPv6Len
	var left []string
	add := func(what string, kind byte, parts ...[]byte) {
		option := append([]byte{kind, 0}, bytes.Join(parts, nil)...)
		option = append(option, make([]byte, -len(option)&7)...)
		if len(option) > min(room-len(r.icmp), maxOptionND) {
			left = append(left, fmt.Sprintf("router advertisement without %s: it does not fit into a packet", what))
			return
		}
		option[1] = byte(len(option) / 8)
		r.icmp = append(r.icmp, option...)
	}

	if !link.IsZero() {
		r.mac = link
		add("the router's link-layer address", frame.SourceLinkLayer, link[:])
	}
	if rec.MTU >= minMTU6 {
		add("the MTU", optionMTU, binary.BigEndian.AppendUint32([]byte{0, 0}, uint32(rec.MTU)))
	}
	for _, p := range rec.IPv6.OnLink {
		if p.Addr().IsLinkLocalUnicast() { // RFC 4861 section 4.6.2: an advertisement should not have it
			continue
		}
		const onLink = 0x80
		infinity := []byte{0xff, 0xff, 0xff, 0xff} // true without the responder, too
		add("prefix "+p.String(), optionPrefix, []byte{byte(p.Bits()), onLink}, infinity, infinity, make([]byte, 4), p.Addr().AsSlice())
	}
	for chunk := range slices.Chunk(res.servers6, (maxOptionND-8)/16) {
		add("DNS servers", optionRDNSS, []byte{0, 0}, lifetime, dhcpv6.OptDNS(addresses6(chunk)...).ToBytes())
	}
	for _, p := range routes {
		add("route "+p.String(), optionRoute, []byte{byte(p.Bits()), 0}, lifetime, p.Addr().AsSlice()[:served.RouteInformationLen(p)-8])
	}
	lists, long := searchLists(res.search)
	for _, name := range long {
		left = append(left, fmt.Sprintf("router advertisement without search domain %q: it does not fit into an option", name))
	}
	for _, list := range lists {
		add("search domains", optionDNSSL, []byte{0, 0}, lifetime, list)
	}
	if uri := rec.Options.CaptivePortal; uri != "" {
		add("the captive portal", optionPortal, []byte(uri))
	}
	if p := rec.Options.NAT64; p.IsValid() {
		length := slices.Index(syntax.NAT64Bits, p.Bits())
		scaled := uint16(raLifetime / (8 * time.Second))
		add("the NAT64 prefix", optionPREF64, binary.BigEndian.AppendUint16(nil, scaled<<3|uint16(length)), p.Addr().AsSlice()[:12])
	}
	r.last = slices.Clone(r.icmp)
	expire(r.last)
	return r, left
}

// expire makes an advertisement the last one (RFC 4861 section 6.2.5): the lifetimes of the router, its routes,
// DNS servers, search domains and NAT64 prefix become zero. Prefixes stay, as they are on the link without the
// responder, too.
func expire(ra []byte) {
	clear(ra[6:8])
	for o := range frame.Options(ra[icmpLenRA:]) {
		switch o[0] {
		case optionRoute, optionRDNSS, optionDNSSL:
			clear(o[4:8])
		case optionPREF64: // the lower bits are the prefix's length
			o[2], o[3] = 0, o[3]&7
		}
	}
}

// takenBack returns an advertisement, without a checksum, that ends with lifetimes of zero what the router before
// this one advertised and this one does not: routes, DNS servers, search domains and prefixes. Nil: there is
// nothing to end.
func (r *router) takenBack(before *router) []byte {
	msg := slices.Clone(r.icmp[:icmpLenRA])
	options, last := before.icmp[icmpLenRA:], before.last[icmpLenRA:] // the same options, with other lifetimes
	for len(options) > 0 {
		n := 8 * int(options[1])
		end := slices.Clone(last[:n])
		if end[0] == optionPrefix {
			clear(end[4:12]) // both lifetimes
		}
		if !bytes.Equal(end, options[:n]) && !r.contains(options[:n]) {
			msg = append(msg, end...)
		}
		options, last = options[n:], last[n:]
	}
	if len(msg) == icmpLenRA {
		return nil
	}
	return msg
}

// contains reports whether the advertisement has the option.
func (r *router) contains(option []byte) bool {
	for o := range frame.Options(r.icmp[icmpLenRA:]) {
		if bytes.Equal(o, option) {
			return true
		}
	}
	return false
}

// searchLists returns the search list for options of RFC 8106 section 5.2, none of them longer than maxOptionND, and
// the names that are too long for such an option.
func searchLists(names []string) (lists [][]byte, long []string) {
	const most = maxOptionND - 8
	for _, name := range names {
		wire := encodeNames(name)
		last := len(lists) - 1
		switch {
		case len(wire) > most:
			long = append(long, name)
		case last >= 0 && len(lists[last])+len(wire) <= most:
			lists[last] = append(lists[last], wire...)
		default:
			lists = append(lists, wire)
		}
	}
	return lists, long
}

// appendAdvertisement appends an advertisement to dst.
func (r *router) appendAdvertisement(dst []byte, mac cache.MAC, to netip.Addr) []byte {
	return frame.AppendICMPv6(dst, mac, r.mac, to, r.source, r.icmp)
}

// appendWithdrawal appends the last advertisement to dst.
func (r *router) appendWithdrawal(dst []byte) []byte {
	return toAllNodes(dst, r.mac, r.source, r.last)
}

// answerRouterSolicitation answers to the guest's source address, or to all nodes if the guest has none yet
// (RFC 4861 section 6.2.6).
func (r *answers) answerRouterSolicitation(dst []byte, from cache.MAC, p frame.IPv6) ([]byte, result) {
	switch {
	case r.router == nil:
		return dst, result{ignored: noIPv6}
	case p.Src.IsMulticast():
		return dst, result{ignored: badSource}
	case !validOptionsND(p.Body[8:], p.Src):
		return dst, result{ignored: malformed}
	}
	if p.Src.IsUnspecified() {
		return r.router.appendAdvertisement(dst, frame.MulticastMAC(frame.AllNodes), frame.AllNodes), result{kind: advertised}
	}
	return r.router.appendAdvertisement(dst, from, p.Src), result{kind: advertised}
}
