package phase1_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/eui64"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// exchange is a question and who answers it, by IPv4 and by IPv6.
type exchange struct {
	protocol string // "": each of TCP, UDP, SCTP
	from     string // who asks, or with an address that is not the kernel's choice: world@beyond
	to       string // ADDRESS:PORT
	size     int    // a datagram's; 0: short
	only     int    // 4 or 6; 0: both
	// want is "WHO:PORT sees ADDRESS", "refused", or "" if no answer comes.
	want string
}

func (e exchange) String() string { return fmt.Sprintf("%s to %s", e.from, e.to) }

// scene is who lives in namespaces, and what their addresses are called. Everybody serves at all of
// their addresses every port that is asked about.
type scene struct {
	nstest.Network
	who       map[string]*nstest.Namespace
	at        map[string]string        // whose address it is
	addresses map[string][2]netip.Addr // of IPv4 and IPv6
	serving   map[string]bool
}

// newScene is a pod, its world, and what a masquerade for eth0 will make of it.
func newScene(t *testing.T) *scene {
	n := nstest.NewNetwork(t)
	s := &scene{
		Network: n,
		who:     map[string]*nstest.Namespace{"pod": n.Pod, "world": n.World},
		at:      map[string]string{}, addresses: map[string][2]netip.Addr{}, serving: map[string]bool{},
	}
	s.name("world", "gateway", nstest.Gateway4, nstest.Gateway6)
	s.name("world", "beyond", nstest.Beyond4, nstest.Beyond6)
	s.name("pod", "pod", nstest.Pod4, nstest.Pod6)
	s.name("pod", "loopback", netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback())
	return s
}

func (s *scene) name(who, name string, v4, v6 netip.Addr) {
	s.at[name], s.addresses[name] = who, [2]netip.Addr{v4, v6}
}

// wire sets a NIC up and puts a guest behind it, with the addresses called WHO and WHO's gateway.
func (s *scene) wire(t *testing.T, who string, c wired.NIC) cache.Record {
	t.Helper()
	setup(t, c)
	r := nstest.Record(t, c.State, c.Name)
	g := recordsGuest(t, s.Network, r, r.MTU)
	g.IP(fmt.Sprintf("route add %v dev eth0", r.IPv6.OnLink[0]))
	s.who[who] = g
	s.name(who, who, r.IPv4.Address.Addr(), r.IPv6.Address)
	gateway6 := r.IPv6.Gateway
	s.name("pod", who+"'s gateway", r.IPv4.Gateway(), gateway6)
	nstest.Eventually(t, func() error {
		for _, a := range []netip.Addr{r.IPv4.Gateway(), gateway6} {
			q, err := g.Question("tcp", netip.Addr{}, netip.AddrPortFrom(a, 1), 0)
			if err != nil {
				return err
			}
			q.Close()
		}
		if out := g.IP("neigh show dev eth0"); strings.Count(out, "REACHABLE")+strings.Count(out, "STALE")+strings.Count(out, "DELAY") < 2 {
			return errors.New(out)
		}
		return nil
	})
	return r
}

// wireBare sets the NIC up and puts a guest behind it that is the pod.
func (s *scene) wireBare(t *testing.T, c wired.NIC) {
	t.Helper()
	setup(t, c)
	g := s.Guest(t, record(t, s.Network))
	for _, line := range []string{
		"link set eth0 mtu 1450 up", "addr add 10.244.1.7/24 dev eth0", "addr add fd00:244:1::7/64 dev eth0 nodad",
		"route add default via 10.244.1.1", "route add default via fd00:244:1::1",
	} {
		g.IP(line)
	}
	s.who["guest"] = g
	s.at["pod"] = "guest"
	g.Settle("eth0")
}

// port is the one of NAME:PORT, whatever follows.
func port(text string) uint16 {
	var p uint16
	_, text, _ = strings.Cut(text, ":")
	if _, err := fmt.Sscan(text, &p); err != nil {
		panic(err)
	}
	return p
}

// serve has everybody answer at each port of the exchanges, but where one wants to be refused.
func (s *scene) serve(t *testing.T, list []exchange) {
	t.Helper()
	var ports, refusing []uint16
	for _, e := range list {
		p := port(e.to)
		if e.want == "refused" {
			refusing = append(refusing, p)
			continue
		}
		ports = append(ports, p)
		if e.want != "" {
			ports = append(ports, port(e.want))
		}
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	for _, protocol := range protocols() {
		for who := range s.who {
			var at []netip.AddrPort
			for name, addresses := range s.addresses {
				if s.at[name] != who {
					continue
				}
				for _, a := range addresses {
					for _, p := range ports {
						key := fmt.Sprint(protocol, who, a, p)
						if a.IsValid() && !slices.Contains(refusing, p) && !s.serving[key] {
							at = append(at, netip.AddrPortFrom(a, p))
							s.serving[key] = true
						}
					}
				}
			}
			if len(at) > 0 {
				s.who[who].Serve(who, protocol, at...)
			}
		}
	}
}

func protocols() []string {
	if nstest.HasSCTP() {
		return []string{"tcp", "udp", "sctp"}
	}
	return []string{"tcp", "udp"}
}

// ask has every exchange take place. An exchange has no answer if one that the same station began later has ended.
func (s *scene) ask(t *testing.T, list []exchange) {
	t.Helper()
	s.serve(t, list)
	faults := 0
	for _, protocol := range protocols() {
		for family := range 2 {
			for _, e := range list {
				version := 4 + 2*family
				if e.protocol != "" && e.protocol != protocol || e.only != 0 && e.only != version {
					continue
				}
				if have, want := s.exchange(t, protocol, family, e, list), s.wanted(e, family); have != want {
					t.Errorf("%s, IPv%d, %v: %q, want %q", protocol, version, e, have, want)
					faults++
				}
				if faults == enough {
					t.Fatal("the rest is not asked any more")
				}
			}
		}
	}
}

func (s *scene) wanted(e exchange, family int) string {
	who, name, ok := strings.Cut(e.want, " sees ")
	if !ok {
		return e.want
	}
	return fmt.Sprintf("%s sees %v", who, s.addresses[name][family])
}

// patience is for a busy machine. With many faults it would take too long.
const (
	patience = 20 * time.Second
	enough   = 4
)

func (s *scene) exchange(t *testing.T, protocol string, family int, e exchange, list []exchange) string {
	t.Helper()
	q, err := s.question(protocol, family, e)
	if err != nil {
		return err.Error()
	}
	defer q.Close()
	wait := patience
	if e.want == "" {
		i := slices.IndexFunc(list, func(o exchange) bool {
			return o.from == e.from && strings.Contains(o.want, " sees ") && (o.protocol == "" || o.protocol == protocol)
		})
		if i < 0 {
			t.Fatalf("%v: nothing answers, and nothing can say when", e)
		}
		s.exchange(t, protocol, family, list[i], list)
		wait = 0
	}
	answer, err := q.Answer(wait)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED) && e.want == "refused":
		return "refused"
	case err == nil || e.want == "" && errors.Is(err, os.ErrDeadlineExceeded):
		return answer
	}
	return err.Error()
}

