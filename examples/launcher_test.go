package examples_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// underLauncher is a command as which the launcher runs QEMU, in the pod's namespace and as the taps' owner.
func underLauncher(t *testing.T, n nstest.Network, command ...string) *exec.Cmd {
	t.Helper()
	return launcherWith(t, n, nil, command...)
}

// launcherWith is underLauncher with further flags of the launcher.
func launcherWith(t *testing.T, n nstest.Network, flags []string, command ...string) *exec.Cmd {
	t.Helper()
	args := slices.Concat([]string{"exec", "-netns", n.Pod.Path()}, nstest.OwnerFlags(), []string{"--", nstest.Program(t, "examples/guestwire-launcher"), "qemu", "-events", "-state", n.State}, flags, []string{"--"}, command)
	return exec.Command(nstest.Program(t, "examples/guestwire-agent"), args...)
}

// wire sets the pod up for the launcher.
func wire(t *testing.T, n nstest.Network, b infra.Binding, change func(*infra.Spec)) {
	t.Helper()
	spec := infra.Spec{Binding: b, State: n.State, Owner: nstest.Owner(), DNS: &cache.DNS{}}
	if change != nil {
		change(&spec)
	}
	if _, err := (phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}).Setup(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

// describe is in QEMU's place: it prints its arguments and the files that it inherited, and ends with 7.
const describe = `for arg; do echo "argument $arg"; done
for fd in 3 4 5; do [ -e /proc/self/fd/$fd ] && echo "file $(readlink /proc/self/fd/$fd)"; done
echo complaint >&2
exit 7`

// TestQEMUArguments: QEMU gets its devices and taps when the guest is served, and the launcher ends with QEMU's status.
func TestQEMUArguments(t *testing.T) {
	n := nstest.NewNetwork(t)
	wire(t, n, infra.Bridge{}, func(s *infra.Spec) { s.Queues = 2; s.Device.BootOrder = 1 })
	for range 2 { // the taps are free again
		cmd := underLauncher(t, n, "sh", "-c", describe, "qemu", "-m", "1G")
		out, err := cmd.Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 7 {
			t.Fatalf("%v, %s\n%s; want status 7", err, out, exit.Stderr)
		}
		var events, rest []string
		for line := range strings.Lines(string(out)) {
			var e struct{ Event string }
			if json.Unmarshal([]byte(line), &e) == nil {
				events = append(events, e.Event)
			} else {
				rest = append(rest, strings.TrimSpace(line))
			}
		}
		if len(events) < 2 || events[0] != "attached" || events[len(events)-1] != "router-withdrawn" {
			t.Errorf("events %q", events)
		}
		want := []string{
			"argument -m", "argument 1G",
			"argument -netdev", "argument tap,id=eth0-netdev,fds=3:4",
			"argument -device", "argument virtio-net-pci-non-transitional,id=eth0,bootindex=1,host_mtu=1450,mac=", // and more
			"file /dev/net/tun", "file /dev/net/tun",
		}
		if len(rest) != len(want) {
			t.Fatalf("%q, want %q", rest, want)
		}
		for i := range rest {
			if !strings.HasPrefix(rest[i], want[i]) {
				t.Errorf("%q, want %q", rest[i], want[i])
			}
		}
		if !strings.Contains(string(exit.Stderr), "complaint") || !strings.Contains(string(exit.Stderr), `status="exit status 7"`) {
			t.Errorf("standard error: %s", exit.Stderr)
		}
	}
}

// TestQEMUStandby: on standby QEMU can only wait for the guest of the other side.
func TestQEMUStandby(t *testing.T) {
	n := nstest.NewNetwork(t)
	c := wired.NIC{NIC: phase1.NIC{NetNS: n.Pod.File, Name: "eth0"}, Moving: phase1.Moving{Standby: true}, Spec: infra.Spec{Binding: infra.Redirect{}, State: n.State, Owner: nstest.Owner(), DNS: &cache.DNS{}}}
	if _, err := c.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	start := func(want int, text string, args ...string) {
		t.Helper()
		cmd := underLauncher(t, n, append([]string{"sh", "-c", describe, "qemu"}, args...)...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != want || !strings.Contains(string(out), text) {
			t.Errorf("%v with %q: %v, want status %d and %q\n%s", cmd.ProcessState, args, err, want, text, out)
		}
	}
	start(1, "NIC eth0 is on standby")
	start(7, "file /dev/net/tun", "-incoming", "defer")
	start(7, "file /dev/net/tun", "--incoming", "defer")
	if _, err := c.Activate(t.Context(), phase1.Other{Gone: true}); err != nil {
		t.Fatal(err)
	}
	start(7, "file /dev/net/tun")
}

// TestQEMUErrors: what cannot be started is reported, and the guest is not served then.
func TestQEMUErrors(t *testing.T) {
	nstest.Need(t, "qemu-system-x86_64", "passt")
	// Debian 12's QEMU and passt are too old. Where they are newer, stand-ins say what those say; internal/rig/guests
	// runs the newer ones.
	out, err := exec.Command("qemu-system-x86_64", "-version").Output()
	if err != nil {
		t.Fatal(err)
	}
	path := os.Getenv("PATH")
	if !strings.HasPrefix(string(out), "QEMU emulator version 7.") {
		programs := nstest.Dir(t)
		for name, script := range map[string]string{
			"qemu-system-x86_64": "#!/bin/sh\necho 'QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)'\n",
			"passt":              "#!/bin/sh\ncase \"$*\" in *--vhost-user*) echo \"passt: unrecognized option '--vhost-user'\" >&2; exit 1;; esac\nPATH=" + path + " exec passt \"$@\"\n",
		} {
			if err := os.WriteFile(filepath.Join(programs, name), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		path = programs + ":" + path
	}
	vhostUser := func(s *infra.Spec) { s.Binding, s.DNS = infra.Passt{VhostUser: true}, nil }
	shared := []string{"-object", "memory-backend-memfd,id=ram,share=on,size=64M", "-machine", "memory-backend=ram"}
	for _, test := range []struct {
		name    string
		change  func(*infra.Spec)
		command []string
		status  int
		text    string
	}{
		{"no such program", nil, []string{"/no/such/qemu"}, 1, "/no/such/qemu: no such file"},
		{"in the background", nil, []string{"true", "-daemonize"}, 2, "-daemonize: leave it out"},
		{"what QEMU cannot have", func(s *infra.Spec) { s.Device.LinkState = "down" }, []string{"true"}, 1, "device.linkState: down"},
		{"memory that is not shared", vhostUser, []string{"qemu-system-x86_64", "-m", "64"}, 1, "add -object memory-backend-memfd,id=ram,share=on,"},
		{"a QEMU that would crash", vhostUser, append([]string{"qemu-system-x86_64", "-m", "64"}, shared...), 1, "QEMU 7.2 crashes with it: use QEMU 10"},
		{"a passt that is too old", vhostUser, append([]string{"true"}, shared...), 1, "use a newer passt, such as Debian 13's"},
		{"no passt by shared memory", func(s *infra.Spec) { s.Binding, s.DNS = infra.Passt{}, nil }, []string{"sh", "-c", "exit 5"}, 5, "exit status 5"},
		{"killed", nil, []string{"sh", "-c", "kill -KILL $$"}, 128 + 9, "signal: killed"},
		{"no command", nil, nil, 2, "the command is missing: name it after --"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			wire(t, n, infra.Masquerade{}, test.change)
			cmd := underLauncher(t, n, test.command...)
			cmd.Env = append(os.Environ(), "PATH="+path)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != test.status || !strings.Contains(string(out), test.text) {
				t.Errorf("%v, %s; want status %d and %q", err, out, test.status, test.text)
			}
		})
	}
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		n := nstest.NewNetwork(t)
		wire(t, n, infra.Bridge{}, nil)
		first := startUnderLauncher(t, n, "sh", "-c", "echo ready; cat", "qemu")
		serving := exec.Command(nstest.Program(t, "examples/guestwire-launcher"), "qemu", "-state", n.State, "--", "true")
		var out nstest.Output
		serving.Stdout, serving.Stderr = &out, &out
		if err := netns.Do(n.Pod.File, serving.Start); err != nil {
			t.Fatal(err)
		}
		if err := serving.Wait(); err == nil || !strings.Contains(out.String(), "busy") {
			t.Errorf("%v, %s; want that the tap is busy", err, out.String())
		}
		first.end(t, 0)
	})
}

// TestQEMURecords: a record that comes or goes while QEMU runs is served or not, but QEMU's devices stay as they are,
// and the launcher says so.
func TestQEMURecords(t *testing.T) {
	n := nstest.NewNetwork(t)
	wire(t, n, infra.Bridge{}, nil)
	s := startUnderLauncher(t, n, "sh", "-c", "echo ready; cat", "qemu")
	dir, err := os.OpenRoot(n.State)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	says := func(text string) {
		t.Helper()
		nstest.Eventually(t, func() error {
			if !strings.Contains(s.log.String(), text) {
				return fmt.Errorf("want %q:\n%s", text, s.log.String())
			}
			return nil
		})
	}
	err = cache.Write(dir, cache.Record{Version: cache.Version, Name: "net1", Binding: cache.BindingBridge, Tap: "net1-tap", Queues: 1,
		MAC: cache.MAC{2, 0, 0, 0, 0, 9}, MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	says(`QEMU has no device for the new record: to plug one, start the launcher with -plug" nic=net1`)
	if err := cache.Remove(dir, "eth0"); err != nil {
		t.Fatal(err)
	}
	says(`QEMU keeps the device of the removed record" nic=eth0`)
	s.end(t, 0)
}

// TestQEMUNames: NICs have names that QEMU does not take as ids. Two with one id are refused, and another alias is the
// way out.
func TestQEMUNames(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	write := func(name, alias string) {
		t.Helper()
		err := cache.Write(dir, cache.Record{Version: cache.Version, Name: name, Binding: cache.BindingSRIOV, Queues: 1,
			MAC: cache.MAC{2, 0, 0, 0, 0, 7}, SRIOV: &cache.SRIOV{PCIAddress: "0000:03:10.1"}, Device: cache.Device{Alias: alias}})
		if err != nil {
			t.Fatal(err)
		}
	}
	start := func(status int, texts ...string) {
		t.Helper()
		out, got := run(t, nstest.Program(t, "examples/guestwire-launcher"), "qemu", "-state", dir.Name(), "--", "sh", "-c", describe, "qemu")
		for _, text := range texts {
			if got != status || !strings.Contains(out, text) {
				t.Errorf("status %d, want %d and %q:\n%s", got, status, text, out)
			}
		}
	}
	write("1net", "")
	write("_net", "")
	write("net-1", "")
	start(7, "vfio-pci,id=guestwire-device-1net,", "vfio-pci,id=guestwire-device-_net,", "vfio-pci,id=net-1,")
	write("_net", "net-1")
	start(1, `NICs _net and net-1 both have the id net-1 in QEMU: name another device.alias`)
	write("_net", "net-2")
	start(7, "vfio-pci,id=net-2,")
}

// TestQEMUWithoutTap: a virtual function needs no tap and no namespace, and brings no other NIC; what QEMU does not do
// for it is an error that says who does.
func TestQEMUWithoutTap(t *testing.T) {
	for _, test := range []struct {
		function cache.SRIOV
		status   int
		text     string
	}{
		{cache.SRIOV{PCIAddress: "0000:03:10.1"}, 7, "argument -nic\nargument none\nargument -device\nargument vfio-pci,id=eth0,host=0000:03:10.1,romfile=\n"},
		{cache.SRIOV{PCIAddress: "0000:03:10.1", Managed: true}, 1, "sriov.managed: "},
	} {
		dir, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		err = cache.Write(dir, cache.Record{Version: cache.Version, Name: "eth0", Binding: cache.BindingSRIOV, Queues: 1,
			MAC: cache.MAC{2, 0, 0, 0, 0, 7}, SRIOV: &test.function})
		if err != nil {
			t.Fatal(err)
		}
		out, status := run(t, nstest.Program(t, "examples/guestwire-launcher"), "qemu", "-state", dir.Name(), "--", "sh", "-c", describe, "qemu")
		said := logLine.ReplaceAllString(out, "") // the launcher's log comes between the lines of QEMU
		if status != test.status || !strings.Contains(said, test.text) {
			t.Errorf("%+v: status %d, want %d and %q:\n%s", test.function, status, test.status, test.text, out)
		}
	}
}

var logLine = regexp.MustCompile(`(?m)^time=.*\n`)

// started is a launcher with a QEMU that has said ready.
type started struct {
	*exec.Cmd
	in   io.Closer
	out  *bufio.Reader
	log  nstest.Output
	qemu int // a pidfd of the process in QEMU's place
	// ended: it had ended before it could be opened
	ended bool
}

// startUnderLauncher starts a command in QEMU's place, and waits until it says ready and its number.
func startUnderLauncher(t *testing.T, n nstest.Network, command ...string) *started {
	t.Helper()
	return startReady(t, underLauncher(t, n, command...))
}

// startReady starts a command of underLauncher or launcherWith.
func startReady(t *testing.T, cmd *exec.Cmd) *started {
	t.Helper()
	s := &started{Cmd: cmd}
	s.Stderr = &s.log
	s.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if s.in, err = s.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Process.Kill()
		s.Wait()
	})
	s.out = bufio.NewReader(out)
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			t.Fatalf("%v\n%s", err, s.log.String())
		}
		if strings.HasPrefix(line, "ready") {
			break
		}
	}
	var after string
	nstest.Eventually(t, func() error {
		var ok bool
		if _, after, ok = strings.Cut(s.log.String(), `msg="QEMU runs" process=`); !ok {
			return errors.New(s.log.String())
		}
		return nil
	})
	pid, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	s.qemu, err = unix.PidfdOpen(pid, 0)
	if s.ended = err == unix.ESRCH; s.ended {
		return s
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.qemu) })
	return s
}

