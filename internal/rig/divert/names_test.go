package divert

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// gateway is where the guest asks.
const gateway = "10.0.2.1:53"

// zone is what the world's resolver knows, an address for a name; registry.example also has Beyond6. That of
// rebound.github.com is private.
var zone = map[string]string{
	"registry.example.": "198.51.100.9", "api.example.": "198.51.100.9", "evil.example.": "198.51.100.9", "api.github.com.": "198.51.100.10", "a.b.github.com.": "198.51.100.10", "github.com.": "198.51.100.10",
	"other.example.": "198.51.100.11", "db.internal.": nstest.Gateway(nstest.Pod4).String(), "rebound.github.com.": nstest.Gateway(nstest.Pod4).String(),
}

// TestDNSProxy types the page, once with guestwire-agent run and once with setup and names. The guest reaches the names
// of the page's list at their ports, and nothing else. A name that no entry has is refused, and no resolver gets it.
// Another list takes effect while the guest runs.
func TestDNSProxy(t *testing.T) {
	for _, heading := range []string{"One command", "Without run"} {
		t.Run(heading, func(t *testing.T) {
			m, asked := newMachine(t, ""), &questions{}
			asked.serve(t, m.World)
			m.World.IP("addr add 198.51.100.10/32 dev lo")
			m.World.IP("addr add 198.51.100.11/32 dev lo")
			for _, at := range []string{"198.51.100.10:443", "198.51.100.11:443", ":5432"} {
				m.World.Listen("world", at)
			}
			m.types(t, "names", "The configuration")
			m.types(t, "names", heading)
			if heading == "One command" {
				m.bootByDHCP(t)
			} else {
				m.boot(t, m.record(t))
			}
			m.judgeNames(t, asked)
			m.types(t, "names", "Change the list")
			nstest.Eventually(t, func() error { return answered(m.guest.File, "udp", "registry.example.", "REFUSED") })
			if err := answered(m.guest.File, "udp", "other.example.", "198.51.100.11"); err != nil {
				t.Error(err)
			}
			if err := m.open(t, "198.51.100.11:443"); err != nil {
				t.Error(err)
			}
		})
	}
}

// bootByDHCP starts a guest that asks for its addresses. Its gateway is its DNS server.
func (m *machine) bootByDHCP(t *testing.T) {
	t.Helper()
	r := m.record(t)
	m.guest = nstest.Boot(t, m.Pod.File, r, "guest")
	c, err := m.guest.Configure(t.Context(), guest.Families{IPv4: true, IPv6: true})
	if err != nil {
		t.Fatal(err)
	}
	have, want := fmt.Sprint(c.IPv4.DNS, c.IPv6.DNS), fmt.Sprint([]netip.Addr{r.IPv4.Gateway()}, []netip.Addr{r.IPv6.Gateway})
	if have != want {
		t.Errorf("the DNS servers of the guest are %s, want %s", have, want)
	}
}

// open has the guest open a connection, and close it.
func (m *machine) open(t *testing.T, to string) error {
	c, err := m.guest.DialTCP(t.Context(), netip.MustParseAddrPort(to))
	if err == nil {
		c.Close()
	}
	return err
}

// judgeNames wants the guest to have the names of the page's list.
func (m *machine) judgeNames(t *testing.T, asked *questions) {
	t.Helper()
	nstest.Eventually(t, func() error { return answered(m.guest.File, "udp", "host.internal.", "10.0.2.1") })
	m.judgeProxy(t)
	db, registry6 := zone["db.internal."]+":5432", netip.AddrPortFrom(nstest.Beyond6, 443).String()
	for _, to := range []string{"198.51.100.9:443", "198.51.100.10:443", "198.51.100.11:443", registry6, db} {
		if err := m.open(t, to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s is not refused before its name is asked for: %v", to, err)
		}
	}
	for _, c := range []struct{ protocol, name, answer string }{
		{"udp", "other.example.", "REFUSED"}, {"tcp", "other.example.", "REFUSED"}, {"udp", "github.com.", "REFUSED"},
		{"udp", "registry.example.", "198.51.100.9"}, {"tcp", "Registry.Example.", "198.51.100.9"},
		{"udp", "api.github.com.", "198.51.100.10"}, {"udp", "a.b.github.com.", "198.51.100.10"}, {"udp", "rebound.github.com.", ""},
		{"udp", "db.internal.", zone["db.internal."]},
	} {
		if err := answered(m.guest.File, c.protocol, c.name, c.answer); err != nil {
			t.Error(err)
		}
	}
	for _, protocol := range []string{"udp", "tcp"} { // the world's resolver has another answer
		for _, server := range []netip.Addr{nstest.Beyond4, nstest.Beyond6, m.record(t).IPv6.Gateway} {
			if err := answeredBy(m.guest.File, netip.AddrPortFrom(server, 53).String(), protocol, "other.example.", "REFUSED"); err != nil {
				t.Errorf("%v: %v", server, err)
			}
		}
	}
	if err := m.open(t, registry6); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%s is not refused before its name is asked for by AAAA: %v", registry6, err)
	}
	if err := answered(m.guest.File, "udp", "registry.example.", nstest.Beyond6.String()); err != nil {
		t.Error(err)
	}
	for to, want := range map[string]error{
		"198.51.100.9:443": nil, "198.51.100.10:443": nil, registry6: nil, db: nil, "198.51.100.9:80": unix.ECONNREFUSED,
		"198.51.100.11:443": unix.ECONNREFUSED, strings.Replace(db, "5432", "443", 1): unix.ECONNREFUSED,
	} {
		if err := m.open(t, to); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", to, err, want)
		}
	}
	want := []string{"a.b.github.com.", "api.github.com.", "db.internal.", "rebound.github.com.", "registry.example."}
	if have := asked.names(); !slices.Equal(have, want) {
		t.Errorf("the resolver got %v, want %v", have, want)
	}
}

