// Package pinmessage has the messages between a DNS proxy (phase2/names) and the process that pins addresses for it
// (phase1/pins), and the checks that both make. A message is one of a SOCK_SEQPACKET socket.
//
// The process sends the names, once. The proxy replies that it is ready. Then it sends requests, one at a time, and
// gets a reply to each. A name is named by its place in the list, so the proxy neither knows ports nor sends any.
package pinmessage

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/syntax"
)

const (
	// MostAddresses are those of an answer, of a request, and of a name of one's own. The answer fits into 512 octets.
	MostAddresses = 8

	// An answer is used for Shortest to Longest. Its pins last for Grace longer, for a connection that the guest opens
	// at the last moment.
	Shortest = 5 * time.Second
	Longest  = 5 * time.Minute
	Grace    = 5 * time.Second

	// MostNames are those of a list.
	MostNames = 16384

	// MaxSize is that of the longest message. Whoever receives reads one octet more, to notice a longer one.
	MaxSize = 2 + 16*MostAddresses + 2 + syntax.MaxName
)

// version is the first octet of the list, and of the message ready.
const version = 3

// AppendCount begins a list of so many names. NAT64 is the prefix of the site's translator, as [Allowed] takes it.
func AppendCount(b []byte, names int, nat64 netip.Prefix) []byte {
	b = binary.BigEndian.AppendUint32(append(b, version), uint32(names))
	if !nat64.IsValid() {
		return b
	}
	return append(append(b, byte(nat64.Bits())), nat64.Addr().AsSlice()...)
}

// Count is the number of names, and the prefix.
func Count(message []byte) (names int, nat64 netip.Prefix, err error) {
	if n := len(message); n != 5 && n != 22 || message[0] != version {
		return 0, nat64, fmt.Errorf("the list of names begins with %x: is the other program of the same version?", message[:min(len(message), 8)])
	}
	n := binary.BigEndian.Uint32(message[1:])
	if n > MostNames {
		return 0, nat64, fmt.Errorf("%d names, want at most %d", n, MostNames)
	}
	if message = message[5:]; len(message) > 0 {
		nat64 = netip.PrefixFrom(netip.AddrFrom16([16]byte(message[1:])), int(message[0]))
		if !slices.Contains(syntax.NAT64Bits, nat64.Bits()) {
			return 0, nat64, errShape
		}
	}
	return int(n), nat64, nil
}

// Name is what the proxy knows of an entry.
type Name struct {
	Name      string // perhaps with "*." in front
	Private   bool
	Addresses []netip.Addr // of a name of one's own
}

// Append appends the message of the name.
func (n Name) Append(b []byte) []byte {
	private := byte(0)
	if n.Private {
		private = 1
	}
	b = appendAddresses(append(b, private), n.Addresses)
	return append(b, n.Name...)
}

// ParseName is the name of a message.
func ParseName(message []byte) (n Name, err error) {
	if len(message) < 1 || message[0] > 1 {
		return n, errShape
	}
	n.Private = message[0] == 1
	n.Addresses, message, err = cutAddresses(message[1:])
	n.Name = string(message)
	return n, err
}

// AppendReady appends the message of a proxy that has its sockets and the list: it answers from now on.
func AppendReady(b []byte) []byte { return append(b, version, 0) }

// CheckReady refuses another message than that of AppendReady.
func CheckReady(message []byte) error {
	if !bytes.Equal(message, AppendReady(nil)) {
		return errShape
	}
	return nil
}

// Request asks to pin the addresses of an answer.
type Request struct {
	Name      int // place in the list
	Addresses []netip.Addr
	Life      time.Duration // of the answer, in seconds
}

// Append appends the message of the request.
func (r Request) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(r.Name))
	b = binary.BigEndian.AppendUint16(b, uint16(r.Life/time.Second))
	return appendAddresses(b, r.Addresses)
}

// ParseRequest is the request of a message about one of so many names. It has an address at least, and a life within
// the bounds.
func ParseRequest(message []byte, names int) (r Request, err error) {
	if len(message) < 6 {
		return r, errShape
	}
	name := binary.BigEndian.Uint32(message)
	r.Life = time.Duration(binary.BigEndian.Uint16(message[4:])) * time.Second
	var rest []byte
	r.Addresses, rest, err = cutAddresses(message[6:])
	switch {
	case err != nil:
		return r, err
	case len(rest) > 0 || len(r.Addresses) == 0:
		return r, errShape
	case name >= uint32(names):
		return r, fmt.Errorf("name %d of %d", name, names)
	case r.Life < Shortest || r.Life > Longest:
		return r, fmt.Errorf("a life of %v", r.Life)
	}
	r.Name = int(name)
	return r, nil
}

// Reply says which of a request's addresses are pinned.
type Reply struct {
	Failed bool // for a while: the guest may ask again
	Pinned []netip.Addr
}

// Append appends the message of the reply to the request.
func (r Reply) Append(b []byte, to Request) []byte {
	failed, pinned := byte(0), byte(0)
	if r.Failed {
		failed = 1
	}
	for i, a := range to.Addresses {
		if slices.Contains(r.Pinned, a) {
			pinned |= 1 << i
		}
	}
	return append(b, failed, pinned)
}

