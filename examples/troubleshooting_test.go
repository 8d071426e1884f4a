package examples_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/cni/calls"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/frames"
	"github.com/guestwire/guestwire/internal/test/guest"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

// tables returns the rows of all tables of the document, by the text of the column in the table's header.
func tables(t *testing.T, path string) []map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]string
	var header []string
	for line := range strings.Lines(string(text)) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !ok {
			header = nil
			continue
		}
		cells := strings.Split(strings.TrimSuffix(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case header == nil:
			header = cells
		case len(cells) != len(header):
			t.Errorf("%s: %d cells, want %d: %s", path, len(cells), len(header), line)
		case cells[0] != "---":
			row := map[string]string{}
			for i, name := range header {
				row[name] = cells[i]
			}
			rows = append(rows, row)
		}
	}
	return rows
}

var quoted = regexp.MustCompile("`([^`]+)`")

// inOneLine makes output comparable with a cell of a table.
func inOneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// matches reports whether the output has the text of the document, in which "..." stands for anything.
func matches(text, output string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(inOneLine(text)), `\.\.\.`, ".*")
	return regexp.MustCompile(pattern).MatchString(inOneLine(output))
}

// trial is a NIC with a fault. The row of a table says what a command prints, and what was run.
type trial struct {
	t            *testing.T
	n            nstest.Network
	text         string // that a command of the row prints
	ran          []string
	said, healed bool

	script  *testscript.TestScript
	printed string // by the last command
	started map[string]*beside
	port    *os.File // the guest's tap
	guest   *guest.Guest
}

// beside is a program that runs beside the script.
type beside struct {
	*nstest.Process
	in io.Closer
}

// command runs a program, and notes it.
func (p *trial) command(want int, program string, args ...string) string {
	p.t.Helper()
	cmd := exec.Command(program, args...)
	if p.script != nil {
		cmd.Dir = p.script.MkAbs(".")
	}
	p.note(program, args)
	out, err := cmd.CombinedOutput()
	if p.printed = string(out); err != nil && cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	if status := cmd.ProcessState.ExitCode(); status != want {
		p.t.Fatalf("%s: status %d, want %d:\n%s", p.ran[len(p.ran)-1], status, want, out)
	}
	return p.printed
}

// note notes a command line, and that of the launcher in it.
func (p *trial) note(program string, args []string) {
	line := filepath.Base(program)
	for _, arg := range args {
		if filepath.Base(arg) == "launcher" {
			p.ran = append(p.ran, line)
			line = "launcher"
			continue
		}
		line += " " + arg
	}
	p.ran = append(p.ran, line)
}

// withDefaults returns the agent's arguments for the trial's NIC, its owner and its state directory, but for those that
// are there. What follows "--" is a command.
func (p *trial) withDefaults(args []string) []string {
	args, command := slices.Clone(args), []string(nil)
	if i := slices.Index(args, "--"); i >= 0 {
		args, command = args[:i:i], args[i:]
	}
	set := func(flag, value string, instead ...string) {
		for _, f := range append(instead, flag) {
			if slices.Contains(args, f) {
				return
			}
		}
		args = append(args, flag, value)
	}
	verb := args[0]
	if verb == "list" || verb == "help" {
		return args
	}
	if verb == "doctor" {
		set("-uid", strconv.Itoa(nstest.LauncherUID))
		return args
	}
	if verb != "forget" {
		set("-netns", p.n.Pod.Path())
	}
	if verb != "exec" {
		set("-nic", "eth0")
	}
	if verb == "setup" || verb == "run" {
		set("-binding", "bridge", "-config")
		set("-state", p.n.State)
	}
	if verb == "setup" || verb == "run" || verb == "exec" {
		set("-uid", strconv.Itoa(nstest.LauncherUID))
	}
	return append(args, command...)
}

// agent calls it for the trial's NIC.
func (p *trial) agent(want int, args ...string) string {
	p.t.Helper()
	return p.command(want, nstest.Program(p.t, "examples/agent"), p.withDefaults(args)...)
}

// config calls setup with a configuration.
func (p *trial) config(want int, text string) string {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return p.agent(want, "setup", "-config", path)
}

func (p *trial) record() cache.Record {
	p.t.Helper()
	return nstest.Record(p.t, p.n.State, "eth0")
}

