package guests_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// leases counts how often a program has printed bound4 and bound6.
type leases struct{ ipv4, ipv6 int }

func (c client) leases() (leases, error) {
	command := c.log
	if command == "" {
		command = "cat /run/log"
	}
	log, err := c.machine.Run(command)
	return leases{strings.Count(log, c.bound4), strings.Count(log, c.bound6)}, err
}

// hasLeases returns a check that each count of leases is higher than before.
func (c client) hasLeases(before leases) func() error {
	return func() error {
		now, err := c.leases()
		switch {
		case err != nil:
			return err
		case c.bound4 != "" && now.ipv4 <= before.ipv4:
			return fmt.Errorf("%s does not say %q for the %dth time", c.start, c.bound4, before.ipv4+1)
		case c.bound6 != "" && now.ipv6 <= before.ipv6:
			return fmt.Errorf("%s does not say %q for the %dth time", c.start, c.bound6, before.ipv6+1)
		}
		return nil
	}
}

// renew makes the programs renew their leases, or waits until they do. Both the programs' output and the
// launcher's log must show the renewal.
func (s *scene) renew(t *testing.T) {
	t.Helper()
	if s.system.once {
		return
	}
	for _, c := range s.clients {
		before, err := c.leases()
		if err != nil {
			t.Fatal(err)
		}
		if c.program.renew != "" {
			if _, err := c.machine.Run(c.program.renew); err != nil {
				t.Fatal(err)
			}
		}
		nstest.Eventually(t, c.hasLeases(before))
		if c.bound4 != "" {
			nstest.Eventually(t, func() error { return checkOutput(s.launcher, "DHCPv4 lease renewed") })
		}
		if c.bound6 != "" {
			nstest.Eventually(t, func() error { return checkOutput(s.launcher, "DHCPv6 lease renewed") })
		}
	}
	for line := range strings.Lines(s.launcher.Output.String()) {
		if known := s.network.lost != "" && strings.Contains(line, s.network.lost); strings.Contains(line, "level=WARN") && !known {
			t.Errorf("guestwire-launcher: %s", line)
		}
	}
}

// check checks what the guest has got, and who answers whom.
func (s *scene) check(t *testing.T) {
	t.Helper()
	nstest.Eventually(t, func() error { return checkOutput(s.launcher, s.network.lost) })
	nstest.Eventually(t, s.hasRouter)
	for _, c := range s.clients {
		nstest.Eventually(t, func() error { return errors.Join(s.hasName(c), s.hasDNS(c), s.hasSecond(c)) })
		if c.bound4 != "" {
			nstest.Eventually(t, func() error { return s.has4(c) })
			s.traffic(t, nstest.Pod4)
		}
		if c.bound6 != "" {
			nstest.Eventually(t, s.has6)
			s.traffic(t, nstest.Pod6)
			for _, a := range s.others6() {
				checkAnswer(t, s.World, netip.MustParseAddr(a), "guest sees ")
			}
		}
	}
}

// hasRouter checks what only router advertisements have: the IPv6 routes and the MTU.
func (s *scene) hasRouter() error {
	if s.network.address6 == "" {
		return nil
	}
	address := linkLocal(s.World, "pod")
	if s.network.binding.Kind() == cache.BindingMasquerade {
		address = linkLocal(s.Pod, "eth0-tap")
	}
	out := s.guest.IP("-6 route show dev eth0")
	for _, want := range s.network.routes6 {
		if !s.system.kernel && !s.system.advertised && strings.HasPrefix(want, "2001:db8:") {
			continue
		}
		if want = strings.ReplaceAll(want, router, address); !slices.Contains(routes(out), want) {
			return fmt.Errorf("no route %q:\n%s", want, out)
		}
	}
	// The kernel sets the link's IPv6 MTU; dhcpcd sets the MTU of the routes.
	if mtu := s.guest.Exec("sysctl", "net.ipv6.conf.eth0.mtu"); !strings.Contains(mtu, " 1450\n") && !strings.Contains(out, " mtu 1450 ") {
		return fmt.Errorf("not the MTU 1450: %s%s", mtu, out)
	}
	return nil
}

