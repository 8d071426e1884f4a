package examples_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/rig/vm"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// readme returns the README's text.
func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestReadmeCode: the README shows the code of the program that TestReadmeLauncher runs.
func TestReadmeCode(t *testing.T) {
	program, err := os.ReadFile("qemu/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(readme(t), "```go\n")
	code, _, ok := strings.Cut(code, "```\n")
	if !ok {
		t.Fatal("the README has no code")
	}
	imports, sides, ok := strings.Cut(strings.TrimPrefix(code, "import (\n"), ")\n\n")
	if !ok {
		t.Fatalf("the code has no imports:\n%s", code)
	}
	for _, part := range []string{imports, sides} {
		if !strings.Contains(string(program), part) {
			t.Errorf("examples/qemu/main.go has not:\n%s", part)
		}
	}
}

// TestReadmeLauncher: the README's launcher boots Linux, which is the pod on the network; and the pod gets its network
// back, however the launcher ends.
func TestReadmeLauncher(t *testing.T) {
	nstest.Need(t, "unshare")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	if err := vm.Missing(); err != nil {
		nstest.Skip(t, "no guest can be booted: "+err.Error())
	}
	dir := nstest.Dir(t)
	program := filepath.Join(dir, "qemu")
	nstest.Run(t, "go", "build", "-o", program, "./qemu")
	boot, err := vm.NewDirectBoot(dir, "readme")
	if err != nil {
		t.Fatal(err)
	}
	n := nstest.NewNetwork(t)
	before := n.Pod.Settled()
	// The program's State lies in /run/guestwire.
	machine := exec.Command("unshare", "--mount", "sh", "-c", "mount -t tmpfs run /run && mkdir /run/guestwire && echo ready && exec cat")
	nstest.StartReady(t, "a machine with an empty /run", machine)
	var log nstest.Output
	launch := func() (launcher *exec.Cmd, ended chan error) {
		t.Helper()
		launcher = exec.Command("nsenter", "--mount", "--target", fmt.Sprint(machine.Process.Pid),
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
	if err := <-second; err == nil || !strings.Contains(log.String(), "another launcher has it") {
		t.Errorf("a second launcher: %v\n%s", err, log.String())
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

// TestReadmePrograms runs the first lines of the README's section "Programs" as they are, on a machine on which guestwire never
// ran.
func TestReadmePrograms(t *testing.T) {
	nstest.Need(t, "unshare")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	_, section, _ := strings.Cut(readme(t), "\n## Programs\n")
	var lines []string // of the section's first block
	for line := range strings.Lines(section) {
		command, ok := strings.CutPrefix(line, "    ")
		if ok {
			lines = append(lines, strings.TrimSpace(command))
		} else if len(lines) > 0 {
			break
		}
	}
	const until = "# until Ctrl-C"
	script := "set -euo pipefail; umount /etc/resolv.conf; mount -t tmpfs run /run; mount -t tmpfs bin /usr/local/bin; cd ..\n"
	served := false
	for _, line := range lines {
		script += "echo + '" + line + "'\n"
		if command, _, ok := strings.Cut(line, until); ok { // in the other shell
			served = true
			script += "coproc " + strings.TrimSpace(command) + " 2>&1; until read -r said <&${COPROC[0]} && echo \"$said\" && [[ $said == *'serving the guest'* ]]; do :; done\n"
			continue
		}
		if strings.HasPrefix(line, "agent teardown") {
			script += "kill -INT $COPROC_PID; wait $COPROC_PID\n"
		}
		script += line + "\n"
	}
	script += "[ -z \"$(ip -n pod link show type tun)\" ]; agent list; ip netns del pod; ip netns del world\n"
	if len(lines) < 8 || !served {
		t.Fatalf("the section has the lines %q", lines)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "bash", "-c", script)
	cmd.Env = append(os.Environ(), "PATH=/usr/local/bin:"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, want := range []string{`<target dev="eth0-tap" managed="no">`, "as recorded"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in:\n%s", want, out)
		}
	}
}
