package phase1_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/lease"
	"github.com/guestwire/guestwire/internal/resolvconf"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// diverting are the entries of most tests: a loopback target, the gateway's ports, one at which nobody listens, and
// what passes beside them.
var diverting = []string{
	"divert 198.51.100.9 9000 127.0.0.1:8080", "divert 198.51.100.9 9000/udp 127.0.0.1:8080",
	"divert all 9001 :15443", "divert all 9001/udp :15443", "divert all 9002 :15999", "divert all 9002/udp :15999",
	"allow all 9003-9100", "allow all 9003-9100/udp", "refuse all",
}

// TestPinDiverted: a port that is diverted needs no pin, as an answer of a DNS proxy beside a broker has both kinds.
func TestPinDiverted(t *testing.T) {
	t.Parallel()
	eachRouter(t, []string{"divert all 9001 :15443", "refuse all"}, func(t *testing.T, s *scene, c wired.NIC) {
		s.nameGuest(t, c)
		beyond := s.addresses["beyond"]
		if err := c.Pin(t.Context(), phase1.Pin{Addresses: beyond[:], Ports: []infra.Ports{tcp("9001"), tcp("9003")}, Life: time.Minute}); err != nil {
			t.Fatal(err)
		}
		s.ask(t, []exchange{
			{protocol: "tcp", from: "guest", to: "beyond:9001", want: "pod:15443 sees guest"},
			{protocol: "tcp", from: "guest", to: "beyond:9003", want: "world:9003 sees pod"},
		})
		if text := s.pins(); !strings.Contains(text, " 9003 ") || strings.Contains(text, " 9001 ") {
			t.Errorf("pinned are %s", text)
		}
	})
}

// nameGuest gives the guest's addresses and its gateway's the names that they have behind a masquerade.
func (s *scene) nameGuest(t *testing.T, c wired.NIC) {
	r := nstest.Record(t, c.State, c.Name)
	s.name("guest", "guest", r.IPv4.Address.Addr(), r.IPv6.Address)
	s.name("pod", "guest's gateway", r.IPv4.Gateway(), lease.RoutedIPv6)
	if s.at["pod"] == "pod" {
		s.name("pod", "guest's gateway", r.IPv4.Gateway(), r.IPv6.Gateway)
	}
}

// TestDivert: what the guest opens to a destination arrives at the target, by TCP and UDP and both families, and what
// it opens elsewhere goes on as the list says. Where nobody listens the guest gets the namespace's refusal. The
// connections are counted, and Teardown leaves nothing.
func TestDivert(t *testing.T) {
	t.Parallel()
	eachRouter(t, diverting, func(t *testing.T, s *scene, c wired.NIC) {
		s.nameGuest(t, c)
		check(t, c)
		s.ask(t, []exchange{
			{protocol: "tcp", from: "guest", to: "beyond:9000", want: "pod:8080 sees guest", only: 4},
			{protocol: "udp", from: "guest", to: "beyond:9000", want: "pod:8080 sees guest", only: 4},
			{protocol: "tcp", from: "guest", to: "beyond:9001", want: "pod:15443 sees guest"},
			{protocol: "udp", from: "guest", to: "beyond:9001", want: "pod:15443 sees guest"},
			{protocol: "tcp", from: "guest", to: "guest's gateway:9001", want: "pod:15443 sees guest"},
			{protocol: "tcp", from: "guest", to: "beyond:9003", want: "world:9003 sees pod"},
			{protocol: "tcp", from: "pod", to: "beyond:9001", want: "world:9001 sees pod"}, // only the guest's
		})
		for _, protocol := range []string{"tcp", "udp"} {
			s.serveWorld(protocol, 9002)
			for family := range 2 {
				s.ask(t, []exchange{{protocol: protocol, from: "guest", to: "beyond:9002", want: "refused", only: 4 + 2*family}})
			}
			s.refused(t, protocol, 1, "beyond:9000") // no IPv6 address is a target on loopback
		}
		status, err := c.Status(t.Context())
		if err != nil || status.Diverted == nil || *status.Diverted < 9 {
			t.Errorf("counted %v, %v", status.Diverted, err)
		}
		said := strings.Join(status.Record.Warnings, "\n")
		if !strings.Contains(said, "nobody listens at "+netip.AddrPortFrom(s.addresses["guest's gateway"][0], 15999).String()+"/tcp") || strings.Contains(said, "15443") || strings.Contains(said, "8080/") {
			t.Errorf("Status warns of %s", said)
		}
		// A diverted connection that the kernel still knew would divert a process's between the same ports.
		c.Down.CutOff = true
		unwire(t, c)
		for line := range strings.Lines(listTracked(t, s.Pod)) {
			if strings.Contains(line, fmt.Sprint("src=", s.addresses["guest"][0], " ")) && (strings.Contains(line, "dport=9000 ") || strings.Contains(line, "dport=9001 ")) {
				t.Errorf("after Teardown the kernel knows %s", line)
			}
		}
	})
}