// guestTap attaches to the guest's tap.
func (p *trial) guestTap() *os.File {
	p.t.Helper()
	return nstest.OpenTap(p.t, p.n.Pod.File, "eth0-tap")
}

// stranger is a MAC such as QEMU gives a guest if no MAC is named.
var stranger = cache.MAC{0x52, 0x54, 0, 0x12, 0x34, 0x56}

// attachAsQEMU attaches to the guest's tap as it is: tap.Open would remove an address filter.
func (p *trial) attachAsQEMU() *os.File {
	p.t.Helper()
	fd := -1
	nstest.Attach(p.t, p.n.Pod.File, func() (err error) {
		if fd, err = unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				unix.Close(fd)
			}
		}()
		ifr, err := unix.NewIfreq("eth0-tap")
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	})
	return os.NewFile(uintptr(fd), "eth0-tap")
}

// filterTap leaves an address filter on the tap, as a process does that has used the tap and ends.
func (p *trial) filterTap() {
	p.t.Helper()
	before := p.attachAsQEMU()
	defer before.Close()
	filter := struct {
		flags, count uint16
		address      cache.MAC
	}{count: 1, address: stranger}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, before.Fd(), unix.TUNSETTXFILTER, uintptr(unsafe.Pointer(&filter))); errno != 0 {
		p.t.Fatal(errno)
	}
	p.sends(before, make([]byte, 60)) // Serve leaves a tap alone that was never used
}

// receives reports whether the guest's tap gets a broadcast of the world.
func (p *trial) receives(within time.Duration) bool {
	p.t.Helper()
	end := time.Now().Add(within)
	for time.Now().Before(end) {
		p.n.World.IP("neigh flush dev pod")
		p.n.World.Exec("bash", "-c", "echo >/dev/udp/10.244.1.99/9")
		if err := p.port.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			p.t.Fatal(err)
		}
		if _, err := p.port.Read(make([]byte, 2000)); err == nil {
			return true
		}
	}
	return false
}

// txDropped is how many packets the kernel did not give to the tap's process.
func (p *trial) txDropped() (dropped int) {
	p.t.Helper()
	var links []struct {
		Stats struct{ TX struct{ Dropped int } } `json:"stats64"`
	}
	out, _ := stdout(p.t, "ip", "-n", p.n.Pod.Name, "-s", "-j", "link", "show", "eth0-tap")
	if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 {
		p.t.Fatalf("%v in\n%s", err, out)
	}
	return links[0].Stats.TX.Dropped
}

// boot starts the guest of the record, and wants it to get an address.
func (p *trial) boot() *guest.Guest {
	p.t.Helper()
	g := nstest.Boot(p.t, p.n.Pod.File, p.record(), "guest")
	if _, err := g.DHCPv4(p.t.Context()); err != nil {
		p.t.Error(err)
	}
	return g
}

// says wants a text in what was printed; a row's own text counts.
func (p *trial) says(printed, text string) error {
	if !matches(text, printed) {
		return fmt.Errorf("no %q in\n%s", text, printed)
	}
	p.said = p.said || text == p.text
	return nil
}

