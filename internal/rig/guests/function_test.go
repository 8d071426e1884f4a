package guests_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestFunction gives a virtual function of the stock kernel's card to Linux under the launcher, by vfio-pci. The card
// puts the guest into a VLAN with a MAC, and another card of the wire is the world. The function leaves the pod with
// its driver, and is the machine's with the MAC when the driver has it again after Teardown.
func TestFunction(t *testing.T) {
	uid, gid := vm.NeedGuest(t)
	cardMAC := os.Getenv("GUESTWIRE_FUNCTIONS")
	if cardMAC == "" {
		nstest.LeaveOut(t, "there is no card with virtual functions: stockkernel -functions has one")
	}
	const mac, vlan = "02:00:00:00:00:42", "42"
	n := nstest.NewWorld(t)
	ctx := bootTime(t)

	nstest.Run(t, "modprobe", "igb")
	card := linkWith(t, cardMAC)
	nstest.Run(t, "ip", "link", "set", card, "up")
	functions := filepath.Join("/sys/class/net", card, "device/sriov_numvfs")
	write(t, functions, "1")
	t.Cleanup(func() { write(t, functions, "0") })
	nstest.Run(t, "ip", "link", "set", card, "vf", "0", "mac", mac, "vlan", vlan)
	nstest.Run(t, "modprobe", "-a", "igbvf", "vfio-pci")
	target, err := os.Readlink(filepath.Join("/sys/class/net", card, "device/virtfn0"))
	if err != nil {
		t.Fatal(err)
	}
	function := pciDevice{filepath.Base(target)}
	nstest.Run(t, "ip", "link", "set", function.link(t), "name", "net1", "netns", n.Pod.Name)

	other := linkWith(t, strings.Fields(os.Getenv("GUESTWIRE_CARDS"))[0])
	nstest.Run(t, "ip", "link", "set", other, "name", "lan0", "netns", n.World.Name)
	n.World.IP("link set lan0 up")
	n.World.IP("link add link lan0 name lan42 type vlan id " + vlan)
	n.World.IP("addr add 10.42.0.1/24 dev lan42")
	n.World.IP("link set lan42 up")

	c := configOf(n, "net1", infra.SRIOV{}, uid, gid)
	if _, err := c.Setup(ctx); err != nil {
		t.Fatal(err)
	}
	if r := nstest.Record(t, n.State, "net1"); r.SRIOV == nil || r.SRIOV.PCIAddress != function.address || r.MAC.String() != mac {
		t.Errorf("record %+v, want %s with the MAC %s", r, function.address, mac)
	}
	function.bind(t, "vfio-pci")
	if links := n.Pod.IP("-br link"); strings.Contains(links, "net1") {
		t.Errorf("net1 is in the pod, though its function is bound to vfio-pci:\n%s", links)
	}
	bound := n.Pod.Settled()
	group, err := os.Readlink(filepath.Join(function.path(), "iommu_group"))
	if err != nil {
		t.Fatal(err)
	}
	// QEMU locks the guest's memory for the device.
	if err := errors.Join(os.Chown("/dev/vfio/"+filepath.Base(group), uid, gid),
		unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})); err != nil {
		t.Fatal(err)
	}
	g, err := vm.BootQEMU(ctx, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Launcher: underLauncher(t, uid, gid, n)})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Destroy()
	// There is no DHCP server.
	configure := "killall udhcpc; while pidof udhcpc udhcpc-script; do sleep 0.1; done; ip addr add 10.42.0.2/24 dev eth0 && cat /sys/class/net/eth0/address"
	if out, err := g.Until(ctx, configure); err != nil || !strings.Contains(out, mac) {
		t.Fatalf("%q, %v; want the MAC %s", out, err, mac)
	}
	if err := g.Ping(ctx, netip.MustParseAddr("10.42.0.1")); err != nil {
		t.Error(err)
	}
	nstest.Eventually(t, func() error {
		answer, err := ask(n.World, netip.MustParseAddrPort(fmt.Sprintf("10.42.0.2:%d", vm.AnswerPort)))
		if err == nil && answer.Guest != "guest" {
			err = fmt.Errorf("%+v, want guest to answer", answer)
		}
		return err
	})
	takeDown(ctx, t, c, g)
	if files, err := filepath.Glob(filepath.Join(n.State, "net1*")); err != nil || len(files) > 0 {
		t.Errorf("left in the state directory: %v, %v", files, err)
	}
	if err := nstest.Difference(bound, n.Pod.Settled()); err != nil {
		t.Errorf("the pod is not as it was: %v", err)
	}
	function.bind(t, "igbvf")
	if link := nstest.Run(t, "ip", "link", "show", "dev", function.link(t)); !strings.Contains(link, mac) {
		t.Errorf("the function's link in the machine is %s, want the MAC %s", link, mac)
	}
}

// linkWith returns the name of the machine's link with the MAC.
func linkWith(t *testing.T, mac string) string {
	t.Helper()
	links := nstest.Run(t, "ip", "-br", "link")
	found := regexp.MustCompile(`(?m)^(\S+) .*` + mac).FindStringSubmatch(links)
	if found == nil {
		t.Fatalf("no link with the MAC %s:\n%s", mac, links)
	}
	return found[1]
}

// pciDevice is a network card's function.
type pciDevice struct{ address string }

func (d pciDevice) path() string { return filepath.Join("/sys/bus/pci/devices", d.address) }

// link waits for the function's link in the machine, and returns its name.
func (d pciDevice) link(t *testing.T) (name string) {
	t.Helper()
	nstest.Eventually(t, func() error {
		links, err := os.ReadDir(filepath.Join(d.path(), "net"))
		if err == nil && len(links) != 1 {
			err = fmt.Errorf("links %v, want one", links)
		}
		if err == nil {
			name = links[0].Name()
		}
		return err
	})
	return name
}

// bind binds the function to another driver.
func (d pciDevice) bind(t *testing.T, driver string) {
	t.Helper()
	write(t, filepath.Join(d.path(), "driver_override"), driver)
	write(t, filepath.Join(d.path(), "driver/unbind"), d.address)
	write(t, "/sys/bus/pci/drivers_probe", d.address)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
