package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase2"
)

// TestComparison creates namespaces by chance, and compares who answers the namespace with who answers the guest. What
// answers the namespace alone has to be a loss of the record, and what the record calls lost must not answer the guest.
func TestComparison(t *testing.T) {
	nstest.SkipUndecided(t)
	nstest.Long(t)
	t.Parallel()
	nstest.Need(t)
	nstest.NeedTaps(t)
	first, last := uint64(1), uint64(8)
	switch {
	case *seed > 0:
		first, last = *seed, *seed
	case *crash == "all":
		last = 500
	}
	var mu sync.Mutex
	counts := map[string]int{}
	seeds := make(chan uint64)
	go func() {
		defer close(seeds)
		for s := first; s <= last; s++ {
			seeds <- s
		}
	}()
	t.Run("of", func(t *testing.T) {
		for site := range min(4, int(last-first)+1) {
			t.Run(fmt.Sprint("site=", site), func(t *testing.T) {
				t.Parallel()
				l := newLAN(t)
				for s := range seeds {
					t.Run(fmt.Sprint("seed=", s), func(t *testing.T) {
						c := &comparison{lan: l, t: t, dice: dice{Rand: rand.New(rand.NewPCG(s, 1)), seed: s, nic: "eth0"}, counts: map[string]int{}}
						c.run()
						mu.Lock()
						defer mu.Unlock()
						for what, n := range c.counts {
							counts[what] += n
						}
					})
				}
			})
		}
	})
	t.Logf("seeds %d to %d: %v", first, last, counts)
	if counts["guests"] == 0 {
		t.Error("no guest was compared")
	}
}

// The stations of a LAN, by name. A router has each destination, and says its name and the source it sees.
type lan struct {
	bridge   *nstest.Namespace
	stations map[string]*nstest.Namespace
}

// answerPort is where the stations, the pod and the guest answer.
const answerPort = 9000

// newLAN makes the stations. r1 answers for the neighbours that no station has.
func newLAN(t *testing.T) *lan {
	l := &lan{bridge: nstest.New(t, "lan"), stations: map[string]*nstest.Namespace{}}
	l.bridge.IP("link add br0 type bridge")
	l.bridge.IP("link set br0 addrgenmode none up")
	for i, name := range []string{"r1", "r2", "r3", "peer", "store"} {
		s := nstest.New(t, name)
		l.stations[name] = s
		for _, line := range []string{"net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0", "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.default.forwarding=1"} {
			s.Exec("sysctl", "-qw", line)
		}
		if name == "store" {
			continue // each pod brings its link
		}
		l.bridge.IP(fmt.Sprintf("link add %s type veth peer name eth0 netns %s", name, s.Name))
		l.bridge.IP("link set " + name + " addrgenmode none master br0 up")
		number := i + 1
		if name == "peer" {
			number = 50
		}
		lines := []string{
			"link set eth0 address " + macOf(number), "link set eth0 addrgenmode none", "link set eth0 up",
			fmt.Sprintf("addr add 10.20.0.%d/24 dev eth0", number), fmt.Sprintf("addr add fd00:20::%d/64 dev eth0 nodad", number),
			fmt.Sprintf("addr add 10.21.0.%d/24 dev eth0", number), fmt.Sprintf("addr add fd00:21::%d/64 dev eth0 nodad", number),
			fmt.Sprintf("addr add fe80::%d/64 dev eth0 nodad", number),
			"route add 10.99.0.0/24 dev eth0", "route add fd00:99::/64 via fe80::ff:fe00:7 dev eth0",
		}
		if name != "peer" {
			lines = append(lines, destinationLines()...)
		}
		if name != "r1" {
			s.Exec("sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")
		} else {
			s.Exec("sysctl", "-qw", "net.ipv6.conf.all.proxy_ndp=1")
			s.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.proxy_ndp=1")
			s.Exec("sysctl", "-qw", "net.ipv6.neigh.eth0.proxy_delay=0")
			lines = append(lines, "route add local 169.254.1.1 dev lo")
			for _, d := range destinations {
				if d.Is6() {
					lines = append(lines, fmt.Sprintf("neigh add proxy %v dev eth0", d))
				}
			}
		}
		for _, line := range lines {
			s.IP(line)
		}
		s.Listen(name, fmt.Sprint(":", answerPort))
	}
	l.stations["store"].Listen("store", fmt.Sprint(":", answerPort))
	return l
}

// macOf is the MAC of the station with a number.
func macOf(number int) string { return fmt.Sprintf("02:00:00:00:00:%02x", number) }

// destinationLines give a station the destinations, which are of no network of the LAN.
func destinationLines() []string {
	var lines []string
	for _, n := range []string{"198.51.100.0/24", "192.0.2.0/24", "203.0.113.0/24", "172.16.0.0/12", "100.64.0.0/10"} {
		lines = append(lines, "route add local "+n+" dev lo")
	}
	return append(lines, "-6 route add local 2001:db8::/32 dev lo")
}

