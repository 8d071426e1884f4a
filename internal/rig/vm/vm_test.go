package vm

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/server6"
	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirtxml"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/unpacked"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

var (
	guestMAC = cache.MAC{0x02, 0x73, 0x53, 0x00, 0xb0, 0x0c}
	guest4   = netip.MustParseAddr("10.0.0.5")
	guest6   = netip.MustParseAddr("fd00:5::5")
	host4    = netip.MustParseAddr("10.0.0.1")
	host6    = netip.MustParseAddr("fd00:5::1")
)

const testMTU = 1400

// needGuest skips the test if this machine cannot boot a guest.
func needGuest(t *testing.T) {
	t.Helper()
	nstest.Need(t)
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	if err := Missing(); err != nil {
		nstest.Skip(t, err.Error())
	}
}

// newNetwork creates a namespace with a bridge, on it the user's taps tap0, tap1 and tap2, and multi0 with two queues.
func newNetwork(t *testing.T) Config {
	t.Helper()
	uid, gid, err := LibvirtUser()
	if err != nil {
		t.Fatal(err)
	}
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

// serve6 runs a DHCPv6 server and sends router advertisements, both by third-party libraries.
func serve6(t *testing.T, namespace *os.File) {
	t.Helper()
	var server *server6.Server
	var router *ndp.Conn
	id := &dhcpv6.DUIDLL{HWType: 1, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	err := netns.Do(namespace, func() error {
		lan, err := net.InterfaceByName("lan")
		if err != nil {
			return err
		}
		server, err = server6.NewServer("lan", nil, func(conn net.PacketConn, peer net.Addr, m dhcpv6.DHCPv6) {
			if reply, err := answer6(m, id); err != nil {
				log.Printf("DHCPv6: %v: %v", m, err)
			} else if _, err := conn.WriteTo(reply.ToBytes(), peer); err != nil {
				log.Printf("DHCPv6: %v", err)
			}
		})
		if err != nil {
			return err
		}
		router, _, err = ndp.Listen(lan, ndp.LinkLocal)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		_ = server.Serve() // closed, so always an error
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		ra := &ndp.RouterAdvertisement{
			ManagedConfiguration: true,
			RouterLifetime:       time.Hour,
			Options:              []ndp.Option{ndp.NewMTU(testMTU)},
		}
		for {
			if err := router.WriteTo(ra, nil, netip.IPv6LinkLocalAllNodes()); err != nil {
				t.Logf("router advertisement: %v", err)
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Second):
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		if err := errors.Join(server.Close(), router.Close()); err != nil {
			t.Error(err)
		}
		<-done
		<-done
	})
}

func answer6(m dhcpv6.DHCPv6, id dhcpv6.DUID) (dhcpv6.DHCPv6, error) {
	request, err := m.GetInnerMessage()
	if err != nil {
		return nil, err
	}
	iana := request.Options.OneIANA()
	if iana == nil {
		return nil, errors.New("no address asked for")
	}
	options := []dhcpv6.Modifier{
		dhcpv6.WithServerID(id),
		dhcpv6.WithIAID(iana.IaId),
		dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: guest6.AsSlice(), PreferredLifetime: time.Hour, ValidLifetime: time.Hour}),
		dhcpv6.WithDNS(host6.AsSlice()),
	}
	if request.MessageType == dhcpv6.MessageTypeSolicit {
		return dhcpv6.NewAdvertiseFromSolicit(request, options...)
	}
	return dhcpv6.NewReplyFromMessage(request, options...)
}

func newRecord(tap string, mac cache.MAC, queues int, device cache.Device) *cache.Record {
	return &cache.Record{
		Version: cache.Version, Name: "eth0", Binding: cache.BindingBridge, Tap: tap, Queues: queues, MAC: mac, MTU: testMTU,
		Device: device,
	}
}

// newNIC returns package qemu's device for a tap.
func newNIC(t *testing.T, tap string) *qemu.NIC {
	t.Helper()
	nic, err := qemu.NewNIC(newRecord(tap, guestMAC, 1, cache.Device{}), qemu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return nic
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

func TestLibvirt(t *testing.T) {
	needGuest(t)
	cfg := newNetwork(t)
	checkGuest(t, cfg, 1, func(ctx context.Context) (*Guest, error) {
		return BootLibvirt(ctx, cfg, newElement(t, "tap0", guestMAC, 1, cache.Device{}))
	})
}

// TestDevices boots one guest with several devices. Each device gets its driver, its queues and a lease.
func TestDevices(t *testing.T) {
	needGuest(t)
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
// Debian 12's libvirt and a newer one. The older one must reject passt.
func TestGolden(t *testing.T) {
	needGuest(t)
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
				passt := strings.HasPrefix(filepath.Base(file), "passt")
				err := g.define(ctx, t, cfg, file)
				if !backport && passt {
					if err == nil || !strings.Contains(err.Error(), "attribute 'type' in element 'backend': 'passt'") {
						t.Errorf("%s: %v, want that passt is not known", file, err)
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
	if _, err := g.virsh(ctx, "define", "--validate", path); err != nil {
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

func TestQEMU(t *testing.T) {
	needGuest(t)
	cfg := newNetwork(t)
	checkGuest(t, cfg, 0, func(ctx context.Context) (*Guest, error) {
		return BootQEMU(ctx, cfg, newNIC(t, "tap0"))
	})
}

// TestDuplicate: the guest's client declines an address that another station has.
func TestDuplicate(t *testing.T) {
	needGuest(t)
	cfg := newNetwork(t)
	serve6(t, cfg.NetNS)
	if out, err := commandIn(cfg.NetNS, "ip", "addr", "add", guest6.String(), "dev", "lan", "nodad").CombinedOutput(); err != nil {
		t.Fatalf("address: %v: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	g, err := BootQEMU(ctx, cfg, newNIC(t, "tap0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Destroy(); err != nil {
			t.Error(err)
		}
	})
	if out, err := g.Until(ctx, "grep Decline /run/dhclient.eth0"); err != nil {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := g.Run(ctx, "cat /run/lease6.eth0"); err == nil {
		t.Errorf("a lease all the same: %s", out)
	}
}

// TestBootErrors: a boot that cannot succeed fails at once, with the reason, and leaves nothing behind.
func TestBootErrors(t *testing.T) {
	needGuest(t)
	cfg := newNetwork(t)
	root := cfg
	root.UID = 0
	for _, c := range []struct {
		name  string
		boot  func(context.Context) (*Guest, error)
		words string
	}{
		{"QEMU without the tap", func(ctx context.Context) (*Guest, error) {
			return BootQEMU(ctx, cfg, newNIC(t, "absent"))
		}, "could not configure /dev/net/tun (absent): Operation not permitted"},
		{"libvirt without the tap", func(ctx context.Context) (*Guest, error) {
			return BootLibvirt(ctx, cfg, newElement(t, "absent", guestMAC, 1, cache.Device{}))
		}, "specified dev doesn't exist"},
		{"no element", func(ctx context.Context) (*Guest, error) { return BootLibvirt(ctx, cfg, "<interface type='odd'/>") }, "virsh create"},
		{"root", func(ctx context.Context) (*Guest, error) { return BootQEMU(ctx, root) }, "set UID"},
		{"no namespace", func(ctx context.Context) (*Guest, error) { return BootQEMU(ctx, Config{UID: 1, GID: 1}) }, "set NetNS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// t.TempDir's path is too long for a Unix socket.
			temp, err := os.MkdirTemp("", "guestwire-")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(temp)
			if err := os.Chmod(temp, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("TMPDIR", temp)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			g, err := c.boot(ctx)
			if err == nil {
				t.Fatal("a guest has booted", g.Destroy())
			}
			if !strings.Contains(err.Error(), c.words) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %q, want %q", err, c.words)
			}
			if left, err := filepath.Glob(temp + "/*"); err != nil || len(left) != 0 {
				t.Errorf("%v are left, %v", left, err)
			}
		})
	}
}

// TestOrphans: the guest reads each line of the console in whole, also while programs end whose parents have ended.
func TestOrphans(t *testing.T) {
	needGuest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	g, err := BootQEMU(ctx, newNetwork(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Destroy(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := g.Run(ctx, "while :; do (sleep 0.01 &); done &"); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		want := strings.Repeat("guestwire ", 20)
		if out, err := g.Run(ctx, "echo '"+want+"'"); err != nil || out != want+"\n" {
			t.Fatalf("the guest says %q, %v, want %q", out, err, want)
		}
	}
}

func TestReadAnswer(t *testing.T) {
	for line, want := range map[string]Answer{
		"guest alice peer 10.0.0.1 4711\n":                               {"alice", netip.MustParseAddrPort("10.0.0.1:4711")},
		"guest bob peer fd00:0005:0000:0000:0000:0000:0000:0001 65535\n": {"bob", netip.MustParseAddrPort("[fd00:5::1]:65535")},
	} {
		if got, err := ReadAnswer(strings.NewReader(line)); err != nil || got != want {
			t.Errorf("%q: %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{"", "guest alice peer", "guest alice peer 10.0.0 1\n", "guest alice peer 10.0.0.1 65536\n"} {
		if got, err := ReadAnswer(strings.NewReader(line)); err == nil {
			t.Errorf("%q: %+v, want an error", line, got)
		}
	}
}

// checkGuest boots a guest and checks it from inside and from outside. daemons is the expected number of libvirtd
// processes.
func checkGuest(t *testing.T, cfg Config, daemons int, boot func(context.Context) (*Guest, error)) {
	t.Helper()
	serve4(t, cfg.NetNS)
	serve6(t, cfg.NetNS)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	begin := time.Now()
	g, err := boot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	dir, first := g.dir, g.vmm.cmd.Process.Pid
	if programs := checkUnprivileged(t, cfg, first); programs["qemu-system-x86"] != 1 || programs["libvirtd"] != daemons {
		t.Errorf("the guest's processes are %v, want one qemu-system-x86 and %d libvirtd", programs, daemons)
	}
	t.Cleanup(func() {
		if err := g.Destroy(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%v to the first command", time.Since(begin))
	lease4, err := g.Lease4(ctx, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v to the DHCPv4 lease", time.Since(begin))
	lease6, err := g.Lease6(ctx, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v to the DHCPv6 lease", time.Since(begin))
	for _, want := range []struct {
		lease      map[string]string
		key, value string
	}{
		{lease4, "ip", guest4.String()},
		{lease4, "mask", "24"},
		{lease4, "dns", "10.0.0.53"},
		{lease4, "search", "example.org"},
		{lease4, "mtu", fmt.Sprint(testMTU)},
		{lease4, "lease", "600"},
		{lease6, "ip6_address", guest6.String()},
		{lease6, "dhcp6_name_servers", host6.String()},
	} {
		if want.lease[want.key] != want.value {
			t.Errorf("%s is %q, want %q, in %v", want.key, want.lease[want.key], want.value, want.lease)
		}
	}
	for _, c := range []struct{ command, want string }{
		{"ip -6 route show default", "default via fe80::1 dev eth0 proto ra"},
		{"ip -4 route", "192.168.7.0/24 via 10.0.0.9 dev eth0"},
		{"ip -4 route", "default via 10.0.0.1 dev eth0"},
		{"ip link show eth0", guestMAC.String()},
		{"ip link show eth0", "mtu 1400"},
		{"cat /etc/resolv.conf", "nameserver 10.0.0.53\nnameserver fd00:5::1"},
		{"hostname", "alice\n"},
	} {
		if out, err := g.Run(ctx, c.command); err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %q, %v, want %q", c.command, out, err, c.want)
		}
	}
	var failed *ExitError
	if out, err := g.Run(ctx, "echo out; exit 3"); !errors.As(err, &failed) || failed.Code != 3 || out != "out\n" {
		t.Errorf("a failing command: %q, %v", out, err)
	}
	// No advertisement has fd00:5::/64 as an on-link prefix, so the guest reaches host6 by the router.
	for _, to := range []netip.Addr{host4, host6} {
		if err := g.Ping(ctx, to); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct{ guest, host netip.Addr }{{guest4, host4}, {guest6, host6}} {
		answer, err := ask(ctx, cfg.NetNS, netip.AddrPortFrom(c.guest, AnswerPort))
		if err != nil {
			t.Error(err)
		} else if answer.Guest != "alice" || answer.Peer.Addr() != c.host {
			t.Errorf("%v answers %+v", c.guest, answer)
		}
	}
	report, err := g.Report(ctx)
	if err != nil {
		t.Error(err)
	}
	t.Logf("report:\n%s", report)
	begin = time.Now()
	if err := g.Destroy(); err != nil {
		t.Error(err)
	}
	t.Logf("%v to destroy", time.Since(begin))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left", dir)
	}
	if err := unix.Kill(first, 0); err != unix.ESRCH {
		t.Errorf("process %d is left: %v", first, err)
	}
	if _, err := g.Run(context.Background(), "true"); err == nil {
		t.Error("a destroyed guest obeys")
	}
}

// checkUnprivileged checks that the processes in first's PID namespace, except first, have no privileges, and counts
// them by name.
func checkUnprivileged(t *testing.T, cfg Config, first int) map[string]int {
	t.Helper()
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", first))
	if err != nil {
		t.Fatal(err)
	}
	var netns, stat unix.Stat_t
	if err := unix.Fstat(int(cfg.NetNS.Fd()), &netns); err != nil {
		t.Fatal(err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	programs := map[string]int{}
	for _, dir := range dirs {
		// A process that ends meanwhile belongs to another test.
		if s, err := os.Readlink(dir + "/ns/pid"); err != nil || s != space || dir == fmt.Sprintf("/proc/%d", first) {
			continue
		}
		text, err := os.ReadFile(dir + "/status")
		if err != nil {
			t.Fatal(err)
		}
		status := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			status[key] = strings.Join(strings.Fields(value), " ")
		}
		programs[status["Name"]]++
		const none = "0000000000000000"
		for key, want := range map[string]string{
			"Uid":    fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d", cfg.UID),
			"Gid":    fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d", cfg.GID),
			"Groups": "", "NoNewPrivs": "1", "CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
		} {
			if status[key] != want {
				t.Errorf("%s: %s is %q, want %q", status["Name"], key, status[key], want)
			}
		}
		if err := unix.Stat(dir+"/ns/net", &stat); err != nil || stat.Ino != netns.Ino {
			t.Errorf("%s: network namespace %d, %v, want %d", status["Name"], stat.Ino, err, netns.Ino)
		}
	}
	return programs
}

func ask(ctx context.Context, namespace *os.File, to netip.AddrPort) (Answer, error) {
	var conn net.Conn
	err := netns.Do(namespace, func() error {
		var err error
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
		return err
	})
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return Answer{}, err
		}
	}
	return ReadAnswer(conn)
}
