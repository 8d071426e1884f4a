package dhcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/ndp"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/served"
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
	optionPrefix  = 3
	// ndp.RawOption has the octets of an option in 8 bits and would encode a longer one
	// wrongly.
	maxOptionND = 248
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
func newRouter(rec cache.Record, res resolver) (*router, []string, error) {
	r := &router{source: eui64.LinkLocal(rec.ResponderMAC), mac: rec.ResponderMAC}
	ra := &ndp.RouterAdvertisement{
		CurrentHopLimit:      hopLimitGuest,
		ManagedConfiguration: true,
		OtherConfiguration:   true,
	}
	link := rec.ResponderMAC
	var routes []netip.Prefix
	if to := rec.IPv6.Router; to != nil {
		r.source, link, routes = to.Address, to.MAC, to.Routes
		if to.Default {
			ra.RouterLifetime = raLifetime
		}
	}
	room := max(rec.MTU, minMTU6) - frame.IPv6Len - icmpLenRA
	var left []string
	add := func(what string, size int, o ndp.Option) {
		if size > room {
			left = append(left, fmt.Sprintf("router advertisement without %s: it does not fit into a packet", what))
			return
		}
		room -= size
		ra.Options = append(ra.Options, o)
	}

	if !link.IsZero() {
		r.mac = link
		add("the router's link-layer address", 8, &ndp.LinkLayerAddress{Direction: ndp.Source, Addr: net.HardwareAddr(link[:])})
	}
	if rec.MTU >= minMTU6 {
		add("the MTU", 8, ndp.NewMTU(uint32(rec.MTU)))
	}
	for _, p := range rec.IPv6.OnLink {
		if p.Addr().IsLinkLocalUnicast() { // RFC 4861 section 4.6.2: an advertisement should not have it
			continue
		}
		add("prefix "+p.String(), 32, &ndp.PrefixInformation{
			Prefix:            p.Addr(),
			PrefixLength:      uint8(p.Bits()),
			OnLink:            true,
			ValidLifetime:     ndp.Infinity, // true without the responder, too
			PreferredLifetime: ndp.Infinity,
		})
	}
	for chunk := range slices.Chunk(res.servers6, (maxOptionND-8)/16) {
		add("DNS servers", 8+16*len(chunk), &ndp.RecursiveDNSServer{Lifetime: raLifetime, Servers: chunk})
	}
	for _, p := range routes {
		add("route "+p.String(), served.RouteInformationLen(p), &ndp.RouteInformation{
			Prefix:        p.Addr(),
			PrefixLength:  uint8(p.Bits()),
			RouteLifetime: raLifetime,
		})
	}
	options, long := searchOptions(res.search)
	for _, name := range long {
		left = append(left, fmt.Sprintf("router advertisement without search domain %q: it does not fit into an option", name))
	}
	for _, o := range options {
		add("search domains", int(o.Length)*8, o)
	}

	if uri := rec.Options.CaptivePortal; uri != "" {
		size := (2 + len(uri) + 7) / 8 * 8
		if size > maxOptionND {
			size = room + 1
		}
		add("the captive portal", size, &ndp.CaptivePortal{URI: uri})
	}

	var err error
	if r.icmp, err = ndp.MarshalMessage(ra); err != nil {
		return nil, nil, fmt.Errorf("router advertisement: %w", err)
	}
	expire(ra)
	if r.last, err = ndp.MarshalMessage(ra); err != nil {
		return nil, nil, fmt.Errorf("last router advertisement: %w", err)
	}
	return r, left, nil
}

// expire makes an advertisement the last one (RFC 4861 section 6.2.5): the lifetimes of the router, its routes,
// DNS servers and search domains become zero. Prefixes stay, as they are on the link without the responder,
// too.
func expire(ra *ndp.RouterAdvertisement) {
	ra.RouterLifetime = 0
	for _, o := range ra.Options {
		switch o := o.(type) {
		case *ndp.RecursiveDNSServer:
			o.Lifetime = 0
		case *ndp.RouteInformation:
			o.RouteLifetime = 0
		case *ndp.RawOption: // search domains
			o.Value = slices.Clone(o.Value)
			copy(o.Value[2:], []byte{0, 0, 0, 0})
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

// searchOptions returns the search list in options of RFC 8106 section 5.2, none of them longer than
// maxOptionND, and the names that are too long for such an option.
func searchOptions(names []string) (options []*ndp.RawOption, long []string) {
	const optionDNSSL = 31
	head := binary.BigEndian.AppendUint32([]byte{0, 0}, uint32(raLifetime/time.Second))
	value := slices.Clone(head)
	flush := func() {
		if len(value) == len(head) {
			return
		}
		for (2+len(value))%8 != 0 {
			value = append(value, 0)
		}
		options = append(options, &ndp.RawOption{Type: optionDNSSL, Length: uint8((2 + len(value)) / 8), Value: value})
		value = slices.Clone(head)
	}
	for _, name := range names {
		wire := served.AppendName(nil, name, nil)
		if 2+len(head)+len(wire) > maxOptionND {
			long = append(long, name)
			continue
		}
		if 2+len(value)+len(wire) > maxOptionND {
			flush()
		}
		value = append(value, wire...)
	}
	flush()
	return options, long
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
