package divert

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/ip"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestTayga: a guest goes round a list of IPv4 networks by the prefix of the world's NAT64, which Debian's tayga is. It
// does so no more when the configuration has the prefix. What the list allows is reached by the prefix as before.
func TestTayga(t *testing.T) {
	for _, binding := range []infra.Binding{infra.Masquerade{}, infra.Routed{}} {
		for _, prefix := range []string{"fd64::/96", "fd64:0:0:1::/64", "fd64:100::/40"} {
			t.Run(fmt.Sprintf("%v, %s", binding.Kind(), strings.ReplaceAll(prefix, "/", "_")), func(t *testing.T) {
				site := ip.Translator{Prefix: netip.MustParsePrefix(prefix)}
				s := newSceneOf(t, binding, "refuse 198.51.100.0/24", "divert 203.0.113.8 443 :15443", "allow all")
				s.translate(t, site)
				refused, allowed, diverted := nstest.Beyond4, netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("203.0.113.8")
				for _, a := range []netip.Addr{allowed, diverted} {
					s.World.IP(fmt.Sprintf("addr add %v/32 dev lo", a))
				}
				for _, a := range []netip.Addr{refused, allowed, diverted} {
					s.World.Serve("world", "tcp", netip.AddrPortFrom(a, 443))
					s.World.Serve("world", "udp", netip.AddrPortFrom(a, 443))
				}
				s.Pod.Serve("proxy", "tcp", netip.MustParseAddrPort("[::]:15443"))
				asks := func(protocol string, to netip.Addr, want string) {
					t.Helper()
					have, err := ask(s.guest.File, protocol, netip.AddrPortFrom(to, 443).String())
					if err != nil || !strings.Contains(have, want) {
						t.Errorf("%s to %v: %q, %v; want %s", protocol, to, have, err, want)
					}
				}
				wantRefused := func(protocol string, to netip.Addr, want syscall.Errno) {
					t.Helper()
					if have, err := ask(s.guest.File, protocol, netip.AddrPortFrom(to, 443).String()); !errors.Is(err, want) {
						t.Errorf("%s to %v: %q, %v; want %v", protocol, to, have, err, want)
					}
				}
				nstest.Eventually(t, func() error { // until tayga translates
					_, err := ask(s.guest.File, "tcp", netip.AddrPortFrom(site.To6(allowed), 443).String())
					return err
				})
				wantRefused("tcp", refused, syscall.ECONNREFUSED)
				for _, a := range []netip.Addr{refused, allowed, diverted} { // the prefix is not known
					asks("tcp", site.To6(a), "world")
					asks("udp", site.To6(a), "world")
				}

				s.spec.Options.NAT64 = site.Prefix
				if _, err := s.nic.Setup(t.Context(), s.spec); err != nil {
					t.Fatal(err)
				}
				wantRefused("tcp", site.To6(refused), syscall.ECONNREFUSED)
				wantRefused("udp", site.To6(refused), syscall.EACCES)
				asks("tcp", site.To6(allowed), "world")
				asks("udp", site.To6(allowed), "world")
				asks("tcp", site.To6(diverted), "proxy")
				if odd := site.To6(refused).As16(); site.Bits() <= 64 { // Jool would pass it on
					odd[8] = 1
					wantRefused("tcp", netip.AddrFrom16(odd), syscall.ECONNREFUSED)
				}
				if err := s.nic.Check(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// translate runs a NAT64 in the world.
func (s *scene) translate(t *testing.T, site ip.Translator) {
	t.Helper()
	dir := nstest.Dir(t)
	configuration := filepath.Join(dir, "tayga.conf")
	text := fmt.Sprintf("tun-device nat64\nipv4-addr 198.18.64.1\ndynamic-pool 198.18.64.0/24\nprefix %v\ndata-dir %s\n", site, dir)
	if err := os.WriteFile(configuration, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"} {
		s.World.Exec("sysctl", "-qw", name)
	}
	for _, line := range []string{"tuntap add nat64 mode tun", "link set nat64 up", fmt.Sprintf("route add %v dev nat64", site), "route add 198.18.64.0/24 dev nat64"} {
		s.World.IP(line)
	}
	cmd := unpackedProgram(t, "tayga", "usr/sbin/tayga", "--nodetach", "--config", configuration)
	cmd.Args = append([]string{"nsenter", "--net=" + s.World.Path(), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/usr/bin/nsenter"
	s.World.StartCommand(cmd)
}
