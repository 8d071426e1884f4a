package infra

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Ports are one port of a protocol, or several in a row. In text and JSON they are FIRST[-LAST][:GUEST][/PROTOCOL],
// such as 80, 8000-8100/udp or 8080:80. The entries of a list must not overlap.
type Ports struct {
	// Protocol is "tcp", "udp" or "sctp". Empty: "tcp".
	Protocol string

	// First and Last are the ends of the range, 1 to 65535. A Last of 0 is First.
	First, Last uint16

	// Guest is the guest's port for First, and the next ports follow. 0: the guest's ports are
	// the same.
	//
	// In a list of ports that are forwarded, at most 4096 ports may get another number. If
	// iptables translates, a range with other numbers needs iptables 1.8 and Linux 4.18.
	Guest uint16
}

var transports = []string{"tcp", "udp", "sctp"}

// full returns p with its defaults in Protocol, Last and Guest.
func (p Ports) full() Ports { return Ports(syntax.Ports(p).Full()) }

func (p Ports) String() string {
	p = p.full()
	text := fmt.Sprint(p.First)
	if p.Last > p.First {
		text += fmt.Sprintf("-%d", p.Last)
	}
	if p.Guest != p.First {
		text += fmt.Sprintf(":%d", p.Guest)
	}
	return text + "/" + p.Protocol
}

func (p Ports) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p *Ports) UnmarshalText(text []byte) error {
	if strings.Contains(string(text), ",") {
		return fmt.Errorf("ports %q: want one port or one range, as in 80, 8000-8100/udp, and an entry of its own for each other", text)
	}
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

// checkPorts refuses a list with a port that does not exist, an unknown protocol, a port twice, or too many that become
// others.
func checkPorts(field string, list []Ports) error {
	redirected := 0
	for i, p := range list {
		field := fmt.Sprintf("%s[%d]", field, i)
		full := p.full()
		if !slices.Contains(transports, full.Protocol) {
			return &cache.FieldError{Field: field, Reason: fmt.Sprintf("unknown protocol %q, want tcp, udp or sctp", p.Protocol)}
		}
		if p.First == 0 {
			return &cache.FieldError{Field: field, Reason: "port 0, want 1 to 65535"}
		}
		if p.Last != 0 && p.Last < p.First {
			return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%d-%d ends before it begins", p.First, p.Last)}
		}
		if full.Guest != p.First {
			if last := int(p.Guest) + int(full.Last-p.First); last > 65535 {
				return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v: the last port would become %d, want at most 65535", p, last)}
			}
			if redirected += int(full.Last-p.First) + 1; redirected > maxRedirected {
				return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v: with this entry %d ports become other ones, want at most %d in the list: let ports stay the same, without a limit", p, redirected, maxRedirected)}
			}
		}
		for j, o := range list[:i] {
			if overlap(p, o) {
				return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%v overlaps entry %d, %v", p, j, o)}
			}
		}
	}
	return nil
}

// maxRedirected limits the ports of a list that become others, as each takes memory of the kernel, about 100 octets.
const maxRedirected = 4096

// overlap reports whether both have a port of the same protocol.
func overlap(p, o Ports) bool {
	p, o = p.full(), o.full()
	return p.Protocol == o.Protocol && p.First <= o.Last && o.First <= p.Last
}