// check ends the test with an error.
func (p *trial) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// verbs are what a script of testdata/troubleshooting can say, in addition to the commands of testscript. not: a "!" is
// before it.
var verbs = map[string]func(p *trial, not bool, args []string){
	// agent, for the trial's NIC, ip, in its pod, launcher and exporter are commands; exits STATUS COMMAND wants another
	// status than 0 of one. pod COMMAND does what ip netns exec does, which has a mount namespace of its own: that would
	// keep other tests' namespaces.
	"exits": func(p *trial, _ bool, args []string) {
		want, err := strconv.Atoi(args[0])
		p.check(err)
		p.do(want, args[1:])
	},

	"pod": func(p *trial, _ bool, args []string) {
		p.note("ip", append([]string{"netns", "exec", p.n.Pod.Name}, args...))
		p.printed = p.n.Pod.Exec(args...)
	},
	"world": func(p *trial, _ bool, args []string) { p.n.World.Exec(args...) },

	// says [TEXT]: the last command printed it; without TEXT it is the row's. until NAME [TEXT]: the program prints it.
	// soon TEXT COMMAND: the command, if it is repeated.
	"says": func(p *trial, _ bool, args []string) {
		p.check(p.says(p.printed, cmp.Or(strings.Join(args, " "), p.text)))
	},
	// lacks TEXT: the last command did not print it.
	"lacks": func(p *trial, _ bool, args []string) {
		if text := strings.Join(args, " "); matches(text, p.printed) {
			p.t.Errorf("%q in\n%s", text, p.printed)
		}
	},
	"until": func(p *trial, _ bool, args []string) {
		nstest.Eventually(p.t, func() error {
			return p.says(p.started[args[0]].Output.String(), cmp.Or(strings.Join(args[1:], " "), p.text))
		})
	},
	"soon": func(p *trial, _ bool, args []string) {
		nstest.Eventually(p.t, func() error { p.do(0, args[1:]); return p.says(p.printed, args[0]) })
	},

	// start NAME COMMAND: a program beside the script. serve: the launcher. ended NAME: its input ends, and it ends well.
	// terminate NAME: it gets SIGTERM.
	"start": func(p *trial, _ bool, args []string) {
		words := p.words(args[1:])
		cmd := exec.Command(words[0], words[1:]...)
		in, err := cmd.StdinPipe()
		p.check(err)
		p.note(words[0], words[1:])
		p.started[args[0]] = &beside{p.n.Pod.StartCommand(cmd), in}
	},
	"serve": func(p *trial, _ bool, _ []string) {
		p.ran = append(p.ran, "launcher serve")
		p.started["launcher"] = &beside{Process: p.n.Serve(p.t, nstest.LauncherUID)}
		p.script.Setenv("PID", strconv.Itoa(p.started["launcher"].Process.Process.Pid))
	},
	"terminate": func(p *trial, _ bool, args []string) { p.started[args[0]].Stop(p.t) },
	"ended": func(p *trial, _ bool, args []string) {
		p.check(p.started[args[0]].in.Close())
		p.started[args[0]].Await(p.t)
	},

	// How a script ends: the guest gets an address; the wiring is as setup left it; there is none; none is left of a
	// namespace that is gone; or what the commands before it have shown.
	"leases": func(p *trial, _ bool, _ []string) {
		p.boot().Close()
		p.healed = true
	},
	"wired": func(p *trial, _ bool, args []string) {
		p.agent(0, append([]string{"check"}, args...)...)
		p.healed = true
	},
	"unwired": func(p *trial, _ bool, args []string) {
		p.agent(3, append([]string{"check"}, args...)...)
		p.healed = true
	},
	"forgotten": func(p *trial, _ bool, _ []string) {
		p.check(p.says(p.agent(0, "forget", "-state", p.n.State), "record "+p.n.State+"/eth0.json ... journal ..."))
		p.check(p.says(p.agent(0, "forget", "-state", p.n.State), "nothing is left"))
		p.healed = !strings.Contains(p.agent(0, "list"), p.n.State)
	},
	"healed": func(p *trial, _ bool, _ []string) { p.healed = true },

	// edit FILE FROM TO: the file keeps its mode.
	"edit": func(p *trial, _ bool, args []string) {
		text, err := os.ReadFile(args[0])
		p.check(err)
		if !bytes.Contains(text, []byte(args[1])) {
			p.t.Fatalf("no %q in %s:\n%s", args[1], args[0], text)
		}
		p.check(os.WriteFile(args[0], bytes.Replace(text, []byte(args[1]), []byte(args[2]), 1), 0))
	},

	// another-pod: $SOURCE; another-guest: wired there, with the record $RECORD. end-pod: the trial's pod loses its name.
	// gone: agent list says so of it, once no program that another test starts has copies of its files.
	"another-pod": func(p *trial, _ bool, _ []string) { p.anotherPod() },
	"another-guest": func(p *trial, _ bool, _ []string) {
		n := p.anotherPod()
		p.agent(0, "setup", "-netns", n.Pod.Path(), "-state", n.State)
		p.script.Setenv("RECORD", filepath.Join(n.State, "eth0.json"))
	},
	"end-pod": func(p *trial, _ bool, _ []string) { p.n.Pod.End() },
	"gone": func(p *trial, _ bool, _ []string) {
		nstest.Eventually(p.t, func() error {
			for line := range strings.Lines(p.agent(0, "list")) {
				if strings.Contains(line, p.n.State) && strings.Contains(line, "(gone)") {
					return nil
				}
			}
			return errors.New(p.printed)
		})
	},
	"read-only": func(p *trial, _ bool, args []string) {
		nstest.Run(p.t, "mount", "-t", "tmpfs", "-o", "ro,mode=755", "none", args[0])
		p.script.Defer(func() { nstest.Run(p.t, "umount", args[0]) })
	},
	"needs": func(p *trial, _ bool, args []string) {
		if args[0] == "root" {
			nstest.NeedRoot(p.t, "the test needs two users")
		} else if _, err := os.Stat(args[1]); err == nil {
			nstest.LeaveOut(p.t, "the machine has "+args[1])
		}
	},

	// tap open, attach (as QEMU, which leaves the tap's filter), filter, offload (each by a VM that has ended), close;
	// [!] tap receives; tap sends, as another station.
	"tap": func(p *trial, not bool, args []string) {
		switch args[0] {
		case "open":
			p.port = p.guestTap()
		case "attach":
			p.port = p.attachAsQEMU()
		case "close":
			p.check(p.port.Close())
		case "filter":
			p.filterTap()
		case "offload":
			vm := p.attachAsQEMU()
			p.check(errors.Join(unix.IoctlSetInt(int(vm.Fd()), unix.TUNSETOFFLOAD, unix.TUN_F_CSUM), vm.Close()))
		case "receives":
			before := p.txDropped()
			if not {
				if p.receives(2*time.Second) || p.txDropped() <= before {
					p.t.Errorf("the guest receives the world, or nothing was dropped: %d packets before, %d after", before, p.txDropped())
				}
			} else if !p.receives(time.Minute) {
				p.t.Error("the guest does not receive the world")
			}
		case "sends":
			l := p.link()
			l.MAC = stranger
			p.sends(p.port, l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5001))
		}
	},
	// strange-guest: a guest with another MAC asks for an address until the launcher says the row's text. A frame stands
	// for the VM, which takes long to boot.
	"strange-guest": func(p *trial, _ bool, _ []string) {
		port := p.guestTap()
		defer port.Close()
		nstest.Eventually(p.t, func() error {
			discover := slices.Concat([]byte{255, 255, 255, 255, 255, 255}, stranger[:], []byte{8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0},
				make([]byte, 4), []byte{255, 255, 255, 255}, []byte{0, 68, 0, 67, 0, 8, 0, 0})
			if _, err := port.Write(discover); err != nil && !errors.Is(err, unix.EIO) {
				return err
			}
			return p.says(p.started["launcher"].Output.String(), p.text)
		})
	},
	// guest boots; [!] guest pings its gateway.
	"guest": func(p *trial, not bool, args []string) {
		if args[0] == "boots" {
			p.guest = p.boot()
			p.script.Defer(func() { p.guest.Close() })
			return
		}
		ctx, cancel := p.t.Context(), context.CancelFunc(func() {})
		if not {
			ctx, cancel = context.WithTimeout(ctx, time.Second)
		}
		defer cancel()
		if _, err := p.guest.Ping(ctx, nstest.Gateway4); (err == nil) == not {
			p.t.Errorf("ping: %v", err)
		}
	},
}

