package guests_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// TestServersOfSeveral: without gateways the NICs of a guest have a DHCP server each, whose addresses are different.
// ISC's dhclient sends a renewal by the guest's routing table, and each server gets those of its own NIC.
func TestServersOfSeveral(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	nstest.NeedTaps(t)
	n := nstest.NewWorld(t)
	var guest *nstest.Namespace
	servers := map[string]bool{}
	links := []string{"eth0", "eth1", "eth2"}
	for i, link := range links {
		n.World.IP(fmt.Sprintf("link add pod%d type veth peer name %s netns %s", i, link, n.Pod.Name))
		n.World.IP(fmt.Sprintf("link set pod%d up", i))
		n.Pod.IP(fmt.Sprintf("addr add 10.244.%d.7/24 dev %s", i, link))
		n.Pod.IP("link set " + link + " up")
		r, err := phase1.NIC{NetNS: n.Pod.File, Name: link}.Setup(t.Context(), infra.Spec{
			Binding: infra.Redirect{}, State: n.State, Owner: nstest.Owner(), DNS: &cache.DNS{}, Options: cache.Options{LeaseSeconds: 8},
		})
		if err != nil {
			t.Fatal(err)
		}
		servers[r.IPv4.Server.String()] = true
		if guest == nil {
			guest = n.Guest(t, r)
		} else {
			n.Attach(t, guest, link, r)
		}
	}
	if len(servers) != len(links) {
		t.Errorf("servers %v, want %d", servers, len(links))
	}
	launcher := n.Serve(t, nstest.LauncherUID)
	m := machine.New(t, guest, "dhclient")
	const start = ":>/run/log; echo 'supersede dhcp-lease-time 3600; supersede dhcp-rebinding-time 3000; initial-interval 1; backoff-cutoff 2;' " +
		">>/etc/dhcp/dhclient.conf; (dhclient -4 -d eth0 eth1 eth2) >>/run/log 2>&1 &"
	if _, err := m.Run(start); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, func() error {
		for _, link := range links {
			renewed := false
			for line := range strings.Lines(launcher.Output.String()) {
				renewed = renewed || strings.Contains(line, "DHCPv4 lease renewed") && strings.Contains(line, "nic="+link)
			}
			if !renewed {
				log, err := m.Run("cat /run/log")
				return fmt.Errorf("the lease of %s is not renewed: %v\n%s\n%s", link, err, launcher.Output.String(), log)
			}
		}
		return nil
	})
}
