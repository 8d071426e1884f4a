package guests_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
)

const vhostNet = "/dev/vhost-net"

// TestVhost boots Linux whose taps, of one queue and of two, the kernel reads and writes by vhost-net. The launcher's
// user can open the device by its group at the first Setup, and by its access control list at the second. The guest
// returns the octets that it receives. While the device is closed to the user, Setup, the launcher and QEMU report it.
func TestVhost(t *testing.T) {
	uid, gid := vm.NeedGuest(t)
	f, err := os.Open(vhostNet)
	if err != nil {
		nstest.LeaveOut(t, "this kernel has no vhost-net: the stock kernel has")
	}
	f.Close()
	n := nstest.NewNetwork(t)
	n.World.IP("link add pod2 type veth peer name net1 netns " + n.Pod.Name)
	n.World.IP("addr add 10.7.0.1/24 dev pod2")
	n.World.IP("link set pod2 up")
	n.Pod.IP("addr add 10.7.0.2/24 dev net1")
	n.Pod.IP("link set net1 up")
	before := n.Pod.Settled()
	ctx := bootTime(t)
	nics := []struct {
		wired.NIC
		address netip.Addr
	}{
		{configOf(n, "eth0", infra.Redirect{}, uid, gid), nstest.Pod4},
		// Only this NIC loses its routes for a time: they are the last again.
		{configOf(n, "net1", infra.Bridge{}, uid, gid), netip.MustParseAddr("10.7.0.2")},
	}
	mountVhost(t, gid, 0o660)
	for i := range nics {
		c := &nics[i]
		c.Queues, c.Device.Driver, c.Options.NoDefaultRoute = 1+i, "vhost", i > 0
		if i > 0 {
			mountVhost(t, 0, 0o600)
			nstest.Grant(t, vhostNet, uid)
		}
		if _, err := c.Setup(ctx); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("closed", func(t *testing.T) {
		mountVhost(t, gid, 0o600)
		says := func(who string, err error, text string) {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, want %q", who, err, text)
			}
		}
		_, err := nics[0].Setup(ctx)
		says("Setup", err, fmt.Sprintf("user %d, group %d cannot open /dev/vhost-net (mode 0600, owner 0:%[2]d)", uid, gid))
		launch := append(underLauncher(t, uid, gid, n), "true")
		says("the launcher", run(launch...), "NIC eth0: device.driver vhost: open /dev/vhost-net: permission denied: ")
		args, err := newNIC(t, nstest.Record(t, n.State, "eth0"), qemu.Options{Vhost: true}).Args()
		if err != nil {
			t.Fatal(err)
		}
		alone := append(launch[:slices.Index(launch, "--")+1], "timeout", "60", "qemu-system-x86_64", "-nodefaults", "-display", "none", "-S")
		says("QEMU", run(append(alone, args...)...), "open vhost char device failed: Permission denied")
	})
	g, err := vm.BootQEMU(ctx, vm.Config{NetNS: n.Pod.File, UID: uid, GID: gid, Launcher: underLauncher(t, uid, gid, n)})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Destroy()
	if open := vhostFiles(t, uid); open != 3 {
		t.Errorf("QEMU has %d open files of %s, want one for each of 3 queues", open, vhostNet)
	}
	for i, c := range nics {
		if lease, err := g.Lease4(ctx, fmt.Sprintf("eth%d", i)); err != nil || lease["ip"] != c.address.String() {
			t.Fatalf("lease %v, %v; want %v", lease, err, c.address)
		}
		for range 4 {
			if err := echo(n.World, netip.AddrPortFrom(c.address, vm.EchoPort)); err != nil {
				t.Error(err)
			}
		}
	}
	interrupts, err := g.Run(ctx, `awk '/virtio[0-9]*-input/ { print $2 }' /proc/interrupts`)
	// A guest with one CPU uses one queue of a NIC, and has the others.
	if counts := strings.Fields(interrupts); err != nil || len(counts) != 3 || counts[0] == "0" || counts[1] == "0" {
		t.Errorf("interrupts of the guest's queues %q, %v; want 3 numbers, the first two above 0", interrupts, err)
	}
	if err := g.Destroy(); err != nil {
		t.Error(err)
	}
	for _, c := range nics {
		if err := c.Teardown(ctx); err != nil {
			t.Error(err)
		}
	}
	nstest.Eventually(t, func() error { return nstest.Difference(before, n.Pod.Settled()) })
}

// run runs a command. The error has what it printed.
func run(command ...string) error {
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%v: %w: %s", command, err, out)
	}
	return err
}

// mountVhost mounts a device of vhost with this group and mode over the machine's, until the test ends.
func mountVhost(t *testing.T, gid int, mode os.FileMode) {
	t.Helper()
	device := filepath.Join(nstest.Dir(t), "vhost-net")
	err := errors.Join(
		unix.Mknod(device, unix.S_IFCHR, int(unix.Mkdev(10, 238))), os.Chmod(device, mode), os.Chown(device, 0, gid),
		unix.Mount(device, vhostNet, "", unix.MS_BIND, ""),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(vhostNet, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// vhostFiles counts the open files of vhost's device that the user's processes have.
func vhostFiles(t *testing.T, uid int) (count int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		target, _ := os.Readlink(file) // the process may have ended
		var process unix.Stat_t
		if target == vhostNet && unix.Stat(filepath.Dir(filepath.Dir(file)), &process) == nil && int(process.Uid) == uid {
			count++
		}
	}
	return count
}

// echo sends 256 KiB to the guest's echo port, and compares what comes back.
func echo(from *nstest.Namespace, to netip.AddrPort) error {
	part := make([]byte, 256<<10)
	rand.Read(part)
	var conn net.Conn
	err := netns.Do(from.File, func() (err error) {
		conn, err = net.DialTimeout("tcp", to.String(), time.Minute)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(3 * time.Minute)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(part)
		sent <- err
	}()
	back := make([]byte, len(part))
	_, err = io.ReadFull(conn, back)
	if err := errors.Join(err, <-sent); err != nil {
		return fmt.Errorf("echo of %v: %w", to, err)
	}
	if !bytes.Equal(part, back) {
		return fmt.Errorf("echo of %v: other octets than were sent", to)
	}
	return nil
}