func (p *trial) anotherPod() nstest.Network {
	n := nstest.NewNetwork(p.t)
	p.script.Setenv("SOURCE", n.Pod.Path())
	return n
}

// words returns a command of a script as it is typed: with the flags that the script leaves out, and programs' paths.
func (p *trial) words(args []string) []string {
	switch args[0] {
	case "agent":
		args = append([]string{"agent"}, p.withDefaults(args[1:])...)
	case "ip":
		args = append([]string{"ip", "-n", p.n.Pod.Name}, args[1:]...)
	}
	args = slices.Clone(args)
	for i, arg := range args {
		if slices.Contains([]string{"agent", "launcher", "exporter"}, arg) {
			args[i] = nstest.Program(p.t, "examples/"+arg)
		}
	}
	return args
}

// do runs a command of a script.
func (p *trial) do(want int, args []string) {
	p.t.Helper()
	words := p.words(args)
	p.command(want, words[0], words[1:]...)
}

// link is the guest's link under bridge and redirect.
func (p *trial) link() frames.Link {
	r := p.record()
	l := frames.Link{MAC: r.MAC, IPv4: nstest.Pod4, IPv6: nstest.Pod6, Gateway4: nstest.Gateway4, Gateway6: nstest.Gateway6,
		Far4: nstest.Beyond4, Far6: nstest.Beyond6, Served: true, Gateway: cache.MAC{2, 0, 0, 0, 0, 1}}
	if r.Binding == cache.BindingMasquerade {
		l.IPv4, l.Gateway4 = netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("10.0.2.1")
		fmt.Sscanf(p.n.Pod.Exec("cat", "/sys/class/net/eth0-tap/address"), "%02x:%02x:%02x:%02x:%02x:%02x",
			&l.Gateway[0], &l.Gateway[1], &l.Gateway[2], &l.Gateway[3], &l.Gateway[4], &l.Gateway[5])
	}
	return l
}

