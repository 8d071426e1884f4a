package dhcp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/served"
)

// The fixed part of a DHCPv4 message (RFC 2131 section 2), offsets and sizes in octets.
const (
	offXID    = 4
	offFlags  = 10
	offCiaddr = 12
	offYiaddr = 16
	offSiaddr = 20
	offGiaddr = 24
	offChaddr = 28
	offSname  = 44
	offFile   = 108
	offCookie = 236
	fixedLen4 = 240

	minMessage4 = 300 // a BOOTP message (RFC 951); a shorter message is padded

	cookie4       = 0x63825363
	flagBroadcast = 0x80
)

// server4 answers DHCPv4 for one address.
type server4 struct {
	guests          stations
	self            cache.MAC
	address, server netip.Addr
	siaddr          [4]byte
	sname, file     string
	identifier      []byte // option 54
	lease           []byte // options 51, 58, 59
	exact           *served.Options
	standIn         *served.Options // nil: every guest gets exact
	bootsByHTTP     bool            // the boot file is a URL, and no option 60 is configured
	only6           []byte          // option 108 of a guest that has no IPv4 address; nil: it has one
	mtu             int
}

// noServer is the server of a guest without an IPv4 address, which sends it nothing.
var noServer = netip.AddrFrom4([4]byte{169, 254, 75, 1})

// newServer4 returns the server of a record with an IPv4 address, or with Options.IPv6OnlySeconds.
func newServer4(rec cache.Record, res resolver) *server4 {
	v4 := rec.IPv4
	if v4 == nil {
		return &server4{
			guests: stationsOf(rec), self: rec.ResponderMAC, address: netip.IPv4Unspecified(), server: noServer,
			identifier: served.Wire(dhcpv4.OptServerIdentifier(noServer.AsSlice())),
			lease:      served.Lease(served.LeaseSeconds(&rec.Options)), // an offer has it: RFC 2131 table 3
			only6:      served.IPv6Only(&rec.Options),
		}
	}
	s := &server4{guests: stationsOf(rec), self: rec.ResponderMAC, address: v4.Address.Addr(), server: v4.Server, mtu: rec.MTU}
	s.identifier = served.Wire(dhcpv4.OptServerIdentifier(s.server.AsSlice()))
	s.lease = served.Lease(served.LeaseSeconds(&rec.Options))
	s.exact, s.standIn = served.Exact(&rec, res.servers4, res.search), served.StandIn(&rec, res.servers4, res.search)

	// QEMU's iPXE boots by these fields of the header, not by options 66 and 67. Both texts end
	// with a zero.
	o := rec.Options
	if a, err := netip.ParseAddr(o.TFTPServer); err == nil && a.Is4() {
		s.siaddr = a.As4()
	} else if len(o.TFTPServer) < offFile-offSname {
		s.sname = o.TFTPServer
	}
	if len(o.BootFile) < offCookie-offFile {
		s.file = o.BootFile
	}
	_, configured := o.DHCPv4[uint8(dhcpv4.OptionClassIdentifier)]
	s.bootsByHTTP = !configured && isHTTP(o.BootFile)
	return s
}

// configurationFor returns what the guest gets with a lease. A guest that asks for no classless routes cannot use a
// gateway outside of its network: it gets the stand-in as its router, and the network of both.
func (s *server4) configurationFor(q request4) *served.Options {
	asked, _ := q.options.get(uint8(dhcpv4.OptionParameterRequestList))
	if s.standIn == nil || bytes.IndexByte(asked, served.ClasslessRoutes) >= 0 || bytes.IndexByte(asked, served.MicrosoftRoutes) >= 0 {
		return s.exact
	}
	return s.standIn
}

