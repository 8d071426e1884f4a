package phase1_test

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/guest"
	"github.com/guestwire/guestwire/internal/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// cniDir is where Debian puts the reference plugins.
const cniDir = "/usr/lib/cni"

// cni runs a plugin with the world as the node.
func cni(t *testing.T, n nstest.Network, command, container, netns, config, prev string) string {
	t.Helper()
	if prev != "" {
		config = strings.TrimSuffix(strings.TrimSpace(config), "}") + `, "prevResult": ` + prev + "}"
	}
	var head struct{ plugin string }
	_, head.plugin, _ = strings.Cut(config, `"type": "`)
	head.plugin, _, _ = strings.Cut(head.plugin, `"`)
	cmd := exec.Command("ip", "netns", "exec", n.World.Name, filepath.Join(cniDir, head.plugin))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+container, "CNI_NETNS="+netns,
		"CNI_IFNAME=eth0", "CNI_PATH="+cniDir)
	cmd.Stdin = strings.NewReader(config)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("CNI %s %s: %v\n%s", head.plugin, command, err, out)
	}
	return string(out)
}

// TestCNI lays the pod's network with the real plugins, and lets them check and delete it after
// Teardown.
func TestCNI(t *testing.T) {
	for plugin, more := range map[string]string{
		"bridge": `"bridge": "cni0", "isGateway": true, "mtu": 1400,`,
		"ptp":    `"mtu": 1400,`,
	} {
		t.Run(plugin, func(t *testing.T) {
			eachBinding(t, func(t *testing.T, b infra.Binding) {
				if _, err := os.Stat(filepath.Join(cniDir, plugin)); err != nil {
					nstest.Skip(t, "no CNI plugins in "+cniDir+": install containernetworking-plugins")
				}
				n := nstest.NewWorld(t)
				leases := t.TempDir()
				config := `{"cniVersion": "1.0.0", "name": "podnet", "type": "` + plugin + `", ` + more + `
					"ipam": {"type": "host-local", "dataDir": "` + leases + `",
						"ranges": [[{"subnet": "10.22.0.0/16"}], [{"subnet": "fd00:22::/64"}]],
						"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`
				result := cni(t, n, "ADD", "pod", n.Pod.Path(), config, "")
				peer := nstest.New(t, "peer")
				peerResult := cni(t, n, "ADD", "peer", peer.Path(), config, "")
				peer.Listen("the peer", ":9000")
				n.World.Listen("the world", ":9000")
				before := settled(t, n)

				c := phase1.Config{
					NetNS: n.Pod.File, NIC: "eth0", Binding: b, State: n.State,
					Owner: infra.Owner{UID: nstest.LauncherUID},
				}
				setup(t, c)
				launcher := n.Serve(t, nstest.LauncherUID)
				g := boot(t, n, record(t, n))
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				if _, err := g.Configure(ctx, guest.Families{IPv4: true, IPv6: true}); err != nil {
					t.Fatalf("%v\n%s", err, launcher.Output.String())
				}
				if g.MTU() != 1400 {
					t.Errorf("guest's MTU is %d, want 1400", g.MTU())
				}
				if err := g.ListenTCP(8000); err != nil {
					t.Fatal(err)
				}
				n.Pod.Listen("the namespace", ":8000")

				for _, to := range []struct{ address, name string }{
					{"10.22.0.1", "the world"}, {"fd00:22::1", "the world"}, // gateway
					{"10.22.0.3", "the peer"}, {"fd00:22::3", "the peer"}, // same subnet
					{nstest.Beyond4.String(), "the world"}, {nstest.Beyond6.String(), "the world"},
				} {
					conn, err := g.DialTCP(ctx, netip.AddrPortFrom(netip.MustParseAddr(to.address), 9000))
					if err != nil {
						t.Errorf("guest to %s: %v", to.address, err)
						continue
					}
					answer, err := nstest.Answer(conn)
					conn.Close()
					if err != nil || !strings.HasPrefix(answer, to.name+" sees") {
						t.Errorf("guest to %s: %q, %v; want %s to answer", to.address, answer, err, to.name)
					}
				}
				for _, from := range []*nstest.Namespace{n.World, peer} {
					for _, address := range []string{"10.22.0.2:8000", "[fd00:22::2]:8000"} {
						answer, err := from.Ask(address)
						if err != nil || !strings.HasPrefix(answer, "guest sees") {
							t.Errorf("%s to %s: %q, %v; want the guest to answer", from.Name, address, answer, err)
						}
					}
				}

				launcher.Stop(t)
				teardown(t, n, c, before)
				cni(t, n, "CHECK", "pod", n.Pod.Path(), config, result)
				cni(t, n, "DEL", "pod", n.Pod.Path(), config, result)
				cni(t, n, "DEL", "peer", peer.Path(), config, peerResult)
				left, err := filepath.Glob(filepath.Join(leases, "podnet", "*.*.*.*"))
				if err != nil || len(left) > 0 {
					t.Errorf("address management still has %v, %v", left, err)
				}
			})
		})
	}
}
