package dhcp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/frame"
	"github.com/guestwire/guestwire/internal/served"
)

const (
	headLen6 = dhcpv6.MessageHeaderSize // type and transaction
	minMTU6  = 1280                     // RFC 8200 section 5
	maxDUID  = 130                      // RFC 9915 section 11.1: 128 and the type

	iaidLen     = 4
	timesLen    = 8  // T1 and T2 after the IAID of an IA_NA or IA_PD
	statusLen   = 6  // an option with a status alone
	iaAddrLen   = 24 // address and two lifetimes
	iaPrefixLen = 25 // two lifetimes, the length of the prefix, and the prefix

	preferenceMax = 255 // RFC 9915 section 21.8: the guest does not wait for other servers
)

// server6 answers DHCPv6 for the guest's addresses.
type server6 struct {
	self         cache.MAC
	source       netip.Addr
	duid         []byte // of this server
	times        []byte // T1 and T2
	associations [len(emptyAssociations)]association
	options      []option6
	limit        int  // length of the largest message
	bootsByHTTP  bool // the boot file is a URL of HTTP boot, and no option 16 is configured
}

// association is a kind of identity association (RFC 9915 sections 21.4, 21.5 and 21.21). The guest gets all that it
// can have in the first association of the kind.
type association struct {
	code     dhcpv6.OptionCode
	head     int               // length of the part before its options
	item     dhcpv6.OptionCode // its options: addresses or networks
	none     iana.StatusCode   // the status of one in which there is nothing
	networks []netip.Prefix    // what the guest gets; an address is a network of one
	leased   []byte            // the options that have it
}

const (
	ofAddresses = iota
	ofTemporary // the guest gets none: its addresses stay
	ofPrefixes
)

// emptyAssociations are the kinds, with nothing in them.
var emptyAssociations = [...]association{
	ofAddresses: {code: dhcpv6.OptionIANA, head: iaidLen + timesLen, item: dhcpv6.OptionIAAddr, none: iana.StatusNoAddrsAvail},
	ofTemporary: {code: dhcpv6.OptionIATA, head: iaidLen, item: dhcpv6.OptionIAAddr, none: iana.StatusNoAddrsAvail},
	ofPrefixes:  {code: dhcpv6.OptionIAPD, head: iaidLen + timesLen, item: dhcpv6.OptionIAPrefix, none: iana.StatusNoPrefixAvail},
}

// add has the guest get a network in an association of this kind.
func (a *association) add(n netip.Prefix, preferred, valid uint32) {
	a.networks = append(a.networks, n)
	a.leased = a.appendItem(a.leased, n, preferred, valid)
}

// address is the first address.
func (s *server6) address() netip.Addr { return s.associations[ofAddresses].networks[0].Addr() }

type option6 struct {
	code dhcpv6.OptionCode
	wire []byte
}

func appendOption6(b []byte, code dhcpv6.OptionCode, value []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(code))
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