// answer answers one DHCPv4 message (RFC 2131 section 4.3).
func (s *server4) answer(dst, msg []byte) ([]byte, result) {
	switch {
	case len(msg) < fixedLen4 || msg[2] != byte(len(s.self)) || binary.BigEndian.Uint32(msg[offCookie:]) != cookie4:
		return dst, result{ignored: malformed}
	case dhcpv4.OpcodeType(msg[0]) != dhcpv4.OpcodeBootRequest:
		return dst, result{ignored: otherMessage}
	case !s.guests.have(cache.MAC(msg[offChaddr : offChaddr+6])):
		return dst, result{ignored: otherHardwareAddress}
	case [4]byte(msg[offGiaddr:offChaddr]) != [4]byte{}:
		return dst, result{ignored: relayed} // this link has no relay
	}
	options, ok := optionsOf(msg)
	if !ok {
		return dst, result{ignored: malformed}
	}
	kind, ok := options.get(uint8(dhcpv4.OptionDHCPMessageType))
	if !ok {
		return dst, result{ignored: bootp}
	}
	if len(kind) != 1 { // for example, the option is given twice
		return dst, result{ignored: malformed}
	}
	q := request4{msg: msg, options: options, ciaddr: netip.AddrFrom4([4]byte(msg[offCiaddr:offYiaddr]))}
	if s.only6 != nil {
		asked, _ := options.get(uint8(dhcpv4.OptionParameterRequestList))
		if dhcpv4.MessageType(kind[0]) != dhcpv4.MessageTypeDiscover || bytes.IndexByte(asked, uint8(dhcpv4.OptionIPv6OnlyPreferred)) < 0 {
			return dst, result{ignored: noIPv4}
		}
		return s.appendNoAddress(dst, q), result{kind: offered4, address: s.address}
	}
	switch dhcpv4.MessageType(kind[0]) {
	case dhcpv4.MessageTypeDiscover:
		if _, rapid := options.get(uint8(dhcpv4.OptionRapidCommit)); rapid { // RFC 4039
			return s.appendLease(dst, q, dhcpv4.MessageTypeAck, true), result{kind: leased4, address: s.address}
		}
		return s.appendLease(dst, q, dhcpv4.MessageTypeOffer, false), result{kind: offered4, address: s.address}
	case dhcpv4.MessageTypeRequest:
		return s.answerRequest(dst, q)
	case dhcpv4.MessageTypeInform:
		if q.ciaddr.IsUnspecified() {
			return dst, result{ignored: incomplete}
		}
		if !isStation(q.ciaddr) {
			return dst, result{ignored: malformed}
		}
		return s.appendInform(dst, q), result{kind: informed4, address: q.ciaddr}
	case dhcpv4.MessageTypeDecline: // the address stays the guest's
		declined := s.address
		// Option 50 has the address (RFC 2131 table 5). dhcpcd 9 leaves it out, and option 54.
		if raw, ok := options.get(uint8(dhcpv4.OptionRequestedIPAddress)); ok {
			declined, _ = netip.AddrFromSlice(raw)
		}
		return s.noteEnd(dst, q, declined4, declined)
	case dhcpv4.MessageTypeRelease: // ciaddr has the address
		return s.noteEnd(dst, q, released4, q.ciaddr)
	}
	return dst, result{ignored: otherMessage}
}

// noteEnd returns the event of a DECLINE or a RELEASE of an address. These messages get no answer.
func (s *server4) noteEnd(dst []byte, q request4, kind Kind, ended netip.Addr) ([]byte, result) {
	switch {
	case !s.isForServer(q.options):
		return dst, result{ignored: otherServer}
	case ended != s.address:
		return dst, result{ignored: otherAddress}
	}
	return dst, result{kind: kind, address: s.address}
}

// isStation reports whether a host can have the address, so that a reply can be sent there.
func isStation(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != broadcastIP
}

// options4 are the options of a message in their encoded form. The library's decoder would make a map of
// them, and so megabytes of garbage when a guest sends messages in a flood.
type options4 []byte

// parseOptions4 returns the options before the end option, or before the end of the message. False: the last
// option is cut short.
func parseOptions4(b []byte) (options4, bool) {
	for at := 0; at < len(b); {
		switch {
		case b[at] == byte(dhcpv4.OptionEnd):
			return b[:at], true
		case b[at] == byte(dhcpv4.OptionPad):
			at++
		case at+1 == len(b) || at+2+int(b[at+1]) > len(b):
			return nil, false
		default:
			at += 2 + int(b[at+1])
		}
	}
	return b, true
}

// optionsOf returns the options of a message. Option 52 says that file (1), sname (2) or both (3) have further ones,
// which are read in this order (RFC 2131 section 4.1). False: the last option of a field is cut short.
func optionsOf(msg []byte) (options4, bool) {
	options, ok := parseOptions4(msg[fixedLen4:])
	overload, _ := options.get(uint8(dhcpv4.OptionOptionOverload))
	if !ok || len(overload) != 1 {
		return options, ok
	}
	for bit, field := range [][]byte{msg[offFile:offCookie], msg[offSname:offFile]} {
		if overload[0]>>bit&1 == 0 {
			continue
		}
		further, ok := parseOptions4(field)
		if !ok {
			return nil, false
		}
		options = append(options[:len(options):len(options)], further...) // a copy: the message stays
	}
	return options, true
}

// get returns the value of an option. The values of an option that is given several times are joined (RFC
// 3396).
func (o options4) get(code uint8) (value []byte, ok bool) {
	for len(o) > 0 {
		if o[0] == byte(dhcpv4.OptionPad) {
			o = o[1:]
			continue
		}
		end := 2 + int(o[1])
		if o[0] == code {
			if ok {
				value = append(value, o[2:end]...)
			} else {
				value, ok = o[2:end:end], true // so that an append does not write into the message
			}
		}
		o = o[end:]
	}
	return value, ok
}

