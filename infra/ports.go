package infra

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/firewall"
)

// Ports are one port of a protocol, or several in a row. Their text is FIRST[-LAST][:GUEST][/PROTOCOL],
// such as 80, 8000-8100/udp or 8080:80; in JSON they are that text. Those of one list must not overlap.
type Ports struct {
	Protocol    string // "tcp", "udp" or "sctp"; "": "tcp"
	First, Last uint16 // 1 to 65535; a Last of 0 is First
	// Guest is the port of the guest that First becomes; those after it follow, at most 256 in all
	// and up to 65535. 0: the same. Only Masquerade.Ports and Passt.Ports may have one.
	Guest uint16
}

var transports = map[string]uint8{"tcp": firewall.ProtocolTCP, "udp": firewall.ProtocolUDP, "sctp": firewall.ProtocolSCTP}

func (p Ports) protocol() string {
	if p.Protocol == "" {
		return "tcp"
	}
	return p.Protocol
}

func (p Ports) last() uint16 { return max(p.First, p.Last) }

// String is the text, with the protocol.
func (p Ports) String() string {
	text := fmt.Sprint(p.First)
	if p.Last > p.First {
		text += fmt.Sprintf("-%d", p.Last)
	}
	if p.Guest != 0 && p.Guest != p.First {
		text += fmt.Sprintf(":%d", p.Guest)
	}
	return text + "/" + p.protocol()
}

// MarshalText is String.
func (p Ports) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is the reverse of MarshalText. The error says which number is none from 1 to 65535.
// The protocol, the order and overlaps are NewPlan's to check.
func (p *Ports) UnmarshalText(text []byte) error {
	rest, protocol, _ := strings.Cut(string(text), "/")
	span, guest, redirected := strings.Cut(rest, ":")
	first, last, several := strings.Cut(span, "-")
	out := Ports{Protocol: protocol}
	for _, n := range []struct {
		text string
		is   bool
		to   *uint16
	}{{first, true, &out.First}, {last, several, &out.Last}, {guest, redirected, &out.Guest}} {
		if !n.is {
			continue
		}
		number, err := strconv.ParseUint(n.text, 10, 16)
		if err != nil || number == 0 {
			return fmt.Errorf("ports %q: %q is no port, want 1 to 65535, as in 80, 8000-8100/udp, 8080:80", text, n.text)
		}
		*n.to = uint16(number)
	}
	*p = out
	return nil
}

// checkPorts says whether a list can be told: real ports of known protocols, none of them twice.
func checkPorts(field string, list []Ports) error {
	for i, p := range list {
		field := fmt.Sprintf("%s[%d]", field, i)
		if _, known := transports[p.protocol()]; !known {
			return &cache.FieldError{Field: field, Reason: fmt.Sprintf("unknown protocol %q, want tcp, udp or sctp", p.Protocol)}
		}
		if p.First == 0 {
			return &cache.FieldError{Field: field, Reason: "port 0, want 1 to 65535"}
		}
		if p.Last != 0 && p.Last < p.First {
			return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%d-%d ends before it begins", p.First, p.Last)}
		}
		if n := p.last() - p.First; p.Guest != 0 && p.Guest != p.First && (n >= maxRedirected || int(p.Guest)+int(n) > 65535) {
			return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v: at most %d ports at once can become other ones, up to 65535", p, maxRedirected)}
		}
		for j, o := range list[:i] {
			if p.overlaps(o) {
				return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v overlaps entry %d, %v", p, j, o)}
			}
		}
	}
	return nil
}

// maxRedirected limits the ports of a range that become others, as each takes a rule of its own.
const maxRedirected = 256

func (p Ports) overlaps(o Ports) bool {
	return p.protocol() == o.protocol() && p.First <= o.last() && o.First <= p.last()
}

// contains says whether the port is one of the list.
func contains(list []Ports, protocol string, port uint16) bool {
	return slices.ContainsFunc(list, Ports{Protocol: protocol, First: port}.overlaps)
}

// match is what the rules for the ports ask.
func (p Ports) match() []firewall.Match {
	number := transports[p.protocol()]
	return []firewall.Match{
		firewall.Protocol{Number: number},
		firewall.DestinationPort{Protocol: number, First: p.First, Last: p.last()},
	}
}