func (s *scene) question(protocol string, family int, e exchange) (*nstest.Question, error) {
	who, as, _ := strings.Cut(e.from, "@")
	to, _, _ := strings.Cut(e.to, ":")
	var from netip.Addr
	if as != "" {
		from = s.addresses[as][family]
	}
	if _, known := s.addresses[to]; !known || s.who[who] == nil {
		return nil, fmt.Errorf("no station is called %s or %s", who, to)
	}
	return s.who[who].Question(protocol, from, netip.AddrPortFrom(s.addresses[to][family], port(e.to)), max(1, e.size))
}

func tcp(text string) infra.Ports { return ports("tcp", text) }

func ports(protocol, text string) (p infra.Ports) {
	if err := p.UnmarshalText([]byte(text + "/" + protocol)); err != nil {
		panic(err)
	}
	return p
}

// each is a list of ports for each protocol.
func each(texts ...string) (list []infra.Ports) {
	for _, protocol := range []string{"tcp", "udp", "sctp"} {
		for _, text := range texts {
			list = append(list, ports(protocol, text))
		}
	}
	return list
}

// always is what no choice of ports changes.
var always = []exchange{
	{from: "guest", to: "gateway:9000", want: "world:9000 sees pod"},
	{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"},
	{from: "guest", to: "beyond:9000", protocol: "udp", size: 5000, want: "world:9000 sees pod"},
	{from: "guest", to: "beyond:7", protocol: "tcp", want: "refused"},
	{from: "guest", to: "beyond:7", protocol: "udp", want: "refused"},
	{from: "pod", to: "beyond:9000", want: "world:9000 sees pod"},
	{from: "pod", to: "guest's gateway:9000", want: "pod:9000 sees guest's gateway"},
	{from: "pod", to: "guest:9000", want: "guest:9000 sees guest's gateway"},
	{from: "world", to: "guest:9000", want: ""},           // it has a route by the pod
	{from: "world", to: "guest's gateway:9000", want: ""}, // it is the guest's alone
}

// forwardings are what can be asked of a masquerade, and who answers whom then.
var forwardings = []struct {
	name    string
	binding infra.Masquerade
	guard   infra.Guard
	prepare func(s *scene)
	want    []exchange
}{
	{
		name: "everything",
		want: []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world@gateway", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world@beyond", to: "pod:8000", want: "guest:8000 sees beyond"},
			{from: "world", to: "pod:8000", protocol: "udp", size: 5000, want: "guest:8000 sees gateway"},
			{from: "world", to: "pod:7", protocol: "tcp", want: "refused"},
			{from: "world", to: "pod:7", protocol: "udp", want: "refused"},
			{from: "pod", to: "pod:8000", want: "guest:8000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "pod:8000 sees loopback"},
			{from: "guest", to: "pod:8000", want: "guest:8000 sees guest's gateway"},
			{from: "guest", to: "guest's gateway:8000", want: ""},
		},
	},
	{
		name: "everything, loopback, no guard", binding: infra.Masquerade{Loopback: true}, guard: infra.Guard{Off: true},
		want: []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "pod", to: "pod:8000", want: "guest:8000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "guest:8000 sees guest's gateway"},
			{from: "pod", to: "loopback:8000", protocol: "udp", size: 5000, want: "guest:8000 sees guest's gateway"},
			{from: "guest", to: "pod:8000", want: "guest:8000 sees guest's gateway"},
			{from: "guest", to: "guest's gateway:8000", want: "pod:8000 sees guest"},
		},
	},
	{
		name: "everything but some", binding: infra.Masquerade{Excluded: each("8000", "8010-8012"), Loopback: true},
		guard: infra.Guard{Open: each("8011")},
		want: []exchange{
			{from: "world", to: "pod:8000", want: "pod:8000 sees gateway"},
			{from: "world", to: "pod:8001", want: "guest:8001 sees gateway"},
			{from: "world", to: "pod:8009", want: "guest:8009 sees gateway"},
			{from: "world", to: "pod:8010", want: "pod:8010 sees gateway"},
			{from: "world", to: "pod:8012", want: "pod:8012 sees gateway"},
			{from: "world", to: "pod:8013", want: "guest:8013 sees gateway"},
			{from: "pod", to: "pod:8000", want: "pod:8000 sees pod"},
			{from: "pod", to: "pod:8001", want: "guest:8001 sees pod"},
			{from: "pod", to: "loopback:8000", want: "pod:8000 sees loopback"},
			{from: "pod", to: "loopback:8001", want: "guest:8001 sees guest's gateway"},
			{from: "guest", to: "pod:8000", want: ""},
			{from: "guest", to: "pod:8001", want: "guest:8001 sees guest's gateway"},
			{from: "guest", to: "pod:8011", want: "pod:8011 sees guest"},
			{from: "guest", to: "guest's gateway:8011", want: "pod:8011 sees guest"},
		},
	},
	{
		name: "ports", binding: infra.Masquerade{Ports: each("8000", "8100-8110", "8200:9200", "8300-8302:9300"), Loopback: true},
		want: []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world", to: "pod:8001", want: "pod:8001 sees gateway"},
			{from: "world", to: "pod:8099", want: "pod:8099 sees gateway"},
			{from: "world", to: "pod:8100", want: "guest:8100 sees gateway"},
			{from: "world", to: "pod:8110", want: "guest:8110 sees gateway"},
			{from: "world", to: "pod:8110", protocol: "udp", size: 5000, want: "guest:8110 sees gateway"},
			{from: "world", to: "pod:8111", want: "pod:8111 sees gateway"},
			{from: "world", to: "pod:8200", want: "guest:9200 sees gateway"},
			{from: "world", to: "pod:9200", want: "pod:9200 sees gateway"},
			{from: "world", to: "pod:8300", want: "guest:9300 sees gateway"},
			{from: "world", to: "pod:8302", want: "guest:9302 sees gateway"},
			{from: "pod", to: "pod:8000", want: "guest:8000 sees pod"},
			{from: "pod", to: "pod:8001", want: "pod:8001 sees pod"},
			{from: "pod", to: "pod:8200", want: "guest:9200 sees pod"},
			{from: "pod", to: "loopback:8000", want: "guest:8000 sees guest's gateway"},
			{from: "pod", to: "loopback:8001", want: "pod:8001 sees loopback"},
			{from: "pod", to: "loopback:8302", want: "guest:9302 sees guest's gateway"},
			{from: "guest", to: "pod:8000", want: "guest:8000 sees guest's gateway"},
			{from: "guest", to: "pod:8200", want: "guest:9200 sees guest's gateway"},
			{from: "guest", to: "pod:8001", want: ""},
		},
	},
	{
		name: "baked addresses", binding: infra.Masquerade{
			IPv4: netip.MustParsePrefix("169.254.0.20/30"), IPv6: netip.MustParsePrefix("fd10:0:3::/64"), Ports: each("8000"), Loopback: true, NICMAC: true,
			Guest:   []netip.Addr{netip.MustParseAddr("169.254.0.21"), netip.MustParseAddr("fd10:0:3::1")},
			Gateway: []netip.Addr{netip.MustParseAddr("fd10:0:3::a"), netip.MustParseAddr("169.254.0.22")},
		},
		want: []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world@beyond", to: "pod:8000", want: "guest:8000 sees beyond"},
			{from: "world", to: "pod:8000", protocol: "udp", size: 5000, want: "guest:8000 sees gateway"},
			{from: "world", to: "pod:8001", want: "pod:8001 sees gateway"},
			{from: "pod", to: "loopback:8000", want: "guest:8000 sees guest's gateway"},
			{from: "guest", to: "pod:8000", want: "guest:8000 sees guest's gateway"},
		},
	},
	{
		name: "nothing", binding: infra.Masquerade{Ports: []infra.Ports{}, Loopback: true},
		want: []exchange{
			{from: "world", to: "pod:8000", want: "pod:8000 sees gateway"},
			{from: "pod", to: "pod:8000", want: "pod:8000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "pod:8000 sees loopback"},
			{from: "guest", to: "pod:8000", want: ""},
		},
	},
	{
		// https://istio.io/latest/docs/ops/deployment/application-requirements/#ports-used-by-istio
		name: "sidecar", binding: infra.Masquerade{
			Excluded: []infra.Ports{
				tcp("15000"), tcp("15001"), tcp("15002"), tcp("15004"), tcp("15006"), tcp("15008"), tcp("15020"),
				tcp("15021"), tcp("15053"), tcp("15090"),
			},
			Sidecar: &infra.Sidecar{Sources: []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}},
		},
		guard: infra.Guard{Open: []infra.Ports{tcp("15001")}},
		prepare: func(s *scene) {
			s.Pod.IP("addr add ::6/128 dev lo")
			s.name("pod", "proxy", netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6"))
			// What the proxies' own rules do, in few words.
			s.Pod.Exec("nft", "add table inet mesh; add chain inet mesh proxies { type nat hook prerouting priority -110; "+
				"iifname eth0 tcp dport 8000-8099 redirect to :15006; iifname eth0-tap tcp dport 9900 redirect to :15001; }")
		},
		want: []exchange{
			{from: "world", to: "pod:8000", protocol: "tcp", want: "pod:15006 sees gateway"},
			{from: "world", to: "pod:8000", protocol: "udp", want: "pod:8000 sees gateway"},
			{from: "world", to: "pod:8500", want: "pod:8500 sees gateway"},
			{from: "pod@proxy", to: "pod:8000", want: "guest:8000 sees guest's gateway"},
			{from: "pod", to: "pod:8000", want: "guest:8000 sees pod"},
			{from: "pod", to: "pod:15000", protocol: "tcp", want: "pod:15000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "pod:8000 sees loopback"},
			{from: "guest", to: "beyond:9900", protocol: "tcp", want: "pod:15001 sees guest"},
			{from: "guest", to: "pod:15020", protocol: "tcp", want: ""},
			{from: "guest", to: "pod:8500", want: "guest:8500 sees guest's gateway"},
		},
	},
}

// eachFirewall calls f with all that can translate.
func eachFirewall(t *testing.T, f func(t *testing.T, firewall cache.Firewall)) {
	for _, name := range []cache.Firewall{cache.FirewallNFTables, cache.FirewallIPTablesNFT, cache.FirewallIPTablesLegacy} {
		t.Run(string(name), func(t *testing.T) {
			if name != cache.FirewallNFTables {
				nstest.Need(t, string(name), strings.Replace(string(name), "ip", "ip6", 1))
			}
			f(t, name)
		})
	}
}

// TestForwarding asks from every side, and judges by who answers and whom it sees.
func TestForwarding(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for _, f := range forwardings {
		t.Run(f.name, func(t *testing.T) {
			eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
				if f.name == "everything" && firewall != cache.FirewallIPTablesNFT {
					nstest.KernelDecides(t, "IPv6 forwards in the whole namespace before Linux 6.17; iptables-legacy is modules")
				}
				s := newScene(t)
				if f.prepare != nil {
					f.prepare(s)
				}
				b := f.binding
				b.Firewall = firewall
				c := config(s.Network, b)
				c.Guard = f.guard
				r := s.wire(t, "guest", c)
				if r.Firewall != firewall {
					t.Errorf("the record says %q, want %q", r.Firewall, firewall)
				}
				s.World.IP(fmt.Sprintf("route add %v via %v", r.IPv4.Address.Masked(), nstest.Pod4))
				s.World.IP(fmt.Sprintf("route add %v via %v", r.IPv6.OnLink[0], nstest.Pod6))
				s.ask(t, append(slices.Clone(f.want), always...))
			})
		})
	}
}

