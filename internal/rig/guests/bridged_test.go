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

// bridged are programs that configure a bridge in the guest, br0, of which eth0 is a port. The bridge has a MAC of its
// own, as systemd-networkd's have.
var bridged = []struct {
	name     string
	packages []string
	kernel   bool // handles router advertisements
	start    string
}{
	{"networkd", []string{"managers"}, false, "mkdir -p /run/systemd/network; cd /run/systemd/network; " +
		"printf '[NetDev]\\nName=br0\\nKind=bridge\\nMACAddress=BRIDGEMAC\\n[Bridge]\\nSTP=no\\nForwardDelaySec=0\\n' >10-br0.netdev; " +
		"printf '[Match]\\nName=eth0\\n[Network]\\nBridge=br0\\n' >20-eth0.network; " +
		"printf '[Match]\\nName=br0\\n[Network]\\nDHCP=yes\\n' >30-br0.network; " + startNetworkd},
	{"udhcpc", []string{"busybox", "udhcpc"}, true, "link=br0; " + udhcpc},
	{"dhcpcd", []string{"dhcpcd"}, false, "useradd --system --home /usr/lib/dhcpcd --shell /bin/false dhcpcd; " +
		"echo nodelay >>/etc/dhcpcd.conf; dhcpcd --nobackground --nodev --debug br0"},
}

// TestBridgeInGuest: a bridge in the guest gets what the guest has, if guard.macs names the bridge's MAC, and nothing
// if it does not.
func TestBridgeInGuest(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	launcher := nstest.Program(t, "examples/guestwire-launcher")
	mac := cache.MAC{2, 0, 0x5e, 0, 0x53, 9}
	ways := []struct {
		name  string
		guard infra.Guard
		all   bool // programs; else udhcpc alone
	}{
		{"named", infra.Guard{MACs: []cache.MAC{mac}}, true},
		{"named, guard off", infra.Guard{MACs: []cache.MAC{mac}, Off: true}, false},
		{"not named", infra.Guard{}, false},
		{"not named, guard off", infra.Guard{Off: true}, false},
	}
	for _, binding := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}, infra.Routed{}} {
		for _, p := range bridged {
			for _, way := range ways {
				if !way.all && p.name != "udhcpc" {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", binding.Kind(), p.name, way.name), func(t *testing.T) {
					t.Parallel()
					s := &scene{Network: nstest.NewNetwork(t)}
					spec := infra.Spec{Binding: binding, State: s.State, Owner: nstest.Owner(), Guard: way.guard}
					if _, err := (phase1.NIC{NetNS: s.Pod.File, Name: "eth0"}).Setup(t.Context(), spec); err != nil {
						t.Fatal(err)
					}
					s.World.Listen("world", ":7")
					s.serve(t, launcher)
					vm, err := phase2.Open(s.State)
					if err != nil {
						t.Fatal(err)
					}
					s.guest = s.Guest(t, vm.Records()[0])
					s.guest.Listen("guest", ":7")
					if p.name != "networkd" {
						s.guest.IP("link add br0 address " + mac.String() + " type bridge")
						s.guest.IP("link set eth0 master br0")
						s.guest.IP("link set eth0 up")
						s.guest.IP("link set br0 up")
					}
					m := machine.New(t, s.guest, p.packages...)
					start := strings.ReplaceAll(p.start, "BRIDGEMAC", mac.String())
					if _, err := m.Run(":>/run/log; (" + start + ") >>/run/log 2>&1 &"); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() {
						if t.Failed() {
							out, err := m.Run("cat /run/log; ip addr; ip route; ip -6 route; ip neigh")
							t.Logf("%v\n%s\n%s", err, out, s.Pod.Exec("nft", "list", "ruleset"))
						}
					})
					if len(way.guard.MACs) == 0 {
						nstest.Eventually(t, func() error { return checkOutput(s.launcher, mac.String()) })
						if out := s.guest.IP("-4 addr show dev br0"); strings.Contains(out, "inet ") {
							t.Errorf("the responder serves a MAC that guard.macs does not name:\n%s", out)
						}
						return
					}
					r := vm.Records()[0]
					families := []netip.Addr{r.IPv4.Address.Addr()}
					if !p.kernel {
						families = append(families, r.IPv6.Address)
					}
					for _, a := range families {
						nstest.Eventually(t, func() error {
							if out, err := m.Run("ip -o addr show dev br0"); err != nil || !strings.Contains(out, " "+a.String()+"/") {
								return fmt.Errorf("br0 has no %v: %w\n%s", a, err, out)
							}
							return nil
						})
					}
					nstest.Eventually(t, func() error {
						if out := s.guest.IP("-6 route show default"); !strings.Contains(out, "dev br0") {
							return fmt.Errorf("no default route of IPv6:\n%s", out)
						}
						return nil
					})
					s.traffic(t, nstest.Pod4)
					if !p.kernel {
						s.traffic(t, nstest.Pod6)
					}
				})
			}
		}
	}
}
