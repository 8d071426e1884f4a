package vm

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirtxml"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

var (
	guest4 = netip.MustParseAddr("10.0.0.5")
	host4  = netip.MustParseAddr("10.0.0.1")
	host6  = netip.MustParseAddr("fd00:5::1")
)

const testMTU = 1400

// newNetwork creates a namespace with a bridge, on it the user's taps tap0, tap1 and tap2, and multi0 with two queues.
func newNetwork(t *testing.T) Config {
	t.Helper()
	uid, gid := NeedGuest(t)
	namespace := nstest.New(t, "lan").File
	script := fmt.Sprintf(`set -e
ip link set lo up
ip link add lan type bridge
ip link set lan addrgenmode none
ip link set lan up
ip addr add %[1]v/24 dev lan
ip addr add %[2]v/64 dev lan nodad
ip addr add fe80::1/64 dev lan nodad
ip tuntap add multi0 mode tap user %[3]d vnet_hdr multi_queue
for tap in tap0 tap1 tap2; do
	ip tuntap add $tap mode tap user %[3]d vnet_hdr
done
for tap in tap0 tap1 tap2 multi0; do
	ip link set $tap master lan up mtu %[4]d
done
`, host4, host6, uid, testMTU)
	cmd := commandIn(namespace, "sh", "-c", script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("network: %v: %s", err, out)
	}
	return Config{NetNS: namespace, UID: uid, GID: gid, Name: "alice"}
}

// commandIn returns a command that runs in a network namespace.
func commandIn(netns *os.File, name string, args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--net=/proc/self/fd/3", "--", name}, args...)...)
	cmd.ExtraFiles = []*os.File{netns}
	return cmd
}

// serve4 runs busybox's udhcpd until the end of the test.
func serve4(t *testing.T, netns *os.File) {
	t.Helper()
	dir := t.TempDir()
	conf := fmt.Sprintf(`start %[1]v
end 10.0.0.9
interface lan
lease_file %[2]s/leases
pidfile %[2]s/pid
opt subnet 255.255.255.0
opt router %[3]v
opt staticroutes 192.168.7.0/24 10.0.0.9, 0.0.0.0/0 %[3]v
opt dns 10.0.0.53
opt search example.org
opt mtu %[4]d
opt lease 600
`, guest4, dir, host4, testMTU)
	for name, text := range map[string]string{"conf": conf, "leases": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := commandIn(netns, unpacked.Path("busybox/bin/busybox"), "udhcpd", "-f", filepath.Join(dir, "conf"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started, done := make(chan error), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // Pdeathsig is sent when the thread ends
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // killed, so always an error
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Errorf("end of udhcpd: %v", err)
		}
		<-done
	})
}

func newRecord(tap string, mac cache.MAC, queues int, device cache.Device) *cache.Record {
	return &cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: tap, Queues: queues, MAC: mac, MTU: testMTU,
		Device: device,
	}
}

// newElement returns package domain's element for a tap.
func newElement(t *testing.T, tap string, mac cache.MAC, queues int, device cache.Device) string {
	t.Helper()
	iface, err := domain.Interface(newRecord(tap, mac, queues, device))
	if err != nil {
		t.Fatal(err)
	}
	xml, err := iface.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return xml
}

// TestDevices boots one guest with several devices. Each device gets its driver, its queues and a lease.
func TestDevices(t *testing.T) {
	cfg := newNetwork(t)
	cfg.CPUs = 2
	serve4(t, cfg.NetNS)
	devices := []struct {
		tap    string
		mac    cache.MAC
		queues int
		device cache.Device
		driver string
	}{
		{"multi0", cache.MAC{2, 0, 0, 0, 1, 0}, 2, cache.Device{Driver: "qemu", Alias: "first", ACPIIndex: 7}, "virtio_net"},
		{"tap0", cache.MAC{2, 0, 0, 0, 1, 1}, 1, cache.Device{Model: "e1000e"}, "e1000e"},
		{"tap1", cache.MAC{2, 0, 0, 0, 1, 2}, 1, cache.Device{Model: "rtl8139"}, "8139cp"},
		{"tap2", cache.MAC{2, 0, 0, 0, 1, 3}, 1, cache.Device{Model: "virtio-transitional", BootOrder: 1}, "virtio_net"},
	}
	var elements []string
	for _, d := range devices {
		elements = append(elements, newElement(t, d.tap, d.mac, d.queues, d.device))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	g, err := BootLibvirt(ctx, cfg, elements...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Destroy(); err != nil {
			t.Error(err)
		}
	})
	for _, d := range devices {
		out, err := g.Run(ctx, fmt.Sprintf("grep -l %v /sys/class/net/*/address", d.mac))
		if err != nil {
			t.Errorf("%s: %v", d.tap, err)
			continue
		}
		path := filepath.Dir(strings.TrimSpace(out))
		want := fmt.Sprintf("%s\n%d\n", d.driver, d.queues)
		command := fmt.Sprintf("basename $(readlink %[1]s/device/driver); ls -d %[1]s/queues/rx-* | wc -l", path)
		if out, err := g.Run(ctx, command); err != nil || out != want {
			t.Errorf("%s: driver and queues are %q, %v, want %q", d.tap, out, err, want)
		}
		if _, err := g.Lease4(ctx, filepath.Base(path)); err != nil {
			t.Errorf("%s: %v", d.tap, err)
		}
	}
}

