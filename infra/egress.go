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

// Egress is an entry of Spec.Egress and Spec.EgressWithin. In text and JSON it is allow|refuse TO [PORTS|PROTOCOL], or
// divert TO [PORTS|PROTOCOL] TARGET:
//
//	["divert 169.254.169.254 80 127.0.0.1:8080",
//	  "refuse link-local", "refuse metadata", "allow 10.1.0.0/16 443/tcp",
//	  "allow resolvers 53/udp", "divert all 443 :15443", "refuse all"]
//
// TO is an address, a network, or one of these lists:
//
//	all           all addresses
//	private       the networks of RFC 1918, RFC 6598 and RFC 4193
//	link-local    169.254.0.0/16 and fe80::/10
//	metadata      the clouds' metadata services
//	nic-networks  the networks on the NIC's link, without the next hops in them
//	resolvers     the addresses of Spec.DNS.Servers
//	gateway       the guest's gateway: for diverts, and the targets that Spec.EgressWithin allows
//
// An IPv4 network also means its addresses in 64:ff9b::/96 and in Options.NAT64 (RFC 6052). PORTS are [Ports] of the
// destination. PROTOCOL is tcp, udp, sctp or icmp, which is also ICMPv6. Without PORTS and PROTOCOL the entry is for
// every protocol.
//
// A divert leads what the guest opens to a port of the namespace. TCP, UDP and SCTP of the entry arrive there, but SCTP
// at no loopback or link-local address. The entry refuses other protocols, and the IP version that TARGET does not
// have. Where nobody listens, TCP ends with a reset. TARGET is :PORT, a port of the guest's gateway, for both IP
// versions, or ADDRESS:PORT. ADDRESS is one of the namespace's, or of 127.0.0.0/8, which only this guest reaches, at
// this port alone. ::1 can be no target: the kernel takes no packet for it from a link.
//
// Spec.EgressWithin decides of a divert of Spec.Egress by the target. The first entry that names the target decides,
// such as allow gateway 15443 or allow 127.0.0.1 8000-8100. Without one the target is refused. An address names a
// target, and so do gateway and networks in 127.0.0.0/8, and no other list or network. A divert of Spec.EgressWithin
// holds for what Spec.Egress allows or diverts.
type Egress struct {
	Refuse bool   // false: the entry allows or diverts
	To     string // a network, an address or a list, as TO

	// Ports are the destination's ports. Zero: every protocol. With a First of 0: every port of
	// the Protocol.
	Ports Ports
	// Divert is the target. Without an address it is a port of the gateway. Zero: the entry diverts
	// nothing.
	Divert netip.AddrPort
}

// diverts reports whether the entry is a divert.
func (e Egress) diverts() bool { return e.Divert != netip.AddrPort{} }

func (e Egress) String() string {
	text := "allow " + e.To
	switch {
	case e.Refuse:
		text = "refuse " + e.To
	case e.diverts():
		text = "divert " + e.To
	}
	switch {
	case e.Ports == Ports{}:
	case e.Ports.First == 0:
		text += " " + e.Ports.Protocol
	default:
		text += " " + e.Ports.String()
	}
	if e.diverts() {
		text += " " + syntax.Target(e.Divert)
	}
	return text
}

func (e Egress) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

