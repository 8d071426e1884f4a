package policy_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/firewall"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/policy"
	"github.com/guestwire/guestwire/internal/syntax"
	"github.com/guestwire/guestwire/internal/test/golden"
)

// entries are an Egress of texts.
var entries = golden.Values[infra.Egress]

var both = ip.Both[:]

// setsOf are those of a policy.
func setsOf(t *testing.T, p policy.Policy) []firewall.Destinations {
	t.Helper()
	allowed, err := p.Allowed(both)
	if err != nil {
		t.Fatal(err)
	}
	pinnable, err := p.Pinnable(both, nil)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(allowed, pinnable)
}

// packet is one of the guest's.
type packet struct {
	to       netip.Addr
	protocol uint8
	port     uint16
}

// isIn reports whether the packet is in a box of the sets whose name has the beginning, and refuses boxes that overlap.
func (p packet) isIn(t *testing.T, name string, sets []firewall.Destinations) (is bool) {
	t.Helper()
	for _, s := range sets {
		if !strings.HasPrefix(s.Name, name) {
			continue
		}
		for i, b := range s.Boxes {
			if b.AllPorts() != s.AllPorts || s.AllPorts && i > 0 && s.Boxes[i-1].Last.Next() == b.First {
				t.Fatalf("%v is in the wrong set, or touches the box before, in\n%v", b, s)
			}
			in := p.to.BitLen() == b.First.BitLen() && b.First.Compare(p.to) <= 0 && p.to.Compare(b.Last) <= 0 &&
				b.FirstProtocol <= p.protocol && p.protocol <= b.LastProtocol && b.FirstPort <= p.port && p.port <= b.LastPort
			if in && is {
				t.Fatalf("%v is in two boxes of\n%v", p, s)
			}
			is = is || in
		}
	}
	return is
}

// isOf reports whether the entry is about the packet's address. nat64 is the site's prefix, of 64 bits or more.
func (p packet) isOf(e infra.Egress, nat64 netip.Prefix) bool {
	octets, to, malformed := p.to.As16(), p.to, false
	if netip.MustParsePrefix("64:ff9b::/96").Contains(p.to) || nat64.Bits() == 96 && nat64.Contains(p.to) {
		to = netip.AddrFrom4([4]byte(octets[12:]))
	} else if nat64.Contains(p.to) {
		to, malformed = netip.AddrFrom4([4]byte(octets[9:])), octets[8] != 0
	}
	return slices.ContainsFunc(syntax.Destinations(e.To), func(n netip.Prefix) bool {
		return n.Contains(p.to) || n.Contains(to) && !malformed || n.Addr().Is4() && malformed && (e.Refuse || n.Bits() == 0)
	})
}

// decided is the entry that decides; an empty list has none and allows all.
func (p packet) decided(list []infra.Egress, nat64 netip.Prefix) int {
	if len(list) == 0 {
		return -1
	}
	for i, e := range list {
		if !p.isOf(e, nat64) {
			continue
		}
		protocols := map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132, "icmp": map[bool]uint8{true: 1, false: 58}[p.to.Is4()]}
		if e.Ports != (infra.Ports{}) && protocols[syntax.Ports(e.Ports).Full().Protocol] != p.protocol {
			continue
		}
		if e.Ports.First != 0 && (p.port < e.Ports.First || p.port > syntax.Ports(e.Ports).Full().Last) {
			continue
		}
		return i
	}
	panic("no entry decides")
}

