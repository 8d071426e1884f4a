package podnet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// firewallD creates a pod on a node with firewalld, which forwards nothing from one zone to another. The plugin puts
// the pod's addresses into the zone trusted, which may open connections to all others.
func firewallD(t testing.TB) *Instance {
	node := nstest.New(t, "node")
	far := addBehindRouter(t, node)
	c := newChain(t, node, bridgePlugin, `"type": "firewall", "backend": "firewalld"`)
	c.bus = startFirewalld(t, node)
	peer := c.add(t, nstest.New(t, "peer"), "eth0")
	return c.add(t, nstest.New(t, "pod"), "eth0").instance(append(nodeStations(node, peer), far...)...)
}

// busPolicy is the configuration of a D-Bus on which everything is allowed.
const busPolicy = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
	"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><listen>%s</listen><policy context="default">
	<allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
</policy></busconfig>`

// startFirewalld starts firewalld on the node, with a system bus of its own, and returns the bus's address.
func startFirewalld(t testing.TB, node *nstest.Namespace) (bus string) {
	t.Helper()
	nstest.Need(t, "dbus-daemon", "nft", "nsenter")
	root := unpacked.Path("firewalld")
	if _, err := os.Stat(root); err != nil {
		nstest.Skip(t, "no "+root+": make install")
	}
	dir := nstest.Dir(t)
	bus = "unix:path=" + filepath.Join(dir, "bus")
	policy := filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(policy, fmt.Appendf(nil, busPolicy, bus), 0o644); err != nil {
		t.Fatal(err)
	}
	node.StartCommand(exec.Command("dbus-daemon", "--config-file="+policy, "--nofork", "--nopidfile"))
	nstest.Eventually(t, func() error {
		_, err := os.Stat(filepath.Join(dir, "bus"))
		return err
	})
	daemon := exec.Command("nsenter", "--net="+node.Path(), "/usr/bin/python3", "-s", root+"/usr/sbin/firewalld", "--nofork", "--nopid",
		"--system-config="+root+"/etc/firewalld", "--default-config="+root+"/usr/lib/firewalld", "--log-target=console")
	daemon.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+bus, "PYTHONPATH="+root+"/usr/lib/python3/dist-packages", "PYTHONDONTWRITEBYTECODE=1")
	process := node.StartCommand(daemon)
	// It has its name on the bus before it makes its rules.
	nstest.Eventually(t, func() error {
		if out, err := exec.Command("nsenter", "--net="+node.Path(), "nft", "list", "table", "inet", "firewalld").CombinedOutput(); err != nil {
			return fmt.Errorf("firewalld is not ready: %w, %s%s", err, out, process.Output.String())
		}
		return nil
	})
	return bus
}
