package launchers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/lab"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// proxyOf has, in the environment of a proxy, what Proxy gets.
const proxyOf = "GUESTWIRE_TEST_PROXY"

// proxyAt is where the proxy listens, the guest's gateway, and asking whom it answers, the guest.
const proxyAt, asking = "10.0.2.1:53", "10.0.2.2"

// zone is what the world's resolver answers.
var zone = map[string][]string{
	"good.example. A":      {"good.example. 1 IN A 198.51.100.9"},
	"good.example. AAAA":   {"good.example. 1 IN AAAA 2001:db8:9::9"},
	"alias.example. A":     {"ALIAS.example. 1 IN CNAME Middle.example.", "middle.example. 1 IN CNAME good.example.", "good.example. 1 IN A 198.51.100.9"},
	"rebinding.example. A": {"rebinding.example. 1 IN A 169.254.169.254", "rebinding.example. 1 IN A 10.244.1.1"},
}

// wrong are replies of the world's resolver that answer nothing. Each function changes a good reply, or returns the
// octets in its place.
var wrong = map[string]func(r *dns.Msg) []byte{
	"id.example.":        func(r *dns.Msg) []byte { r.Id++; return nil },
	"query.example.":     func(r *dns.Msg) []byte { r.Response = false; return nil },
	"question.example.":  func(r *dns.Msg) []byte { r.Question[0].Name = "good.example."; return nil },
	"kind.example.":      func(r *dns.Msg) []byte { r.Question[0].Qtype = dns.TypeAAAA; return nil },
	"questions.example.": func(r *dns.Msg) []byte { r.Question = append(r.Question, r.Question[0]); return nil },
	"none.example.":      func(r *dns.Msg) []byte { r.Question = nil; return nil },
	"nxdomain.example.":  func(r *dns.Msg) []byte { r.Rcode = dns.RcodeNameError; return nil },
	"servfail.example.":  func(r *dns.Msg) []byte { r.Rcode = dns.RcodeServerFailure; return nil },
	"cut.example.":       func(r *dns.Msg) []byte { r.Truncated = true; return nil },
	"owner.example.":     func(r *dns.Msg) []byte { r.Answer[0].Header().Name = "other.example."; return nil },
	"parent.example.":    func(r *dns.Msg) []byte { r.Answer[0].Header().Name = "example."; return nil },
	"class.example.":     func(r *dns.Msg) []byte { r.Answer[0].Header().Class = dns.ClassCHAOS; return nil },
	"section.example.":   func(r *dns.Msg) []byte { r.Answer, r.Extra = nil, r.Answer; return nil },
	"type.example.":      answers("type.example. 1 IN AAAA 2001:db8:9::9"),
	"loop.example.":      answers("loop.example. 1 IN CNAME a.example.", "a.example. 1 IN CNAME loop.example.", "b.example. 1 IN A 198.51.100.9"),
	"backwards.example.": answers("a.example. 1 IN A 198.51.100.9", "backwards.example. 1 IN CNAME a.example."),
	"aliased.example.":   answers("aliased.example. 1 IN CNAME a.example.", "aliased.example. 1 IN A 198.51.100.9"),
	"header.example.":    func(r *dns.Msg) []byte { return pack(r)[:12] },
	"short.example.":     func(r *dns.Msg) []byte { b := pack(r); return b[:len(b)-2] },
	"counts.example.":    func(r *dns.Msg) []byte { b := pack(r); b[6], b[7] = 0xff, 0xff; return b },
	"pointer.example.":   func(r *dns.Msg) []byte { b := pack(r); copy(b[12:], "\xc0\x0c"); return b },
	"garbage.example.":   func(r *dns.Msg) []byte { return append(pack(r)[:2], strings.Repeat("\xff", 300)...) },
	"empty.example.":     func(*dns.Msg) []byte { return []byte{} },
}

func answers(lines ...string) func(*dns.Msg) []byte {
	return func(r *dns.Msg) []byte {
		r.Answer = nil
		for _, line := range lines {
			r.Answer = append(r.Answer, record(line))
		}
		return nil
	}
}

func record(line string) dns.RR {
	r, err := dns.NewRR(line)
	if err != nil {
		panic(err)
	}
	return r
}