// sends sends the frame from the guest. Its tap may be down for a moment.
func (p *trial) sends(port *os.File, frame []byte) {
	p.t.Helper()
	nstest.Eventually(p.t, func() error {
		_, err := port.Write(frame)
		return err
	})
}

const troubleshooting = "../docs/how-to/troubleshooting.md"

// scripts are the files of a directory, by the text in their first line.
func scripts(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(dir + "/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	byText := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		if byText[line] != "" {
			t.Errorf("%s and %s are about %q", byText[line], file, line)
		}
		byText[line] = file
	}
	return byText
}

// inTest runs a script in the test itself: it has the row's name.
type inTest struct{ *testing.T }

func (inTest) Parallel()                              {}
func (inTest) Verbose() bool                          { return false }
func (t inTest) Run(_ string, f func(t testscript.T)) { f(t) }

// TestTroubleshooting runs the script of each row of the document. It makes the fault, and wants the text that the row
// promises, and the repair to help.
func TestTroubleshooting(t *testing.T) {
	nstest.Need(t, "flock")
	left := scripts(t, "testdata/troubleshooting")
	for _, row := range tables(t, troubleshooting) {
		cell, ok := row["says"]
		if !ok {
			continue
		}
		text := strings.Trim(quoted.FindString(cell), "`")
		file := left[text]
		if file == "" {
			t.Errorf("%q of the document has no script", text)
			continue
		}
		delete(left, text)
		t.Run(strings.Map(wordsOnly, text), func(t *testing.T) {
			if !strings.Contains(text, tap.Device) {
				t.Parallel()
			} else { // which has one mode for all
				t.Cleanup(func() { os.Chmod(tap.Device, 0o666) })
			}
			p := &trial{t: t, n: nstest.NewNetwork(t), text: text, started: map[string]*beside{}}
			t.Log(file)
			p.runScript(file)
			if !p.said || !p.healed {
				t.Errorf("said: %v, healed: %v", p.said, p.healed)
			}
			for _, name := range []string{"fault", "command", "says", "why", "repair"} {
				for _, m := range quoted.FindAllStringSubmatch(row[name], -1) {
					p.wantRun(m[1])
				}
			}
		})
	}
	for text, file := range left {
		t.Errorf("%s is about %q, which is not in the document", file, text)
	}
}

// TestDoctor makes faults, wants agent doctor to say the text in the script's first line, and its way out to help.
func TestDoctor(t *testing.T) {
	nstest.Need(t)
	for text, file := range scripts(t, "testdata/doctor") {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			if strings.Contains(text, tap.Device) { // which has one mode for all
				t.Cleanup(func() { os.Chmod(tap.Device, 0o666) })
			} else {
				t.Parallel()
			}
			p := &trial{t: t, n: nstest.NewNetwork(t), text: text, started: map[string]*beside{}}
			p.runScript(file)
			if !p.said {
				t.Error("the script does not want its text")
			}
		})
	}
}

