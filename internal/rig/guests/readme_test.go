package guests_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/internal/rig/machine"
	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestReadmeLauncher: the README's launcher boots Linux, which is the pod on the network; and the pod gets its network
// back, however the launcher ends.
func TestReadmeLauncher(t *testing.T) {
	t.Parallel()
	vm.NeedGuest(t)
	program := nstest.Program(t, "examples/qemu")
	boot, err := vm.NewDirectBoot(nstest.Dir(t), "readme")
	if err != nil {
		t.Fatal(err)
	}
	n := nstest.NewNetwork(t)
	before := n.Pod.Settled()
	// The program's State lies in /run/guestwire.
	empty := exec.Command("unshare", "--mount", "sh", "-c", "mount -t tmpfs run /run && mkdir /run/guestwire && echo ready && exec cat")
	machine.StartReady(t, "a machine with an empty /run", empty)
	var log nstest.Output
	launch := func() (launcher *exec.Cmd, ended chan error) {
		t.Helper()
		launcher = exec.Command("nsenter", "--mount", "--target", fmt.Sprint(empty.Process.Pid),
			program, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.Pod.File.Fd()),
			"qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg", "-m", fmt.Sprint(vm.Memory),
			"-serial", "file:/dev/null", "-kernel", boot.Kernel, "-initrd", boot.Initramfs, "-append", boot.CommandLine)
		launcher.Stdout, launcher.Stderr = &log, &log
		if err := launcher.Start(); err != nil {
			t.Fatal(err)
		}
		ended = make(chan error, 1)
		go func() { ended <- launcher.Wait() }()
		t.Cleanup(func() { launcher.Process.Kill() })
		return launcher, ended
	}
	answers := func() {
		t.Helper()
		for _, to := range []netip.Addr{nstest.Pod4, nstest.Pod6} {
			nstest.Eventually(t, func() error {
				answer, err := n.World.Ask(netip.AddrPortFrom(to, vm.AnswerPort).String())
				if err == nil && !strings.Contains(answer, "readme") {
					err = fmt.Errorf("%q answers instead of the guest", answer)
				}
				if err != nil {
					err = fmt.Errorf("%w\n%s", err, log.String())
				}
				return err
			})
		}
	}

	first, ended := launch()
	answers()
	_, second := launch()
	if err := <-second; err == nil || !strings.Contains(log.String(), "held by another process") {
		t.Errorf("a second launcher: %v, and it is not refused\n%s", err, log.String())
	}
	answers()
	if err := first.Process.Kill(); err != nil {
		t.Error(err)
	}
	<-ended
	nstest.Eventually(t, func() error { // QEMU ends, too
		if link := n.Pod.IP("link show eth0-tap"); !strings.Contains(link, "NO-CARRIER") {
			return fmt.Errorf("a process has the tap: %s", link)
		}
		return nil
	})
	again, ended := launch()
	answers()
	if err := again.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the launcher ended with %v", err)
	}
	if err := nstest.Difference(before, n.Pod.Settled()); err != nil {
		t.Errorf("the pod is not as it was: %v\n%s", err, log.String())
	}
}
