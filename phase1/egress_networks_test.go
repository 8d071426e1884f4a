package phase1_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// wantNetworksChanged wants Check, Status and Plan to report that nic-networks has changed, in these words, and Setup
// to say the same and to repair it. Then nothing differs.
func wantNetworksChanged(t *testing.T, c wired.NIC, words ...string) {
	t.Helper()
	var drift *phase1.DriftError
	if err := c.Check(t.Context()); !errors.As(err, &drift) {
		t.Errorf("Check says %v, want %q", err, words)
		return
	}
	wantNetworks(t, drift, words)
	report, err := c.Status(t.Context())
	if err != nil || report.Drift == nil {
		t.Fatalf("Status says %+v, %v", report, err)
	}
	wantNetworks(t, report.Drift, words)
	preview, err := c.Plan(t.Context())
	if err != nil || !slices.ContainsFunc(preview.Steps, func(s infra.Step) bool { return s.Kind == "table-change" }) {
		t.Errorf("Plan says %v, %v", preview, err)
	}
	said := ""
	c.Progress = func(text string) { said += text }
	setup(t, c)
	if c.Progress = nil; !strings.Contains(said, words[0]) {
		t.Errorf("Progress says %q, want %q", said, words)
	}
	for range 2 { // the second time by the file beside the journal
		if left := unrepaired(c.Check(t.Context())); len(left) > 0 {
			t.Errorf("after Setup it differs in %+v", left)
		}
	}
	said = ""
	c.Progress = func(text string) { said += text }
	setup(t, c)
	if c.Progress = nil; strings.Contains(said, "nic-networks") {
		t.Errorf("a Setup that repairs nothing says %q", said)
	}
}

func wantNetworks(t *testing.T, drift *phase1.DriftError, words []string) {
	t.Helper()
	differs := unrepaired(drift)
	if len(differs) != 1 || differs[0].Kind != "networks" || differs[0].Link != "eth0" || len(drift.Repair) == 0 {
		t.Errorf("it differs in %+v, and %v is missing", differs, drift.Repair)
		return
	}
	for _, w := range append(words, "nic-networks has changed: ") {
		if !strings.Contains(differs[0].What, w) {
			t.Errorf("the difference is %q, want %q in it", differs[0].What, w)
		}
	}
}

// unrepaired are the differences of an error of Check but those of the kind later, about which Setup does nothing.
func unrepaired(err error) []cache.Finding {
	var drift *phase1.DriftError
	if err == nil {
		return nil
	}
	if !errors.As(err, &drift) {
		return []cache.Finding{{What: err.Error()}}
	}
	return slices.DeleteFunc(slices.Clone(drift.Differs), func(d cache.Finding) bool { return d.Kind == "later" })
}

// TestEgressNetworks: a network that comes to the NIC after Setup, or goes, is reported, and Setup refuses the guest
// there, or lets it go there. The same holds for a next hop, which is not of nic-networks. Teardown leaves what was
// added.
func TestEgressNetworks(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	eachRouter(t, []string{"refuse nic-networks", "allow all"}, func(t *testing.T, s *scene, c wired.NIC) {
		check(t, c) // the wiring's own addresses at the NIC are no networks
		s.name("world", "later", netip.MustParseAddr("10.9.0.9"), netip.MustParseAddr("fd00:9::9"))
		s.name("world", "hop", netip.MustParseAddr("10.244.1.44"), netip.MustParseAddr("fd00:244:1::44"))
		for _, line := range []string{"addr add 10.9.0.9/24 dev pod", "addr add fd00:9::9/64 dev pod nodad", "addr add 10.244.1.44/24 dev pod", "addr add fd00:244:1::44/64 dev pod nodad"} {
			s.World.IP(line)
		}
		for _, name := range []string{"later", "hop"} {
			for _, a := range s.addresses[name] {
				s.World.Serve("world", "tcp", netip.AddrPortFrom(a, 9000))
			}
		}
		s.Pod.IP("addr add 10.9.0.5/24 dev eth0")
		s.Pod.IP("addr add fd00:9::5/64 dev eth0 nodad")
		wantNetworksChanged(t, c, "10.9.0.0/24 is new", "fd00:9::/64 is new")
		for family := range 2 {
			s.refused(t, "tcp", family, "later:9000")
			s.refused(t, "tcp", family, "hop:9000")
		}
		s.Pod.IP("route add 203.0.113.0/24 via 10.244.1.44")
		s.Pod.IP("route add 2001:db8:77::/64 via fd00:244:1::44")
		wantNetworksChanged(t, c, "10.244.1.44 is a next hop", "fd00:244:1::44 is a next hop")
		for family := range 2 {
			s.reached(t, "tcp", family, "hop:9000")
			s.refused(t, "tcp", family, "later:9000")
		}
		s.Pod.IP("route del 203.0.113.0/24")
		s.Pod.IP("route del 2001:db8:77::/64")
		s.Pod.IP("addr del 10.9.0.5/24 dev eth0")
		s.Pod.IP("addr del fd00:9::5/64 dev eth0")
		wantNetworksChanged(t, c, "10.9.0.0/24 is gone", "fd00:9::/64 is gone", "10.244.1.44 is no next hop any more")
		for family := range 2 {
			s.reached(t, "tcp", family, "later:9000")
			s.refused(t, "tcp", family, "hop:9000")
		}
		secondNIC(s.Network, "192.168.9.2/24", "fd00:8::2/64")
		check(t, c) // whose networks are no nic-networks
		s.Pod.IP("addr add 10.9.0.5/24 dev eth0")
		setup(t, c)
		c.Down.CutOff = true
		unwire(t, c)
		if left := s.Pod.IP("addr show dev eth0"); !strings.Contains(left, "10.9.0.5/24") {
			t.Errorf("after Teardown the NIC has\n%s", left)
		}
	})
}

