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
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2/names"
)

// serveNames is the proxy of TestGuest: the words are where it listens, the guest, and a resolv.conf.
func serveNames(words []string) error {
	p := names.Proxy{
		Pins: os.NewFile(3, "pins"), Addresses: []netip.AddrPort{netip.MustParseAddrPort(words[0])}, Guest: []netip.Prefix{netip.MustParsePrefix(words[1])},
		ResolvConf: words[2], Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	return p.Serve(context.Background())
}

// serveRecord is the proxy of TestNode: the word is the record.
func serveRecord(words []string) error {
	text, err := os.ReadFile(words[0])
	if err != nil {
		return err
	}
	r, err := cache.Decode(text)
	if err != nil {
		return err
	}
	p := names.Proxy{
		Pins: os.NewFile(3, "pins"), Addresses: r.DNSProxy, Resolvers: []netip.AddrPort{netip.AddrPortFrom(r.DNS.Servers[0], 53)},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	return p.Serve(context.Background())
}

// TestGuest: a guest that may go nowhere but to names asks with dig, and a dnsmasq of the world answers the proxy. The
// guest reaches what it was answered, at the entry's ports, and nothing else. The proxy follows its resolv.conf. One
// that is killed is started again.
func TestGuest(t *testing.T) {
	nstest.Need(t, "dig", "dnsmasq")
	nstest.Long(t)
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the proxy is another user")
	n := nstest.NewNetwork(t)
	inside := nstest.Gateway(nstest.Pod4) // the world's private address
	for _, ns := range []*nstest.Namespace{n.Pod, n.World} {
		ns.Exec("sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=53")
	}
	n.World.IP("addr add 198.51.100.10/32 dev lo")
	n.World.Listen("world", ":443")
	n.World.Listen("other", ":80")
	n.World.Start(nstest.LauncherUID, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--pid-file=", "--bind-interfaces",
		"--listen-address=198.51.100.9", "--local=/example/", "--local=/cluster.local/", "--host-record=db.ns.svc.cluster.local,198.51.100.10", "--local-ttl=60", "--host-record=good.example,198.51.100.9,2001:db8:9::9", "--cname=alias.example,target.example",
		"--host-record=target.example,198.51.100.10", "--address=/wild.example/198.51.100.10", "--host-record=rebind.example,"+inside.String(), "--host-record=db.example,"+inside.String(),
		"--host-record=metadata.example,169.254.169.254", "--txt-record=good.example,hello", "--srv-host=_db._tcp.example,good.example,27017",
		"--txt-record=large.example,"+strings.Repeat("x", 250)+","+strings.Repeat("y", 250)+","+strings.Repeat("z", 250))
	n.World.Start(nstest.LauncherUID, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--pid-file=", "--bind-interfaces",
		"--listen-address=198.51.100.10", "--local=/example/", "--host-record=good.example,198.51.100.10", "--host-record=moved.example,198.51.100.10")
	resolvers := filepath.Join(nstest.Dir(t), "resolv.conf")
	ask := func(resolver string) {
		t.Helper()
		if err := os.WriteFile(resolvers, []byte("nameserver "+resolver+"\nsearch ns.svc.cluster.local svc.cluster.local cluster.local\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ask("198.51.100.9")
	nic := phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}
	record, err := nic.Setup(t.Context(), infra.Spec{
		Binding: infra.Masquerade{}, Owner: nstest.Owner(), State: n.State,
		Egress: []infra.Egress{{Refuse: true, To: "link-local"}, {Refuse: true, To: "metadata"}, {Refuse: true, To: "all"}},
		DNS:    &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.0.2.1")}}, Guard: infra.Guard{Open: []infra.Ports{{First: 53, Protocol: "udp"}, {First: 53}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Teardown(context.Background(), phase1.TeardownOptions{CutOff: true}) })
	g := nstest.Boot(t, n.Pod.File, record, "guest")
	t.Cleanup(func() { g.Close() })
	if err := g.AddAddress(netip.MustParsePrefix("10.0.2.2/24")); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Run("ip", "route", "add", "default", "via", "10.0.2.1"); err != nil {
		t.Fatal(err)
	}

	var proxy atomic.Pointer[exec.Cmd]
	var starts atomic.Int64
	var out lines
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	k := Keeper{Pin: nic.Pin, NetNS: n.Pod.File, Owner: nstest.Owner(), Log: slog.New(slog.NewTextHandler(&out, nil)), Command: func() *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), proxyOf+"=names 10.0.2.1:53 10.0.2.2/32 "+resolvers)
		cmd.Stderr = &out
		proxy.Store(cmd)
		starts.Add(1)
		return cmd
	}}
	k.Names = append(k.Names, namesOf("good.example 443", "alias.example 443", "*.wild.example 80", "rebind.example 443", "db.example 443 private", "metadata.example 80 private", "large.example 1", "moved.example 443",
		"_db._tcp.example 27017", "db.ns.svc.cluster.local 443", "host.internal = 10.0.2.1 fd10:0:2::1")...)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(out.String())
		}
	})

	dig := func(args ...string) string {
		t.Helper()
		text, err := g.Run("dig", append([]string{"@10.0.2.1", "+tries=1", "+timeout=10"}, args...)...)
		if err != nil {
			return err.Error()
		}
		return text
	}
	refused := func(to string) {
		t.Helper()
		c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort(to))
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s is not refused: %v", to, err)
		}
	}
	reached := func(to string) {
		t.Helper()
		c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort(to))
		if err != nil {
			t.Errorf("%s is not reached: %v", to, err)
			return
		}
		c.Close()
	}
	nstest.Eventually(t, func() error { // until both listen
		if text := dig("rebind.example"); !strings.Contains(text, "status: NOERROR") {
			return fmt.Errorf("dig: %s", text)
		}
		return nil
	})

	if text := dig("other.example"); !strings.Contains(text, "status: REFUSED") || !strings.Contains(text, "EDE: 15 (Blocked): (no entry of the names allows it)") {
		t.Errorf("a name that is not in the list:\n%s", text)
	}
	refused("198.51.100.9:443")
	for _, c := range []struct{ args, want string }{
		{"+short good.example", "198.51.100.9\n"},
		{"+short gOOd.Example. +tcp", "198.51.100.9\n"},
		{"+short good.example +noedns", "198.51.100.9\n"},
		{"+short good.example +subnet=192.0.2.0/24 +nsid +dnssec", "198.51.100.9\n"},
		{"+short good.example AAAA", "2001:db8:9::9\n"},
		{"+short good.example TXT", "\"hello\"\n"},
		{"+short good.example ANY", ""},
		{"+short good.example HTTPS", ""},
		{"+short _db._tcp.example SRV", "0 0 27017 good.example.\n"},
		{"+short alias.example", "198.51.100.10\n"},
		{"+short rebind.example", ""},
		{"+short metadata.example", ""},
		{"+short host.internal", "10.0.2.1\n"},
		{"+short host.internal AAAA", "fd10:0:2::1\n"},
		{"+short target.example", ""},
	} {
		if have := dig(strings.Fields(c.args)...); have != c.want {
			t.Errorf("dig %s: %q, want %q", c.args, have, c.want)
		}
	}
	if text := dig("large.example", "TXT", "+bufsize=512"); !strings.Contains(text, ";; Truncated, retrying in TCP mode.") || !strings.Contains(text, strings.Repeat("z", 250)) {
		t.Errorf("a large answer:\n%s", text)
	}
	reached("198.51.100.9:443")
	refused("198.51.100.9:80")
	reached("198.51.100.10:443")
	refused("198.51.100.10:80")
	refused(inside.String() + ":443")
	if text := dig("+short", "a.b.wild.example"); text != "198.51.100.10\n" {
		t.Errorf("a.b.wild.example: %q", text)
	}
	reached("198.51.100.10:80")
	if text := dig("+short", "db.example"); text != inside.String()+"\n" {
		t.Errorf("db.example: %q", text)
	}
	reached(inside.String() + ":443")

	// The C library: a name, one without a dot in the domain of search, and one that is refused. Then as in a pod of
	// Kubernetes, where a name has the search domains first.
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	for text, names := range map[string]map[string]string{
		"search wild.example": {"good.example": "198.51.100.9", "host": "198.51.100.10", "other.example.": "exit status 2", "host.internal": "10.0.2.1"},
		"options ndots:5\nsearch ns.svc.cluster.local svc.cluster.local cluster.local": {
			"good.example": "198.51.100.9", "a.b.wild.example": "198.51.100.10", "db": "198.51.100.10", "db.ns": "198.51.100.10", "host.internal": "10.0.2.1", "other.example": "exit status 2", "other": "exit status 2",
		},
	} {
		if err := os.WriteFile(conf, []byte("nameserver 10.0.2.1\n"+text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		for name, want := range names {
			have, err := g.Run("unshare", "--mount", "sh", "-c", "mount --bind "+conf+" /etc/resolv.conf && getent ahostsv4 "+name)
			if have = fmt.Sprint(have, err); !strings.Contains(have, want) {
				t.Errorf("getent ahostsv4 %s with %q: %s, want %s", name, text, have, want)
			}
		}
	}

	// Another resolver.
	if text := dig("moved.example"); !strings.Contains(text, "status: NXDOMAIN") {
		t.Errorf("moved.example: %s", text)
	}
	ask("198.51.100.10")
	nstest.Eventually(t, func() error {
		if text := dig("+short", "moved.example"); text != "198.51.100.10\n" {
			return fmt.Errorf("moved.example: %q", text)
		}
		return nil
	})
	ask("198.51.100.9")

	if err := proxy.Load().Process.Kill(); err != nil {
		t.Error(err)
	}
	nstest.Eventually(t, func() error {
		if text := dig("+short", "good.example"); text != "198.51.100.9\n" || starts.Load() != 2 {
			return fmt.Errorf("%d starts, %s", starts.Load(), text)
		}
		return nil
	})
	if pins := n.Pod.Exec("nft", "list", "set", "inet", "guestwire-eth0", "pins-4"); strings.Contains(pins, "169.254") {
		t.Errorf("metadata is pinned:\n%s", pins)
	}
}