// TestGolden: libvirt accepts the golden elements of package domain and keeps all of their content. The test runs with
// Debian 12's libvirt and a newer one. The older one must reject passt. On Debian 13 both are the installed one.
func TestGolden(t *testing.T) {
	NeedGuest(t)
	files, err := filepath.Glob("../../../domain/testdata/*.xml")
	if err != nil || len(files) == 0 {
		t.Fatalf("golden elements: %v, %v", files, err)
	}
	for name, backport := range map[string]bool{"installed": false, "backport": true} {
		t.Run(name, func(t *testing.T) {
			cfg := newNetwork(t)
			cfg.Backport = backport
			g, err := newGuest(cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := g.Destroy(); err != nil {
					t.Error(err)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			if err := g.startLibvirt(ctx, cfg); err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				name := filepath.Base(file)
				cfg.VhostUser = strings.Contains(name, "vhost-user")
				err := g.define(ctx, t, cfg, file)
				if !backport && Debian12() && strings.HasPrefix(name, "passt") {
					refusal := "attribute 'type' in element 'backend': 'passt'"
					if cfg.VhostUser {
						refusal = "Missing required attribute 'type' in element 'source'"
					}
					if err == nil || !strings.Contains(err.Error(), refusal) {
						t.Errorf("%s: %v, want %s", file, err, refusal)
					}
				} else if err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// define defines a domain with the element of the file, and compares libvirt's version of the element.
func (g *Guest) define(ctx context.Context, t *testing.T, cfg Config, file string) error {
	t.Helper()
	golden, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	want := strings.TrimSpace(string(golden))
	if strings.Contains(want, "usb-net") {
		// libvirt assigns no address to this device; the launcher must.
		want = strings.Replace(want, "</interface>", `  <address type="usb" bus="0" port="1"></address>`+"\n</interface>", 1)
	}
	definition, err := g.definition(cfg, []string{want})
	if err != nil {
		return err
	}
	definition = strings.Replace(definition, `<controller type="usb" model="none">`, `<controller type="usb" model="qemu-xhci">`, 1)
	path := filepath.Join(g.dir, filepath.Base(file))
	if err := os.WriteFile(path, []byte(definition), 0o644); err != nil {
		return err
	}
	args := []string{"define", "--validate", path}
	if cfg.VhostUser && Debian12() { // the schema is Debian 12's, also for the newer libvirt
		args = []string{"define", path}
	}
	if _, err := g.virsh(ctx, args...); err != nil {
		return err
	}
	out, err := g.virsh(ctx, "dumpxml", g.name)
	if err != nil {
		return err
	}
	compareElement(t, file, want, out)
	_, err = g.virsh(ctx, "undefine", g.name)
	return err
}

// compareElement checks that libvirt changed nothing in an element, except for an added address.
func compareElement(t *testing.T, file, element, definition string) {
	t.Helper()
	var want libvirtxml.DomainInterface
	if err := want.Unmarshal(element); err != nil {
		t.Error(err)
		return
	}
	var got libvirtxml.Domain
	if err := got.Unmarshal(definition); err != nil || len(got.Devices.Interfaces) != 1 {
		t.Errorf("%s: %v, in\n%s", file, err, definition)
		return
	}
	iface := got.Devices.Interfaces[0]
	if want.Address == nil {
		iface.Address = nil
	}
	text, err := iface.Marshal()
	if err != nil {
		t.Error(err)
	}
	if text != element {
		t.Errorf("%s: libvirt has\n%s\nwant\n%s", file, text, element)
	}
}
