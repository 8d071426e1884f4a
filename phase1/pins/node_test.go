package pins

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// machine is a wired NIC with names, and its guest.
type machine struct {
	t    *testing.T
	nic  phase1.NIC
	spec infra.Spec
	*guest.Guest
	pod, world *nstest.Namespace
}

// wire wires the NIC, and has a guest boot with the record's addresses.
func wire(t *testing.T, dir string, binding infra.Binding, names ...string) *machine {
	t.Helper()
	n := nstest.NewNetwork(t)
	n.World.IP("addr add 198.51.100.10/32 dev lo")
	for _, port := range []string{":443", ":853"} {
		n.World.Listen("world", port)
	}
	n.World.Exec("sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=53")
	n.World.Start(nstest.LauncherUID, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--pid-file=", "--bind-interfaces", "--local-ttl=60",
		"--listen-address=198.51.100.9", "--host-record=one.example,198.51.100.9,"+nstest.Beyond6.String(), "--host-record=two.example,198.51.100.10")
	m := &machine{t: t, nic: phase1.NIC{NetNS: n.Pod.File, Name: "eth0", Dir: dir}, pod: n.Pod, world: n.World}
	m.spec = infra.Spec{
		Binding: binding, Owner: nstest.Owner(), State: n.State, DNS: &cache.DNS{Servers: []netip.Addr{nstest.Beyond4}},
		Egress: []infra.Egress{{Refuse: true, To: "metadata"}, {Refuse: true, To: "all"}},
	}
	r := m.setup(names...)
	t.Cleanup(func() { m.nic.Teardown(context.Background(), phase1.TeardownOptions{CutOff: true}) })
	m.Guest = nstest.Boot(t, n.Pod.File, r, "guest")
	lines := []string{fmt.Sprintf("addr add %v dev eth0", r.IPv4.Address), fmt.Sprintf("addr add %v/64 dev eth0 nodad", r.IPv6.Address), fmt.Sprintf("route replace default via %v dev eth0 onlink", r.IPv4.Gateway()),
		fmt.Sprintf("route replace default via %v dev eth0 onlink", r.IPv6.Router.Address)}
	for _, line := range lines {
		if _, err := m.Run("ip", strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// setup is one with these names.
func (m *machine) setup(names ...string) cache.Record {
	m.t.Helper()
	m.spec.Names = namesOf(names...)
	r, err := m.nic.Setup(m.t.Context(), m.spec)
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// ask is what dig prints, by short answers.
func (m *machine) ask(words string) string {
	text, err := m.Run("dig", append([]string{"+short", "+tries=1", "+timeout=10"}, strings.Fields(words)...)...)
	if err != nil {
		return err.Error()
	}
	if text == "" {
		text, _ = m.Run("dig", append([]string{"+tries=1", "+timeout=10"}, strings.Fields(words)...)...)
		_, text, _ = strings.Cut(text, "status: ")
		text, _, _ = strings.Cut(text, ",")
	}
	return strings.TrimSpace(text)
}

// open returns the error of a connection.
func (m *machine) open(to string) error {
	c, err := m.DialTCP(m.t.Context(), netip.MustParseAddrPort(to))
	if err == nil {
		c.Close()
	}
	return err
}

// soon waits until dig has the answer.
func (m *machine) soon(words, want string) {
	m.t.Helper()
	nstest.Eventually(m.t, func() error {
		if have := m.ask(words); have != want {
			return fmt.Errorf("dig %s: %q, want %q", words, have, want)
		}
		return nil
	})
}

// TestNode: a node's NICs get proxies, under masquerade and routed. Whatever server the guest asks, by UDP and TCP,
// IPv4 and IPv6, the proxy answers. A Setup with another list is followed, and so are a NIC that comes later, Teardown,
// and the end of the Node and its next Run.
func TestNode(t *testing.T) {
	nstest.Need(t, "dig", "dnsmasq")
	nstest.Long(t)
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the proxy is another user")
	dir := filepath.Join(nstest.Dir(t), "node")
	var out lines
	node := Node{Dir: dir, Owner: nstest.Owner(), Log: slog.New(slog.NewTextHandler(&out, nil)), Command: func(w phase1.Wiring) (*exec.Cmd, error) {
		r, err := readRecord(w)
		if err != nil {
			return nil, err
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), proxyOf+"=record "+filepath.Join(w.State, w.NIC+".json"))
		cmd.Stderr = &out
		if len(r.DNSProxy) != 2 {
			return nil, fmt.Errorf("the record has the DNS proxy at %v", r.DNSProxy)
		}
		return cmd, nil
	}}
	run := func() (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- node.Run(ctx) }()
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	stop := run()
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	for _, c := range []struct {
		binding  infra.Binding
		gateways [2]string
	}{{infra.Masquerade{}, [2]string{"10.0.2.1", "fd10:0:2::1"}}, {infra.Routed{}, [2]string{"169.254.75.1", "fd00:a9fe:4b01::1"}}} {
		t.Run(string(c.binding.Kind()), func(t *testing.T) {
			m := wire(t, dir, c.binding, "one.example 443")
			m.t = t
			m.soon("@"+c.gateways[0]+" one.example", "198.51.100.9")
			for _, at := range []string{c.gateways[0], c.gateways[1], "198.51.100.9", "198.51.100.10", nstest.Beyond6.String()} {
				for _, flag := range []string{"", " +tcp"} {
					for name, want := range map[string]string{"one.example": "198.51.100.9", "one.example AAAA": nstest.Beyond6.String(), "two.example": "REFUSED"} {
						if have := m.ask("@" + at + flag + " " + name); have != want {
							t.Errorf("dig @%s%s %s: %q, want %q", at, flag, name, have, want)
						}
					}
				}
			}
			for to, want := range map[string]error{
				"198.51.100.9:443": nil, netip.AddrPortFrom(nstest.Beyond6, 443).String(): nil, "198.51.100.9:80": unix.ECONNREFUSED, "198.51.100.10:443": unix.ECONNREFUSED,
				"198.51.100.10:853": unix.ECONNREFUSED, "169.254.169.254:80": unix.ECONNREFUSED,
			} {
				if err := m.open(to); !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", to, err, want)
				}
			}
			// A station of the network reaches no proxy, also not with a route to it.
			for i, at := range c.gateways {
				via := []netip.Addr{nstest.Pod4, nstest.Pod6}[i]
				m.world.IP(fmt.Sprintf("route add %s via %v", at, via))
				for _, protocol := range []string{"+notcp", "+tcp"} {
					text := m.world.Exec("sh", "-c", fmt.Sprintf("dig %s +tries=1 +timeout=1 @%s -p 15353 one.example || true", protocol, at))
					if !strings.Contains(text, "timed out") && !strings.Contains(text, "refused") {
						t.Errorf("the network asks %s: %s", at, text)
					}
				}
			}
			// Another list.
			m.setup("two.example 443")
			m.soon("@"+c.gateways[0]+" two.example", "198.51.100.10")
			if have := m.ask("@" + c.gateways[0] + " one.example"); have != "REFUSED" {
				t.Errorf("one.example after another list: %q", have)
			}
			for _, to := range []string{"198.51.100.10:443", "198.51.100.9:443"} { // which is pinned still
				if err := m.open(to); err != nil {
					t.Errorf("%s after another list: %v", to, err)
				}
			}
			// Another resolver, with the same list.
			for _, other := range []struct{ server, want string }{{"198.51.100.10", "SERVFAIL"}, {"198.51.100.9", "198.51.100.10"}} {
				m.spec.DNS = &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr(other.server)}}
				m.setup("two.example 443")
				m.soon("@"+c.gateways[0]+" two.example", other.want)
			}
			// Another Run.
			stop()
			if have := m.ask("@" + c.gateways[0] + " two.example"); !strings.Contains(have, "exit status 9") {
				t.Errorf("without a proxy: %q", have)
			}
			stop = run()
			m.soon("@"+c.gateways[0]+" two.example", "198.51.100.10")
			if err := m.nic.Teardown(t.Context(), phase1.TeardownOptions{CutOff: true}); err != nil {
				t.Error(err)
			}
			nstest.Eventually(t, func() error {
				if text := nstest.Run(t, "ip", "netns", "pids", m.pod.Name); text != "" {
					return fmt.Errorf("processes of the proxy after Teardown: %s", text)
				}
				return nil
			})
		})
	}
}

// readRecord is what the launcher reads.
func readRecord(w phase1.Wiring) (cache.Record, error) {
	text, err := os.ReadFile(filepath.Join(w.State, w.NIC+".json"))
	if err != nil {
		return cache.Record{}, err
	}
	return cache.Decode(text)
}
