package guests_test

import (
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

// TestTwoNICs: what real clients make of the DNS configuration of two NICs, of which each is told the pod's resolv.conf, or the
// second one nothing, or a configuration of its own.
func TestTwoNICs(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	launcher := nstest.Program(t, "examples/launcher")
	for _, dns := range []struct {
		name   string
		second *cache.DNS // nil: the resolv.conf
		// servers and search of the guest's resolv.conf: of a client that merges, and of one whose last lease counts
		merged, last [2][]string
	}{
		{"the same", nil,
			[2][]string{{dns4}, {"ns.example", "example"}}, [2][]string{{dns4}, {"ns.example", "example"}}},
		{"nothing on the second", &cache.DNS{},
			[2][]string{{dns4}, {"ns.example", "example"}}, [2][]string{{dns4}, {"ns.example", "example"}}},
		{"another one on the second", &cache.DNS{Servers: []netip.Addr{netip.MustParseAddr("192.0.2.54")}, Search: []string{"storage.example"}},
			[2][]string{{dns4, "192.0.2.54"}, {"ns.example", "example", "storage.example"}}, [2][]string{{"192.0.2.54"}, {"storage.example"}}},
	} {
		for _, client := range []struct {
			name, pack, start string
			want              [2][]string
		}{
			{"dhcpcd", "dhcpcd", "useradd --system --home /usr/lib/dhcpcd --shell /bin/false dhcpcd; echo nodelay >>/etc/dhcpcd.conf; dhcpcd -4 --nodev --nobackground %s", dns.merged},
			{"dhclient", "dhclient", "dhclient -4 -d -pf /run/%[1]s.pid -lf /run/%[1]s.leases %[1]s", dns.last},
		} {
			t.Run(dns.name+"/"+client.name, func(t *testing.T) {
				t.Parallel()
				g := newTwoNICs(t, launcher, dns.second)
				m := machine.New(t, g, client.pack)
				t.Cleanup(func() {
					if t.Failed() {
						out, err := m.Run("cat /run/log; ip addr; cat /etc/resolv.conf")
						t.Logf("%s: %v\n%s", client.name, err, out)
					}
				})
				// One program for both NICs, or a program for each, where the second one is the last.
				nics := []string{"eth0 net1"}
				if client.name == "dhclient" {
					nics = strings.Fields(nics[0])
				}
				for _, nic := range nics {
					if _, err := m.Run(fmt.Sprintf("("+client.start+") >>/run/log 2>&1 &", nic)); err != nil {
						t.Fatal(err)
					}
					for _, one := range strings.Fields(nic) {
						nstest.Eventually(t, func() error {
							if out := g.IP("-4 -br addr show dev " + one); !strings.Contains(out, "10.") {
								return fmt.Errorf("%s has no lease: %s", one, out)
							}
							return nil
						})
					}
				}
				nstest.Eventually(t, func() error {
					text, err := m.Run("cat /etc/resolv.conf")
					var have [2][]string
					for line := range strings.Lines(text) {
						switch words := strings.Fields(line); {
						case len(words) < 2:
						case words[0] == "nameserver":
							have[0] = append(have[0], words[1])
						case words[0] == "search":
							have[1] = words[1:]
						}
					}
					for i, name := range have[1] {
						have[1][i] = strings.TrimSuffix(name, ".")
					}
					if err != nil || !slices.Equal(have[0], client.want[0]) || !slices.Equal(have[1], client.want[1]) {
						return fmt.Errorf("servers and search list are %q, %v; want %q", have, err, client.want)
					}
					return nil
				})
			})
		}
	}
}

// newTwoNICs wires the NICs eth0 and net1 of a pod, serves both, and returns a namespace with both links of the guest.
func newTwoNICs(t *testing.T, launcher string, second *cache.DNS) *nstest.Namespace {
	t.Helper()
	n := nstest.NewNetwork(t)
	n.World.IP("link add storage type veth peer name net1 netns " + n.Pod.Name)
	n.World.IP("addr add 10.26.0.1/24 dev storage")
	n.World.IP("link set storage up")
	n.Pod.IP("addr add 10.26.0.7/24 dev net1")
	n.Pod.IP("link set net1 up")
	n.Pod.Settle("net1")
	resolvConf := filepath.Join(nstest.Dir(t), "resolv.conf")
	if err := os.WriteFile(resolvConf, []byte("nameserver "+dns4+"\nsearch ns.example example\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for nic, dns := range map[string]*cache.DNS{"eth0": nil, "net1": second} {
		_, err := phase1.Setup(t.Context(), phase1.Config{NetNS: n.Pod.File, Spec: infra.Spec{
			NIC: nic, Binding: infra.Bridge{}, State: n.State, Owner: nstest.Owner(), DNS: dns,
			Options: cache.Options{NoDefaultRoute: nic == "net1"},
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	p := n.Pod.Start(nstest.LauncherUID, launcher, "serve", "-state", n.State, "-resolv-conf", resolvConf)
	nstest.Eventually(t, func() error { return checkOutput(p, "serving") })
	vm, err := phase2.Open(n.State)
	if err != nil {
		t.Fatal(err)
	}
	var guest *nstest.Namespace
	for _, r := range vm.Records() { // eth0 comes first
		one := n.Guest(t, r)
		if guest == nil {
			guest = one
		} else {
			one.IP("link set eth0 name " + r.Name)
			one.IP("link set " + r.Name + " netns " + guest.Name)
		}
		guest.IP("link set " + r.Name + " up")
	}
	return guest
}