// destinations are asked by the pod and the guest.
var destinations = parsed("198.51.100.9", "198.51.100.200", "192.0.2.9", "203.0.113.9", "172.16.5.9", "100.64.0.9",
	"2001:db8:1::9", "2001:db8:2::9", "2001:db8:3::9", "2001:db8:8000::9")

// neighbours are stations on the links, which are asked too.
var neighbours = parsed("10.20.0.1", "10.20.0.2", "10.20.0.50", "10.21.0.50", "10.30.0.1", "fd00:20::1", "fd00:20::2", "fd00:20::50", "fd00:21::50", "fd00:30::1")

func parsed(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// comparison is one generated namespace, and what is asked there.
type comparison struct {
	*lan
	dice
	t      *testing.T
	n      nstest.Network
	own    []netip.Addr // the addresses of eth0 and lo
	counts map[string]int
}

// asked is one question. An invalid source is the choice of the one who asks.
type asked struct {
	by   string // pod: the namespace, or the guest in its place; else a station
	from netip.Addr
	to   netip.Addr
}

func (a asked) String() string {
	text := fmt.Sprintf("%s asks %v", a.by, a.to)
	if a.from.IsValid() {
		text += fmt.Sprintf(" from %v", a.from)
	}
	return text
}

// reply is who has answered, and the source it sees; zero: nobody has.
type reply struct {
	by     string
	source netip.Addr
	err    string
}

func (r reply) String() string {
	if r.by == "" {
		return "nobody (" + r.err + ")"
	}
	return fmt.Sprintf("%s, which sees %v", r.by, r.source)
}

func (c *comparison) run() {
	c.generate()
	var questions []asked
	for _, d := range slices.Concat(destinations, neighbours) {
		questions = append(questions, asked{by: "pod", to: d})
		for _, a := range c.own {
			if a.Is4() == d.Is4() {
				questions = append(questions, asked{"pod", a, d})
			}
		}
	}
	for _, a := range c.own {
		for _, s := range []string{"r1", "r2", "peer"} {
			questions = append(questions, asked{by: s, to: a})
		}
	}
	listening, err := c.n.Pod.Answer("pod", fmt.Sprint(":", answerPort))
	if err != nil {
		c.t.Fatal(err)
	}
	pod := c.ask(questions, func(string) lab.Namespace { return c.n.Pod.Namespace }, shortPatience)
	listening.Close()
	for _, b := range append(slices.Clone(bindings), infra.Binding(infra.Auto{})) {
		c.compare(b, questions, pod)
	}
	if c.t.Failed() {
		c.t.Logf("go test ./phase1 -run Comparison -seed %d: the namespace is\n%s", c.seed, strings.Join(c.lines, "\n"))
	}
}

// Nobody's silence takes long to be seen. What fails the test is asked once more with more patience.
const shortPatience, longPatience = 700 * time.Millisecond, 8 * time.Second

// ask asks all at once.
func (c *comparison) ask(questions []asked, pod func(string) lab.Namespace, patience time.Duration) map[asked]reply {
	open := map[asked]*nstest.Question{}
	replies := map[asked]reply{}
	for _, a := range questions {
		in := pod("")
		if a.by != "pod" {
			in = c.stations[a.by].Namespace
		}
		q, err := (&nstest.Namespace{Namespace: in}).Question("tcp", a.from, netip.AddrPortFrom(a.to, answerPort), 0)
		if err != nil {
			replies[a] = reply{err: err.Error()}
			continue
		}
		open[a] = q
	}
	end := time.Now().Add(patience)
	for a, q := range open {
		text, err := q.Answer(max(0, time.Until(end)))
		q.Close()
		r := reply{}
		if err != nil {
			r.err = err.Error()
		} else if words := strings.Fields(text); len(words) == 3 {
			r.by = words[0]
			r.source = netip.MustParseAddrPort(words[2]).Addr()
		}
		replies[a] = r
	}
	return replies
}

// compare wires the pod with a binding, and asks the guest the same.
func (c *comparison) compare(b infra.Binding, questions []asked, pod map[asked]reply) {
	t := c.t
	spec := config(c.n, b)
	r, err := spec.Setup(t.Context())
	var refused *infra.RefusedError
	switch {
	case errors.As(err, &refused):
		c.counts["refused"]++
		if refused.Reason == "" {
			t.Errorf("%s: refused without a reason", b.Kind())
		}
		if refused.Instead != "" {
			spec.Binding = bindingOf(refused.Instead)
			if _, err := spec.Plan(t.Context()); err != nil {
				t.Errorf("%s: %v, and then %v", b.Kind(), refused, err)
			}
		}
		return
	case errors.Is(err, infra.ErrCollision):
		c.counts["collisions"]++
		return
	case err != nil:
		t.Errorf("%s: %v", b.Kind(), err)
		return
	}
	c.counts["guests"]++
	defer func() {
		if err := spec.Teardown(t.Context()); err != nil {
			t.Errorf("%s: teardown: %v", b.Kind(), err)
		}
	}()
	g, stop := c.boot(b, r)
	defer stop()
	if g == nil {
		return
	}
	in := func(string) lab.Namespace { return g.Namespace }
	var put []asked
	for _, a := range questions {
		if a.from.IsValid() && r.Binding == cache.BindingMasquerade {
			continue // the guest has an address of its own
		}
		if routes := r.Binding == cache.BindingMasquerade || r.Binding == cache.BindingRouted; routes && (c.onLoopback(a.from) || c.onLoopback(a.to)) {
			continue // the namespace still answers there
		}
		if pod[a].by != "" {
			put = append(put, a)
		}
	}
	c.counts["questions"] += len(put)
	replies := c.ask(put, in, shortPatience)
	var open []asked
	for _, a := range put {
		if c.differs(r, a, pod[a], replies[a]) && !c.covered(r, a, pod[a]) {
			open = append(open, a)
		}
	}
	if len(open) > 0 {
		again := c.ask(open, in, longPatience)
		told := 0
		for _, a := range open {
			answer := again[a]
			replies[a] = answer
			if c.differs(r, a, pod[a], answer) {
				c.counts["unlisted"]++
				if told++; told > 5 {
					continue // as many say what it is
				}
				t.Errorf("%s: %v: the namespace gets %v; the guest: %v; the record has %v", r.Binding, a, pod[a], answer, r.Losses)
			}
		}
	}
	for _, l := range r.Losses {
		about, lost := 0, 0
		for _, a := range put {
			if c.covers(l, r, a, pod[a]) {
				about++
				if c.differs(r, a, pod[a], replies[a]) {
					lost++
				}
			}
		}
		switch {
		case about == 0 || lost > 0:
			c.counts["losses"]++
		case l.Kind == "route" && strings.Contains(l.What, " "):
			// blackhole and its like: the guest reaches more
		default:
			c.counts["false alarms of "+l.Kind]++
			if slices.Contains([]string{"route", "address", "family"}, l.Kind) {
				t.Errorf("%s: the record has the loss %v, and the guest gets all %d answers that it is about", r.Binding, l, about)
			}
		}
	}
}

// onLoopback reports whether the address is one of the pod's lo.
func (c *comparison) onLoopback(a netip.Addr) bool {
	for _, p := range parsed("10.99.0.0", "fd00:99::") {
		if a.Is4() == p.Is4() && a.IsValid() && netip.PrefixFrom(p, 24+40*(a.BitLen()/128)).Contains(a) {
			return true
		}
	}
	return false
}

// bindingOf is the binding of a kind, as it is without options.
func bindingOf(kind cache.Kind) infra.Binding {
	for _, b := range bindings {
		if b.Kind() == kind {
			return b
		}
	}
	return nil
}

// boot starts a guest that configures itself. It is nil if that fails.
func (c *comparison) boot(b infra.Binding, r cache.Record) (*guest.Guest, func()) {
	t := c.t
	vm, err := phase2.Open(c.n.State)
	if err != nil {
		t.Errorf("%s: %v", b.Kind(), err)
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- netns.Do(c.n.Pod.File, func() error { return vm.Serve(ctx) }) }()
	g := nstest.Boot(t, c.n.Pod.File, r, "guest")
	stop := func() {
		g.Close()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("%s: phase2: %v", b.Kind(), err)
		}
	}
	asking, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	learned, err := g.Configure(asking, guest.Families{IPv4: r.IPv4 != nil, IPv6: r.IPv6 != nil})
	if err == nil && learned.IPv6 != nil { // a lease has all addresses, of which Configure uses one
		for _, a := range learned.IPv6.Message.Options.OneIANA().Options.Addresses() {
			_, failed := g.Run("ip", "addr", "replace", a.IPv6Addr.String()+"/128", "dev", guest.NIC, "nodad",
				"preferred_lft", fmt.Sprint(int(min(a.PreferredLifetime.Seconds(), 1<<30))))
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		t.Errorf("%s: the guest cannot configure itself: %v; the record has %+v %+v", b.Kind(), err, r.IPv4, r.IPv6)
		return nil, stop
	}
	if err := g.ListenTCP(answerPort); err != nil {
		t.Errorf("%s: %v", b.Kind(), err)
		return nil, stop
	}
	return g, stop
}

// differs reports whether the guest gets another answer than the namespace, which got one.
func (c *comparison) differs(r cache.Record, a asked, pod, guest reply) bool {
	if a.by != "pod" {
		return guest.by != "guest"
	}
	routes := r.Binding == cache.BindingMasquerade || r.Binding == cache.BindingRouted
	if routes && guest.by != "" && strings.Contains(strings.Join(c.lines, "\n"), " nexthop ") {
		guest.by = pod.by // the namespace chooses one of several by the source
	}
	if routes && guest.by == pod.by && c.onLoopback(pod.source) {
		return false // if those of eth0 are deprecated, the namespace sends from one of lo, which it keeps
	}
	return guest.by != pod.by || guest.source != pod.source && r.Binding != cache.BindingMasquerade
}
