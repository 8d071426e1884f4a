package guests_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase2"
)

// TestIPv6Only: in a pod with IPv6 alone and options.ipv6OnlySeconds, a client that knows RFC 8925 stops asking for
// IPv4. systemd-networkd 257 ignores an offer without an address.
func TestIPv6Only(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	launcher := nstest.Program(t, "examples/launcher")
	for _, c := range []struct {
		name, start, says string
	}{
		{"dhcpcd-13", "echo 'option ipv6_only_preferred' >>/etc/dhcpcd.conf; dhcpcd --nobackground --debug eth0", "IPv6-Only Preferred received (1800 seconds)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			n.Pod.IP("-4 addr flush dev eth0")
			_, err := (phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}).Setup(t.Context(), infra.Spec{
				Binding: infra.Bridge{}, State: n.State, Owner: nstest.Owner(),
				DNS:     &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr(dns6)}},
				Options: cache.Options{IPv6OnlySeconds: 1800},
			})
			if err != nil {
				t.Fatal(err)
			}
			p := n.Pod.Start(nstest.LauncherUID, launcher, "serve", "-state", n.State)
			nstest.Eventually(t, func() error { return checkOutput(p, "serving") })
			vm, err := phase2.Open(n.State)
			if err != nil {
				t.Fatal(err)
			}
			guest := n.Guest(t, vm.Records()[0])
			m := machine.NewDebian13(t, guest)
			if _, err := m.Run(":>/run/log; (" + c.start + ") >>/run/log 2>&1 &"); err != nil {
				t.Fatal(err)
			}
			nstest.Eventually(t, func() error {
				out, err := m.Run("cat /run/log")
				if err == nil && !strings.Contains(out, c.says) {
					err = fmt.Errorf("%s does not say %q:\n%s", c.name, c.says, out)
				}
				return err
			})
		})
	}
}
