package infra

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Name is a domain name to which a guest may open connections, or a name that the guest's resolver knows by itself. In
// text and JSON it is NAME PORTS... [private], or NAME = ADDRESS...:
//
//	["registry.example 443", "*.github.com 443 80",
//	  "db.internal 5432 private", "host.internal = 10.0.2.1"]
//
// A NAME that begins with "*." stands for all names with one or more labels in front of the rest, and not for the rest
// itself. Of several entries for a name the longest one counts, and the order does not matter. PORTS are [Ports] of the
// destination. With the word private, the name's addresses may be private or link-local ones.
type Name struct {
	// Name is a domain name in lower case, without the root's dot, perhaps with "*." in front.
	// Its labels are of letters, digits, - and _. Other names have an ASCII form (xn--).
	Name string

	// Ports are the ports of the name's addresses to which the guest may connect: at most 128
	// of all ranges. Nil if Addresses are set.
	Ports []Ports

	// Private lets the name have addresses of RFC 1918, RFC 6598 and RFC 4193, and link-local
	// ones. False: such addresses are left out of answers, as whoever owns the name could lead
	// the guest to services of its network (DNS rebinding). Others are always left out: those of
	// loopback, multicast and broadcast, and the clouds' metadata services. An IPv6 address that
	// has one of IPv4 in it, such as one of 6to4, counts as that one, too. An address in
	// 64:ff9b::/96 or in Options.NAT64 counts as its IPv4 address alone.
	Private bool

	// Addresses are what the guest gets as the answer, at most 8. No resolver is asked, and the
	// answer allows no connection: the Egress of a Spec, or the gateway's own ports, decide.
	// Nil: resolvers are asked.
	Addresses []netip.Addr
}

func (n Name) String() string {
	words := []string{n.Name}
	if len(n.Addresses) > 0 {
		words = append(words, "=")
	}
	for _, a := range n.Addresses {
		words = append(words, a.String())
	}
	for _, p := range n.Ports {
		words = append(words, p.String())
	}
	if n.Private {
		words = append(words, "private")
	}
	return strings.Join(words, " ")
}

func (n Name) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

func (n *Name) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	if len(words) < 2 || words[1] == "=" && len(words) < 3 || words[1] == "private" {
		return fmt.Errorf("name %q: want a name and ports, or a name, = and addresses, as in registry.example 443, *.github.com 443 80, db.internal 5432 private, host.internal = 10.0.2.1", text)
	}
	out := Name{Name: strings.ToLower(strings.TrimSuffix(words[0], "."))}
	if words[1] == "=" {
		for _, word := range words[2:] {
			a, err := netip.ParseAddr(word)
			if err != nil {
				return fmt.Errorf("name %q: %q is no address, want addresses alone after =, as in host.internal = 10.0.2.1", text, word)
			}
			out.Addresses = append(out.Addresses, a)
		}
		*n = out
		return nil
	}
	words = words[1:]
	if words[len(words)-1] == "private" {
		out.Private, words = true, words[:len(words)-1]
	}
	for _, word := range words {
		var p Ports
		if err := p.UnmarshalText([]byte(word)); err != nil {
			return fmt.Errorf("name %q: %w, and perhaps the word private at the end", text, err)
		}
		out.Ports = append(out.Ports, p)
	}
	*n = out
	return nil
}

const (
	maxNames         = 16384 // of a list, which takes memory of two processes
	maxNamePorts     = 128   // with 8 addresses of an answer: what phase1.NIC.Pin takes at once
	maxNameAddresses = 8     // so that an answer fits into 512 octets
)

// ValidateNames checks the entries of a list. No two may have the same Name.
//
//	*cache.FieldError  an entry is wrong, such as names[3], or there are more than 16384
func ValidateNames(names []Name) error {
	if len(names) > maxNames {
		return &cache.FieldError{Field: "names", Reason: fmt.Sprintf("%d entries, want at most %d", len(names), maxNames)}
	}
	first := map[string]int{}
	for i, n := range names {
		reason := n.check()
		if at, before := first[n.Name]; reason == "" && before {
			reason = fmt.Sprintf("names[%d] has the name %s already: give one entry all the ports", at, n.Name)
		}
		if reason != "" {
			return &cache.FieldError{Field: fmt.Sprintf("names[%d]", i), Reason: reason}
		}
		first[n.Name] = i
	}
	return nil
}

// namesPort is the port of the gateway to which the questions of a guest with Names are diverted.
const namesPort = 15353

// AllEgress returns Egress, after the entries by which a Spec with Names diverts questions to the DNS proxy: "divert
// all 53/udp :15353" and "divert all 53/tcp :15353".
func (s Spec) AllEgress() []Egress {
	if len(s.Names) == 0 {
		return s.Egress
	}
	return append(s.namesEgress(), s.Egress...)
}

// namesEgress are the entries that Names stand for.
func (s Spec) namesEgress() (list []Egress) {
	if len(s.Names) == 0 {
		return nil
	}
	for _, protocol := range []string{"udp", "tcp"} {
		list = append(list, Egress{To: "all", Ports: Ports{First: 53, Protocol: protocol}, Divert: netip.AddrPortFrom(netip.Addr{}, namesPort)})
	}
	return list
}

