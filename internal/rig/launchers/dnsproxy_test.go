package launchers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
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