// TestOrder: of random policies, without a prefix of NAT64 and with one, the boxes and Judge say of each packet what
// the first entry that matches says, of each list that is set, and the boxes of refused that another entry than the
// last one of Egress refuses. They do not overlap, which the kernel would refuse.
func TestOrder(t *testing.T) {
	const seed = 32
	r := rand.New(rand.NewPCG(seed, seed))
	networks := []string{"all", "private", "link-local", "metadata", "10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9", "10.0.0.255", "10.0.1.0/24",
		"255.255.255.255", "0.0.0.0/1", "240.0.0.0/4", "fd00::/8", "fd00::/64", "fd00::1", "ffff::/16", "64:ff9b::/96", "64:ff9b::a00:0/104", "::/1", "fd64::/96", "fd64::a:0:0:0/80"}
	what := []string{"", "", "tcp", "udp", "icmp", " 1-65535/tcp", "53/udp", "80", "79-81/tcp", "81-90", "443/sctp", "65535/udp", "1-52/udp"}
	addresses := strings.Fields("0.0.0.0 9.255.255.255 10.0.0.0 10.0.0.254 10.0.0.255 10.0.1.0 10.127.255.255 10.128.0.0 10.255.255.255 11.0.0.0 100.100.100.200 " +
		"127.255.255.255 128.0.0.0 169.254.169.254 239.255.255.255 240.0.0.0 255.255.255.254 255.255.255.255 " +
		":: 7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 8000:: fd00:: fd00::1 fd00::2 fd00:0:0:1:: fd00:ec2::254 fe80::1 fe80::a9fe:a9fe ffff:: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff " +
		"64:ff9b::a00:ff 64:ff9b::a80:0 64:ff9b::808:808 64:ff9b::1:0:0 " +
		"fd64::a00:ff fd64::a80:0 fd64::808:808 fd64::1:0:0 fd64::a:0:ff00:0 fd64::a:80:1:2 fd64::8:808:800:0 fd64::10a:0:ff00:0 fd64::ff08:808:800:0 fd64::ffff:ffff:ffff:ffff")
	sites := []netip.Prefix{{}, netip.MustParsePrefix("fd64::/96"), netip.MustParsePrefix("fd64::/64")}
	protocols := []uint8{0, 1, 5, 6, 7, 16, 17, 18, 58, 131, 132, 133, 255}
	ports := []uint16{0, 1, 52, 53, 54, 78, 79, 80, 81, 82, 90, 91, 443, 65534, 65535}
	random := func() []infra.Egress {
		var texts []string
		for range r.IntN(8) {
			verb := []string{"allow", "refuse"}[r.IntN(2)]
			texts = append(texts, fmt.Sprintf("%s %s %s", verb, networks[r.IntN(len(networks))], what[r.IntN(len(what))]))
		}
		return entries(append(texts, []string{"allow all", "refuse all"}[r.IntN(2)])...)
	}
	valid := func() []infra.Egress {
		for {
			if s := (infra.Spec{Binding: infra.Routed{}, Owner: infra.Owner{UID: 107}, Egress: random()}); s.Validate() == nil {
				return s.Egress
			}
		}
	}
	for i := range 400 {
		lists := [][2][]infra.Egress{{valid()}, {nil, valid()}, {valid(), valid()}}[i%3]
		nat64 := sites[i/3%3]
		both := policy.Policy{Egress: lists[0], Within: lists[1], NAT64: nat64}
		sets := setsOf(t, both)
		refused := policy.Judge(sets).Refuses // without a pin
		index := both.Index()
		for range 1000 {
			p := packet{netip.MustParseAddr(addresses[r.IntN(len(addresses))]), protocols[r.IntN(len(protocols))], ports[r.IntN(len(ports))]}
			egress, within := p.decided(lists[0], nat64), p.decided(lists[1], nat64)
			own := egress >= 0 && lists[0][egress].Refuse
			above := within >= 0 && lists[1][within].Refuse
			if have, want := p.isIn(t, "egress-", sets), !own && !above; have != want {
				t.Fatalf("%v is allowed: %v, want %v, by %v, %v\n%v", p, have, want, lists, nat64, sets)
			}
			if have, want := refused(netip.AddrPortFrom(p.to, p.port), p.protocol), own || above; have != want {
				t.Fatalf("%v is judged refused: %v, want %v, by %v, %v\n%v", p, have, want, lists, nat64, sets)
			}
			pins := len(lists[0]) > 0 && lists[0][len(lists[0])-1].Refuse
			if have, want := p.isIn(t, "pinnable-", sets), pins && !above && (!own || egress == len(lists[0])-1); have != want {
				t.Fatalf("%v is pinnable: %v, want %v, by %v, %v\n%v", p, have, want, lists, nat64, sets)
			}
			want := policy.Decision{Refuses: own || above, Pinnable: !above && (!own || egress == len(lists[0])-1)}
			if want.Within = egress < 0 || above && !own; want.Within {
				want.Entry = lists[1][within]
			} else {
				want.Entry = lists[0][egress]
			}
			if have := index.Decide(netip.AddrPortFrom(p.to, p.port), p.protocol); have != want {
				t.Fatalf("%v is decided by %+v, want %+v, of %v, %v", p, have, want, lists, nat64)
			}
		}
	}
}