// validateNames checks the list, and that Egress refuses what no name leads to.
func (s Spec) validateNames() error {
	if s.Names == nil {
		return nil
	}
	if len(s.Names) == 0 {
		return &cache.FieldError{Field: "names", Reason: "an empty list says nothing: want [\"registry.example 443\"], or leave this field out"}
	}
	if err := ValidateNames(s.Names); err != nil {
		return err
	}
	if n := len(s.Egress); n == 0 || !s.Egress[n-1].Refuse {
		return &cache.FieldError{Field: "names", Reason: "the guest can go everywhere without them: want egress to end with \"refuse all\", or leave this field out"}
	}
	for i, e := range s.Egress {
		if ports := e.Ports.full(); ports.First == 53 && ports.Last == 53 && (ports.Protocol == "udp" || ports.Protocol == "tcp") {
			return &cache.FieldError{Field: fmt.Sprintf("egress[%d]", i), Reason: fmt.Sprintf("%q never decides: what the guest asks at port 53 goes to the DNS proxy of names: leave this entry out, or leave names out", e)}
		}
	}
	return s.checkNameOpens()
}

// checkNameOpens refuses a name that no answer opens, as an entry in front of the last refuses its ports for all
// addresses.
func (s Spec) checkNameOpens() error {
	const most = 64    // entries that are looked at for each name
	var refusing []int // of Egress
	for i, e := range s.Egress[:len(s.Egress)-1] {
		if e.Refuse && e.To == "all" && len(refusing) < most {
			refusing = append(refusing, i)
		}
	}
	for i, n := range s.Names {
		for _, p := range n.Ports {
			p = p.full()
			for _, j := range refusing {
				e, ports := s.Egress[j], s.Egress[j].Ports
				if ports.Protocol != "" && ports.Protocol != p.Protocol {
					continue
				}
				if ports.First != 0 {
					ports = ports.full()
					if ports.Protocol != p.Protocol || p.First < ports.First || ports.Last < p.Last {
						continue
					}
				}
				return &cache.FieldError{Field: fmt.Sprintf("names[%d]", i), Reason: fmt.Sprintf("%q never opens, as egress[%d], %q, refuses it wherever it leads: leave one of them out", n, j, e)}
			}
		}
	}
	return nil
}

// check is what is wrong with the entry; empty: nothing.
func (n Name) check() string {
	if reason := checkPattern(n.Name); reason != "" {
		return reason
	}
	if len(n.Addresses) > 0 {
		return n.checkOwn()
	}
	if len(n.Ports) == 0 {
		return fmt.Sprintf("%s has no ports: want at least one, as in %[1]s 443", n.Name)
	}
	for _, p := range n.Ports {
		if p.Guest != 0 {
			return fmt.Sprintf("%v: a destination's port cannot become another one: leave :%d out", p, p.Guest)
		}
	}
	if reason := reasonOf(checkPorts("", n.Ports)); reason != "" {
		return reason
	}
	ports := 0
	for _, p := range n.Ports {
		p = p.full()
		ports += int(p.Last-p.First) + 1
	}
	if ports > maxNamePorts {
		return fmt.Sprintf("%d ports, want at most %d: allow the network in egress", ports, maxNamePorts)
	}
	return ""
}

// checkPattern is what is wrong with a name that may begin with "*."; empty: nothing.
func checkPattern(pattern string) string {
	name, most := pattern, syntax.MaxName
	if rest, is := strings.CutPrefix(pattern, "*."); is {
		name, most = rest, syntax.MaxName-len("a.") // the shortest label in front
	}
	switch _, err := netip.ParseAddr(name); {
	case err == nil:
		return fmt.Sprintf("%q is an address, and nobody asks for its name: allow it in egress", pattern)
	case strings.Contains(name, "*"):
		return fmt.Sprintf("%q: want * as the whole first label, with a name after it, as in *.github.com", pattern)
	case strings.ContainsFunc(name, func(r rune) bool { return r > '~' }):
		return fmt.Sprintf("%q has letters outside of ASCII: want the form that DNS has (xn--)", pattern)
	}
	if err := syntax.CheckName(strings.TrimSuffix(name, "."), most); err != nil {
		return fmt.Sprintf("%q has %v", pattern, err)
	}
	if folded := strings.ToLower(strings.TrimSuffix(pattern, ".")); folded != pattern {
		return fmt.Sprintf("%q: want lower case, and no dot at the end: %s", pattern, folded)
	}
	return ""
}

// checkOwn is what is wrong with an entry that has addresses; empty: nothing.
func (n Name) checkOwn() string {
	switch {
	case len(n.Ports) > 0 || n.Private:
		return fmt.Sprintf("%s has addresses, which allow no connection: leave ports and private out, and allow the addresses in egress", n.Name)
	case len(n.Addresses) > maxNameAddresses:
		return fmt.Sprintf("%d addresses, want at most %d", len(n.Addresses), maxNameAddresses)
	}
	for i, a := range n.Addresses {
		switch {
		case !a.IsValid() || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast():
			return fmt.Sprintf("%v: want the address of a station, without zone", a)
		case slices.Contains(n.Addresses[:i], a):
			return fmt.Sprintf("%v is there twice", a)
		}
	}
	return ""
}