// hasNoRouter checks that the launcher has withdrawn the router at its end. A default route on the link is a prefix,
// which stays.
func (s *scene) hasNoRouter() error {
	if out := s.guest.IP("-6 route show default"); strings.Contains(out, "via") {
		return fmt.Errorf("still a default route:\n%s", out)
	}
	return nil
}

func (s *scene) has4(c client) error {
	address, want := s.network.address4, s.network.routes4
	switch {
	case c.simple && s.network.simple4 != "":
		address, want = s.network.simple4, s.network.simpleRoutes4
	case c.simple, c.short && (s.network.long || s.network.full && c.identifies):
		want = slices.DeleteFunc(slices.Clone(want), func(r string) bool { return strings.Contains(r, "/24 via ") })
	}
	got := routes(s.guest.IP("-4 route show dev eth0"))
	if s.system.hosts {
		got = slices.DeleteFunc(got, func(r string) bool { return strings.HasPrefix(r, dns4) || isHost(r) && !slices.Contains(want, r) })
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("routes %q, want %q", got, want)
	}
	if out := s.guest.IP("-4 addr show dev eth0"); !strings.Contains(out, " "+address+" ") {
		return fmt.Errorf("not the address %s:\n%s", address, out)
	}
	// dhcpcd sets the MTU of the routes, not that of the link.
	if out := s.guest.IP("link show dev eth0") + s.guest.IP("route show default"); !strings.Contains(out, " mtu 1450 ") {
		return fmt.Errorf("not the MTU 1450:\n%s", out)
	}
	return nil
}

// others6 are the further IPv6 addresses that the guest takes.
func (s *scene) others6() []string {
	if s.system.single {
		return nil
	}
	return s.network.others6
}

func (s *scene) has6() error {
	want := netip.MustParsePrefix(s.network.address6)
	for _, route := range s.network.routes6 {
		if p, err := netip.ParsePrefix(route); err == nil && s.system.single && p.Contains(want.Addr()) {
			want = netip.PrefixFrom(want.Addr(), p.Bits())
		}
	}
	out := s.guest.IP("-6 addr show dev eth0")
	if !strings.Contains(out, fmt.Sprintf(" %v ", want)) {
		return fmt.Errorf("not the address %v:\n%s", want, out)
	}
	if strings.Contains(out, " tentative") {
		return fmt.Errorf("the guest does not use all its addresses yet:\n%s", out) // it would ask by one of another NIC
	}
	for _, a := range s.others6() {
		if !strings.Contains(out, " "+a+"/128 ") {
			return fmt.Errorf("not the address %s:\n%s", a, out)
		}
	}
	if a := s.network.deprecated; a != "" && !deprecated(out, a) {
		return fmt.Errorf("not the deprecated address %s:\n%s", a, out)
	}
	if deprecated(out, want.Addr().String()) {
		return fmt.Errorf("%v is deprecated:\n%s", want, out)
	}
	return nil
}

// deprecated reports whether ip address shows the address as deprecated: it answers, and no connection begins there.
func deprecated(text, address string) bool {
	for line := range strings.Lines(text) {
		if strings.Contains(line, " "+address+"/") {
			return strings.Contains(line, " deprecated ")
		}
	}
	return false
}

