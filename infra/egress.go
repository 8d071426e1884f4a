package infra

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/syntax"
)

// Egress is an entry of Spec.Egress and Spec.EgressWithin. In text and JSON it is allow|refuse TO [PORTS|PROTOCOL]:
//
//	["refuse link-local", "refuse metadata",
//	  "allow 10.1.0.0/16 443/tcp", "allow resolvers 53/udp", "refuse all"]
//
// TO is an address, a network, or one of these lists:
//
//	all           all addresses
//	private       the networks of RFC 1918, RFC 6598 and RFC 4193
//	link-local    169.254.0.0/16 and fe80::/10
//	metadata      the clouds' metadata services
//	nic-networks  the networks on the NIC's link, without the next hops in them
//	resolvers     the addresses of Spec.DNS.Servers
//
// An IPv4 network also means its addresses in 64:ff9b::/96 (NAT64, RFC 6052). PORTS are [Ports] of the destination.
// PROTOCOL is tcp, udp, sctp or icmp, which is also ICMPv6. Without PORTS and PROTOCOL the entry is for every protocol.
type Egress struct {
	Refuse bool   // false: the entry allows
	To     string // a network, an address or a list, as TO

	// Ports are the destination's ports. Zero: every protocol. With a First of 0: every port of
	// the Protocol.
	Ports Ports
}

func (e Egress) String() string {
	text := "allow " + e.To
	if e.Refuse {
		text = "refuse " + e.To
	}
	switch {
	case e.Ports == Ports{}:
		return text
	case e.Ports.First == 0:
		return text + " " + e.Ports.Protocol
	}
	return text + " " + e.Ports.String()
}

func (e Egress) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

func (e *Egress) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	if len(words) < 2 || len(words) > 3 || words[0] != "allow" && words[0] != "refuse" {
		return fmt.Errorf("egress %q: want allow or refuse, where to, and perhaps ports, as in allow 10.1.0.0/16 443/tcp, refuse link-local, allow all icmp", text)
	}
	out := Egress{Refuse: words[0] == "refuse", To: words[1]}
	if len(words) == 3 {
		if first := words[2][0]; first < '0' || first > '9' {
			out.Ports.Protocol = words[2]
		} else if err := out.Ports.UnmarshalText([]byte(words[2])); err != nil {
			return fmt.Errorf("egress %q: %w", text, err)
		}
	}
	*e = out
	return nil
}

// maxEgress limits the entries of a list, which takes memory of the kernel, and time of Setup.
const maxEgress = 16384