func newServer6(rec cache.Record, res resolver) (*server6, []string) {
	s := &server6{
		self:   rec.ResponderMAC,
		source: eui64.LinkLocal(rec.ResponderMAC),
		// RFC 9915 section 11.4: a DUID without a time in it is the same after a restart.
		duid:  (&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: rec.ResponderMAC[:]}).ToBytes(),
		limit: max(rec.MTU, minMTU6) - frame.IPv6Len - frame.UDPLen,
	}
	_, configured := rec.Options.DHCPv6[uint16(dhcpv6.OptionVendorClass)]
	s.bootsByHTTP = !configured && isHTTP(rec.Options.BootFileURL)
	seconds := served.LeaseSeconds(&rec.Options)
	t1, t2 := served.Infinite, served.Infinite
	if seconds != served.Infinite { // RFC 9915 section 21.4: 0.5 and 0.8 of the preferred lifetime
		t1, t2 = seconds/2, uint32(uint64(seconds)*4/5)
	}
	s.times = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, t1), t2)

	var warnings []string
	addresses, prefixes := served.Leased6(&rec)
	warn := func(format string, leased, all int) {
		if leased < all {
			warnings = append(warnings, fmt.Sprintf(format+": more do not fit into a message", leased, all))
		}
	}
	warn("DHCPv6 leases %d of the %d addresses", len(addresses), len(rec.IPv6.Addresses()))
	warn("DHCPv6 delegates %d of the %d prefixes", len(prefixes), len(rec.IPv6.Delegated))
	// The preferred lifetime: RFC 9915 section 21.6. Deprecated addresses come between the others, as connman takes the
	// last address alone.
	preferred := func(a netip.Addr) uint32 {
		if slices.Contains(rec.IPv6.Deprecated, a) {
			return 0
		}
		return seconds
	}
	slices.SortStableFunc(addresses[1:], func(a, b netip.Addr) int { return cmp.Compare(preferred(a), preferred(b)) })
	s.associations = emptyAssociations
	for _, a := range addresses {
		s.associations[ofAddresses].add(netip.PrefixFrom(a, a.BitLen()), preferred(a), seconds)
	}
	for _, p := range prefixes {
		s.associations[ofPrefixes].add(p, seconds, seconds)
	}
	// The room beside the longest client identifier, one IA_NA, and one IA_PD if there are prefixes. A guest that asks for
	// several associations has less room: those come first.
	room := s.limit - headLen6 - (4 + maxDUID) - (4 + len(s.duid)) - 5 - 4
	for _, a := range s.associations {
		if a.leased != nil {
			room -= 4 + a.head + len(a.leased)
		}
	}
	add := func(o dhcpv6.Option) {
		wire := dhcpv6.Options{o}.ToBytes()
		if len(wire) > room {
			warnings = append(warnings, fmt.Sprintf("DHCPv6 option %d is left out: its %d octets do not fit into a message", o.Code(), len(wire)))
			return
		}
		room -= len(wire)
		s.options = append(s.options, option6{o.Code(), wire})
	}
	ntp := &dhcpv6.OptNTPServer{}
	for _, a := range res.ntp6 {
		server := dhcpv6.NTPSuboptionSrvAddr(a.AsSlice())
		ntp.Suboptions.Add(&server)
	}
	for _, o := range []dhcpv6.Option{
		dhcpv6.OptDNS(addresses6(res.servers6)...),
		dhcpv6.OptDomainSearchList(&rfc1035label.Labels{Labels: res.search}),
		ntp,
		dhcpv6.OptBootFileURL(rec.Options.BootFileURL),
		dhcpv6.OptSNTP(addresses6(res.ntp6)...),
		&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionCaptivePortal, OptionData: []byte(rec.Options.CaptivePortal)}, // RFC 8910 section 2.2
	} {
		if len(o.ToBytes()) > 0 {
			add(o)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(rec.Options.DHCPv6)) {
		add(&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionCode(code), OptionData: []byte(rec.Options.DHCPv6[code])})
	}
	return s, warnings
}

func addresses6(list []netip.Addr) []net.IP {
	var ips []net.IP
	for _, a := range list {
		ips = append(ips, a.AsSlice())
	}
	return ips
}

// appendItem appends the option for an address or a network.
func (a *association) appendItem(b []byte, n netip.Prefix, preferred, valid uint32) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(a.item))
	address := n.Addr().As16()
	if a.item == dhcpv6.OptionIAAddr {
		b = binary.BigEndian.AppendUint16(b, iaAddrLen)
		b = append(b, address[:]...)
		b = binary.BigEndian.AppendUint32(b, preferred)
		return binary.BigEndian.AppendUint32(b, valid)
	}
	b = binary.BigEndian.AppendUint16(b, iaPrefixLen)
	b = binary.BigEndian.AppendUint32(b, preferred)
	b = binary.BigEndian.AppendUint32(b, valid)
	return append(append(b, byte(n.Bits())), address[:]...)
}

// items yields what an association of the guest names: the reverse of appendItem. Malformed options are left out.
func (a *association) items(ia []byte) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for code, value := range options6(ia[min(a.head, len(ia)):]).all() {
			var n netip.Prefix
			switch {
			case code != a.item:
			case code == dhcpv6.OptionIAAddr && len(value) >= iaAddrLen:
				n = netip.PrefixFrom(netip.AddrFrom16([16]byte(value)), 128)
			case code == dhcpv6.OptionIAPrefix && len(value) >= iaPrefixLen:
				n = netip.PrefixFrom(netip.AddrFrom16([16]byte(value[9:])), int(value[8]))
			}
			if n.IsValid() && !yield(n) {
				return
			}
		}
	}
}

