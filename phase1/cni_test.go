package phase1_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// cniDir is where Debian puts the reference plugins.
const cniDir = "/usr/lib/cni"

// cni runs a plugin with the world as the node. It has to succeed.
func cni(t *testing.T, n nstest.Network, command, container, netns, config, prev string) string {
	t.Helper()
	out, err := tryCNI(n, command, container, netns, config, prev)
	if err != nil {
		t.Fatalf("CNI %s: %v\n%s", command, err, out)
	}
	return out
}

func tryCNI(n nstest.Network, command, container, netns, config, prev string) (string, error) {
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
	return string(out), err
}

// TestCNIDelete creates the pod's network with each plugin, some chained, and lets them delete it after
// Teardown and before it. Nothing stays, in the namespace or of the leases.
func TestCNIDelete(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	if _, err := os.Stat(cniDir); err != nil {
		nstest.Skip(t, "no CNI plugins in "+cniDir+": install containernetworking-plugins")
	}
	const tuning = `"type": "tuning", "mac": "02:00:00:00:22:01", "mtu": 1300, "promisc": true, "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}`
	for name, plugins := range map[string][]string{
		"bridge":            {`"type": "bridge", "bridge": "cni0", "isGateway": true`},
		"ptp":               {`"type": "ptp"`},
		"macvlan":           {`"type": "macvlan", "master": "up0", "mode": "passthru"`},
		"host-device":       {`"type": "host-device", "device": "up0"`},
		"bridge and tuning": {`"type": "bridge", "bridge": "cni0", "isGateway": true`, tuning},
	} {
		t.Run(name, func(t *testing.T) {
			tried := bindings
			if name != "bridge" {
				tried = []infra.Binding{infra.Bridge{}, infra.Masquerade{}}
			}
			eachOf(t, tried, func(t *testing.T, b infra.Binding) {
				if name == "host-device" && b.Kind() == "bridge" {
					nstest.KernelDecides(t, "a plugin deletes a dummy")
				}
				n := nstest.NewWorld(t)
				n.NeedTaps()
				n.World.IP("link add up0 type veth peer name up1")
				n.World.IP("link set up0 up")
				n.World.IP("link set up1 up")
				n.World.IP("addr add 10.22.0.1/16 dev up1 noprefixroute")
				n.World.IP("addr add fd00:22::1/64 dev up1 nodad noprefixroute")
				leases := t.TempDir()
				var configs []string
				for i, p := range plugins {
					configs = append(configs, `{"cniVersion": "1.0.0", "name": "podnet", "dataDir": "`+leases+`/`+strconv.Itoa(i)+`", `+p+`,
						"ipam": {"type": "host-local", "dataDir": "`+leases+`", "ranges": [[{"subnet": "10.22.0.0/16"}], [{"subnet": "fd00:22::/64"}]],
						"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`)
				}
				add := func() (result string) {
					for _, config := range configs {
						result = cni(t, n, "ADD", "pod", n.Pod.Path(), config, result)
					}
					return result
				}
				del := func(result string) error {
					for _, config := range slices.Backward(configs) {
						if out, err := tryCNI(n, "DEL", "pod", n.Pod.Path(), config, result); err != nil {
							return fmt.Errorf("CNI DEL: %w\n%s", err, out)
						}
					}
					return nil
				}
				left := func() {
					t.Helper()
					files, err := filepath.Glob(filepath.Join(leases, "podnet", "*[.:]*[.:]*"))
					if err != nil || len(files) > 0 {
						t.Errorf("leases %q are left, %v", files, err)
					}
				}
				c := config(n, b)
				empty := settled(t, n)

				result := add()
				before := settled(t, n)
				setup(t, c)
				if b.Kind() == "redirect" { // the plugins find all they look for
					for _, config := range configs {
						cni(t, n, "CHECK", "pod", n.Pod.Path(), config, result)
					}
				}
				teardown(t, n, c, before)
				for _, config := range configs {
					cni(t, n, "CHECK", "pod", n.Pod.Path(), config, result)
				}
				if err := del(result); err != nil {
					t.Error(err)
				}
				left()
				asFound(t, n, empty)

				// A plugin may delete what is called eth0 then, or fail at it. What Teardown gives back, it deletes.
				result = add()
				setup(t, c)
				early := del(result)
				if err := c.Teardown(t.Context()); err != nil && !errors.Is(err, infra.ErrNoNIC) {
					t.Errorf("Teardown after DEL (%v): %v", early, err)
				}
				if strings.Contains(n.Pod.IP("-br link"), "eth0") {
					if err := del(result); err != nil {
						t.Errorf("DEL after Teardown: %v", err)
					}
				}
				left()
				asFound(t, n, empty)
			})
		})
	}
}