// hasSecond checks the link eth1: it has an address of its own network, and nothing of the rest leads there.
func (s *scene) hasSecond(c client) error {
	if !s.network.second {
		return nil
	}
	if c.bound4 != "" {
		got, want := routes(s.guest.IP("-4 route show dev eth1")), []string{"192.168.50.0/24"}
		// The DHCP server has an address of its own on each link.
		got = slices.DeleteFunc(got, func(r string) bool { return strings.HasPrefix(r, "169.254.75.") })
		if !slices.Equal(got, want) {
			return fmt.Errorf("routes of eth1 %q, want %q", got, want)
		}
		if out := s.guest.IP("-4 addr show dev eth1"); !strings.Contains(out, " 192.168.50.7/24 ") {
			return fmt.Errorf("not the address of eth1:\n%s", out)
		}
	}
	if c.bound6 != "" {
		if out := s.guest.IP("-6 addr show dev eth1"); !strings.Contains(out, " fd00:50::7/128 ") {
			return fmt.Errorf("not the address of eth1:\n%s", out)
		}
	}
	if got := routes(s.guest.IP("-6 route show dev eth1")); !slices.Contains(got, "fd00:50::/64") || slices.ContainsFunc(got, func(r string) bool { return strings.Contains(r, " via ") }) {
		return fmt.Errorf("routes of eth1 %q, want fd00:50::/64, and none by a router", got)
	}
	if out, err := c.machine.Run(c.second); err != nil || strings.TrimSpace(out) != "" {
		return fmt.Errorf("DNS servers of eth1 %q, %v; want none, as no route of eth1 leads there", out, err)
	}
	return nil
}

// routes returns the destination and next hop of each line of ip route, sorted.
func routes(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) > 2 && words[1] == "nhid" { // networkd 257 has objects for its next hops
			words = slices.Delete(words, 1, 3)
		}
		if len(words) > 2 && words[1] == "via" {
			list = append(list, strings.Join(words[:3], " "))
		} else {
			list = append(list, words[0])
		}
	}
	slices.Sort(list)
	return list
}

// isHost reports whether the line of routes is that of one host on the link.
func isHost(route string) bool {
	_, err := netip.ParseAddr(route)
	return err == nil
}

// hasName checks the machine's host name. dhcpcd appends the domain.
func (s *scene) hasName(c client) error {
	if c.short && s.network.full {
		return nil
	}
	if out, err := c.machine.Run("hostname"); c.setsHostname && c.bound4 != "" && (err != nil || !strings.HasPrefix(out, "alice")) {
		return fmt.Errorf("host name %q, %v; want alice", out, err)
	}
	return nil
}

func (s *scene) hasDNS(c client) error {
	command := c.resolv
	if command == "" {
		command = "cat /etc/resolv.conf"
	}
	out, err := c.machine.Run(command)
	if err != nil {
		return err
	}
	var servers, search []string
	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			servers = append(servers, words[1])
		case "search", "domain":
			search = words[1:]
		}
	}
	for i, name := range search {
		search[i] = strings.TrimSuffix(name, ".")
	}
	var want []string
	if c.bound4 != "" {
		want = append(want, dns4)
	}
	if c.bound6 != "" {
		want = append(want, dns6)
	}
	if !slices.Equal(servers, want) {
		return fmt.Errorf("DNS servers %v, want %v:\n%s", servers, want, out)
	}
	if c.short && s.network.full {
		return nil
	}
	want = s.network.search
	if s.network.subdomain != "" {
		want = append([]string{s.network.subdomain + "." + want[0]}, want...)
	}
	if c.first || c.short && len(strings.Join(want, " ")) > 255 {
		want = want[:1]
	}
	if strings.Contains(s.system.name, "networkd") && s.network.address6 == "" && len(strings.Join(want, " ")) > 255 {
		want = slices.Concat(want[:1], want[3:]) // the domain of option 15, and the last part of 119
	}
	if !slices.Equal(search, want) {
		return fmt.Errorf("search list %v, want %v:\n%s", search, want, out)
	}
	if c.dump == "" || c.bound4 == "" {
		return nil
	}
	if out, err = c.machine.Run(c.dump); err != nil || !strings.Contains(out, strings.Join(want, " ")) {
		return fmt.Errorf("%s: %v, want the search list %v:\n%s", c.dump, err, want, out)
	}
	return nil
}