// judgeProxy wants the half without privileges to be nobody, and to have no capability.
func (m *machine) judgeProxy(t *testing.T) {
	t.Helper()
	processes, err := filepath.Glob(m.root + "/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, process := range processes {
		line, _ := os.ReadFile(process + "/cmdline")
		if args := strings.Split(string(line), "\x00"); len(args) < 2 || filepath.Base(args[0]) != "guestwire-launcher" || args[1] != "names" {
			continue
		}
		found++
		status, err := os.ReadFile(process + "/status")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534", "Groups:\t", "CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1"} {
			if !slices.ContainsFunc(strings.Split(string(status), "\n"), func(line string) bool { return strings.TrimSpace(line) == strings.TrimSpace(want) }) {
				t.Errorf("the proxy has no %q:\n%s", want, status)
			}
		}
	}
	if found != 1 {
		t.Errorf("%d proxies run, want one", found)
	}
}

// answered wants a question to the gateway to have the answer: an address, no address, or a code. It asks for an
// address of IPv6 if that is the answer.
func answered(ns *os.File, protocol, name, want string) error {
	return answeredBy(ns, gateway, protocol, name, want)
}

// answeredBy is answered for a question to another server.
func answeredBy(ns *os.File, server, protocol, name, want string) error {
	return netns.Do(ns, func() error {
		kind := dns.TypeA
		if strings.Contains(want, ":") {
			kind = dns.TypeAAAA
		}
		client := dns.Client{Net: protocol, Timeout: 10 * time.Second}
		reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, kind), server)
		if err != nil {
			return fmt.Errorf("%s by %s: %w", name, protocol, err)
		}
		have := ""
		for _, r := range reply.Answer {
			switch r := r.(type) {
			case *dns.A:
				have += r.A.String()
			case *dns.AAAA:
				have += r.AAAA.String()
			}
		}
		if reply.Rcode != dns.RcodeSuccess {
			have = dns.RcodeToString[reply.Rcode]
		}
		if have != want {
			return fmt.Errorf("%s by %s: %q, want %q", name, protocol, have, want)
		}
		return nil
	})
}

// questions are the names that the world's resolver got.
type questions struct {
	mu  sync.Mutex
	got []string
}

func (q *questions) names() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	slices.Sort(q.got)
	return slices.Compact(q.got)
}

// serve is the world's resolver.
func (q *questions) serve(t *testing.T, world *nstest.Namespace) {
	t.Helper()
	var socket net.PacketConn
	if err := netns.Do(world.File, func() (err error) {
		socket, err = net.ListenPacket("udp", netip.AddrPortFrom(nstest.Beyond4, 53).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	started := make(chan bool)
	server := &dns.Server{PacketConn: socket, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		asked := m.Question[0]
		name := dns.CanonicalName(asked.Name)
		q.mu.Lock()
		q.got = append(q.got, name)
		q.mu.Unlock()
		r := new(dns.Msg).SetReply(m)
		header := dns.RR_Header{Name: asked.Name, Rrtype: asked.Qtype, Class: dns.ClassINET, Ttl: 300}
		if address := zone[name]; address != "" && asked.Qtype == dns.TypeA {
			r.Answer = []dns.RR{&dns.A{Hdr: header, A: net.ParseIP(address)}}
		} else if name == "registry.example." && asked.Qtype == dns.TypeAAAA {
			r.Answer = []dns.RR{&dns.AAAA{Hdr: header, AAAA: nstest.Beyond6.AsSlice()}}
		}
		w.WriteMsg(r)
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		if err := errors.Join(server.Shutdown(), <-ended); err != nil {
			t.Error(err)
		}
	})
}
