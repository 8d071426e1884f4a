package examples_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// signalRow is a row of docs/reference/signals.md: what the signals do to each program.
type signalRow struct {
	signals []syscall.Signal
	does    map[string]string
}

func signalTable(t *testing.T) (rows []signalRow) {
	t.Helper()
	text, err := os.ReadFile("../docs/reference/signals.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "| signal |")
	if !ok {
		t.Fatal("signals.md has no table")
	}
	var names []string
	for line := range strings.Lines("| signal |" + table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i, c := range cells {
			cells[i] = strings.TrimSpace(c)
		}
		switch {
		case len(cells) < 2:
			return rows
		case names == nil:
			names = cells
		case !strings.HasPrefix(cells[0], "---"):
			r := signalRow{does: map[string]string{}}
			for name := range strings.SplitSeq(cells[0], ", ") {
				s := unix.SignalNum("SIG" + name)
				if s == 0 {
					t.Fatalf("%s is no signal", name)
				}
				r.signals = append(r.signals, s)
			}
			for i := 1; i < len(cells); i++ {
				r.does[names[i]] = cells[i]
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// scripted is a script in the place of QEMU or of another command. It notes in a file what reaches it: its process, the
// numbers of signals, and the power button. A signal but SIGWINCH ends it with 7, and the file FILE.end with 4.
const scripted = `fd=${*##*launcher-monitor,fd=}; fd=${fd%% *}
case $fd in [0-9]*) while read -r line <&$fd; do case $line in *powerdown*) echo button >>"$0";; esac; done >/dev/null 2>&1 & ;; esac
for s in 1 2 3 10 12 13 14 15 24 25 26 29 30; do trap "echo $s >>'$0'; exit 7" $s; done
trap "echo 28 >>'$0'" 28
echo process $$ >>"$0"
while [ ! -e "$0.end" ]; do sleep 0.02; done
exit 4`

// holding is a program that holds a guest, of the script.
type holding struct {
	t    *testing.T
	cmd  *exec.Cmd
	file string
	vmm  int // a pidfd of the script
	log  nstest.Output
}

// hold starts the command line, to which the script is added, in the namespace or in the test's own. Its file 3 is the
// namespace.
func hold(t *testing.T, in *nstest.Namespace, inside bool, line ...string) *holding {
	t.Helper()
	h := &holding{t: t, file: filepath.Join(nstest.Dir(t), "script")}
	if err := os.Chmod(filepath.Dir(h.file), 0o777); err != nil {
		t.Fatal(err)
	}
	h.cmd = exec.Command(line[0], append(line[1:], "sh", "-c", scripted, h.file)...)
	h.cmd.Stdout, h.cmd.Stderr, h.cmd.SysProcAttr = &h.log, &h.log, &syscall.SysProcAttr{Setpgid: true} // no terminal signals the script
	h.cmd.ExtraFiles = []*os.File{in.File}
	start := h.cmd.Start
	if inside {
		start = func() error { return netns.Do(in.File, h.cmd.Start) }
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if h.cmd.ProcessState == nil {
			h.cmd.Process.Kill()
			h.cmd.Wait()
		}
	})
	h.notes("process")
	text, err := os.ReadFile(h.file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	if h.vmm, err = unix.PidfdOpen(pid, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(h.vmm) })
	return h
}

func (h *holding) has(note string) bool {
	text, _ := os.ReadFile(h.file)
	return regexp.MustCompile(`(?m)^` + note + `\b`).Match(text)
}

// notes waits until the script notes something.
func (h *holding) notes(note string) {
	h.t.Helper()
	nstest.Eventually(h.t, func() error {
		if !h.has(note) {
			text, _ := os.ReadFile(h.file)
			return fmt.Errorf("the script notes %q, want %q\n%s", text, note, h.log.String())
		}
		return nil
	})
}

// send sends the signals, one after the other, and waits until the process has taken them.
func (h *holding) send(signals ...syscall.Signal) {
	h.t.Helper()
	for _, s := range signals {
		if err := h.cmd.Process.Signal(s); err != nil {
			h.t.Errorf("%v: %v", s, err)
		}
		nstest.Eventually(h.t, func() error { return taken(h.cmd.Process.Pid) })
	}
}

// taken is an error while a signal is pending.
func taken(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil && regexp.MustCompile(`(?m)^ShdPnd:\t0*[1-9a-f]`).Match(text) && !regexp.MustCompile(`State:\t[TZX]`).Match(text) {
		return fmt.Errorf("a signal is pending:\n%s", text)
	}
	return nil
}

// stopped waits until the process is stopped, and continues it.
func stopped(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	nstest.Eventually(t, func() error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err == nil && !strings.Contains(string(text), "State:\tT") {
			err = errors.New("the process is not stopped")
		}
		return err
	})
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Error(err)
	}
}

// end has the script end, and wants the program's status.
func (h *holding) end(status int) {
	h.t.Helper()
	if err := os.WriteFile(h.file+".end", nil, 0o644); err != nil {
		h.t.Fatal(err)
	}
	await(h.t, h.cmd, status)
}

// cut wants the program and its script to end at once, by the signal, and the script to get nothing before.
func (h *holding) cut(s syscall.Signal) {
	h.t.Helper()
	h.cmd.Wait()
	status := h.cmd.ProcessState
	// At SIGQUIT the Go runtime prints the goroutines' stacks, and exits with 2 unless it crashes at one that runs.
	atOnce := status.ExitCode() == 2 || strings.Contains(h.log.String(), "SIGQUIT: quit\nPC=")
	if s == syscall.SIGKILL {
		atOnce = status.ExitCode() == -1
	}
	if !atOnce {
		h.t.Errorf("it ended with %v at %v\n%s", status, s, h.log.String())
	}
	if h.vmm == 0 { // guestwire-launcher serve starts none
		return
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(h.vmm), Events: unix.POLLIN}}, 60_000); n != 1 {
		h.t.Errorf("the script is alive: %v", err)
	}
	if h.has("15") {
		h.t.Error("the script got SIGTERM")
	}
}