// options6 are the options of a message, or of an option, in their encoded form. The library's decoder would
// refuse a message for a mistake inside an option that does not matter here.
type options6 []byte

// all yields the options, up to one that is cut short.
func (o options6) all() iter.Seq2[dhcpv6.OptionCode, []byte] {
	return func(yield func(dhcpv6.OptionCode, []byte) bool) {
		for rest := o; ; {
			code, value, next, ok := rest.first()
			if !ok || !yield(code, value) {
				return
			}
			rest = next
		}
	}
}

// first returns the first option and the rest. False: there is none, or it is cut short.
func (o options6) first() (code dhcpv6.OptionCode, value []byte, rest options6, ok bool) {
	if len(o) < 4 {
		return 0, nil, o, false
	}
	end := 4 + int(binary.BigEndian.Uint16(o[2:]))
	if end > len(o) {
		return 0, nil, o, false
	}
	return dhcpv6.OptionCode(binary.BigEndian.Uint16(o)), o[4:end:end], o[end:], true
}

// isComplete reports whether no option is cut short.
func (o options6) isComplete() bool {
	ok := true
	for ok {
		_, _, o, ok = o.first()
	}
	return len(o) == 0
}

// request6 is a DHCPv6 message from the guest.
type request6 struct {
	kind     dhcpv6.MessageType
	options  options6
	clientID []byte // nil: none
	serverID []byte // nil: none
	rapid    bool
	hasIA    bool // it has an identity association
	hasORO   bool // it has an option request option
}

func parseRequest6(msg []byte) (request6, bool) {
	q := request6{kind: dhcpv6.MessageType(msg[0]), options: msg[headLen6:]}
	if !q.options.isComplete() {
		return request6{}, false
	}
	for code, value := range q.options.all() {
		switch code {
		case dhcpv6.OptionClientID:
			if q.clientID != nil || len(value) == 0 || len(value) > maxDUID {
				return request6{}, false
			}
			q.clientID = value
		case dhcpv6.OptionServerID:
			if q.serverID != nil {
				return request6{}, false
			}
			q.serverID = value
		case dhcpv6.OptionRapidCommit:
			q.rapid = true
		case dhcpv6.OptionIANA, dhcpv6.OptionIATA, dhcpv6.OptionIAPD:
			q.hasIA = true
		case dhcpv6.OptionORO:
			q.hasORO = true
		}
	}
	return q, true
}

// wants reports whether the guest asks for the option. A message without an option request option asks for all.
func (q *request6) wants(wanted dhcpv6.OptionCode) bool {
	for code, asked := range q.options.all() {
		if code != dhcpv6.OptionORO {
			continue
		}
		for ; len(asked) >= 2; asked = asked[2:] {
			if dhcpv6.OptionCode(binary.BigEndian.Uint16(asked)) == wanted {
				return true
			}
		}
	}
	return !q.hasORO
}