// runScript runs the script. Its variables: $POD and $WORLD are the paths of the namespaces, $STATE and $OTHER
// directories for the record, $LOCK is the namespace's lock; after setup $NETNS is its name, and $JOURNAL its journal.
func (p *trial) runScript(file string) {
	var pod unix.Stat_t
	if err := unix.Fstat(int(p.n.Pod.File.Fd()), &pod); err != nil {
		p.t.Fatal(err)
	}
	cmds := map[string]func(*testscript.TestScript, bool, []string){}
	add := func(name string, do func(p *trial, not bool, args []string)) {
		cmds[name] = func(ts *testscript.TestScript, not bool, args []string) {
			p.script = ts
			do(p, not, args)
			var record struct{ Namespace string }
			if text, err := os.ReadFile(filepath.Join(p.n.State, "eth0.json")); err == nil && json.Unmarshal(text, &record) == nil {
				ts.Setenv("NETNS", record.Namespace)
				ts.Setenv("JOURNAL", filepath.Join(phase1.DefaultDir, record.Namespace, "eth0.journal"))
			}
		}
	}
	for _, program := range []string{"agent", "launcher", "exporter", "ip"} {
		add(program, func(p *trial, _ bool, args []string) { p.do(0, append([]string{program}, args...)) })
	}
	for name, do := range verbs {
		add(name, do)
	}
	testscript.RunT(inTest{p.t}, testscript.Params{Files: []string{file}, Cmds: cmds, Setup: func(env *testscript.Env) error {
		for name, value := range map[string]string{
			"POD": p.n.Pod.Path(), "WORLD": p.n.World.Path(), "STATE": p.n.State, "OTHER": nstest.Dir(p.t),
			"NAME": p.n.Pod.Name, "UID": strconv.Itoa(nstest.LauncherUID), "STRANGER": strconv.Itoa(nstest.LauncherUID + 1),
			"VERSION": strconv.Itoa(cache.Version), "LOCK": filepath.Join(phase1.DefaultDir, fmt.Sprint(pod.Ino)),
		} {
			env.Setenv(name, value)
		}
		return nil
	}})
}

// wordsOnly makes the name of a subtest.
func wordsOnly(r rune) rune {
	if r == '/' || r == '`' {
		return '_'
	}
	return r
}

// wantRun wants a command of the document to have been run. Its words in capitals stand for others.
func (p *trial) wantRun(command string) {
	p.t.Helper()
	words := strings.Fields(command)
	if !slices.Contains([]string{"agent", "launcher", "ip", "nft"}, words[0]) {
		return
	}
	for i, w := range words {
		words[i] = regexp.MustCompile(`\b[A-Z]{3,}\b`).ReplaceAllString(regexp.QuoteMeta(w), `\S+`)
	}
	pattern := regexp.MustCompile("^" + strings.Join(words, "( .*)? ") + "( |$)")
	if !slices.ContainsFunc(p.ran, pattern.MatchString) {
		p.t.Errorf("%q of the document was not run, of\n%s", command, strings.Join(p.ran, "\n"))
	}
}

