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
	"testing"

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

// zone is what the world's resolver answers.
var zone = map[string][]string{
	"good.example. A":      {"good.example. 1 IN A 198.51.100.9"},
	"good.example. AAAA":   {"good.example. 1 IN AAAA 2001:db8:9::9"},
	"rebinding.example. A": {"rebinding.example. 1 IN A 169.254.169.254", "rebinding.example. 1 IN A 10.244.1.1"},
}

// TestDNSProxy: a guest reaches the address of a name that it has asked for, at the pinned port, for the life of the
// answer; no other address, nor those of a name that answers with addresses which an earlier entry refuses.
func TestDNSProxy(t *testing.T) {
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the proxy is another user")
	n := nstest.NewNetwork(t)
	n.World.Listen("world", ":443")
	resolver := netip.AddrPortFrom(lab.Beyond4, 53).String()
	serveZone(t, n.World, resolver)
	n.Pod.Exec("sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=53")
	const proxyAt = "10.0.2.1:53" // the guest's gateway
	nic := phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}
	egress := []infra.Egress{{Refuse: true, To: "metadata"}, {Refuse: true, To: "private"}, {Refuse: true, To: "all"}}
	record, err := nic.Setup(t.Context(), infra.Spec{
		Binding: infra.Masquerade{}, Owner: nstest.Owner(), State: n.State, Egress: egress,
		DNS: &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.0.2.1")}}, Guard: infra.Guard{Open: []infra.Ports{{First: 53, Protocol: "udp"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Teardown(context.Background(), phase1.TeardownOptions{CutOff: true}) })
	g := boot(t, n.Pod, record.Tap, record.MAC.String(), "10.0.2.2/24")
	defer g.Close()
	if _, err := g.Run("ip", "route", "add", "default", "via", "10.0.2.1"); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	proxy := exec.CommandContext(ctx, "/proc/self/exe")
	proxy.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s good.example. rebinding.example.", proxyOf, proxyAt, resolver))
	proxy.Stderr = os.Stderr
	ended := make(chan error)
	go func() {
		ended <- RunProxy(ctx, nic, infra.Owner{UID: 1000, GID: 1000}, []infra.Ports{{First: 443}}, proxy)
	}()
	defer func() {
		end()
		<-ended
	}()

	refused := func(to string) error {
		c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort(to))
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("%s is not refused: %v", to, err)
		}
		return nil
	}
	want := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	want(refused("198.51.100.9:443"))
	var answers []string
	nstest.Eventually(t, func() (err error) { // until the proxy listens
		answers, err = ask(g, proxyAt, "good.example.", dns.TypeAAAA)
		return err
	})
	if !slices.Equal(answers, []string{"2001:db8:9::9"}) {
		t.Errorf("good.example has the addresses %v", answers)
	}
	want(refused("198.51.100.9:443"))
	connect := func() error { // the answer may have ended
		if answers, err = ask(g, proxyAt, "good.example.", dns.TypeA); err != nil || !slices.Equal(answers, []string{"198.51.100.9"}) {
			return fmt.Errorf("good.example has the addresses %v, %v", answers, err)
		}
		c, err := g.DialTCP(t.Context(), netip.MustParseAddrPort("198.51.100.9:443"))
		if err == nil {
			c.Close()
		}
		return err
	}
	nstest.Eventually(t, connect)
	want(refused("198.51.100.9:80"))
	want(refused("10.244.1.1:443"))
	if answers, err = ask(g, proxyAt, "rebinding.example.", dns.TypeA); err != nil || len(answers) > 0 {
		t.Errorf("rebinding.example has the addresses %v, %v", answers, err)
	}
	want(refused("10.244.1.1:443"))
	want(refused("169.254.169.254:443"))
	if answers, err = ask(g, proxyAt, "other.example.", dns.TypeA); err == nil || !strings.Contains(err.Error(), "REFUSED") {
		t.Errorf("other.example has the addresses %v, %v", answers, err)
	}
	nstest.Eventually(t, func() error { return refused("198.51.100.9:443") })
	nstest.Eventually(t, connect)
}

// ask returns the addresses with which the server answers the guest.
func ask(g *guest.Guest, server, name string, kind uint16) (addresses []string, err error) {
	err = netns.Do(g.File, func() error {
		reply, err := dns.Exchange(new(dns.Msg).SetQuestion(name, kind), server)
		if err != nil {
			return err
		}
		for _, r := range reply.Answer {
			addresses = append(addresses, addressOf(r).String())
		}
		if reply.Rcode != dns.RcodeSuccess {
			return errors.New(dns.RcodeToString[reply.Rcode])
		}
		return nil
	})
	return addresses, err
}

// serveZone answers questions about the zone.
func serveZone(t *testing.T, ns *nstest.Namespace, at string) {
	t.Helper()
	var socket net.PacketConn
	if err := netns.Do(ns.File, func() (err error) {
		socket, err = net.ListenPacket("udp", at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: socket, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg).SetReply(q)
		for _, line := range zone[q.Question[0].Name+" "+dns.TypeToString[q.Question[0].Qtype]] {
			record, err := dns.NewRR(line)
			if err != nil {
				t.Error(err)
			}
			r.Answer = append(r.Answer, record)
		}
		if err := w.WriteMsg(r); err != nil {
			t.Error(err)
		}
	})}
	served := make(chan error)
	go func() { served <- server.ActivateAndServe() }()
	t.Cleanup(func() {
		if err := errors.Join(server.Shutdown(), <-served); err != nil {
			t.Error(err)
		}
	})
}