// answer answers one DHCPv6 message (RFC 9915 section 18.3). Section 16 says which identifiers a
// message must and must not have.
func (s *server6) answer(dst []byte, from cache.MAC, p frame.IPv6, msg []byte) ([]byte, result) {
	switch {
	case len(msg) < headLen6:
		return dst, result{ignored: malformed}
	case !p.Dst.IsMulticast():
		return dst, result{ignored: unicast}
	case !isStation(p.Src):
		return dst, result{ignored: badSource}
	}
	switch dhcpv6.MessageType(msg[0]) {
	case dhcpv6.MessageTypeSolicit, dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeConfirm,
		dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind, dhcpv6.MessageTypeRelease,
		dhcpv6.MessageTypeDecline, dhcpv6.MessageTypeInformationRequest:
	case dhcpv6.MessageTypeRelayForward, dhcpv6.MessageTypeRelayReply:
		return dst, result{ignored: relayed}
	default: // a server's message, or an unknown one
		return dst, result{ignored: otherMessage}
	}
	q, ok := parseRequest6(msg)
	if !ok {
		return dst, result{ignored: malformed}
	}
	if why := s.checkIdentifiers(&q); why != "" {
		return dst, result{ignored: why}
	}

	w := writer6{server: s, q: q, b: dst, start: len(dst)}
	var e result
	switch q.kind {
	case dhcpv6.MessageTypeSolicit:
		if q.rapid {
			w.appendHead(dhcpv6.MessageTypeReply, msg)
			w.appendOption(dhcpv6.OptionRapidCommit, nil)
			e = result{kind: leased6, address: s.address()}
		} else {
			w.appendHead(dhcpv6.MessageTypeAdvertise, msg)
			w.appendOption(dhcpv6.OptionPreference, []byte{preferenceMax})
			e = result{kind: offered6, address: s.address()}
		}
		if !w.appendAssociations() {
			e = result{kind: informed6}
		}
		w.appendConfiguration()
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind:
		w.appendHead(dhcpv6.MessageTypeReply, msg)
		if e = (result{kind: renewed6, address: s.address()}); q.kind == dhcpv6.MessageTypeRequest {
			e.kind = leased6
		}
		if !w.appendAssociations() {
			e = result{kind: informed6}
		}
		w.appendConfiguration()
	case dhcpv6.MessageTypeConfirm:
		own, foreign := s.named(q.options)
		if !own.IsValid() && !foreign.IsValid() {
			return dst, result{ignored: incomplete}
		}
		w.appendHead(dhcpv6.MessageTypeReply, msg)
		if foreign.IsValid() {
			w.appendStatus(iana.StatusNotOnLink)
			e = result{kind: refused6, address: foreign}
		} else {
			w.appendStatus(iana.StatusSuccess)
			e = result{kind: confirmed6, address: s.address()}
		}
	case dhcpv6.MessageTypeDecline, dhcpv6.MessageTypeRelease:
		w.appendHead(dhcpv6.MessageTypeReply, msg)
		w.appendStatus(iana.StatusSuccess)
		own, _ := s.named(q.options)
		if !own.IsValid() {
			break
		}
		if e = (result{kind: released6, address: own}); q.kind == dhcpv6.MessageTypeDecline {
			e.kind = declined6
		}
	case dhcpv6.MessageTypeInformationRequest:
		w.appendHead(dhcpv6.MessageTypeReply, msg)
		w.appendConfiguration()
		e.kind = informed6
	}
	putUDP6(w.b[w.start:], from, s.self, p.Src, s.source)
	return w.b, e
}

// checkIdentifiers checks the identifiers that the message must and must not have (RFC 9915 section 16). It returns
// the reason to ignore the message, or nothing.
func (s *server6) checkIdentifiers(q *request6) Reason {
	other := q.serverID != nil && !bytes.Equal(q.serverID, s.duid)
	switch q.kind {
	case dhcpv6.MessageTypeSolicit, dhcpv6.MessageTypeConfirm, dhcpv6.MessageTypeRebind:
		switch {
		case q.clientID == nil:
			return incomplete
		case q.serverID != nil:
			return malformed
		}
	case dhcpv6.MessageTypeInformationRequest:
		switch {
		case other:
			return otherServer
		case q.hasIA:
			return malformed
		}
	default:
		switch {
		case q.clientID == nil || q.serverID == nil:
			return incomplete
		case other:
			return otherServer
		}
	}
	return ""
}

// named returns the first of the guest's addresses in the associations, and the first address that is none of the
// guest's. A guest asks for its prefixes by REBIND (RFC 9915 section 18.2.5), never by CONFIRM.
func (s *server6) named(options options6) (own, foreign netip.Addr) {
	for code, ia := range options.all() {
		i := s.kindOf(code)
		if i < 0 || i == ofPrefixes {
			continue
		}
		for n := range s.associations[i].items(ia) {
			switch leased := slices.Contains(s.associations[ofAddresses].networks, n); {
			case leased && !own.IsValid():
				own = n.Addr()
			case !leased && !foreign.IsValid():
				foreign = n.Addr()
			}
		}
	}
	return own, foreign
}

// kindOf returns the place of an association's kind; negative: the option is none.
func (s *server6) kindOf(code dhcpv6.OptionCode) int {
	for i := range s.associations {
		if s.associations[i].code == code {
			return i
		}
	}
	return -1
}