// TestTroubleshootingReasons wants the fields that loosen the filter, by the document, to help.
func TestTroubleshootingReasons(t *testing.T) {
	rows := tables(t, reference+"drop-reasons.md")
	other := netip.MustParseAddr("10.9.0.7")
	for _, c := range []struct {
		reason, field, before, after string
		frame                        func(l frames.Link) []byte
	}{
		{"mac-spoof", "guard.macs", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"macs": ["` + stranger.String() + `"]}`, func(l frames.Link) []byte {
			l.MAC = stranger
			return l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5001)
		}},
		{"ip-spoof", "guard.prefixes", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"prefixes": ["10.9.0.0/24"]}`, func(l frames.Link) []byte {
			return l.Ask(unix.IPPROTO_UDP, other, l.Far4, 5001)
		}},
		{"vlan-tag", "guard.vlans", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"vlans": [5]}`, func(l frames.Link) []byte {
			return slices.Insert(l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5001), 12, 0x81, 0x00, 0, 5)
		}},
		{"ethertype", "guard.etherTypes", `"binding": {"bridge": {}}`, `"binding": {"bridge": {}}, "guard": {"etherTypes": ["0x8863"]}`, func(l frames.Link) []byte {
			return slices.Concat(l.Gateway[:], l.MAC[:], []byte{0x88, 0x63}, make([]byte, 46))
		}},
		{"namespace-service", "guard.open", `"binding": {"masquerade": {}}`, `"binding": {"masquerade": {}}, "guard": {"open": ["22"]}`, func(l frames.Link) []byte {
			return l.Ask(unix.IPPROTO_TCP, l.IPv4, l.Gateway4, 22)
		}},
		{"rate-limit", "limits", `"binding": {"bridge": {}}, "limits": {"fromGuest": {"packetsPerSecond": 1}}`, `"binding": {"bridge": {}}`, func(l frames.Link) []byte {
			return l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5001)
		}},
		{"connection-limit", "maxConnections", `"binding": {"masquerade": {"maxConnections": 1}}`, `"binding": {"masquerade": {"maxConnections": 100}}`, func(l frames.Link) []byte {
			connections++
			return l.Ask(unix.IPPROTO_UDP, l.IPv4, l.Far4, 5000+connections)
		}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			p := &trial{t: t, n: nstest.NewNetwork(t)}
			p.config(0, "{"+c.before+"}")
			port := p.guestTap()
			defer port.Close()
			follow, line := exec.CommandContext(t.Context(), nstest.Program(t, "examples/agent"), "drops", "-netns", p.n.Pod.Path(), "-nic", "eth0"), " "+c.reason+" "
			if c.reason == "rate-limit" {
				follow.Args, line = append(follow.Args, "-json"), `","reason":"`+c.reason+`","text":"`
			}
			var followed, said nstest.Output
			follow.Stdout, follow.Stderr = &followed, &said
			follow.Cancel = func() error { return follow.Process.Signal(unix.SIGTERM) }
			if err := follow.Start(); err != nil {
				t.Fatal(err)
			}
			nstest.Eventually(t, func() error {
				p.sends(port, c.frame(p.link()))
				if !strings.Contains(followed.String(), line) {
					return fmt.Errorf("agent drops says\n%s", followed.String())
				}
				return nil
			})
			if err := follow.Process.Signal(unix.SIGTERM); err != nil {
				t.Error(err)
			}
			if err := follow.Wait(); err != nil || !strings.Contains(said.String(), "follows what is dropped") {
				t.Errorf("agent drops: %v, %s", err, said.String())
			}
			if out := p.agent(8, "status"); !matches("dropped ... packet...: "+c.reason, out) {
				t.Errorf("status says\n%s", out)
			}
			if out := p.agent(8, "status"); c.reason == "rate-limit" && !strings.Contains(out, "from the guest: 1 packet a second") {
				t.Errorf("status says\n%s", out)
			}
			i := slices.IndexFunc(rows, func(row map[string]string) bool { return row["reason"] == c.reason })
			if i < 0 || !strings.Contains(rows[i]["what to do"], c.field) {
				t.Errorf("the document does not name %s for %s", c.field, c.reason)
			}
			p.config(0, "{"+c.after+"}")
			dropped := func() string { return regexp.MustCompile(`\d+ packets?: ` + c.reason).FindString(p.agent(8, "status")) }
			before := dropped()
			for range 3 {
				p.sends(port, c.frame(p.link()))
			}
			if after := dropped(); after != before {
				t.Errorf("with %s, status says %s, and said %s", c.field, after, before)
			}
		})
	}
}

// connections numbers the guest's connections.
var connections uint16

// TestMetricsAreDocumented wants the metrics of the document to be those that the exporter prints.
func TestMetricsAreDocumented(t *testing.T) {
	p := &trial{t: t, n: nstest.NewNetwork(t)}
	config := filepath.Join(t.TempDir(), "egress.json")
	if err := os.WriteFile(config, []byte(`{"binding": {"routed": {}}, "egress": ["refuse all"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.agent(0, "setup", "-config", config)
	if err := calls.Count(t.Context(), phase1.DefaultDir, "ADD", 0, time.Second); err != nil {
		t.Fatal(err)
	}
	metrics := map[string]string{}
	for _, row := range tables(t, reference+"metrics.md") {
		if row["metric"] != "" && row["metric"] != "guestwire_pod_info" { // which guestwire-node serves
			metrics[row["metric"]] = row["meaning"]
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, nstest.Program(t, "examples/exporter")).Output()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, meaning, _ := strings.Cut(strings.TrimSpace(rest), " ")
			have[name] = meaning
		}
	}
	if !maps.Equal(have, metrics) {
		t.Errorf("the document has\n%v\nand the exporter\n%v", metrics, have)
	}
}