// TestManyMasquerades has three NICs with rules of their own; one NIC leaves and comes back.
func TestManyMasquerades(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		for i := 2; i <= 3; i++ {
			link := fmt.Sprintf("net%d", i)
			s.World.IP(fmt.Sprintf("link add pod%d type veth peer name %s netns %s", i, link, s.Pod.Name))
			s.World.IP(fmt.Sprintf("link set pod%d up", i))
			s.Pod.IP("link set " + link + " up")
			for name, n := range map[string]*nstest.Namespace{"gateway": s.World, "pod": s.Pod} {
				host, dev := 1, fmt.Sprintf("pod%d", i)
				if name == "pod" {
					host, dev = 7, link
				}
				v4, v6 := fmt.Sprintf("10.245.%d.%d", i, host), fmt.Sprintf("fd00:245:%d::%d", i, host)
				n.IP("addr add " + v4 + "/24 dev " + dev)
				n.IP("addr add " + v6 + "/64 dev " + dev + " nodad")
				who := map[string]string{"gateway": "world", "pod": "pod"}[name]
				s.name(who, fmt.Sprintf("%s%d", name, i), netip.MustParseAddr(v4), netip.MustParseAddr(v6))
			}
		}
		first := config(s.Network, infra.Masquerade{Firewall: firewall})
		second := config(s.Network, infra.Masquerade{
			IPv4: netip.MustParsePrefix("10.0.3.0/24"), IPv6: netip.MustParsePrefix("fd10:0:3::/120"), Ports: each("8000", "8100:8000"), Firewall: firewall,
		})
		second.Name = "net2"
		third := config(s.Network, infra.Masquerade{
			IPv4: netip.MustParsePrefix("10.0.4.0/24"), IPv6: netip.MustParsePrefix("fd10:0:4::/120"), Excluded: each("8000"), Loopback: true, Firewall: firewall,
		})
		third.Name = "net3"
		s.wire(t, "guest", first)
		s.wire(t, "guest2", second)
		s.wire(t, "guest3", third)
		ofSecond := []exchange{
			{from: "world", to: "pod2:8000", want: "guest2:8000 sees gateway2"},
			{from: "world", to: "pod2:8001", want: "pod:8001 sees gateway2"},
			{from: "world", to: "pod2:8100", want: "guest2:8000 sees gateway2"},
			{from: "pod", to: "pod2:8000", want: "guest2:8000 sees pod2"},
			{from: "guest2", to: "pod2:8000", want: "guest2:8000 sees guest2's gateway"},
			{from: "guest2", to: "gateway2:9000", want: "world:9000 sees pod2"},
			{from: "guest2", to: "beyond:9000", want: "world:9000 sees pod"},
			{from: "guest2", to: "guest:8000", want: ""},
			{from: "guest2", to: "guest's gateway:8000", want: ""},
			{from: "guest", to: "guest2:8000", want: ""},
			{from: "guest", to: "pod2:8000", want: ""},
		}
		ofOthers := []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world", to: "pod3:8000", want: "pod:8000 sees gateway3"},
			{from: "world", to: "pod3:8001", want: "guest3:8001 sees gateway3"},
			{from: "pod", to: "pod:8000", want: "guest:8000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "pod:8000 sees loopback"},
			{from: "pod", to: "loopback:8001", want: "guest3:8001 sees guest3's gateway"},
			{from: "guest", to: "gateway:9000", want: "world:9000 sees pod"},
			{from: "guest3", to: "gateway3:9000", want: "world:9000 sees pod3"},
			{from: "guest3", to: "guest:8000", want: ""},
		}
		s.ask(t, append(slices.Clone(ofOthers), ofSecond...))
		second.Down.CutOff = true // the guest has the tap open
		unwire(t, second)
		s.ask(t, append(slices.Clone(ofOthers), exchange{from: "world", to: "pod2:8000", want: "pod:8000 sees gateway2"}))
		for _, c := range []wired.NIC{first, third} {
			check(t, c)
		}
	})
}

