package guests_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// linkManager is a program that configures each link of a namespace.
type linkManager struct {
	name, comm, pkg string
	prepare, start  string
	file, lines     string // what docs/how-to/troubleshooting.md says to write, without the NIC's address kept
	reload          string // else a restart alone
	takes           []string
}

var linkManagers = []linkManager{
	{
		name: "systemd-networkd", comm: "systemd-network", pkg: "managers",
		prepare: "mkdir -p /run/systemd/network; printf '[Match]\\nName=eth*\\n[Network]\\nDHCP=yes\\n' >/run/systemd/network/50-all.network; " + startBus,
		start:   startNetworkd,
		file:    "/etc/systemd/network/10-guestwire.network",
		lines:   "[Match]\nName=eth0 eth0-*\n[Link]\nUnmanaged=yes\n",
		reload:  "networkctl reload",
		takes:   []string{"bridge", "redirect", "routed"},
	},
	{
		name: "NetworkManager", comm: "NetworkManager", pkg: "managers",
		prepare: "mount -o remount,bind,ro /sys; " + startBus,
		start:   "NetworkManager --debug",
		file:    "/etc/NetworkManager/conf.d/guestwire.conf",
		lines:   "[keyfile]\nunmanaged-devices=interface-name:eth0;interface-name:eth0-*\n",
		reload:  "nmcli general reload",
		takes:   []string{"bridge"},
	},
	{
		name: "connman", comm: "connmand", pkg: "connman",
		prepare: "mount -o remount,bind,ro /sys; " + startBus,
		start:   "connmand --nodaemon --nodnsproxy",
		file:    "/etc/connman/main.conf",
		lines:   "[General]\nNetworkInterfaceBlacklist=eth0\n",
		takes:   []string{"bridge", "redirect", "routed"},
	},
	{
		name: "dhcpcd", comm: "dhcpcd", pkg: "dhcpcd",
		prepare: "useradd --system --home /usr/lib/dhcpcd --shell /bin/false dhcpcd; ",
		start:   "dhcpcd --nobackground --nodev",
		file:    "/etc/dhcpcd.conf",
		lines:   "denyinterfaces eth0 eth0-*\n",
		takes:   []string{"bridge", "redirect", "routed"},
	},
}

// TestLinkManagers wires a NIC where a manager of links runs: doctor names the manager that changes the wiring, and the
// lines of the document keep it off, after a reload or a restart, and when the NIC is wired anew.
func TestLinkManagers(t *testing.T) {
	nstest.Need(t)
	nstest.NeedTaps(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	document, err := os.ReadFile(filepath.Join(nstest.Root(t), "docs/how-to/troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range linkManagers {
		text := "    # " + m.file + "\n    " + strings.ReplaceAll(strings.TrimSpace(m.lines), "\n", "\n    ") + "\n"
		if !strings.Contains(string(document), text) {
			t.Errorf("troubleshooting.md has no\n%s", text)
		}
		for _, binding := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}} {
			for _, reload := range []string{m.reload, "restart"} {
				if reload == "" {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", m.name, binding.Kind(), strings.ReplaceAll(reload, " ", "-")), func(t *testing.T) {
					t.Parallel()
					m.keptOff(t, agent, binding, reload == "restart")
				})
			}
		}
	}
}

func (m linkManager) keptOff(t *testing.T, agent string, binding infra.Binding, restart bool) {
	n := nstest.NewNetwork(t)
	host := machine.New(t, n.Pod, m.pkg)
	run := func(command string) {
		t.Helper()
		if _, err := host.Run(command); err != nil {
			t.Fatal(err)
		}
	}
	nic := phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}
	setup := func() {
		t.Helper()
		if _, err := nic.Setup(t.Context(), infra.Spec{Binding: binding, State: n.State, Owner: nstest.Owner()}); err != nil {
			t.Fatal(err)
		}
	}
	// adds waits until the manager has seen a link that is younger than the wiring, and so all of the wiring.
	adds := func(link string) {
		t.Helper()
		n.Pod.IP("link add " + link + " type veth peer name " + link + "-far")
		n.Pod.IP("link set " + link + "-far up")
		nstest.Eventually(t, func() error {
			if out := n.Pod.IP("-br link show " + link); !strings.Contains(out, ",UP,") && !strings.Contains(out, ",UP>") {
				return fmt.Errorf("%s has not taken %s", m.name, out)
			}
			return nil
		})
	}
	start := func() { run("(" + m.start + ") >>/run/log 2>&1 </dev/null & echo $! >/run/manager") }
	defer func() {
		if t.Failed() {
			out, _ := host.Run("tail -n 40 /run/log")
			t.Logf("%s\n%s", n.Pod.IP("addr"), out)
		}
		host.Run("kill -9 -1") // it kills its own shell, too
	}()
	setup()
	run(m.prepare + " true")
	start()
	if slices.Contains(m.takes, string(binding.Kind())) {
		nstest.Eventually(t, func() error {
			if nic.Check(t.Context()) == nil {
				return fmt.Errorf("%s takes no link", m.name)
			}
			return nil
		})
		out, _ := exec.Command(agent, "doctor", "-netns", n.Pod.Path(), "-nic", "eth0").CombinedOutput() // 1: a fault
		if !strings.Contains(string(out), m.comm+" (process ") {
			t.Errorf("doctor names no %s:\n%s", m.name, out)
		}
	} else {
		adds("eth7")
	}
	if m.file == "/etc/dhcpcd.conf" {
		run("printf '" + m.lines + "' >>" + m.file)
	} else if err := host.Write(m.file, []byte(m.lines)); err != nil {
		t.Fatal(err)
	}
	if restart {
		// Process 1 waits for no child, so what has ended stays as a zombie.
		run("pkill -x " + m.comm + "; while pgrep -r D,R,S -x " + m.comm + "; do sleep 0.1; done")
		start()
	} else {
		run(m.reload)
	}
	setup()
	adds("eth8")
	if err := nic.Check(t.Context()); err != nil {
		t.Errorf("%s with these lines: %v", m.name, err)
	}
	if err := nic.Teardown(t.Context(), phase1.TeardownOptions{}); err != nil {
		t.Fatal(err)
	}
	setup()
	adds("eth9")
	if err := nic.Check(t.Context()); err != nil {
		t.Errorf("%s beside another Setup: %v", m.name, err)
	}
}