// end closes the command's standard input, and wants the launcher's status.
func (s *started) end(t *testing.T, status int) string {
	t.Helper()
	s.in.Close()
	rest, err := io.ReadAll(s.out)
	if err != nil {
		t.Error(err)
	}
	s.Wait()
	if got := s.ProcessState.ExitCode(); got != status {
		t.Errorf("the launcher ended with %d, want %d:\n%s", got, status, s.log.String())
	}
	s.gone(t)
	return string(rest)
}

// gone wants the process in QEMU's place to end.
func (s *started) gone(t *testing.T) {
	t.Helper()
	nstest.Eventually(t, func() error {
		if !s.ended && unix.PidfdSendSignal(s.qemu, 0, nil, 0) == nil {
			return errors.New("QEMU is alive")
		}
		return nil
	})
}

// TestQEMUSignals: the launcher and QEMU end together, however one of them ends.
func TestQEMUSignals(t *testing.T) {
	nstest.Need(t)
	create := func(t *testing.T) nstest.Network {
		t.Parallel()
		n := nstest.NewNetwork(t)
		wire(t, n, infra.Bridge{}, nil)
		return n
	}
	t.Run("SIGTERM", func(t *testing.T) {
		s := startUnderLauncher(t, create(t), "sh", "-c", "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.1; done", "qemu")
		if err := s.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		rest := s.end(t, 5)
		bye, withdrawn := strings.Index(rest, "bye\n"), strings.Index(rest, "router-withdrawn")
		if bye < 0 || withdrawn < bye {
			t.Errorf("QEMU's end and the withdrawal of the router advertisements: %q", rest)
		}
	})
	t.Run("QEMU ignores SIGTERM", func(t *testing.T) {
		s := startUnderLauncher(t, create(t), "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done", "qemu")
		if err := s.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		s.end(t, 128+9)
	})
	t.Run("SIGKILL", func(t *testing.T) {
		s := startUnderLauncher(t, create(t), "sh", "-c", "echo ready; exec sleep 1000", "qemu")
		if err := s.Process.Kill(); err != nil {
			t.Error(err)
		}
		s.gone(t)
	})
}