// TestClones has two guests of one snapshot at once, each in a pod of its own: they have one MAC, and one address of
// each family.
func TestClones(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	clone := *s
	clone.Network = nstest.Network{Pod: nstest.New(t, "clone"), World: s.World, State: nstest.Dir(t)}
	s.who["clone"] = clone.Pod
	s.name("clone", "clone", netip.MustParseAddr("10.245.1.7"), netip.MustParseAddr("fd00:245:1::7"))
	s.name("world", "clone's network", netip.MustParseAddr("10.245.1.1"), netip.MustParseAddr("fd00:245:1::1"))
	s.World.IP("link add clone type veth peer name eth0 netns " + clone.Pod.Name)
	for n, link := range map[*nstest.Namespace]string{s.World: "clone", clone.Pod: "eth0"} {
		name := map[string]string{"clone": "clone's network", "eth0": "clone"}[link]
		n.IP("link set " + link + " mtu 1450 up")
		n.IP(fmt.Sprintf("addr add %v/24 dev %s", s.addresses[name][0], link))
		n.IP(fmt.Sprintf("addr add %v/64 dev %s nodad", s.addresses[name][1], link))
	}
	for _, gateway := range s.addresses["clone's network"] {
		clone.Pod.IP("route add default via " + gateway.String())
	}
	b := infra.Masquerade{
		IPv4: netip.MustParsePrefix("169.254.0.20/30"), MAC: cache.MAC{0x02, 0xfc, 0, 0, 0, 5},
		Guest: []netip.Addr{netip.MustParseAddr("169.254.0.21")}, Gateway: []netip.Addr{netip.MustParseAddr("169.254.0.22")},
	}
	first, second := s.wire(t, "guest", config(s.Network, b)), clone.wire(t, "guest2", config(clone.Network, b))
	if changes := cache.Changes(first, second); len(changes) > 0 {
		t.Errorf("a guest notices in which of the pods it is: %v", changes)
	}
	s.ask(t, []exchange{
		{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"},
		{from: "guest2", to: "beyond:9000", want: "world:9000 sees clone"},
		{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
		{from: "world", to: "clone:8000", want: "guest2:8000 sees clone's network"},
		{from: "guest", to: "clone:8000", want: "guest2:8000 sees pod"},
		{from: "guest2", to: "pod:8000", want: "guest:8000 sees clone"},
	})
	for _, c := range []wired.NIC{config(s.Network, b), config(clone.Network, b)} {
		check(t, c)
	}
}

// TestWithin has a guest with an address of the NIC's network, where a station has the same one, and the network's
// gateway.
func TestWithin(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		twin := nstest.New(t, "twin")
		s.who["twin"] = twin
		twin4, twin6 := withinPod.Guest[0], netip.MustParseAddr("fd00:244:1::3")
		near4, near6 := netip.MustParseAddr("10.244.1.9"), netip.MustParseAddr("fd00:244:1::9")
		for _, line := range []string{
			"link add br0 type bridge", "link set br0 up", "link set pod master br0", "addr flush dev pod scope global",
			fmt.Sprintf("addr add %v/24 dev br0", nstest.Gateway4), fmt.Sprintf("addr add %v/64 dev br0 nodad", nstest.Gateway6),
			fmt.Sprintf("addr add %v/24 dev br0", near4), fmt.Sprintf("addr add %v/64 dev br0 preferred_lft 0 nodad", near6),
			"link add twin type veth peer name eth0 netns " + twin.Name, "link set twin master br0 up",
		} {
			s.World.IP(line)
		}
		for _, line := range []string{"link set eth0 up", fmt.Sprintf("addr add %v/24 dev eth0", twin4), fmt.Sprintf("addr add %v/64 dev eth0 nodad", twin6)} {
			twin.IP(line)
		}
		s.name("twin", "twin", twin4, twin6)
		s.name("world", "near", near4, near6)

		b := withinPod
		b.Firewall, b.Ports, b.Loopback = firewall, each("8000"), true
		c := config(s.Network, b)
		if firewall != cache.FirewallNFTables {
			s.Pod.Exec("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1")
		}
		before := s.Pod.Settled()
		c.Standby = firewall == cache.FirewallIPTablesNFT
		setup(t, c)
		if c.Standby {
			if _, err := c.Activate(t.Context(), phase1.Other{Gone: true}); err != nil {
				t.Fatal(err)
			}
			c.Standby = false
		}
		r := record(t, s.Network)
		guest := recordsGuest(t, s.Network, r, r.MTU)
		s.who["guest"] = guest
		s.name("guest", "guest", r.IPv4.Address.Addr(), r.IPv6.Address)
		s.name("nobody", "guest's gateway", nstest.Gateway4, r.IPv6.Gateway)
		s.ask(t, []exchange{
			{from: "guest", to: "gateway:9000", want: "world:9000 sees pod"},
			{from: "guest", to: "near:9000", want: "world:9000 sees pod"},
			{from: "guest", to: "beyond:9000", want: "world:9000 sees pod"},
			{from: "guest", to: "beyond:9000", protocol: "udp", size: 5000, want: "world:9000 sees pod"},
			{from: "guest", to: "pod:8000", only: 4, want: "guest:8000 sees pod"},
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world@near", to: "pod:8000", want: "guest:8000 sees near"},
			{from: "world@beyond", to: "pod:8000", want: "guest:8000 sees beyond"},
			{from: "world", to: "pod:8001", want: "pod:8001 sees gateway"},
			{from: "pod", to: "gateway:9000", want: "world:9000 sees pod"},
			{from: "pod", to: "near:9000", want: "world:9000 sees pod"},
			{from: "pod", to: "loopback:8000", want: "guest:8000 sees guest's gateway"},
			{from: "pod", to: "guest:9000", only: 4, want: "guest:9000 sees pod"},
			{from: "world", to: "twin:9000", want: "twin:9000 sees gateway"},
			{from: "twin", to: "gateway:9000", want: "world:9000 sees twin"},
			{from: "twin", to: "pod:8000", only: 6, want: "guest:8000 sees twin"},
			{from: "twin", to: "pod:8000", only: 4, want: ""}, // the guest has its address
		})
		for line, says := range map[string]string{
			"ip route del 10.244.1.3 dev eth0-tap":          "route 10.244.1.3 dev eth0-tap",
			"sysctl -qw net.ipv4.conf.eth0-tap.proxy_arp=0": "IPv4 proxy_arp of eth0-tap is off, not on",
		} {
			s.Pod.Exec("sh", "-c", line)
			var drift *phase1.DriftError
			if err := c.Check(t.Context()); !errors.As(err, &drift) || !strings.Contains(fmt.Sprint(drift.Differs), says) {
				t.Errorf("check says\n%v\nwant a DriftError with %q", err, says)
			}
			setup(t, c)
			check(t, c)
		}
		c.Down.CutOff = true // the guest has the tap open
		unwire(t, c)
		if err := difference(before, s.Pod.Settled()); firewall == cache.FirewallNFTables && err != nil { // iptables leaves its tables
			t.Error(err)
		}
	})
}

