package phase1_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
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