// TestIndex: what a range of addresses that is no network decides, and what a divert does.
func TestIndex(t *testing.T) {
	p := policy.Policy{Egress: entries("refuse nic-networks", "divert gateway 53/udp 127.0.0.1:8053", "divert all 443 :15443", "allow resolvers", "allow all 80", "refuse all"),
		Within:   entries("divert 203.0.113.0/24 80 127.0.0.1:8080", "refuse 198.51.100.0/24", "allow all"),
		Networks: golden.Values[netip.Prefix]("192.0.2.0/24", "2001:db8::/64"), NextHops: golden.Values[netip.Addr]("192.0.2.1", "192.0.2.254"),
		Resolvers: golden.Values[netip.Addr]("198.51.100.53", "203.0.113.53"), Gateways: golden.Values[netip.Addr]("10.0.2.1", "fd00::1")}
	x := p.Index()
	for to, want := range map[string]string{
		"192.0.2.0:80": "refuse nic-networks", "192.0.2.1:80": "allow all 80/tcp", "192.0.2.2:443": "refuse nic-networks", "192.0.2.254:22": "refuse all", "192.0.2.255:80": "refuse nic-networks",
		"10.0.2.1:53": "divert gateway 53/udp 127.0.0.1:8053", "[fd00::1]:443": "divert all 443/tcp :15443", "9.9.9.9:443": "divert all 443/tcp :15443",
		"203.0.113.7:80": "divert 203.0.113.0/24 80/tcp 127.0.0.1:8080", "203.0.113.53:9": "allow resolvers", "198.51.100.53:80": "refuse 198.51.100.0/24", "198.51.100.1:443": "divert all 443/tcp :15443",
		"198.51.100.1:22": "refuse all", "[2001:db8::9]:80": "refuse nic-networks",
	} {
		at := netip.MustParseAddrPort(to)
		protocol := map[bool]uint8{true: 17, false: 6}[at.Port() == 53]
		d := x.Decide(at, protocol)
		target := d.Entry.Divert
		if target.Port() != 0 && !target.Addr().IsValid() {
			target = netip.AddrPortFrom(p.Gateways[map[bool]int{true: 0, false: 1}[at.Addr().Is4()]], target.Port())
		}
		if target.IsValid() && target.Addr().Is4() != at.Addr().Is4() {
			target = netip.AddrPort{}
		}
		if d.Entry.String() != want || d.Target != target || d.Refuses != strings.HasPrefix(want, "refuse") {
			t.Errorf("%s: %+v, want %q, %v", to, d, want, target)
		}
	}
	p.NAT64 = netip.MustParsePrefix("2001:db8:64::/64")
	for to, want := range map[string]string{
		"[2001:db8:64:0:c6:3364:3500:0]:9": "refuse 198.51.100.0/24", "[2001:db8:64:0:c6:3364:3600:0]:9": "refuse all", "[2001:db8:64:0:1c6:3364:3500:0]:9": "refuse nic-networks",
		"[2001:db8:64:0:cb:71:700:0]:80": "divert 203.0.113.0/24 80/tcp 127.0.0.1:8080", "[2001:db8:64:0:c0:2:100:0]:80": "allow all 80/tcp", "[2001:db8:64:0:c0:2:200:0]:80": "refuse nic-networks",
	} {
		if d := p.Index().Decide(netip.MustParseAddrPort(to), 6); d.Entry.String() != want {
			t.Errorf("%s: %+v, want %q", to, d, want)
		}
	}
	if d := (policy.Policy{}).Index().Decide(netip.MustParseAddrPort("192.0.2.1:80"), 6); d != (policy.Decision{}) {
		t.Errorf("without lists: %+v", d)
	}
}