// ParseReply is the reply to the request.
func ParseReply(message []byte, to Request) (r Reply, err error) {
	if len(message) != 2 || message[0] > 1 {
		return r, errShape
	}
	r.Failed = message[0] == 1
	for i, a := range to.Addresses {
		if message[1]&(1<<i) != 0 {
			r.Pinned = append(r.Pinned, a)
		}
	}
	return r, nil
}

var errShape = errors.New("a message of another shape: is the other program of the same version?")

// appendAddresses appends the number of addresses and 16 octets of each; IPv4 is mapped.
func appendAddresses(b []byte, addresses []netip.Addr) []byte {
	b = append(b, byte(len(addresses)))
	for _, a := range addresses {
		octets := a.As16()
		b = append(b, octets[:]...)
	}
	return b
}

// cutAddresses are the addresses with which a part begins, each once, and the rest.
func cutAddresses(part []byte) (addresses []netip.Addr, rest []byte, err error) {
	if len(part) < 1 || part[0] > MostAddresses || len(part) < 1+16*int(part[0]) {
		return nil, nil, errShape
	}
	rest = part[1:]
	for range part[0] {
		a := netip.AddrFrom16([16]byte(rest)).Unmap()
		if slices.Contains(addresses, a) {
			return nil, nil, errShape
		}
		addresses, rest = append(addresses, a), rest[16:]
	}
	return addresses, rest, nil
}

// Allowed reports whether a name may lead to the address. Only a private name may lead to a private or a link-local
// one, and none to a metadata service, to the guest itself or to many stations. An IPv6 address that stands for one of
// IPv4 counts as that one, too, and one of a NAT64 translator as that one alone: nat64 is the site's prefix, if valid.
// A malformed one of a translator is none that a name leads to.
func Allowed(a netip.Addr, private bool, nat64 netip.Prefix) bool {
	if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
		return false
	}
	for _, t := range ip.TranslatorsOf(nat64) {
		if t.Contains(a) {
			if t.Malformed(a) {
				return false
			}
			a = t.To4(a)
		}
	}
	if contains(never, a) || !private && contains(inside, a) {
		return false
	}
	return !slices.ContainsFunc(embedded(a), func(v4 netip.Addr) bool { return !Allowed(v4, private, netip.Prefix{}) })
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
}

// never are metadata services, and networks that are not unicast, not routed, or a station's own. 192.0.0.0/24 has
// services of the network that a station is in (RFC 6890), ::/96 addresses that nobody uses (RFC 4291 section 2.5.5.1).
var never = append(syntax.Destinations("metadata"), networks("0.0.0.0/8", "127.0.0.0/8", "192.0.0.0/24", "224.0.0.0/4", "240.0.0.0/4", "::/96", "ff00::/8")...)

// inside are the networks of whoever runs the guest: those of the lists private and link-local, translators of their
// own (RFC 8215), and site-local addresses (RFC 3879).
var inside = slices.Concat(syntax.Destinations("private"), syntax.Destinations("link-local"), networks("64:ff9b:1::/48", "fec0::/10"))

// spelling is a form of IPv6 addresses that have one of IPv4, as 32 hexadecimal digits. v stands for a digit of that
// address, n for one of its complement, and . for any.
type spelling string

// spellings are those that other translators and tunnels lead to the IPv4 address. Of a line the first one that fits
// counts: a translator's own prefix has one of four lengths, and the shorter ones leave the last octets zero.
var spellings = [][]spelling{
	{"0064ff9b0001vvvv00vvvv0000000000", "0064ff9b0001..vv00vvvvvv00000000", "0064ff9b0001....00vvvvvvvv000000", "0064ff9b0001............vvvvvvvv"}, // RFC 8215
	{"2002vvvvvvvv...................."}, // 6to4 (RFC 3056)
	{"20010000................nnnnnnnn"}, // Teredo (RFC 4380): the client
	{"0000000000000000ffff0000vvvvvvvv"}, // IPv4-translated (RFC 2765)
	{"................00005efevvvvvvvv"}, // ISATAP (RFC 5214) with a private address, or so configured
	{"................02005efevvvvvvvv"}, // the same with a global one
}

// ipv4 returns the IPv4 address in an IPv6 address, by its digits.
func (s spelling) ipv4(digits string) (v4 netip.Addr, fits bool) {
	var octets [4]byte
	var found []byte
	flip := byte(0)
	for i, c := range []byte(s) {
		switch c {
		case '.':
		case 'n':
			flip = 0xff
			fallthrough
		case 'v':
			found = append(found, digits[i])
		case digits[i]:
		default:
			return v4, false
		}
	}
	hex.Decode(octets[:], found)
	for i := range octets {
		octets[i] ^= flip
	}
	return netip.AddrFrom4(octets), true
}

// embedded returns the IPv4 addresses for which the address stands.
func embedded(a netip.Addr) (list []netip.Addr) {
	if !a.Is6() {
		return nil
	}
	octets := a.As16()
	digits := hex.EncodeToString(octets[:])
	for _, line := range spellings {
		for _, s := range line {
			if v4, fits := s.ipv4(digits); fits {
				list = append(list, v4)
				break
			}
		}
	}
	return list
}

func networks(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}