// TestOtherLinksDoNotForward has a neighbour at another link of the namespace, who takes that for a
// router, as the world does on the way back.
func TestOtherLinksDoNotForward(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		if firewall == cache.FirewallNFTables {
			nstest.KernelDecides(t, "IPv6 forwards in the whole namespace before Linux 6.17")
		}
		s := newScene(t)
		s.addNeighbour(t)
		neighbour := s.who["neighbour"]
		// What it answers to the world's gateway goes another way.
		neighbour.IP("link add eth1 type veth peer name neighbour netns " + s.World.Name)
		s.World.IP("link set neighbour up")
		s.World.IP("addr add fe80::1/64 dev neighbour nodad")
		s.World.IP("addr add 10.247.0.1/24 dev neighbour")
		neighbour.IP("link set eth1 up")
		neighbour.IP("addr add 10.247.0.2/24 dev eth1")
		neighbour.IP("route add " + nstest.Gateway4.String() + " via 10.247.0.1")
		neighbour.IP("route add " + nstest.Gateway6.String() + " via fe80::1 dev eth1")
		s.World.IP("route add 10.246.0.0/24 via " + nstest.Pod4.String())
		s.World.IP("route add fd00:246::/64 via " + nstest.Pod6.String())
		c := config(s.Network, infra.Masquerade{Firewall: firewall})
		s.wire(t, "guest", c)

		only := 0
		if !s.forwardsByLink() {
			only = 4 // IPv6 forwarding is a matter of the whole namespace in this kernel
		}
		s.ask(t, []exchange{
			{from: "neighbour", to: "pod9:8000", want: "pod:8000 sees neighbour"},
			{from: "neighbour", to: "pod:8000", want: "pod:8000 sees neighbour"}, // it is not the NIC's link
			{from: "neighbour", to: "beyond:8000", want: "", only: only},
			{from: "neighbour", to: "guest:8000", want: ""},
			{from: "world@gateway", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world@gateway", to: "neighbour:8000", want: ""},
			{from: "guest", to: "beyond:8000", want: "world:8000 sees pod"},
		})
		s.otherLinkRefused(t, c, 0, 1)
	})
}

