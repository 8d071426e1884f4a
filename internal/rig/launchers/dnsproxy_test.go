package launchers

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
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
	"registry.example.": "198.51.100.9", "api.github.com.": "198.51.100.10", "a.b.github.com.": "198.51.100.10", "github.com.": "198.51.100.10",
	"other.example.": "198.51.100.11", "db.internal.": nstest.Gateway(nstest.Pod4).String(), "rebound.github.com.": nstest.Gateway(nstest.Pod4).String(),
}

// TestDNSProxy types the page. The guest reaches the names of the page's list at their ports, and nothing else. A name
// that no entry has is refused, and no resolver gets it.
func TestDNSProxy(t *testing.T) {
	n, asked := nstest.NewNetwork(t), &questions{}
	g := typeDNSProxy(t, n, asked)
	n.World.IP("addr add 198.51.100.10/32 dev lo")
	n.World.IP("addr add 198.51.100.11/32 dev lo")
	for _, port := range []string{":80", ":443", ":5432"} {
		n.World.Listen("world", port)
	}
	nstest.Eventually(t, func() error { return answered(g.File, "udp", "host.internal.", "10.0.2.1") })
	open := func(to string) error {
		c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort(to))
		if err == nil {
			c.Close()
		}
		return err
	}
	db, registry6 := zone["db.internal."]+":5432", netip.AddrPortFrom(nstest.Beyond6, 443).String()
	for _, to := range []string{"198.51.100.9:443", "198.51.100.10:443", "198.51.100.11:443", registry6, db} {
		if err := open(to); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s is not refused before its name is asked for: %v", to, err)
		}
	}
	for _, c := range []struct{ protocol, name, answer string }{
		{"udp", "other.example.", "REFUSED"}, {"tcp", "other.example.", "REFUSED"}, {"udp", "github.com.", "REFUSED"},
		{"udp", "registry.example.", "198.51.100.9"}, {"tcp", "Registry.Example.", "198.51.100.9"},
		{"udp", "api.github.com.", "198.51.100.10"}, {"udp", "a.b.github.com.", "198.51.100.10"}, {"udp", "rebound.github.com.", ""},
		{"udp", "db.internal.", zone["db.internal."]},
	} {
		if err := answered(g.File, c.protocol, c.name, c.answer); err != nil {
			t.Error(err)
		}
	}
	if err := open(registry6); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%s is not refused before its name is asked for by AAAA: %v", registry6, err)
	}
	if err := answered(g.File, "udp", "registry.example.", nstest.Beyond6.String()); err != nil {
		t.Error(err)
	}
	for to, want := range map[string]error{
		"198.51.100.9:443": nil, "198.51.100.10:443": nil, registry6: nil, db: nil, "198.51.100.9:80": unix.ECONNREFUSED, "198.51.100.9:53": unix.ECONNREFUSED,
		"198.51.100.11:443": unix.ECONNREFUSED, strings.Replace(db, "5432", "443", 1): unix.ECONNREFUSED,
	} {
		if err := open(to); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", to, err, want)
		}
	}
	want := []string{"a.b.github.com.", "api.github.com.", "db.internal.", "rebound.github.com.", "registry.example."}
	if have := asked.names(); !slices.Equal(have, want) {
		t.Errorf("the resolver got %v, want %v", have, want)
	}
}

// typeDNSProxy types the commands of the page on a machine whose resolver is the world's, and has the guest boot.
func typeDNSProxy(t *testing.T, n nstest.Network, asked *questions) *guest.Guest {
	t.Helper()
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the proxy is another user's")
	nstest.Need(t, "unshare")
	asked.serve(t, n.World)
	resolvers := filepath.Join(nstest.Dir(t), "resolv.conf")
	if err := os.WriteFile(resolvers, fmt.Appendf(nil, "nameserver %v\n", nstest.Beyond4), 0o644); err != nil {
		t.Fatal(err)
	}
	const machine = `
set -euo pipefail
mount -t tmpfs run /run; chmod 755 /run; mkdir /run/guestwire /run/netns; touch /run/netns/pod
mount --bind /proc/self/fd/3 /run/netns/pod; mount --bind $RESOLVERS /etc/resolv.conf
`
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", machine+nstest.Commands(t, "../../../docs/how-to/dns-proxy.md", ""))
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "RESOLVERS="+resolvers, "PATH="+filepath.Dir(nstest.Program(t, "internal/rig/launchers/dns-proxy"))+":"+os.Getenv("PATH"))
	cmd.ExtraFiles = []*os.File{n.Pod.File}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill() // unshare, and so all processes of the machine
		<-ended
		if t.Failed() {
			t.Logf("the program says\n%s", said.String())
		}
	})
	nstest.Eventually(t, func() error { _, err := os.Stat(state(cmd)); return err })
	r := nstest.Record(t, filepath.Dir(state(cmd)), "eth0")
	g := boot(t, n.Pod, r.Tap, r.MAC.String(), r.IPv4.Address.String())
	for _, line := range []string{
		fmt.Sprintf("route add default via %v", r.IPv4.Gateway()), fmt.Sprintf("addr add %v dev eth0 nodad", netip.PrefixFrom(r.IPv6.Address, r.IPv6.OnLink[0].Bits())),
		fmt.Sprintf("route add default via %v", r.IPv6.Gateway),
	} {
		if _, err := g.Run("ip", strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// state is the record of the machine's guest.
func state(machine *exec.Cmd) string {
	return fmt.Sprintf("/proc/%d/root/run/guestwire/vm1/eth0.json", machine.Process.Pid)
}

// answered wants a question to the gateway to have the answer: an address, no address, or a code. It asks for an
// address of IPv6 if that is the answer.
func answered(ns *os.File, protocol, name, want string) error {
	return netns.Do(ns, func() error {
		kind := dns.TypeA
		if strings.Contains(want, ":") {
			kind = dns.TypeAAAA
		}
		client := dns.Client{Net: protocol, Timeout: 10 * time.Second}
		reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, kind), gateway)
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
