package phase1_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestNoModuleByLinkName: the kernel starts modprobe(8) for a program that asks by ioctl for a name that no link has,
// and takes the name for that of a module (dev_load). No call asks so. The test is not parallel, as the trace is of the
// whole kernel.
func TestNoModuleByLinkName(t *testing.T) {
	nstest.KernelDecides(t, "a kernel with modules")
	nstest.Need(t)
	nstest.NeedRoot(t, "it traces the kernel")
	if _, err := os.Stat("/proc/sys/kernel/modprobe"); errors.Is(err, os.ErrNotExist) {
		nstest.LeaveOut(t, "this kernel loads no modules")
	}
	const nic = "mod7" // the programs of other tests ask for eth0-nic
	requests := traceModules(t)
	for _, b := range []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Routed{}, infra.Masquerade{}} {
		n := nstest.NewNetwork(t)
		for _, change := range []string{"eth0 down", "eth0 name " + nic, nic + " up"} {
			n.Pod.IP("link set " + change)
		}
		n.Pod.Settled()
		c := config(n, b)
		c.Name = nic
		setup(t, c)
		setup(t, c)
		check(t, c)
		unwire(t, c)
		setup(t, c)
		n.World.IP("link del pod")
		if err := c.Teardown(t.Context()); !errors.Is(err, infra.ErrNoNIC) {
			t.Error(err)
		}
	}
	for line := range strings.Lines(requests()) {
		if strings.Contains(line, nic) {
			t.Error(line)
		}
	}
	nstest.Run(t, "sh", "-c", "ip link show "+nic+"-gone 2>/dev/null || true") // which asks so
	if !strings.Contains(requests(), "netdev-"+nic+"-gone") {
		t.Error("the trace lacks the request of ip(8), so it shows nothing")
	}
}

// TestNoFwd: a kernel that lacks nft_fwd_netdev refuses redirect with the way out, and auto takes bridge; Plan says
// both before. The test is not parallel, as it unloads the module.
func TestNoFwd(t *testing.T) {
	nstest.KernelDecides(t, "a kernel with modules")
	nstest.Need(t)
	if !nstest.Emulated {
		nstest.LeaveOut(t, "this machine's modules are those of others too")
	}
	n := nstest.NewNetwork(t)
	found := settled(t, n)
	c := config(n, nil)
	for _, c.Binding = range []infra.Binding{infra.Bridge{}, infra.Redirect{}} { // which loads all modules
		setup(t, c)
		unwire(t, c)
	}
	const modprobe = "/proc/sys/kernel/modprobe"
	before := strings.TrimSpace(string(readFile(t, modprobe)))
	loads := func(program string) { nstest.Run(t, "sh", "-c", "echo "+program+" >"+modprobe) }
	loads("/bin/false")
	t.Cleanup(func() { loads(before) })
	nstest.Run(t, "rmmod", "nft_fwd_netdev")
	for _, call := range []func() error{
		func() error { _, err := c.Plan(t.Context()); return err },
		func() error { _, err := c.Setup(t.Context()); return err },
	} {
		var refused *infra.RefusedError
		if err := call(); !errors.As(err, &refused) || refused.Instead != cache.BindingBridge || !strings.Contains(err.Error(), "modprobe nft_fwd_netdev") {
			t.Errorf("%v; want a refusal that names bridge and the module", err)
		}
	}
	if now := settled(t, n); now != found {
		t.Errorf("the refused Setup left\n%s\nand there was\n%s", now, found)
	}
	c.Binding = infra.Auto{}
	preview, err := c.Plan(t.Context())
	if err != nil || preview.Record.Binding != cache.BindingBridge {
		t.Errorf("auto: the plan is %+v, %v; want bridge", preview, err)
	}
	if record, err := c.Setup(t.Context()); err != nil || record.Binding != cache.BindingBridge {
		t.Errorf("auto is %s, %v; want bridge", record.Binding, err)
	}
	check(t, c)
	unwire(t, c)
	loads(before)
	nstest.Run(t, "modprobe", "nft_fwd_netdev")
	c.Binding = infra.Redirect{}
	setup(t, c)
	unwire(t, c)
}

// traceModules has the kernel trace the names of modules that it is asked for, until the test's end (tracefs, the event
// module_request). The returned function reads the trace.
func traceModules(t *testing.T) func() string {
	t.Helper()
	tracefs := nstest.Dir(t)
	if err := unix.Mount("guestwire", tracefs, "tracefs", 0, ""); err != nil {
		t.Fatal(err)
	}
	instance := filepath.Join(tracefs, "instances", "guestwire-"+filepath.Base(filepath.Dir(tracefs)))
	t.Cleanup(func() {
		if err := errors.Join(os.Remove(instance), unix.Unmount(tracefs, unix.MNT_DETACH)); err != nil {
			t.Error(err)
		}
	})
	// An instance that records the names of tasks would have the kernel patch its scheduler while that runs. QEMU's
	// emulation may go on with the instruction that stands there meanwhile, and then the machine hangs.
	recordTasks := filepath.Join(tracefs, "options", "record-cmd")
	before, err := os.ReadFile(recordTasks)
	if err == nil {
		err = os.WriteFile(recordTasks, []byte("0"), 0)
	}
	if err == nil {
		err = errors.Join(os.Mkdir(instance, 0o700), os.WriteFile(recordTasks, before, 0))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(instance, "events/module/module_request/enable"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	return func() string {
		text := readFile(t, filepath.Join(instance, "trace"))
		return string(text)
	}
}