// BenchmarkIndex: a decision of one in 15,000 entries.
func BenchmarkIndex(b *testing.B) {
	var texts []string
	for i := range 15_000 {
		texts = append(texts, fmt.Sprintf("allow 11.%d.%d.%d/30 443", i%7*36, i/40%250, i%40*4))
	}
	x := policy.Policy{Egress: entries(append(texts, "refuse all")...)}.Index()
	for i := 0; b.Loop(); i++ {
		x.Decide(netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(i % 7 * 36), byte(i), byte(i >> 8)}), 443), 6)
	}
}

// TestTooMany: a policy that takes the kernel or Setup long is refused, by the field's name.
func TestTooMany(t *testing.T) {
	var hosts, ports []string
	for i := range 8000 {
		hosts = append(hosts, fmt.Sprintf("refuse 10.0.%d.%d", i/128, i%128*2))
		ports = append(ports, fmt.Sprintf("allow all %d", 2*i+1))
	}
	var scattered []string // between two of these lie the addresses of more than a hundred prefixes
	for i := range 31 {
		scattered = append(scattered, fmt.Sprintf("refuse all %d/udp", 1001+i*211))
	}
	for i := range 300 {
		scattered = append(scattered, fmt.Sprintf("refuse 2001:db8:%x:5555:aaaa:5555:aaaa:5555", i))
	}
	of := func(texts ...[]string) []infra.Egress {
		return entries(append(slices.Concat(texts...), "refuse all")...)
	}
	for name, c := range map[string]struct {
		own, within []infra.Egress
		field       string
	}{
		"ranges":          {of(hosts, ports), nil, "egress"},
		"ranges, within":  {nil, of(hosts, ports), "egressWithin"},
		"ranges, of both": {of(ports), entries(append(hosts, "allow all")...), "egress"},
		"prefixes":        {entries(append(scattered, "allow all")...), nil, "egress"},
		"looks":           {append(of(ports), of(hosts)...), entries("refuse all"), "egress"},
	} {
		_, err := policy.Policy{Egress: c.own, Within: c.within}.Allowed(both)
		var field *cache.FieldError
		if !errors.As(err, &field) || field.Field != c.field || !strings.Contains(field.Reason, "name fewer") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestManyNetworks: many networks become no more boxes than there are networks. What lies between as many hosts is
// ranges of addresses alone, whatever their prefixes are.
func TestManyNetworks(t *testing.T) {
	var texts, hosts []string
	for i := range 10_000 {
		texts = append(texts, fmt.Sprintf("allow 11.%d.%d.%d/30 443", i%7*36, i/40%250, i%40*4))
		hosts = append(hosts, fmt.Sprintf("refuse 2001:db8:%x:5555:aaaa:5555:aaaa:5555", i))
	}
	p := policy.Policy{Egress: entries(append(texts, "refuse all")...)}
	guest := ip.Range{First: netip.MustParseAddr("10.0.2.0"), Last: netip.MustParseAddr("10.0.2.255")}
	pinnable, err := p.Pinnable([]ip.Version{4}, []ip.Range{guest})
	if err != nil || len(pinnable) != 2 || len(pinnable[1].Boxes) != 2 {
		t.Errorf("pinnable are %v, %v", pinnable, err)
	}
	sets, err := p.Allowed([]ip.Version{4})
	if err != nil || len(sets) != 2 || len(sets[0].Boxes) > 10_000 || len(sets[0].Boxes) < 5000 {
		t.Errorf("%d sets", len(sets))
	}
	sets = setsOf(t, policy.Policy{Egress: entries(append(hosts, "allow all")...)})
	if len(sets) != 4 || len(sets[2].Boxes) != 0 || len(sets[3].Boxes) != 10_001 {
		t.Errorf("between hosts there are %d sets", len(sets))
	}
}