func pack(m *dns.Msg) []byte {
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// proxied is a guest that may go nowhere but to what is pinned, with a proxy, and a world with a resolver.
type proxied struct {
	nstest.Network
	guest  *guest.Guest
	starts atomic.Int64
	proxy  atomic.Pointer[exec.Cmd]
}

func newProxied(t *testing.T, names ...string) *proxied {
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the proxy is another user")
	n := nstest.NewNetwork(t)
	p := &proxied{Network: n}
	resolver := netip.AddrPortFrom(lab.Beyond4, 53)
	serveZone(t, n.World, resolver)
	n.Pod.Exec("sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=53")
	nic := phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}
	egress := []infra.Egress{{Refuse: true, To: "link-local"}, {Refuse: true, To: "metadata"}, {Refuse: true, To: "private"}, {Refuse: true, To: "all"}}
	record, err := nic.Setup(t.Context(), infra.Spec{
		Binding: infra.Masquerade{}, Owner: nstest.Owner(), State: n.State, Egress: egress,
		DNS: &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.0.2.1")}}, Guard: infra.Guard{Open: []infra.Ports{{First: 53, Protocol: "udp"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Teardown(context.Background(), phase1.TeardownOptions{CutOff: true}) })
	p.guest = boot(t, n.Pod, record.Tap, record.MAC.String(), asking+"/24")
	t.Cleanup(func() { p.guest.Close() })
	if _, err := p.guest.Run("ip", "route", "add", "default", "via", "10.0.2.1"); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- RunProxy(ctx, nic, infra.Owner{UID: 1000, GID: 1000}, []infra.Ports{{First: 443}}, func() *exec.Cmd {
			proxy := exec.CommandContext(ctx, "/proc/self/exe")
			proxy.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %s", proxyOf, proxyAt, resolver, asking, strings.Join(names, " ")))
			proxy.Stderr = os.Stderr
			p.starts.Add(1)
			p.proxy.Store(proxy)
			return proxy
		})
	}()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	nstest.Eventually(t, func() error { // until the proxy listens
		_, err := p.ask("unknown.example.", dns.TypeA)
		if err != nil && err.Error() == "REFUSED" {
			return nil
		}
		return fmt.Errorf("unknown.example: %v", err)
	})
	return p
}

// ask returns the addresses with which the proxy answers the guest.
func (p *proxied) ask(name string, kind uint16) (addresses []string, err error) {
	err = netns.Do(p.guest.File, func() error {
		client := dns.Client{Timeout: 5 * time.Second}
		reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, kind), proxyAt)
		if err != nil {
			return err
		}
		for _, r := range reply.Answer {
			if r.Header().Name != name {
				return fmt.Errorf("an answer about %s", r.Header().Name)
			}
			switch r := r.(type) {
			case *dns.A:
				addresses = append(addresses, r.A.String())
			case *dns.AAAA:
				addresses = append(addresses, r.AAAA.String())
			}
		}
		if reply.Rcode != dns.RcodeSuccess {
			return errors.New(dns.RcodeToString[reply.Rcode])
		}
		return nil
	})
	return addresses, err
}

// pins is how many pins of IPv4 there are.
func (p *proxied) pins() int {
	return strings.Count(p.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-4"), " expires ")
}

// refused reports whether the guest's connection is refused.
func (p *proxied) refused(t *testing.T, to string) error {
	c, err := p.guest.DialTCP(t.Context(), netip.MustParseAddrPort(to))
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%s is not refused: %v", to, err)
	}
	return nil
}

// TestDNSProxy: a guest reaches the address of a name that it has asked for, also by an alias and in any case, at the
// pinned port, for the life of the answer; no other address, nor those of a name that answers with addresses which an
// earlier entry refuses. A proxy that ended is started again.
func TestDNSProxy(t *testing.T) {
	p := newProxied(t, "good.example.", "Alias.example.", "rebinding.example.")
	p.World.Listen("world", ":443")
	want := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	asked := func(name string, kind uint16, want ...string) error {
		if have, err := p.ask(name, kind); err != nil || !slices.Equal(have, want) {
			return fmt.Errorf("%s has the addresses %v, %v", name, have, err)
		}
		return nil
	}
	want(p.refused(t, "198.51.100.9:443"))
	want(asked("good.example.", dns.TypeAAAA, "2001:db8:9::9"))
	want(p.refused(t, "198.51.100.9:443"))
	connect := func(name string) error { // the answer may have ended
		if err := asked(name, dns.TypeA, "198.51.100.9"); err != nil {
			return err
		}
		c, err := p.guest.DialTCP(t.Context(), netip.MustParseAddrPort("198.51.100.9:443"))
		if err == nil {
			c.Close()
		}
		return err
	}
	nstest.Eventually(t, func() error { return connect("gOOd.exaMple.") })
	want(p.refused(t, "198.51.100.9:80"))
	want(p.refused(t, "10.244.1.1:443"))
	want(asked("rebinding.example.", dns.TypeA))
	want(p.refused(t, "10.244.1.1:443"))
	want(p.refused(t, "169.254.169.254:443"))
	if _, err := p.ask("good.example.", dns.TypeHTTPS); err == nil || err.Error() != "REFUSED" {
		t.Errorf("good.example by HTTPS: %v", err)
	}
	nstest.Eventually(t, func() error { return p.refused(t, "198.51.100.9:443") })
	nstest.Eventually(t, func() error { return connect("alias.example.") })
	want(p.proxy.Load().Process.Kill())
	nstest.Eventually(t, func() error {
		if n := p.starts.Load(); n != 2 {
			return fmt.Errorf("%d starts", n)
		}
		return connect("good.example.")
	})
}

