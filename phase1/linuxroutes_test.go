package phase1_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestRoutesOfALinuxGuest: a Linux guest that listens to router advertisements takes the default route, and other
// routes only with a sysctl (RFC 4191 section 3). limits.md names the sysctl.
func TestRoutesOfALinuxGuest(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	const further = "2001:db8:5::/48"
	for _, b := range []infra.Binding{infra.Redirect{}, infra.Routed{}} {
		t.Run(string(b.Kind()), func(t *testing.T) {
			n := nstest.NewNetwork(t)
			n.Pod.IP("route add " + further + " via " + nstest.Gateway6.String())
			setup(t, config(n, b))
			n.Serve(t, nstest.LauncherUID)
			guest := n.Guest(t, record(t, n))
			advertised := func(want string) (routes string) {
				t.Helper()
				guest.IP("link set eth0 down")
				guest.IP("link set eth0 up") // the kernel solicits routers
				nstest.Eventually(t, func() error {
					if routes = guest.IP("-6 route show proto ra"); !strings.Contains(routes, want) {
						return fmt.Errorf("no %s in:\n%s", want, routes)
					}
					return nil
				})
				return routes
			}
			if routes := advertised("default via fe80:"); strings.Contains(routes, further) {
				t.Errorf("a guest as it comes:\n%s", routes)
			}
			guest.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.accept_ra_rt_info_max_plen=128")
			advertised(further + " via fe80:")
			guest.Exec("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
			if routes := guest.IP("-6 route show proto ra default"); routes != "" {
				t.Errorf("a guest that forwards has\n%s", routes)
			}
			guest.Exec("sysctl", "-qw", "net.ipv6.conf.eth0.accept_ra=2")
			advertised("default via fe80:")
		})
	}
}