// TestQEMUPasst: a passt that ends is reported at once, and started again if QEMU can connect again; else QEMU ends. A
// passt that a signal stops is reported. A script in QEMU's place says which version it is.
func TestQEMUPasst(t *testing.T) {
	nstest.Need(t, "passt")
	type step struct {
		signal syscall.Signal // 0: none
		event  string
	}
	const early = `kill -KILL $(cat $(echo "$*" | sed 's/.*addr.path=\([^, ]*\).*/\1/').pid)`
	const lost, back = `"event":"passt-lost","text":"passt has ended`, `"event":"passt-back","text":"passt runs again`
	for _, test := range []struct {
		name, version, does string
		steps               []step
		netdev              string // in QEMU's arguments
		status              int
	}{
		{"killed", "10.0.2", "", []step{{syscall.SIGKILL, lost}, {0, back}}, ",reconnect-ms=1000,", 0},
		{"killed twice", "9.2.0", "", []step{{syscall.SIGSYS, lost}, {0, back}, {syscall.SIGTERM, lost}, {0, back}}, ",reconnect-ms=1000,", 0},
		{"an older option", "8.2.2", "", []step{{syscall.SIGSYS, lost}, {0, back}}, ",reconnect=1,", 0},
		{"ends before QEMU connects", "10.0.2", early, []step{{0, lost}, {0, back}}, ",reconnect-ms=1000,", 0},
		{"QEMU cannot connect again", "7.2.22", "", []step{{syscall.SIGKILL, lost}}, ",server=off ", 1},
		{"ends before an old QEMU connects", "7.2.22", early, []step{{0, lost}}, ",server=off ", 1},
		{"stopped, and goes on", "7.2.22", "", []step{{syscall.SIGSTOP, "kill -CONT"}, {syscall.SIGCONT, "passt goes on"}}, ",server=off ", 0},
		{"stopped to the end", "10.0.2", "", []step{{syscall.SIGSTOP, "kill -CONT"}}, ",reconnect-ms=1000,", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			wire(t, n, infra.Passt{}, func(s *infra.Spec) { s.DNS = nil })
			temp := nstest.Dir(t)
			if err := os.Chown(temp, nstest.LauncherUID, nstest.LauncherUID); err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(temp, "qemu-system-x86_64")
			script := fmt.Sprintf("#!/bin/sh\n[ $1 = -version ] && echo 'QEMU emulator version %s' && exit\necho \"arguments $*\" >&2\n%s\necho ready\nexec cat\n", test.version, test.does)
			if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := underLauncher(t, n, program, "-m", "64")
			cmd.Env = append(os.Environ(), "TMPDIR="+temp)
			s := startReady(t, cmd)
			says := func(verb, want string) {
				t.Helper()
				if out, status := run(t, nstest.Program(t, "examples/guestwire-agent"), verb, "-netns", n.Pod.Path(), "-nic", "eth0"); verb == "status" && status != 0 || !strings.Contains(out, want) { // doctor looks at other tests' NICs too
					t.Errorf("agent %s: status %d, %s; want %q", verb, status, out, want)
				}
			}
			if test.does == "" {
				says("status", "passt      process ")
			}
			for _, step := range test.steps {
				if step.signal != 0 {
					files, err := filepath.Glob(temp + "/guestwire-passt-*/eth0.pid")
					if err != nil || len(files) != 1 {
						t.Fatal(files, err)
					}
					text, err := os.ReadFile(files[0])
					if err != nil {
						t.Fatal(err)
					}
					pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
					if err != nil {
						t.Fatal(err)
					}
					if err := syscall.Kill(pid, step.signal); err != nil {
						t.Fatal(err)
					}
				}
				line := ""
				for !strings.Contains(line, "passt-") {
					var err error
					if line, err = s.out.ReadString('\n'); err != nil {
						t.Fatalf("%v, want the event %q:\n%s", err, step.event, s.log.String())
					}
				}
				if !strings.Contains(line, `"nic":"eth0",`) || !strings.Contains(line, step.event) {
					t.Fatalf("%s, want %q", line, step.event)
				}
			}
			if test.status != 0 {
				s.gone(t) // by itself
			}
			s.end(t, test.status)
			says("status", "passt      none: start the VM")
			if test.name == "killed" {
				says("doctor", " none: start the VM") // with the columns of all that doctor looks at
			}
			log := s.log.String()
			if !strings.Contains(log, test.netdev) || (test.status != 0) != strings.Contains(log, "start the VM again") {
				t.Errorf("want %q in QEMU's arguments, and the way out if passt stays away:\n%s", test.netdev, log)
			}
		})
	}
}