// TestResolver: a resolver on loopback answers the guest at port 53 of the gateway, also Docker's, which listens at
// other ports, to which rules for the namespace's own packets lead. Without a word of the policy, a port that
// guard.open opens, or a resolver of the namespace's, the guest does not reach it.
func TestResolver(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		at           string
		udp, tcp     uint16
		egress, open string
		want         []string // the protocols by which the guest is answered
	}{
		{"systemd", "127.0.0.53", 53, 53, "", "", []string{"udp", "tcp"}},
		{"Docker", "127.0.0.11", 41327, 37581, "", "", []string{"udp", "tcp"}},
		{"refused", "127.0.0.11", 41327, 37581, "allow all 443;refuse all", "", nil},
		{"allowed", "127.0.0.11", 41327, 37581, "allow resolvers 53/udp;refuse all", "", []string{"udp"}},
		{"of the user", "127.0.0.53", 53, 53, "", "53 53/udp", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, binding := range []infra.Binding{infra.Masquerade{}, infra.Masquerade{Firewall: cache.FirewallIPTablesNFT}, infra.Routed{}} {
				s := newScene(t)
				resolver := netip.MustParseAddr(c.at)
				s.Pod.Serve("resolver", "udp", netip.AddrPortFrom(resolver, c.udp))
				s.Pod.Serve("resolver", "tcp", netip.AddrPortFrom(resolver, c.tcp))
				if c.udp != 53 {
					docker(s.Pod, c.udp, c.tcp)
				}
				n := config(s.Network, binding)
				n.DNS = &cache.DNS{Servers: []netip.Addr{resolver}}
				if c.egress != "" {
					n.Egress = policy(t, strings.Split(c.egress, ";")...)
				}
				for _, p := range strings.Fields(c.open) {
					var open infra.Ports
					if err := open.UnmarshalText([]byte(p)); err != nil {
						t.Fatal(err)
					}
					n.Guard.Open = append(n.Guard.Open, open)
				}
				if _, is := binding.(infra.Routed); is {
					setup(t, n)
					s.routedGuest(t, record(t, s.Network))
				} else {
					s.wire(t, "guest", n)
				}
				s.nameGuest(t, n)
				check(t, n)
				r := nstest.Record(t, n.State, n.Name)
				if is := r.Resolver == resolver; is != (len(c.want) > 0) {
					t.Errorf("%v: the record has the resolver %v", binding, r.Resolver)
				}
				for _, protocol := range []string{"udp", "tcp"} {
					q, err := s.question(protocol, 0, exchange{from: "guest", to: "guest's gateway:53"})
					if err != nil {
						t.Fatal(err)
					}
					port := map[string]uint16{"udp": c.udp, "tcp": c.tcp}[protocol]
					answered := fmt.Sprintf("resolver:%d sees %v", port, s.addresses["guest"][0])
					if !slices.Contains(c.want, protocol) {
						// The guest reaches nobody: its packets are dropped, or nobody listens at the gateway.
						answer, err := q.Answer(time.Second)
						if err == nil {
							t.Errorf("%v, %s: %q", binding, protocol, answer)
						}
					} else if answer, err := q.Answer(patience); err != nil || answer != answered {
						t.Errorf("%v, %s: %q, %v; want %q", binding, protocol, answer, err, answered)
					}
					q.Close()
				}
			}
		})
	}
}

