package guests_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

// clients says how many of the clients that take long run: networkd, connman, ifupdown, cloud-init and firmware.
var clients = flag.String("clients", "few", "run the slow clients on a few of the networks, or all")

// in returns the system as it runs in a network: the programs that get something there.
func (s system) in(n network) system {
	var run []program
	for _, p := range s.programs {
		if n.address4 == "" {
			p.bound4 = ""
		}
		if n.address6 == "" {
			p.bound6 = ""
		}
		if p.bound4 == "" && s.both || s.single && n.deprecated != "" {
			continue
		}
		if (p.bound4 != "" || p.bound6 != "") && (!n.second || p.second != "") {
			run = append(run, p)
		}
	}
	s.programs = run
	return s
}

// TestClients runs real DHCP clients in each network. It checks the result with ip(8), by the files that the
// clients write, and by who answers; again after a renewal, and after a restart of the launcher.
func TestClients(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	launcher := nstest.Program(t, "examples/guestwire-launcher")
	for _, sys := range systems {
		t.Run(sys.name, func(t *testing.T) {
			t.Parallel()
			for _, n := range slices.Concat(networks, pods) {
				sys := sys.in(n)
				if len(sys.programs) == 0 {
					continue
				}
				few := !sys.slow || n.name == "bridge-on-link" || n.once && strings.HasPrefix(sys.name, "networkd")
				if !few && *clients != "all" || sys.cuts && len(n.search[0]) > 63 {
					continue
				}
				t.Run(n.name, func(t *testing.T) {
					t.Parallel()
					s := newScene(t, sys, n)
					s.serve(t, launcher)
					s.boot(t)
					s.check(t)
					s.checkDrops(t)
					if n.once {
						return
					}
					s.renew(t)

					s.launcher.Stop(t)
					nstest.Eventually(t, s.hasNoRouter)
					s.serve(t, launcher)
					s.renew(t)
					s.check(t)
					if out := s.launcher.Output.String(); sys.lease == 0 && strings.Contains(out, "leased") {
						t.Errorf("a program asked for a new lease instead of renewing its own:\n%s", out)
					}
				})
			}
		})
	}
}

// scene is a network with a guest.
type scene struct {
	nstest.Network
	network network
	system  system
	// resolvConf is the pod's resolv.conf.
	resolvConf string
	launcher   *nstest.Process
	guest      *nstest.Namespace
	clients    []client
}

// client is a running program.
type client struct {
	program
	machine *machine.Machine
}

const dns4, dns6 = "192.0.2.53", "2001:db8::53"