// TestSignals sends each signal of docs/reference/signals.md to each program.
func TestSignals(t *testing.T) {
	nstest.NeedRoot(t, "the programs serve taps of root's")
	nstest.Long(t)
	again := []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGPIPE, syscall.SIGALRM}
	agent, launcher := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-launcher")
	root := func(s *infra.Spec) { s.Owner = infra.Owner{Root: true} }

	// number is the signal as the script notes it.
	number := func(s syscall.Signal) string { return strconv.Itoa(int(s)) }
	// passes is what holds for a program that starts the script, but for the way in which it ends.
	passes := func(t *testing.T, h *holding, r signalRow, does string) {
		switch does {
		case "passed on":
			for _, s := range r.signals {
				h.send(s)
				h.notes(number(s))
			}
			if r.signals[0] != syscall.SIGWINCH {
				await(t, h.cmd, 7)
				return
			}
		case "nothing":
			h.send(r.signals...)
			h.send(syscall.SIGWINCH)
			h.notes("28")
			for _, s := range r.signals {
				if h.has(number(s)) {
					t.Errorf("the command gets %v", s)
				}
			}
		case "at once":
			h.send(r.signals...)
			h.cut(r.signals[0])
			return
		case "stops":
			h.send(r.signals...)
			stopped(t, h.cmd)
		default:
			t.Fatalf("what is %q?", does)
		}
		h.end(4)
	}
	programs := map[string]func(t *testing.T, n nstest.Network, r signalRow, does string){
		"guestwire-agent exec": func(t *testing.T, n nstest.Network, r signalRow, does string) {
			passes(t, hold(t, n.Pod, true, agent, "exec", "-uid", "0", "--"), r, does)
		},
		"guestwire-agent run": func(t *testing.T, n nstest.Network, r signalRow, does string) {
			before := n.Pod.Settled()
			passes(t, hold(t, n.Pod, false, agent, "run", "-netns", n.Pod.Path(), "-nic", "eth0", "-binding", "redirect", "-state", n.State, "-uid", "0", "--"), r, does)
			if does == "at once" { // the next one uses the wiring again
				hold(t, n.Pod, false, agent, "run", "-netns", n.Pod.Path(), "-nic", "eth0", "-binding", "redirect", "-state", n.State, "-uid", "0", "--").end(4)
			}
			nstest.Eventually(t, func() error { return nstest.Difference(before, n.Pod.Dump()) })
		},
		"guestwire-launcher qemu": func(t *testing.T, n nstest.Network, r signalRow, does string) {
			wire(t, n, infra.Redirect{}, root)
			line := []string{launcher, "qemu", "-shutdown", "1m", "-state", n.State, "--"}
			h := hold(t, n.Pod, true, line...)
			switch does {
			case "ends":
				h.send(r.signals...)
				h.notes("button")
				h.send(again...)
				h.send(r.signals...)
				if err := unix.Kill(-h.cmd.Process.Pid, r.signals[0]); err != nil { // as a terminal and timeout(1) do
					t.Error(err)
				}
				h.end(4) // and not with 7, by a signal
			case "at once":
				h.send(r.signals...)
				h.cut(r.signals[0])
				h = hold(t, n.Pod, true, line...)
				h.send(syscall.SIGTERM)
				h.notes("button")
				h.send(r.signals...)
				h.cut(r.signals[0])
			default:
				passes(t, h, r, does)
			}
			if h.has("button") != (does == "ends" || does == "at once") {
				t.Errorf("the power button was pressed, or not:\n%s", h.log.String())
			}
		},
		"guestwire-launcher serve": func(t *testing.T, n nstest.Network, r signalRow, does string) {
			wire(t, n, infra.Redirect{}, root)
			cmd := exec.Command(launcher, "serve", "-state", n.State)
			var log nstest.Output
			cmd.Stdout, cmd.Stderr = &log, &log
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // SIGTSTP does not stop an orphaned group, as this test's may be
			if err := netns.Do(n.Pod.File, cmd.Start); err != nil {
				t.Fatal(err)
			}
			h := &holding{t: t, cmd: cmd}
			defer cmd.Process.Kill() // if it is still there
			g := nstest.Boot(t, n.Pod.File, nstest.Record(t, n.State, "eth0"), "guest")
			served := func() {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if _, err := g.DHCPv4(ctx); err != nil {
					t.Errorf("the guest is not served: %v\n%s", err, log.String())
				}
			}
			served()
			h.send(r.signals...)
			switch does {
			case "ends":
				await(t, cmd, 0)
				if !strings.Contains(log.String(), "router-withdrawn") {
					t.Errorf("the end is not in order:\n%s", log.String())
				}
				return
			case "at once":
				h.cut(r.signals[0])
				if strings.Contains(log.String(), "router-withdrawn") {
					t.Errorf("the end is in order:\n%s", log.String())
				}
				return
			case "stops":
				stopped(t, cmd)
			case "nothing":
			default:
				t.Fatalf("what is %q?", does)
			}
			served()
			terminate(t, cmd, 0)
		},
		"examples/qemu": func(t *testing.T, n nstest.Network, r signalRow, does string) {
			before := n.Pod.Settled()
			h := hold(t, n.Pod, false, "unshare", "--mount", "sh", "-ec", `mount -t tmpfs -o mode=755 guestwire /run; mkdir /run/guestwire; exec "$@"`,
				"sh", nstest.Program(t, "examples/qemu"), "/proc/self/fd/3")
			h.send(r.signals...)
			switch does {
			case "ends":
				await(t, h.cmd, 1)
				h.notes("15")
			case "nothing":
				h.end(1)
				if h.has("15") {
					t.Error("QEMU got SIGTERM")
				}
			case "stops":
				stopped(t, h.cmd)
				h.end(1)
			case "at once":
				h.cut(r.signals[0])
				return
			default:
				t.Fatalf("what is %q?", does)
			}
			nstest.Eventually(t, func() error { return nstest.Difference(before, n.Pod.Dump()) })
		},
	}
	rows := signalTable(t)
	if len(rows) < 8 {
		t.Fatalf("%d rows", len(rows))
	}
	for program, try := range programs {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			for _, r := range rows {
				for _, one := range split(r, r.does[program]) {
					t.Run(unix.SignalName(one.signals[0]), func(t *testing.T) { try(t, nstest.NewNetwork(t), one, r.does[program]) })
				}
			}
		})
	}
}