// TestEcho asks by ping, and who answers says it by the hops on the way.
func TestEcho(t *testing.T) {
	t.Parallel()
	nstest.Need(t, "ping")
	for name, c := range map[string]struct {
		binding infra.Masquerade
		ttl     string
	}{
		"everything": {infra.Masquerade{}, "ttl=63"},
		"ports":      {infra.Masquerade{Ports: each("8000")}, "ttl=64"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.wire(t, "guest", config(s.Network, c.binding))
			for _, a := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
				if out := s.World.Exec("ping", "-c1", "-w20", a.String()); !strings.Contains(out, c.ttl) {
					t.Errorf("the world's ping of %v: want %s\n%s", a, c.ttl, out)
				}
			}
			// With fragments, there and back.
			for _, a := range []netip.Addr{nstest.Beyond4, nstest.Beyond6} {
				if out := s.who["guest"].Exec("ping", "-c1", "-w20", "-s5000", a.String()); !strings.Contains(out, "ttl=63") {
					t.Errorf("the guest's ping of %v: want ttl=63\n%s", a, out)
				}
			}
		})
	}
}

// TestMaxConnections wants one connection too many to be refused, whichever side opens it, and the others to
// go on. Each side has a limit of its own.
func TestMaxConnections(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		if firewall == cache.FirewallNFTables {
			nstest.KernelDecides(t, "how it counts connections")
		}
		s := newScene(t)
		const most = 12
		s.wire(t, "guest", config(s.Network, infra.Masquerade{MaxConnections: most, Firewall: firewall}))
		in, out := exchange{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"}, exchange{from: "guest", to: "gateway:9000", want: "world:9000 sees pod"}
		s.serve(t, []exchange{in, out})
		open := func(family int, e exchange, wait time.Duration) (*nstest.Question, error) {
			t.Helper()
			q, err := s.question("tcp", family, e)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(q.Close)
			answer, err := q.Answer(wait)
			if err == nil && answer != s.wanted(e, family) {
				t.Errorf("%v: %q, want %q", e, answer, s.wanted(e, family))
			}
			return q, err
		}
		// What came before is not counted any more once the kernel knows that it has ended. By
		// iptables each family has a limit of its own, but not of what is new in a minute.
		families := 2
		if firewall != cache.FirewallNFTables {
			families = 1
		}
		var q []*nstest.Question
		for i := range 2 * most {
			nstest.Eventually(t, func() error {
				one, err := open(i/2%families, []exchange{in, out}[i%2], time.Second)
				if err != nil {
					one.Close()
					return err
				}
				q = append(q, one)
				return nil
			})
		}
		refused := func() {
			t.Helper()
			for family := range families {
				for _, e := range []exchange{in, out} {
					one, err := s.question("tcp", family, e)
					if err != nil {
						t.Fatal(err)
					}
					for i, o := range q { // each has a way there and back that is as long
						if err := o.Echo(10, patience); err != nil {
							t.Errorf("connection %d: %v", i, err)
						}
					}
					if answer, err := one.Answer(0); err == nil {
						t.Errorf("IPv%d, %v: %q, want no answer to one more than %d", 4+2*family, e, answer, most)
					}
					one.Close()
				}
			}
		}
		refused()
		q[0].Close()
		nstest.Eventually(t, func() (err error) {
			one, err := open(0, in, 2*time.Second)
			if err != nil {
				one.Close()
				return err
			}
			q[0] = one
			return nil
		})
		refused()
	})
}