// request4 is a DHCPv4 message from the guest.
type request4 struct {
	msg     []byte
	options options4
	ciaddr  netip.Addr
}

// mac is the client's MAC, to which answers go (RFC 2131 section 4.1). The frame's source can be another of the
// guest's.
func (q request4) mac() cache.MAC { return cache.MAC(q.msg[offChaddr : offChaddr+6]) }

// isForServer reports whether the options name this server, or none.
func (s *server4) isForServer(options options4) bool {
	id, ok := options.get(uint8(dhcpv4.OptionServerIdentifier))
	if !ok {
		return true
	}
	a, ok := netip.AddrFromSlice(id)
	return ok && a == s.server
}

// answerRequest answers a DHCPREQUEST. The client's state (RFC 2131 section 4.3.2) shows in the fields that
// it sends: SELECTING options 54 and 50, INIT-REBOOT option 50, RENEWING and REBINDING ciaddr. Each
// address that the client sends has to be the one of the record. The server has no table of leases: there is
// one address, and a guest that asks for it gets it.
func (s *server4) answerRequest(dst []byte, q request4) ([]byte, result) {
	if !s.isForServer(q.options) {
		return dst, result{ignored: otherServer}
	}
	named, renewing := netip.Addr{}, !q.ciaddr.IsUnspecified()
	if renewing {
		named = q.ciaddr
	}
	if raw, ok := q.options.get(uint8(dhcpv4.OptionRequestedIPAddress)); ok {
		requested, ok := netip.AddrFromSlice(raw)
		if !ok || !requested.Is4() {
			return dst, result{ignored: malformed}
		}
		if named == s.address || !named.IsValid() {
			named = requested
		}
	}
	switch {
	case !named.IsValid():
		return dst, result{ignored: incomplete}
	case named != s.address:
		return s.appendNak(dst, q), result{kind: refused4, address: named}
	case renewing:
		return s.appendLease(dst, q, dhcpv4.MessageTypeAck, false), result{kind: renewed4, address: s.address}
	}
	return s.appendLease(dst, q, dhcpv4.MessageTypeAck, false), result{kind: leased4, address: s.address}
}

// appendHead appends room for the headers, the fixed part of a reply, and options 53 and 54. The slice fixed
// is the fixed part, until the next append to b.
func (s *server4) appendHead(dst []byte, q request4, kind dhcpv4.MessageType) (b, fixed []byte) {
	start := len(dst) + udp4Len
	b = append(dst, make([]byte, udp4Len+fixedLen4)...)
	b = append(b, byte(dhcpv4.OptionDHCPMessageType), 1, byte(kind))
	b = append(b, s.identifier...)
	fixed = b[start:]
	copy(fixed, []byte{0: byte(dhcpv4.OpcodeBootReply), 1: q.msg[1], 2: q.msg[2]})
	copy(fixed[offXID:], q.msg[offXID:offXID+4])
	fixed[offFlags] = q.msg[offFlags] & flagBroadcast
	copy(fixed[offChaddr:offSname], q.msg[offChaddr:offChaddr+6])
	binary.BigEndian.PutUint32(fixed[offCookie:], cookie4)
	if kind != dhcpv4.MessageTypeNak {
		copy(fixed[offSiaddr:], s.siaddr[:])
		copy(fixed[offSname:], s.sname)
		copy(fixed[offFile:], s.file)
	}
	return b, fixed
}

// finish ends the options, pads the message and fills the headers of the frame at b[start:].
func (s *server4) finish(b []byte, start int, mac cache.MAC, to netip.Addr) []byte {
	b = append(b, byte(dhcpv4.OptionEnd))
	if short := start + udp4Len + minMessage4 - len(b); short > 0 {
		b = append(b, make([]byte, short)...)
	}
	putUDP4(b[start:], mac, s.self, to, s.server)
	return b
}

// appendLease appends an offer or an acknowledgement of the address.
func (s *server4) appendLease(dst []byte, q request4, kind dhcpv4.MessageType, rapid bool) []byte {
	b, fixed := s.appendHead(dst, q, kind)
	copy(fixed[offYiaddr:], s.address.AsSlice())
	// RFC 2131 section 4.1. A guest that discovers has no address yet, whatever ciaddr is.
	to, mac := s.address, q.mac()
	switch {
	case kind == dhcpv4.MessageTypeAck && !rapid && q.ciaddr == s.address:
		copy(fixed[offCiaddr:], q.msg[offCiaddr:offYiaddr])
	case fixed[offFlags] != 0:
		to, mac = broadcastIP, frame.Broadcast
	}
	b = append(b, s.lease...)
	b = s.appendOptions(b, len(dst), q, s.configurationFor(q), rapid)
	return s.finish(b, len(dst), mac, to)
}