// single are the ports one by one, if they become others; otherwise they are together.
func (p Ports) single() []Ports {
	if p.Guest == 0 || p.Guest == p.First {
		return []Ports{{Protocol: p.Protocol, First: p.First, Last: p.Last}}
	}
	var list []Ports
	for i := uint16(0); i <= p.last()-p.First; i++ {
		list = append(list, Ports{Protocol: p.Protocol, First: p.First + i, Guest: p.Guest + i})
	}
	return list
}

// validate says whether the ports can be forwarded, before anything is looked up.
func (b Masquerade) validate() error {
	const field = "binding.masquerade."
	if err := cache.CheckFirewall(field+"firewall", b.Firewall); err != nil {
		return err
	}
	if err := checkPorts(field+"ports", b.Ports); err != nil {
		return err
	}
	if err := checkPorts(field+"excluded", b.Excluded); err != nil {
		return err
	}
	for i, p := range b.Excluded {
		if p.Guest != 0 {
			return &cache.FieldError{Field: fmt.Sprintf("%sexcluded[%d]", field, i), Reason: fmt.Sprintf("%v: what stays the namespace's becomes no other port", p)}
		}
		for j, o := range b.Ports {
			if p.overlaps(o) {
				return &cache.FieldError{Field: fmt.Sprintf("%sexcluded[%d]", field, i), Reason: fmt.Sprintf("%v is to be forwarded as well, by ports[%d], %v", p, j, o)}
			}
		}
	}
	if b.MaxConnections < 0 || b.MaxConnections > maxConnections {
		return &cache.FieldError{Field: field + "maxConnections", Reason: fmt.Sprintf("%d, want 0 to %d", b.MaxConnections, maxConnections)}
	}
	if b.Sidecar != nil {
		for i, a := range b.Sidecar.Sources {
			if !a.IsValid() || a.Is4() && !a.IsLoopback() || a.Is6() && (a.Is4In6() || a.Zone() != "") {
				return &cache.FieldError{Field: fmt.Sprintf("%ssidecar.sources[%d]", field, i), Reason: fmt.Sprintf("%v, want an address of the namespace's loopback such as 127.0.0.6", a)}
			}
		}
	}
	return nil
}

const maxConnections = 1 << 20

// taken are warnings of the namespace's services that the guest takes the connections of.
func (b Masquerade) taken(listeners []Listener, addresses []netip.Prefix) []string {
	var warnings []string
	for _, l := range listeners {
		forwarded := b.Ports == nil || contains(b.Ports, l.Protocol, l.Port)
		if b.Sidecar != nil || !forwarded || contains(b.Excluded, l.Protocol, l.Port) {
			continue
		}
		isOwn := func(p netip.Prefix) bool { return p.Addr() == l.Address }
		reached := l.Address.IsUnspecified() || slices.ContainsFunc(addresses, isOwn) || b.Loopback && l.Address.IsLoopback()
		w := fmt.Sprintf("the namespace serves %s port %d at %v, which is forwarded to the guest: exclude %d/%s to keep it", l.Protocol, l.Port, l.Address, l.Port, l.Protocol)
		if reached && !slices.Contains(warnings, w) {
			warnings = append(warnings, w)
		}
	}
	return warnings
}

// SameGuest says whether a wiring can be changed from one binding to the other under a running guest:
// what is forwarded by a masquerade can, its addresses, its MAC and what translates cannot; of other
// bindings nothing can. A MAC that is left to its default is another than the same one written out.
func SameGuest(a, b Binding) bool {
	x, isMasquerade := a.(Masquerade)
	y, both := b.(Masquerade)
	if isMasquerade && both {
		return orDefault(x.IPv4, DefaultIPv4) == orDefault(y.IPv4, DefaultIPv4) && orDefault(x.IPv6, DefaultIPv6) == orDefault(y.IPv6, DefaultIPv6) &&
			x.MAC == y.MAC && x.Firewall == y.Firewall
	}
	if x, isPasst := a.(Passt); isPasst {
		y, both := b.(Passt)
		return both && x.MAC == y.MAC && slices.EqualFunc(x.Ports, y.Ports, func(p, o Ports) bool { return p.String() == o.String() })
	}
	return a == b
}

func orDefault(network, otherwise netip.Prefix) netip.Prefix {
	if network.IsValid() {
		return network
	}
	return otherwise
}