// TestStandingConnection: a TCP connection of the namespace that is older than the rules stays its own,
// though its first packet that the kernel tracks comes from outside.
func TestStandingConnection(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var servers, clients []net.Conn
	for _, at := range []netip.Addr{nstest.Gateway4, nstest.Gateway6} {
		l := listen(t, s.World, netip.AddrPortFrom(at, 4000))
		clients = append(clients, dial(t, s.Pod, "tcp", netip.AddrPortFrom(at, 4000)))
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, c)
		defer c.Close()
	}
	s.wire(t, "guest", config(s.Network, infra.Masquerade{}))
	for i, server := range servers {
		if _, err := server.Write([]byte("late")); err != nil {
			t.Fatal(err)
		}
		if err := clients[i].SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		var got [4]byte
		if _, err := clients[i].Read(got[:]); err != nil {
			t.Errorf("%v: what its peer sends does not reach the namespace: %v", server.LocalAddr(), err)
		}
	}
}

// TestMaxConnectionsToNamespace: an echo to the gateway is a connection too, one for each identifier.
func TestMaxConnectionsToNamespace(t *testing.T) {
	t.Parallel()
	for _, off := range []bool{false, true} {
		t.Run(map[bool]string{false: "guarded", true: "guard off"}[off], func(t *testing.T) {
			n := nstest.NewNetwork(t)
			const most = 10
			c := config(n, infra.Masquerade{MaxConnections: most})
			c.Guard.Off = off
			setup(t, c)
			w := attach(t, n, true, true)
			for id := range uint16(300) {
				echo := []byte{8, 0, 0, 0, byte(id >> 8), byte(id), 0, 0}
				w.write(w.link.Packet(unix.IPPROTO_ICMP, w.link.IPv4, w.link.Gateway4, echo))
			}
			// The kernel has dealt with a frame when the write returns.
			if count := tracked(t, n.Pod); count < most || count > 2*most {
				t.Errorf("there are %d connections, want the guest's %d and hardly any else", count, most)
			}
		})
	}
}

// far adds a host behind the world, on a link that takes less than the pod's.
func (s *scene) far(t *testing.T, mtu int) {
	far := nstest.New(t, "far")
	s.who["far"] = far
	s.World.IP("link add far type veth peer name eth0 netns " + far.Name)
	s.World.IP(fmt.Sprintf("link set far mtu %d up", mtu))
	s.World.IP("addr add 192.0.2.1/24 dev far")
	s.World.IP("addr add 2001:db8:f::1/64 dev far nodad")
	far.IP("link set eth0 up")
	far.IP("addr add 192.0.2.9/24 dev eth0")
	far.IP("addr add 2001:db8:f::9/64 dev eth0 nodad")
	// It says that it takes more than its link does.
	far.IP(fmt.Sprintf("route add default via 192.0.2.1 mtu lock %d advmss 1400", mtu))
	far.IP(fmt.Sprintf("route add default via 2001:db8:f::1 mtu lock %d advmss 1400", mtu))
	s.name("far", "far", netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8:f::9"))
}

// TestPathMTU sends more than a link beyond takes: the error of the router there reaches the guest,
// which sends less from then on, be it the one who connected or not.
func TestPathMTU(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		for _, direction := range []exchange{
			{from: "guest", to: "far:9000", want: "far:9000 sees pod"},
			{from: "far", to: "pod:9000", want: "guest:9000 sees far"},
		} {
			t.Run(direction.String(), func(t *testing.T) {
				s := newScene(t)
				s.far(t, 1300)
				s.wire(t, "guest", config(s.Network, infra.Masquerade{Firewall: firewall}))
				s.serve(t, []exchange{direction})
				for family := range 2 {
					q, err := s.question("tcp", family, direction)
					if err != nil {
						t.Fatal(err)
					}
					defer q.Close()
					if answer, err := q.Answer(patience); err != nil || answer != s.wanted(direction, family) {
						t.Fatalf("%q, %v, want %q", answer, err, s.wanted(direction, family))
					}
					// The guest sends it, or sends it back.
					if err := q.Echo(100_000, patience); err != nil {
						t.Errorf("IPv%d: %v", 4+2*family, err)
					}
					to := s.addresses["far"][family]
					if out := s.who["guest"].IP("route get " + to.String()); !strings.Contains(out, " mtu 1300") {
						t.Errorf("the guest has not learned that the path to %v takes 1300 octets:\n%s", to, out)
					}
				}
			})
		}
	})
}