// appendInform appends the answer to a guest that was given its address by other means (RFC 2131 section
// 4.3.5): configuration without an address and a lifetime.
func (s *server4) appendInform(dst []byte, q request4) []byte {
	b, fixed := s.appendHead(dst, q, dhcpv4.MessageTypeAck)
	copy(fixed[offCiaddr:], q.msg[offCiaddr:offYiaddr])
	b = s.appendOptions(b, len(dst), q, s.exact, false) // the guest has its address and its router
	return s.finish(b, len(dst), q.mac(), q.ciaddr)
}

// appendNoAddress appends the offer for a guest that wants no IPv4 where there is IPv6 (RFC 8925 section 3.3.1): its
// yiaddr is 0.0.0.0. It goes to broadcast, as the guest has no address.
func (s *server4) appendNoAddress(dst []byte, q request4) []byte {
	b, _ := s.appendHead(dst, q, dhcpv4.MessageTypeOffer)
	b = append(append(b, s.lease...), s.only6...)
	b = appendClientIdentifier(b, q)
	return s.finish(b, len(dst), frame.Broadcast, broadcastIP)
}

// appendNak appends a DHCPNAK: no address, no parameters (RFC 2131 table 3). It goes to broadcast, as the
// guest may have an address of another network.
func (s *server4) appendNak(dst []byte, q request4) []byte {
	b, _ := s.appendHead(dst, q, dhcpv4.MessageTypeNak)
	b = served.Append(b, uint8(dhcpv4.OptionMessage), []byte("this is not the address of this guest"))
	b = appendClientIdentifier(b, q)
	return s.finish(b, len(dst), frame.Broadcast, broadcastIP)
}

// appendClientIdentifier appends the guest's option 61 again (RFC 6842). One of more than 255 octets is
// left out, as it would not fit.
func appendClientIdentifier(b []byte, q request4) []byte {
	id, ok := q.options.get(uint8(dhcpv4.OptionClientIdentifier))
	if !ok || len(id) > 255 {
		return b
	}
	return served.Append(b, uint8(dhcpv4.OptionClientIdentifier), id)
}

// httpClient is the vendor class of UEFI's HTTP boot. Such a client takes only offers with this class (UEFI
// specification 2.10 section 24.7.3.2.2).
const httpClient = "HTTPClient"

// isHTTP reports whether the boot file is one of HTTP boot.
func isHTTP(file string) bool {
	return strings.HasPrefix(file, "http://") || strings.HasPrefix(file, "https://")
}

// appendClass appends the vendor class to the answer for a client of UEFI's HTTP boot, if there is something to boot.
func (s *server4) appendClass(b []byte, q request4) []byte {
	class, _ := q.options.get(uint8(dhcpv4.OptionClassIdentifier))
	if !s.bootsByHTTP || !bytes.HasPrefix(class, []byte(httpClient)) {
		return b
	}
	return served.Append(b, uint8(dhcpv4.OptionClassIdentifier), []byte(httpClient))
}

// appendOptions appends the mask, the options that the guest asks for, in the guest's order, and the other
// options, to the frame at b[start:]. If not all of them fit, those that the guest did not ask for are left
// out first, and then those of less importance. The fields sname and file are for network boot and never hold
// options.
func (s *server4) appendOptions(b []byte, start int, q request4, c *served.Options, rapid bool) []byte {
	b = append(b, c.Mask...) // before the router: RFC 2132 section 3.3
	if rapid {
		b = append(b, byte(dhcpv4.OptionRapidCommit), 0)
	}
	b = appendClientIdentifier(b, q)
	b = s.appendClass(b, q)

	asked, _ := q.options.get(uint8(dhcpv4.OptionParameterRequestList))
	chosen := c.Choose(asked, s.limit(q)-(len(b)-start-frame.EthernetLen)-1)
	for _, code := range asked {
		if chosen[code] {
			b = append(b, c.Wire(code)...)
			chosen[code] = false
		}
	}
	for _, o := range c.All() {
		if chosen[o.Code] {
			b = append(b, o.Wire...)
		}
	}
	return b
}

// limit returns the size of the largest IPv4 datagram that the guest accepts.
func (s *server4) limit(q request4) int {
	size := 0
	if raw, _ := q.options.get(uint8(dhcpv4.OptionMaximumDHCPMessageSize)); len(raw) == 2 {
		size = int(binary.BigEndian.Uint16(raw))
	}
	return served.Limit(size, s.mtu)
}