func newScene(t *testing.T, sys system, n network) *scene {
	t.Helper()
	s := &scene{Network: n.create(t), network: n, system: sys}
	s.resolvConf = filepath.Join(nstest.Dir(t), "resolv.conf")
	text := fmt.Sprintf("nameserver %s\nnameserver %s\nsearch %s\n", dns4, dns6, strings.Join(n.search, " "))
	if err := os.WriteFile(s.resolvConf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	lease := sys.lease
	if n.once {
		lease = 0
	}
	for _, nic := range s.nics() {
		_, err := (phase1.NIC{NetNS: s.Pod.File, Name: nic}).Setup(t.Context(), infra.Spec{
			Binding: n.binding, State: s.State,
			Owner:   nstest.Owner(),
			Options: cache.Options{Hostname: "alice", Subdomain: n.subdomain, LeaseSeconds: lease},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.World.Listen("world", ":7")
	return s
}

// checkDrops wants nothing dropped of the guest that an operator would have to look at.
func (s *scene) checkDrops(t *testing.T) {
	t.Helper()
	for _, nic := range s.nics() {
		counters, err := (phase1.NIC{NetNS: s.Pod.File, Name: nic}).Counters(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range counters.Drops {
			if d.Packets > 0 && !d.Expected {
				t.Errorf("%d packets of %s were dropped: %s", d.Packets, nic, d.Reason)
			}
		}
	}
}

// nics returns the names of the guest's NICs, which are those of the pod's.
func (s *scene) nics() []string {
	if s.network.second {
		return []string{"eth0", "eth1"}
	}
	return []string{"eth0"}
}

// serve starts a launcher and waits until it serves.
func (s *scene) serve(t *testing.T, program string) {
	t.Helper()
	p := s.Pod.Start(nstest.LauncherUID, program, "serve", "-state", s.State, "-resolv-conf", s.resolvConf)
	s.launcher = p
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("launcher:\n%s", p.Output.String())
		}
	})
	nstest.Eventually(t, func() error { return checkOutput(p, "serving") })
}

func checkOutput(p *nstest.Process, text string) error {
	if out := p.Output.String(); !strings.Contains(out, text) {
		return fmt.Errorf("the launcher does not say %q:\n%s", text, out)
	}
	return nil
}

// boot creates the guest and starts its programs. A program that handles router advertisements itself also
// sets the link up.
func (s *scene) boot(t *testing.T) {
	t.Helper()
	vm, err := phase2.Open(s.State)
	if err != nil {
		t.Fatal(err)
	}
	s.guest = s.Guest(t, vm.Records()[0])
	if s.network.second {
		s.Attach(t, s.guest, "eth1", vm.Records()[1])
	}
	s.guest.Listen("guest", ":7")
	for _, nic := range s.nics() {
		s.guest.Exec("sysctl", "-qw", "net.ipv6.conf."+nic+".accept_dad=1") // as a guest's kernel has it
		if s.system.kernel {
			s.guest.Exec("sysctl", "-qw", "net.ipv6.conf."+nic+".accept_ra_rt_info_max_plen=128")
			s.guest.IP("link set " + nic + " up")
			s.guest.Settle(nic)
		}
	}
	for _, p := range s.system.programs {
		s.start(t, p)
	}
}

// start starts a program and waits until it has its leases.
func (s *scene) start(t *testing.T, p program) {
	t.Helper()
	c := client{program: p}
	if s.system.debian13 {
		c.machine = machine.NewDebian13(t, s.guest)
	} else {
		c.machine = machine.New(t, s.guest, p.packages...)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		out, err := c.machine.Run("cat /run/log; ip addr; ip route; ip -6 route; cat /etc/resolv.conf")
		t.Logf("%s: %v\n%s", c.start, err, out)
	})
	script, err := os.ReadFile("../vm/guest/udhcpc-script")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.machine.Write("/etc/udhcpc/classless.script", script); err != nil {
		t.Fatal(err)
	}
	if _, err := c.machine.Run("export LINKS='" + strings.Join(s.nics(), " ") + "'; :>/run/log; (" + c.start + ") >>/run/log 2>&1 &"); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, c.hasLeases(leases{}))
	s.clients = append(s.clients, c)
}

// traffic connects from the guest to hosts, which must see the pod's address, and from a host to the pod's
// address, where the guest must answer.
func (s *scene) traffic(t *testing.T, pod netip.Addr) {
	t.Helper()
	hosts := []netip.Addr{nstest.Beyond4, nstest.Beyond6}
	for _, a := range s.network.beyond {
		hosts = append(hosts, netip.MustParseAddr(a))
	}
	for _, to := range hosts {
		if to.Is4() == pod.Is4() {
			sees := "world sees " + strings.TrimSuffix(netip.AddrPortFrom(pod, 0).String(), "0")
			if s.system.anySource && to.Is6() && len(s.network.others6) > 0 {
				sees = "world sees [" + strings.TrimSuffix(pod.String(), "7") // the others end with 17 and 27
			}
			checkAnswer(t, s.guest, to, sees)
		}
	}
	checkAnswer(t, s.World, pod, "guest sees ")
}

func checkAnswer(t *testing.T, from *nstest.Namespace, to netip.Addr, want string) {
	t.Helper()
	nstest.Eventually(t, func() error {
		answer, err := from.Ask(netip.AddrPortFrom(to, 7).String())
		if err != nil || !strings.HasPrefix(answer, want) {
			return fmt.Errorf("%s to %v: %q, %v; want %q", from.Name, to, answer, err, want)
		}
		return nil
	})
}