// TestEgressPresent: Activate computes nic-networks anew, as Setup does, and resolvers are those of the last Setup.
func TestEgressPresent(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := config(s.Network, infra.Masquerade{})
	c.Standby, c.DNS = true, &cache.DNS{Servers: []netip.Addr{nstest.Gateway4}}
	c.Egress = policy(t, "refuse nic-networks", "refuse resolvers", "allow all")
	s.name("world", "later", netip.MustParseAddr("10.9.0.9"), netip.MustParseAddr("fd00:9::9"))
	s.World.IP("addr add 10.9.0.9/24 dev pod")
	s.World.Serve("world", "tcp", netip.AddrPortFrom(s.addresses["later"][0], 9000))
	s.serveWorld("tcp", 9000)
	setup(t, c)
	s.Pod.IP("addr add 10.9.0.5/24 dev eth0")
	if _, err := c.Activate(t.Context(), phase1.Other{Gone: true}); err != nil {
		t.Fatal(err)
	}
	check(t, c)
	s.wire(t, "guest", c)
	s.refused(t, "tcp", 0, "later:9000")
	s.reached(t, "tcp", 0, "beyond:9000")
	c.DNS = &cache.DNS{Servers: []netip.Addr{nstest.Beyond4}}
	setup(t, c)
	s.reached(t, "tcp", 1, "beyond:9000")
	s.refused(t, "tcp", 0, "beyond:9000")
	check(t, c)
}

// TestEgressLauncher: egress is about the guest, and what a process of the namespace opens passes it, the launcher's
// too. A rule by the launcher's user binds that, in a table of the namespace's own, which is no difference and which
// leaves the guest alone.
func TestEgressLauncher(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	for _, b := range []infra.Binding{infra.Masquerade{}, infra.Routed{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			s := newScene(t)
			c := config(s.Network, b)
			c.Egress = policy(t, "allow all 9000", "refuse all")
			if b.Kind() == cache.BindingMasquerade {
				s.wire(t, "guest", c)
			} else {
				setup(t, c)
				s.routedGuest(t, record(t, s.Network))
			}
			s.serveWorld("tcp", 9000, 9001)
			launcher := func(family int) string {
				p := s.Pod.Start(nstest.LauncherUID, "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%v/9001 && echo reached || echo refused", s.addresses["beyond"][family]))
				said := ""
				nstest.Eventually(t, func() error {
					for _, word := range []string{"reached", "refused"} {
						if strings.Contains(p.Output.String(), word+"\n") {
							said = word
							return nil
						}
					}
					return errors.New(p.Output.String())
				})
				return said
			}
			for family := range 2 {
				s.refused(t, "tcp", family, "beyond:9001")
				if said := launcher(family); said != "reached" {
					t.Errorf("the launcher is %s: the page says that egress does not bind it", said)
				}
			}
			rule := func(user int) string {
				return fmt.Sprintf("add table inet launcher; add chain inet launcher output { type filter hook output priority 0; }; "+
					"add rule inet launcher output meta skuid %d oifname != lo reject", user)
			}
			if page := string(readFile(t, "../docs/explanation/security.md")); !strings.Contains(page, "nft '"+rule(107)+"'") {
				t.Errorf("the page has another rule than %s", rule(107))
			}
			s.Pod.Exec("nft", rule(nstest.LauncherUID))
			for family := range 2 {
				if said := launcher(family); said != "refused" {
					t.Errorf("by the rule of the page the launcher has %s the world", said)
				}
				s.reached(t, "tcp", family, "beyond:9000")
				s.refused(t, "tcp", family, "beyond:9001")
			}
			check(t, c)
		})
	}
}