// TestQEMUShutdown: with -shutdown the guest is asked to shut down by QMP, and is still served then. QEMU gets SIGTERM
// if that takes too long.
func TestQEMUShutdown(t *testing.T) {
	nstest.Need(t)
	// Scripts in QEMU's place. Each prints QMP's commands, as its guest gets them.
	const (
		monitor = `fd=${*##*launcher-monitor,fd=}; fd=${fd%% *}; echo "$*"; `
		obeys   = monitor + `echo ready; while read -r line <&$fd; do echo "got $line"; case $line in *system_powerdown*) exit 3;; esac; done`
		ignores = monitor + `trap 'echo bye; exit 5' TERM; echo '{"error": {"desc": "no guest is here"}}' >&$fd; echo ready; while :; do sleep 0.1; done`
	)
	for _, test := range []struct {
		name, limit, script string
		signal              bool
		status              int
		says                []string // on standard output, in this order
		log                 string
	}{
		{"shuts down", "1m", obeys, true, 3, []string{
			`got {"execute": "qmp_capabilities"}`, `got {"execute": "system_powerdown"}`, "router-withdrawn",
		}, "the guest is asked to shut down"},
		{"takes too long", "100ms", ignores, true, 5, []string{"bye", "router-withdrawn"}, "the guest has not shut down"},
		{"is refused", "100ms", ignores, true, 5, []string{"bye"}, "no guest is here"},
		{"ends by itself", "1m", monitor + "echo ready; read -r line; exit 4", false, 4, nil, "QEMU ended"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			wire(t, n, infra.Bridge{}, nil)
			s := startReady(t, launcherWith(t, n, []string{"-shutdown", test.limit}, "sh", "-c", test.script, "qemu"))
			if test.signal {
				if err := s.Process.Signal(syscall.SIGTERM); err != nil {
					t.Error(err)
				}
			}
			rest := s.end(t, test.status)
			for _, want := range test.says {
				_, after, ok := strings.Cut(rest, want)
				if !ok {
					t.Errorf("%q, want %q in this order", rest, test.says)
				}
				rest = after
			}
			if !strings.Contains(s.log.String(), test.log) {
				t.Errorf("%s\nwant %q", s.log.String(), test.log)
			}
		})
	}
	for given, want := range map[string]string{"-1s": "-shutdown -1s is negative", "50": "want a time with its unit, such as 50s"} {
		out, status := run(t, nstest.Program(t, "examples/guestwire-launcher"), "qemu", "-state", "/", "-shutdown", given, "--", "true")
		if status != 2 || !strings.Contains(out, want) {
			t.Errorf("-shutdown %s: status %d, %q; want 2 and %q", given, status, out, want)
		}
	}
}