// docker adds the rules of Docker's resolver at 127.0.0.11, which listens at the ports (libnetwork, resolver_unix.go).
func docker(pod *nstest.Namespace, udp, tcp uint16) {
	for _, rule := range []string{
		"-N DOCKER_OUTPUT", "-N DOCKER_POSTROUTING", "-A OUTPUT -d 127.0.0.11/32 -j DOCKER_OUTPUT", "-A POSTROUTING -d 127.0.0.11/32 -j DOCKER_POSTROUTING",
		fmt.Sprintf("-A DOCKER_OUTPUT -d 127.0.0.11/32 -p tcp -m tcp --dport 53 -j DNAT --to-destination 127.0.0.11:%d", tcp),
		fmt.Sprintf("-A DOCKER_OUTPUT -d 127.0.0.11/32 -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.11:%d", udp),
		fmt.Sprintf("-A DOCKER_POSTROUTING -s 127.0.0.11/32 -p tcp -m tcp --sport %d -j SNAT --to-source :53", tcp),
		fmt.Sprintf("-A DOCKER_POSTROUTING -s 127.0.0.11/32 -p udp -m udp --sport %d -j SNAT --to-source :53", udp),
	} {
		pod.Exec(append([]string{"iptables-nft", "-t", "nat"}, strings.Fields(rule)...)...)
	}
}

// TestResolverMoves: when the resolver on loopback listens at other ports, as after a restart of Docker, Check names it
// and the next Setup leads the guest there. While it does not listen, nothing differs.
func TestResolverMoves(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	resolver := netip.MustParseAddr("127.0.0.11")
	serve := func(udp, tcp uint16) (stop func()) {
		var stops []func()
		for protocol, port := range map[string]uint16{"udp": udp, "tcp": tcp} {
			one, err := s.Pod.TryServe("resolver", protocol, netip.AddrPortFrom(resolver, port))
			if err != nil {
				t.Fatal(err)
			}
			stops = append(stops, one)
		}
		return func() {
			for _, stop := range stops {
				stop()
			}
		}
	}
	asks := func(want string) {
		t.Helper()
		for _, protocol := range []string{"udp", "tcp"} {
			q, err := s.question(protocol, 0, exchange{from: "guest", to: "guest's gateway:53"})
			if err != nil {
				t.Fatal(err)
			}
			if answer, err := q.Answer(patience); err != nil || !strings.HasPrefix(answer, want) {
				t.Errorf("%s: %q, %v; want %q", protocol, answer, err, want)
			}
			q.Close()
		}
	}
	stop := serve(41327, 37581)
	c := config(s.Network, infra.Masquerade{})
	c.DNS = &cache.DNS{Servers: []netip.Addr{resolver}}
	s.wire(t, "guest", c)
	asks("resolver:")
	stop()
	check(t, c)
	setup(t, c)
	stop = serve(41328, 37582)
	defer stop()
	var drift *phase1.DriftError
	const want = "the resolver at 127.0.0.11 listens at the ports 41328 of UDP and 37582 of TCP, not at 41327 and 37581"
	if err := c.Check(t.Context()); !errors.As(err, &drift) || len(drift.Differs) != 1 || drift.Differs[0].Kind != "resolver" || drift.Differs[0].What != want {
		t.Errorf("Check says %v, want %s", err, want)
	}
	setup(t, c)
	check(t, c)
	asks("resolver:")
}

// TestResolvConf: the resolver is that of the namespace's resolv.conf, if it listens. What another namespace's names is
// none.
func TestResolvConf(t *testing.T) {
	before, err := os.ReadFile(resolvconf.Default) // the sandbox's own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile(resolvconf.Default, before, 0o644) })
	if err := os.WriteFile(resolvconf.Default, []byte("nameserver 10.96.0.10\nnameserver 127.0.0.53\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, listens := range []bool{true, false} {
		s := newScene(t)
		resolver := netip.MustParseAddr("127.0.0.53")
		if listens {
			s.Pod.Serve("resolver", "udp", netip.AddrPortFrom(resolver, 53))
		}
		c := config(s.Network, infra.Masquerade{})
		c.DNS = nil
		setup(t, c)
		if r := record(t, s.Network); (r.Resolver == resolver) != listens {
			t.Errorf("listens: %v, and the record has the resolver %v", listens, r.Resolver)
		}
		check(t, c)
		unwire(t, c)
	}
}