// TestRunProxyEnds: a proxy that ends too often is not started again, and RunProxy returns its error.
func TestRunProxyEnds(t *testing.T) {
	nstest.NeedRoot(t, "the proxy is another user")
	starts := 0
	err := RunProxy(t.Context(), phase1.NIC{}, infra.Owner{UID: 1000, GID: 1000}, nil, func() *exec.Cmd {
		starts++
		return exec.CommandContext(t.Context(), "false")
	})
	var exit *exec.ExitError
	if starts != mostStarts || !errors.As(err, &exit) {
		t.Errorf("%d starts, %v", starts, err)
	}
	ctx, end := context.WithCancel(t.Context())
	if err := RunProxy(ctx, phase1.NIC{}, infra.Owner{UID: 1000, GID: 1000}, nil, func() *exec.Cmd {
		end()
		return exec.CommandContext(ctx, "sleep", "60")
	}); err != nil {
		t.Error(err)
	}
}

// hostile are messages that ask nothing.
func hostile() map[string][]byte {
	good := pack(new(dns.Msg).SetQuestion("good.example.", dns.TypeA))
	two := new(dns.Msg).SetQuestion("good.example.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	reply := new(dns.Msg).SetReply(new(dns.Msg).SetQuestion("good.example.", dns.TypeA))
	update := new(dns.Msg).SetQuestion("good.example.", dns.TypeA)
	update.Opcode = dns.OpcodeUpdate
	counts := slices.Clone(good)
	copy(counts[4:], strings.Repeat("\xff", 8))
	pointer := append(slices.Clone(good[:12]), 0xc0, 0x0c, 0, 1, 0, 1)
	chain := slices.Clone(good[:12]) // each pointer leads to the next one
	for i := range 200 {
		chain = append(chain, 0xc0|byte((14+2*i)>>8), byte(14+2*i))
	}
	garbage := make([]byte, 400)
	for i := range garbage {
		garbage[i] = byte(rand.Uint32())
	}
	return map[string][]byte{
		"empty": {}, "one octet": {0}, "a header alone": good[:12], "half a header": good[:7], "half a name": good[:17], "no class": good[:len(good)-2],
		"two questions": pack(two), "no question": make([]byte, 12), "a reply": pack(reply), "an update": pack(update), "65535 of all": counts,
		"a pointer to itself": pointer, "pointers": chain, "a long label": append(slices.Clone(good[:12]), strings.Repeat("\x3f"+strings.Repeat("a", 63), 6)...),
		"garbage": garbage, "a header of garbage": append(slices.Clone(good[:12]), garbage...), "ones": []byte(strings.Repeat("\xff", 512)), "1400 octets": make([]byte, 1400),
	}
}

// TestHostileDNSProxy: nothing that the guest, a neighbour or the resolver sends ends the proxy. What is no answer to
// the question pins nothing. A neighbour gets no answer, and pins nothing for the guest.
func TestHostileDNSProxy(t *testing.T) {
	names := []string{"good.example.", "silent.example.", "source.example."}
	for name := range wrong {
		names = append(names, name)
	}
	p := newProxied(t, names...)
	p.World.IP("route add 10.0.2.0/24 via " + nstest.Pod4.String())
	for of, ns := range map[string]*os.File{"guest": p.guest.File, "neighbour": p.World.File} {
		if err := netns.Do(ns, func() error {
			c, err := net.Dial("udp", proxyAt)
			if err != nil {
				return err
			}
			defer c.Close()
			for name, message := range hostile() {
				if _, err := c.Write(message); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			c.SetReadDeadline(time.Now().Add(time.Second))
			if n, err := c.Read(make([]byte, 512)); err == nil {
				return fmt.Errorf("an answer of %d octets", n)
			}
			return nil
		}); err != nil {
			t.Errorf("the %s: %v", of, err)
		}
	}
	if err := netns.Do(p.World.File, func() error {
		client := dns.Client{Timeout: time.Second}
		if reply, _, err := client.Exchange(new(dns.Msg).SetQuestion("good.example.", dns.TypeA), proxyAt); err == nil {
			return fmt.Errorf("the answer %v", reply)
		}
		return nil
	}); err != nil {
		t.Error("a neighbour:", err)
	}
	if n := p.pins(); n > 0 {
		t.Errorf("a neighbour's question pins %d addresses", n)
	}
	var asked sync.WaitGroup
	for _, name := range names[1:] {
		asked.Go(func() {
			addresses, err := p.ask(name, dns.TypeA)
			if len(addresses) > 0 || err != nil && err.Error() != "SERVFAIL" && err.Error() != "NXDOMAIN" {
				t.Errorf("%s: %v, %v", name, addresses, err)
			}
		})
	}
	asked.Wait()
	if n := p.pins(); n > 0 {
		t.Errorf("what is no answer pins %d addresses:\n%s", n, p.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-4"))
	}
	if addresses, err := p.ask("good.example.", dns.TypeA); err != nil || !slices.Equal(addresses, []string{"198.51.100.9"}) {
		t.Errorf("good.example: %v, %v", addresses, err)
	}
	if n := p.pins(); n != 1 {
		t.Errorf("%d pins, want 1", n)
	}
	if n := p.starts.Load(); n != 1 {
		t.Errorf("the proxy was started %d times", n)
	}
}

// TestDNSProxyBounds: a name whose resolver answers with other addresses each time does not fill the pins, and
// questions about a name that is not answered take neither memory nor sockets. Other names are answered meanwhile.
func TestDNSProxyBounds(t *testing.T) {
	p := newProxied(t, "many.example.", "silent.example.", "good.example.")
	before := time.Now()
	for i := range 300 {
		addresses, err := p.ask("many.example.", dns.TypeA)
		if err != nil || len(addresses) != mostAddresses {
			t.Fatalf("question %d: %v, %v", i, addresses, err)
		}
	}
	// A pin lives for two answers' time.
	if most := mostAddresses * (2 + int(time.Since(before)/shortest)); p.pins() > min(most, 3*mostAddresses) {
		t.Errorf("%d pins", p.pins())
	}
	if err := netns.Do(p.guest.File, func() error {
		c, err := net.Dial("udp", proxyAt)
		if err != nil {
			return err
		}
		defer c.Close()
		for i := range 7000 {
			m := new(dns.Msg).SetQuestion("silent.example.", dns.TypeA)
			m.Id = uint16(i)
			if _, err := c.Write(pack(m)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.proxy.Load().Process.Pid))
	if err != nil || len(files) > 20 {
		t.Errorf("%d files, %v", len(files), err)
	}
	nstest.Eventually(t, func() error {
		if addresses, err := p.ask("good.example.", dns.TypeA); err != nil || len(addresses) != 1 {
			return fmt.Errorf("good.example: %v, %v", addresses, err)
		}
		return nil
	})
	if n := p.starts.Load(); n != 1 {
		t.Errorf("the proxy was started %d times", n)
	}
}

// FuzzDNSQuestion: no message ends the proxy. What another parser takes for one question of the guest gets one reply,
// with the question and its number.
func FuzzDNSQuestion(f *testing.F) {
	for _, message := range hostile() {
		f.Add(message)
	}
	f.Add([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	f.Add(pack(new(dns.Msg).SetQuestion("good.example.", dns.TypeA)))
	f.Add(pack(new(dns.Msg).SetQuestion("gOOd.example.", dns.TypeANY).SetEdns0(1232, true)))
	name := dnsmessage.MustNewName("good.example.")
	known := &answer{until: time.Now().Add(time.Hour), Answer: Answer{Addresses: []netip.Addr{lab.Beyond4}}}
	p := &proxy{answers: map[dnsmessage.Question]*answer{{Name: name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}: known}}
	f.Fuzz(func(t *testing.T, message []byte) {
		packed := p.reply(message)
		var asked, reply dns.Msg
		if packed == nil {
			return
		}
		if err := errors.Join(asked.Unpack(message), reply.Unpack(packed)); err != nil || len(packed) > 512 {
			t.Fatalf("%d octets, %v", len(packed), err)
		}
		if !reply.Response || reply.Id != asked.Id || !slices.Equal(reply.Question, asked.Question) {
			t.Errorf("%v\nis answered by\n%v", &asked, &reply)
		}
		q := asked.Question[0]
		if is := dns.CanonicalName(q.Name) == "good.example." && q.Qtype == dns.TypeA && q.Qclass == dns.ClassINET; is != (len(reply.Answer) == 1) {
			t.Errorf("%v\nis answered by\n%v", &asked, &reply)
		}
	})
}

// FuzzDNSAnswer: no reply of a resolver ends the proxy. What it takes from a reply is, for another parser, an address
// of the question's name or of one of its aliases, in a reply without an error to this question.
func FuzzDNSAnswer(f *testing.F) {
	const id = 7
	q := dns.Question{Name: "good.example.", Qtype: dns.TypeA, Qclass: dns.ClassINET}
	for _, lines := range zone {
		f.Add(pack(replyTo(q, id, lines...)))
	}
	f.Add(pack(replyTo(q, id, slices.Repeat([]string{"good.example. 4294967295 IN A 198.51.100.9"}, 20)...)))
	for _, change := range wrong {
		r := replyTo(q, id, "good.example. 1 IN A 198.51.100.9")
		if b := change(r); b != nil {
			f.Add(b)
		} else {
			f.Add(pack(r))
		}
	}
	asked := dnsmessage.Question{Name: dnsmessage.MustNewName(q.Name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	f.Fuzz(func(t *testing.T, message []byte) {
		a, ok := answerIn(message, id, asked)
		if !ok || len(a.Addresses) == 0 {
			return
		}
		var m dns.Msg
		if err := m.Unpack(message); err != nil {
			return // it is stricter
		}
		if !m.Response || m.Id != id || m.Rcode != 0 || m.Truncated || len(m.Question) != 1 || dns.CanonicalName(m.Question[0].Name) != q.Name {
			t.Errorf("%v is taken from\n%v", a, &m)
		}
		if len(a.Addresses) > mostAddresses || a.Life < shortest || a.Life > longest {
			t.Errorf("%v is too much", a)
		}
		owners := map[string]bool{q.Name: true}
		var addresses []string
		for _, r := range m.Answer {
			if !owners[dns.CanonicalName(r.Header().Name)] || r.Header().Class != dns.ClassINET {
				continue
			}
			switch r := r.(type) {
			case *dns.CNAME:
				owners[dns.CanonicalName(r.Target)] = true
			case *dns.A:
				addresses = append(addresses, r.A.String())
			}
		}
		for _, to := range a.Addresses {
			if !slices.Contains(addresses, to.String()) {
				t.Errorf("%v is taken from\n%v", to, &m)
			}
		}
	})
}

func replyTo(q dns.Question, id uint16, lines ...string) *dns.Msg {
	r := new(dns.Msg).SetReply(&dns.Msg{MsgHdr: dns.MsgHdr{Id: id}, Question: []dns.Question{q}})
	for _, line := range lines {
		r.Answer = append(r.Answer, record(line))
	}
	return r
}

// serveZone answers questions about the zone, and those about the names that get wrong replies. About many.example each
// reply has other addresses. About silent.example there is none, and about source.example it comes from elsewhere.
func serveZone(t *testing.T, ns *nstest.Namespace, at netip.AddrPort) {
	t.Helper()
	var socket, elsewhere *net.UDPConn
	if err := netns.Do(ns.File, func() (err error) {
		if socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); err == nil {
			elsewhere, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Addr(), 5353)))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() {
		message, given := make([]byte, 512), 0
		for {
			n, from, err := socket.ReadFromUDPAddrPort(message)
			if errors.Is(err, net.ErrClosed) {
				served <- nil
				return
			}
			var m dns.Msg
			if err = errors.Join(err, m.Unpack(message[:n])); err != nil {
				served <- err
				return
			}
			q, by := m.Question[0], socket
			r := replyTo(q, m.Id, zone[q.Name+" "+dns.TypeToString[q.Qtype]]...)
			reply := []byte(nil)
			switch change := wrong[q.Name]; {
			case change != nil:
				r.Answer = []dns.RR{record(q.Name + " 1 IN A 198.51.100.9")}
				reply = change(r)
			case q.Name == "silent.example.":
				continue
			case q.Name == "source.example.":
				r.Answer = []dns.RR{record(q.Name + " 1 IN A 198.51.100.9")}
				by = elsewhere
			case q.Name == "many.example.":
				for range 28 {
					given++
					r.Answer = append(r.Answer, record(fmt.Sprintf("%s 0 IN A 198.18.%d.%d", q.Name, given>>8, given&0xff)))
				}
			}
			if reply == nil {
				reply = pack(r)
			}
			by.WriteToUDPAddrPort(reply, from)
		}
	}()
	t.Cleanup(func() {
		if err := errors.Join(socket.Close(), elsewhere.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
}