// split returns a row for each signal that ends the program, and one for all that do not.
func split(r signalRow, does string) []signalRow {
	if does == "nothing" {
		return []signalRow{r}
	}
	var all []signalRow
	for _, s := range r.signals {
		all = append(all, signalRow{[]syscall.Signal{s}, r.does})
	}
	return all
}

// TestSignalsIgnored: what the parent ignores, as nohup(1) and a shell's background jobs do, stays ignored.
func TestSignalsIgnored(t *testing.T) {
	n := nstest.NewNetwork(t)
	wire(t, n, infra.Redirect{}, func(s *infra.Spec) { s.Owner = infra.Owner{Root: true} })
	launcher := []string{nstest.Program(t, "examples/guestwire-launcher"), "qemu", "-shutdown", "1m", "-state", n.State, "--"}
	for _, line := range [][]string{launcher, append([]string{nstest.Program(t, "examples/guestwire-agent"), "exec", "-uid", "0", "--"}, launcher...)} {
		h := hold(t, n.Pod, true, append([]string{"sh", "-c", `trap "" HUP INT; exec "$@"`, "sh"}, line...)...)
		h.send(syscall.SIGHUP, syscall.SIGINT)
		h.end(4)
		if h.has("button") {
			t.Error("the guest was asked to shut down")
		}
	}
}