// validateEgress checks the list of the field, and the binding.
func (s Spec) validateEgress(field string, list []Egress) error {
	if list == nil {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return &cache.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	if len(list) == 0 {
		return refuse("an empty list says nothing: want [\"refuse all\"], or leave this field out, which allows all")
	}
	switch b := s.Binding.(type) {
	case Auto:
		if !slices.ContainsFunc(b.order(), func(k cache.Kind) bool { return k == cache.BindingRouted || k == cache.BindingMasquerade }) {
			return refuse("with the kinds of binding.auto.order nobody tracks the guest's connections: add routed or masquerade there, or leave this field out")
		}
	case Masquerade:
		if b.Sidecar != nil {
			return refuse("the proxies of binding.masquerade.sidecar open the guest's connections, and no rule sees where to: leave one of the two out, or configure the mesh")
		}
	case Routed:
		if b.Sidecar != nil {
			return refuse("the proxies of binding.routed.sidecar open the guest's connections, and no rule sees where to: leave one of the two out, or configure the mesh")
		}
	default:
		return refuse("with the %s binding nobody tracks the guest's connections: leave this field out, or want the binding masquerade or routed, after a Teardown if the NIC is wired", b.Kind())
	}
	if len(list) > maxEgress {
		return refuse("%d entries, want at most %d", len(list), maxEgress)
	}
	if last := list[len(list)-1]; last.To != "all" || last.Ports != (Ports{}) {
		return refuse("the last entry, %q, leaves the rest open: want \"refuse all\" or \"allow all\" at the end", last)
	}
	above := decided{dns: s.DNS, first: map[about]int{}}
	for i, e := range list {
		for _, at := range above.before(e) {
			if list[at].Refuse != e.Refuse {
				return &cache.FieldError{Field: fmt.Sprintf("%s[%d]", field, i), Reason: fmt.Sprintf("%q never decides, as %q comes before it: change their order, or leave one out", e, list[at])}
			}
		}
		above.add(i, e)
		if reason := e.check(s.DNS); reason != "" {
			return &cache.FieldError{Field: fmt.Sprintf("%s[%d]", field, i), Reason: reason}
		}
	}
	return nil
}

// about is what an entry decides. The destination is a network, or the name of a list whose networks are not known yet.
type about struct {
	network netip.Prefix
	name    string
	ports   Ports
}

// decided are the places of the first entries about something.
type decided struct {
	dns      *cache.DNS // whose servers are the resolvers
	first    map[about]int
	networks ip.Prefixes[bool] // those in first
}

func (d *decided) add(at int, e Egress) {
	for _, a := range e.about(d.dns) {
		if _, before := d.first[a]; !before {
			d.first[a] = at
		}
		if a.network.IsValid() {
			d.networks.Set(a.network, true)
		}
	}
}

// about are all networks of the entry, or the name.
func (e Egress) about(dns *cache.DNS) (list []about) {
	networks := syntax.Destinations(e.To)
	if e.To == syntax.Resolvers && dns != nil {
		for _, a := range dns.Servers {
			a = a.Unmap().WithZone("")
			networks = append(networks, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, n := range networks {
		list = append(list, about{network: n, ports: e.Ports})
	}
	if list == nil {
		list = []about{{name: e.To, ports: e.Ports}}
	}
	return list
}

// before returns the places of the entries that decide all that e is about; none: e decides something, as far as
// networks and whole protocols say.
func (d *decided) before(e Egress) (places []int) {
	list := e.about(d.dns)
	if _, is := d.decides(list[0]); !is && list[0].name != "" { // whatever its networks are, these have them
		list = Egress{To: "all", Ports: e.Ports}.about(nil)
	}
	for _, a := range list {
		at, is := d.decides(a)
		if !is {
			return nil
		}
		places = append(places, at)
	}
	return places
}

// decides returns the place of the first entry about the same name or a network that has all of a's, with a's ports,
// with its protocol, or with all.
func (d *decided) decides(a about) (at int, is bool) {
	protocol := Ports{Protocol: a.ports.Protocol}
	if a.ports.First != 0 {
		protocol.Protocol = a.ports.full().Protocol
	}
	consider := func(a about) {
		if first, has := d.first[a]; has && (!is || first < at) {
			at, is = first, true
		}
	}
	for _, a.ports = range []Ports{a.ports, protocol, {}} {
		consider(a)
		for wider := range d.networks.Around(a.network) { // none for a name
			consider(about{network: wider, ports: a.ports})
		}
	}
	return at, is
}

// check is what is wrong with the entry; empty: nothing.
func (e Egress) check(dns *cache.DNS) string {
	if err := syntax.CheckDestination(e.To); err != nil {
		return err.Error()
	}
	if e.To == syntax.Resolvers && (dns == nil || len(dns.Servers) == 0) {
		return "resolvers are those of dns.servers, and there are none: name them there, or the addresses here"
	}
	if e.Ports.First != 0 && e.Ports.Protocol != "icmp" {
		if e.Ports.Guest != 0 {
			return fmt.Sprintf("%v: a destination's port cannot become another one: leave :%d out", e.Ports, e.Ports.Guest)
		}
		return reasonOf(checkPorts("", []Ports{e.Ports}))
	}
	if e.Ports != (Ports{Protocol: e.Ports.Protocol}) {
		return fmt.Sprintf("%v: icmp has no ports, and a port is 1 to 65535", e.Ports)
	}
	if p := e.Ports.Protocol; p != "" && p != "icmp" && !slices.Contains(transports, p) {
		return fmt.Sprintf("unknown protocol %q, want tcp, udp, sctp or icmp, or a port such as 443 or 53/udp", p)
	}
	return ""
}

// reasonOf is the reason of an error of this package; empty: there is none.
func reasonOf(err error) string {
	if bad, is := err.(*cache.FieldError); is {
		return bad.Reason
	}
	return ""
}