func (e *Egress) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	wrong := func() error {
		return fmt.Errorf("egress %q: want allow or refuse, where to, and perhaps ports, as in allow 10.1.0.0/16 443/tcp, refuse link-local, allow all icmp; or divert, where to, perhaps ports, and a port of the namespace, as in divert all 443 :15443, divert 192.0.2.7 80 127.0.0.1:8080", text)
	}
	if len(words) < 2 {
		return wrong()
	}
	out := Egress{Refuse: words[0] == "refuse", To: words[1]}
	rest := words[2:]
	switch words[0] {
	case "allow", "refuse":
	case "divert":
		if len(rest) == 0 {
			return wrong()
		}
		target, err := syntax.ParseTarget(rest[len(rest)-1])
		if err != nil {
			return fmt.Errorf("egress %q: %w", text, err)
		}
		out.Divert, rest = target, rest[:len(rest)-1]
	default:
		return wrong()
	}
	switch {
	case len(rest) > 1:
		return wrong()
	case len(rest) == 0:
	case rest[0][0] < '0' || rest[0][0] > '9':
		out.Ports.Protocol = rest[0]
	default:
		if err := out.Ports.UnmarshalText([]byte(rest[0])); err != nil {
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
	if !s.mayTrack() {
		return s.untracked(field)
	}
	switch b := s.Binding.(type) {
	case Masquerade:
		if b.Sidecar != nil {
			return refuse("the proxies of binding.masquerade.sidecar open the guest's connections, and no rule sees where to: leave one of the two out, or configure the mesh")
		}
	case Routed:
		if b.Sidecar != nil {
			return refuse("the proxies of binding.routed.sidecar open the guest's connections, and no rule sees where to: leave one of the two out, or configure the mesh")
		}
	}
	if len(list) > maxEgress {
		return refuse("%d entries, want at most %d", len(list), maxEgress)
	}
	if last := list[len(list)-1]; last.To != "all" || last.Ports != (Ports{}) {
		return refuse("the last entry, %q, leaves the rest open: want \"refuse all\" or \"allow all\" at the end", last)
	}
	targets := map[netip.AddrPort]bool{}
	above, named := decided{dns: s.DNS, first: map[about]int{}}, decided{first: map[about]int{}} // named: targets
	for i, e := range list {
		among := &above
		if field == "egressWithin" && e.isTarget() {
			among = &named // it is no destination
		}
		for _, at := range among.before(e) {
			if list[at].Refuse != e.Refuse || list[at].Divert != e.Divert {
				return &cache.FieldError{Field: fmt.Sprintf("%s[%d]", field, i), Reason: fmt.Sprintf("%q never decides, as %q comes before it: change their order, or leave one out", e, list[at])}
			}
		}
		among.add(i, e)
		reason := e.check(s.DNS)
		if reason == "" && e.diverts() {
			reason = e.checkDivert()
		}
		if reason == "" && e.To == syntax.Gateway && !e.diverts() && field == "egress" {
			reason = "the gateway is the namespace, whose ports guard.open opens: leave this entry out, or divert the gateway's ports"
		}
		if reason != "" {
			return &cache.FieldError{Field: fmt.Sprintf("%s[%d]", field, i), Reason: reason}
		}
		if e.diverts() {
			targets[e.Divert] = true
		}
	}
	if len(targets) > maxTargets {
		return refuse("%d targets of diverts, want at most %d: divert to fewer ports", len(targets), maxTargets)
	}
	return nil
}

// maxTargets limits the targets of a list: the guest's first packets meet rules for each.
const maxTargets = 64

// validateTargets refuses a divert to where EgressWithin does not lead.
func (s Spec) validateTargets() error {
	if s.EgressWithin == nil {
		return nil
	}
	implied := len(s.namesEgress())
	for i, e := range s.AllEgress() {
		field, without := fmt.Sprintf("egress[%d]", i-implied), "this entry"
		if i < implied {
			field, without = "names", "names"
		}
		protocols := transports
		if e.Ports.Protocol != "" || e.Ports.First != 0 {
			protocols = []string{e.Ports.full().Protocol}
		}
		for _, protocol := range protocols {
			if e.diverts() && !s.AllowsTarget(e.Divert, protocol) {
				to, port := syntax.Gateway, e.Divert.Port()
				if a := e.Divert.Addr(); a.IsValid() {
					to = a.String()
				}
				return &cache.FieldError{Field: field, Reason: fmt.Sprintf("%q: egressWithin does not allow the target: add \"allow %s %d/%s\" there, or leave %s out", e, to, port, protocol, without)}
			}
		}
	}
	return nil
}

// AllowsTarget reports whether EgressWithin allows a divert to the target: it is nil, or its first entry that names the
// target allows it. Protocol is tcp, udp or sctp.
func (s Spec) AllowsTarget(target netip.AddrPort, protocol string) bool {
	if s.EgressWithin == nil {
		return true
	}
	for _, w := range s.EgressWithin {
		ports := w.Ports
		if w.diverts() || ports.Protocol != "" && ports.Protocol != protocol {
			continue
		}
		if ports.First != 0 {
			full := ports.full()
			if full.Protocol != protocol || target.Port() < full.First || full.Last < target.Port() {
				continue
			}
		}
		if namesTarget(w.To, target.Addr()) {
			return !w.Refuse
		}
	}
	return false
}

// isTarget reports whether the entry is about targets of diverts alone.
func (e Egress) isTarget() bool {
	networks := syntax.Destinations(e.To)
	return !e.diverts() && (e.To == syntax.Gateway || len(networks) == 1 && networks[0].Addr().IsLoopback() && networks[0].Bits() >= 8)
}

// namesTarget reports whether the destination names the address of a target; an invalid one is the gateway's.
func namesTarget(to string, target netip.Addr) bool {
	if to == syntax.Gateway {
		return !target.IsValid()
	}
	networks := syntax.Destinations(to)
	return len(networks) == 1 && networks[0].Contains(target) && (networks[0].IsSingleIP() || networks[0].Bits() >= 8 && networks[0].Addr().IsLoopback())
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

// checkDivert is what is wrong with the target, and with what leads there; empty: nothing.
func (e Egress) checkDivert() string {
	a := e.Divert.Addr()
	switch {
	case e.Refuse:
		return "an entry refuses or diverts: want one of both"
	case e.Ports.Protocol == "icmp":
		return "icmp has no ports, so it arrives at none: want tcp, udp or sctp, or allow or refuse icmp"
	case e.Divert.Port() == 0:
		return fmt.Sprintf("the target %s has no port, want 1 to 65535", syntax.Target(e.Divert))
	case !a.IsValid():
		return ""
	case a == netip.IPv6Loopback():
		return fmt.Sprintf("the kernel takes no packet for ::1 from a link: let the service listen at the gateway's address, and want :%d, or at 127.0.0.1", e.Divert.Port())
	case a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a.Is6() && a.IsLinkLocalUnicast():
		return fmt.Sprintf("the target %s is no address of a namespace, want :PORT, 127.0.0.1:PORT, or another address of the namespace", syntax.Target(e.Divert))
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
