package examples_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/frames"
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
		p.ran = append(p.ran, "guestwire-launcher serve")
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
	// gone: guestwire-agent list says so of it, once no program that another test starts has copies of its files.
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
	// strange-guest: a guest with another MAC asks for an address until the launcher says the row's text. declining-guest
	// declines its address. A frame stands for the VM, which takes long to boot.
	"strange-guest": func(p *trial, _ bool, _ []string) {
		p.speak(stranger, nil)
	},
	"declining-guest": func(p *trial, _ bool, _ []string) {
		mac := p.record().MAC
		decline := append([]byte{1, 1, 6, 0}, make([]byte, 232)...)
		copy(decline[28:], mac[:])
		p.speak(mac, append(decline, 99, 130, 83, 99, 53, 1, 4, 255))
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

// TestTroubleshooting runs each script. It makes a fault, and wants the text of its first line, and the repair to help.
// Each row of the document has a script, which types the row's commands. A text without a row says itself what to do.
func TestTroubleshooting(t *testing.T) {
	nstest.Need(t, "flock")
	left := scripts(t, "testdata/troubleshooting")
	rows := map[string]map[string]string{}
	for _, row := range tables(t, troubleshooting) {
		if cell, ok := row["says"]; ok {
			text := strings.Trim(quoted.FindString(cell), "`")
			if left[text] == "" {
				t.Errorf("%q of the document has no script", text)
			}
			rows[text] = row
		}
	}
	for text, file := range left {
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
				for _, m := range quoted.FindAllStringSubmatch(rows[text][name], -1) {
					p.wantRun(m[1])
				}
			}
		})
	}
}

// TestDoctor makes faults, wants guestwire-agent doctor to say the text in the script's first line, and its way out to
// help.
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
	for _, program := range []string{"guestwire-agent", "guestwire-launcher", "guestwire-exporter", "ip"} {
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
	if !slices.Contains([]string{"guestwire-agent", "guestwire-launcher", "ip", "nft"}, words[0]) {
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

// speak sends DHCPv4 from the guest's tap, with the source MAC, until the launcher says the row's text.
func (p *trial) speak(from cache.MAC, message []byte) {
	port := p.guestTap()
	defer port.Close()
	l := frames.Link{MAC: from}
	f := l.Packet(unix.IPPROTO_UDP, netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{255, 255, 255, 255}), frames.Datagram(68, 67, message))
	nstest.Eventually(p.t, func() error {
		if _, err := port.Write(f); err != nil && !errors.Is(err, unix.EIO) {
			return err
		}
		return p.says(p.started["launcher"].Output.String(), p.text)
	})
}

// TestDelegatedShown: status names the prefixes that a router in the guest gets.
func TestDelegatedShown(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	p := &trial{t: t, n: nstest.NewNetwork(t)}
	p.config(0, fmt.Sprintf(`{"binding": {"redirect": {}}, "owner": {"uid": %d}, "guard": {"prefixes": ["2001:db8:9::/56", "2001:db8:9:1::/64", "fe80::/64"]}}`, nstest.LauncherUID))
	out := p.agent(0, "status")
	if shown := regexp.MustCompile(`(?m)^delegated .*$`).FindAllString(out, -1); len(shown) != 1 || !strings.HasPrefix(shown[0], "delegated  2001:db8:9::/56, ") {
		t.Errorf("status names %q as delegated:\n%s", shown, out)
	}
}