// TestSegmentSize has a route of the namespace that takes less than the guest's link.
func TestSegmentSize(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		s.far(t, 1500)
		s.Pod.IP("route add 192.0.2.0/24 via " + nstest.Gateway4.String() + " mtu 1280")
		s.Pod.IP("route add 2001:db8:f::/64 via " + nstest.Gateway6.String() + " mtu 1280")
		s.wire(t, "guest", config(s.Network, infra.Masquerade{Firewall: firewall}))
		for _, direction := range []exchange{
			{from: "guest", to: "far:9000", want: "far:9000 sees pod"},
			{from: "far", to: "pod:9001", want: "guest:9001 sees far"},
		} {
			s.serve(t, []exchange{direction})
			for family := range 2 {
				q, err := s.question("tcp", family, direction)
				if err != nil {
					t.Fatal(err)
				}
				if answer, err := q.Answer(patience); err != nil || answer != s.wanted(direction, family) {
					t.Errorf("%q, %v, want %q", answer, err, s.wanted(direction, family))
				}
				for _, who := range []string{"guest", "far"} {
					mss, out := segmentSize(s.who[who], netip.AddrPortFrom(s.addresses["far"][family], port(direction.to)))
					if most := 1280 - 40 - 20*family; mss == 0 || mss > most || mss < most-40 {
						t.Errorf("IPv%d, %v: %s sends segments of %d octets, want nearly %d:\n%s", 4+2*family, direction, who, mss, most, out)
					}
				}
				q.Close()
			}
		}
	})
}

// TestLearnedRoute: a default route that a router advertised is there after Setup, and the next
// advertisement still counts.
func TestLearnedRoute(t *testing.T) {
	nstest.KernelDecides(t, "accept_ra where IPv6 forwards in the whole namespace, before Linux 6.17")
	t.Parallel()
	s := newScene(t)
	s.Pod.IP("-6 route del default")
	router := frames.Link{MAC: gatewayMAC, Gateway: newGatewayMAC, IPv6: nstest.Pod6, IPv4: nstest.Pod4, Gateway4: nstest.Gateway4, Gateway6: nstest.Gateway6, Far4: nstest.Beyond4, Far6: nstest.Beyond6}
	advertisement, route := kind(frames.Outer(router), "router advertisement")[0], "via "+eui64.LinkLocal(newGatewayMAC).String()+" dev eth0 proto ra"
	learned := func() error {
		s.World.Send(t, "pod", advertisement)
		if out := s.Pod.IP("-6 route show default"); !strings.Contains(out, route) {
			return errors.New("the namespace has not learned the route: " + out)
		}
		return nil
	}
	nstest.Eventually(t, learned)
	c := config(s.Network, infra.Masquerade{})
	setup(t, c)
	if out := s.Pod.IP("-6 route show default"); !strings.Contains(out, route) {
		t.Errorf("Setup lost the default route:\n%s", out)
	}
	s.Pod.IP("-6 route del default")
	nstest.Eventually(t, learned)
	check(t, c)
	unwire(t, c)
	s.Pod.IP("-6 route del default")
	nstest.Eventually(t, learned)
}

// TestOthersRules: what we let pass is still for the rules of others to drop. A launcher knows the guest by its tap,
// and its rules see the guest's packets there. The rules are those of docs/how-to/own-firewall-rules.md.
func TestOthersRules(t *testing.T) {
	t.Parallel()
	eachFirewall(t, func(t *testing.T, firewall cache.Firewall) {
		s := newScene(t)
		nstest.Need(t, "iptables-nft", "ip6tables-nft")
		s.wire(t, "guest", config(s.Network, infra.Masquerade{Firewall: firewall}))
		flavour := "-nft"
		if firewall == cache.FirewallIPTablesLegacy {
			flavour = "-legacy"
		}
		rules := strings.NewReplacer("exec pod ", "exec "+s.Pod.Name+" ", "tables ", "tables"+flavour+" ", "dport 25 ", "dport 8777 ", "dport 587 ", "dport 8666 ")
		nstest.Run(t, "bash", "-ec", rules.Replace(nstest.Commands(t, "../docs/how-to/own-firewall-rules.md", "Rules")))
		s.ask(t, []exchange{
			{from: "world", to: "pod:8000", want: "guest:8000 sees gateway"},
			{from: "world", to: "pod:8666", protocol: "tcp", want: ""},
			{from: "world", to: "pod:8666", protocol: "udp", want: "guest:8666 sees gateway"},
			{from: "guest", to: "beyond:8000", want: "world:8000 sees pod"},
			{from: "guest", to: "beyond:8666", protocol: "tcp", want: ""},
			{from: "guest", to: "beyond:8777", protocol: "tcp", want: ""},
			{from: "guest", to: "beyond:8777", protocol: "udp", want: "world:8777 sees pod"},
		})
	})
}
