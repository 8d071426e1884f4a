// Package tutorial types the commands of a Markdown page as its reader would, and compares what they print with what
// the page shows.
//
// For the author of a page: the reader is root, in a clone of the repository, in bash at a terminal. guestwire never
// ran on the machine: /run, /usr/local/bin and the home directory are empty. A fenced block is what its first line
// says:
//
//	```sh
//	ip netns add pod        commands. One that fails, fails the test; one with the comment "# fails" has to fail
//	```
//
//	```
//	2: eth0@if3: ...        all that these commands print. "..." in a line stands for any text, a line of
//	...                     "..." for any lines
//	```
//
// A command with the comment "# until Ctrl-C" goes on. It is the last one of its block, and the test waits for the
// output that the page shows next. The following blocks are typed into another shell, which starts in the clone. Where
// the text says "Press Ctrl-C", the command that goes on is interrupted, and has to end well.
//
// A command with the comment "# until poweroff" goes on, too, and shows a guest's console:
//
//	```console
//	~ # ip -br addr         typed into the guest when it shows the prompt "~ # ", "$ " or "(initramfs) "
//	...                     what the console shows then, compared as above
//	~ # poweroff -f         the first word is that of the comment: the command that goes on has to end well now
//	```
//
// Blocks of other languages are not typed. The shell's options are -e and -o pipefail. An install.sh of the laboratory
// installs what a page installs by apt-get.
package tutorial

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// maxWords is how long a page may be, outside of its code.
const maxWords = 350

// patience bounds the wait for one block's output. A page builds programs and boots emulated machines.
const patience = 10 * time.Minute

// TypePage types the page, a path in the repository, and fails if the page is too long.
func TypePage(t testing.TB, path string) {
	t.Helper()
	typePage(t, Read(t, path))
}

// Read returns the text of a page, a path in the repository. A page that is too long fails the test.
func Read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(nstest.Root(t), path))
	if err != nil {
		t.Fatal(err)
	}
	if _, words := parse(string(text)); words > maxWords {
		t.Errorf("%s has %d words outside of its code; at most %d", path, words, maxWords)
	}
	return string(text)
}

// typePage types the commands of the text of a page.
func typePage(t testing.TB, text string) {
	t.Helper()
	need(t)
	typeAt(t, text, here(t), true)
}

// need skips the test where TypePage cannot type.
func need(t testing.TB) {
	t.Helper()
	nstest.Need(t, "unshare", "nsenter")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "a page has several users")
}

// Shells returns a command that runs a script of bash in the reader's clone, with the reader's environment. A page has
// several shells if a command goes on.
type Shells func(script string) *exec.Cmd

// here are shells on this machine, as if guestwire had never run there.
func here(t testing.TB) Shells {
	t.Helper()
	dir, env := nstest.Root(t), Environment(t)
	var first *exec.Cmd
	return func(script string) *exec.Cmd {
		const fresh = "umount /etc/resolv.conf 2>/dev/null; mount -t tmpfs -o mode=755 run /run && mkdir -m 1777 /run/lock && " +
			"mount -t tmpfs -o mode=755 bin /usr/local/bin && "
		var cmd *exec.Cmd
		if first == nil {
			cmd = exec.Command("unshare", "--mount", "bash", "-c", fresh+script)
			first = cmd
		} else {
			cmd = exec.Command("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", first.Process.Pid), "--wd="+dir, "bash", "-c", script)
		}
		cmd.Dir, cmd.Env = dir, env
		return cmd
	}
}

// TypeAt is TypePage for the text of a page on another machine, which goes on when the page has ended.
func TypeAt(t testing.TB, text string, shells Shells) {
	t.Helper()
	typeAt(t, text, shells, false)
}

func typeAt(t testing.TB, text string, shells Shells, own bool) {
	t.Helper()
	blocks, _ := parse(text)
	var goesOn []*shell // those with a command that goes on
	current := open(t, shells, own)
	last := current // the one whose output the page shows next
	for i, b := range blocks {
		switch {
		case b.kind == "sh":
			match := until.FindStringSubmatch(b.lines[len(b.lines)-1])
			commands := fails.ReplaceAllString(strings.Join(b.lines, "\n"), "if { $0\n}; then false; fi")
			current.send(fmt.Sprintf("{ %s\n}; echo %s\n", commands, ended))
			last = current
			if match != nil {
				current.until = match[1]
				goesOn = append(goesOn, current)
				current = open(t, shells, own)
				break
			}
			output := last.take(b, regexp.MustCompile(`(?s)^(.*?)`+ended+`\n`))
			if i+1 < len(blocks) && blocks[i+1].kind == "" {
				if want := blocks[i+1]; !regexp.MustCompile(`^` + pattern(want.lines) + `$`).MatchString(output) {
					t.Fatalf("line %d: the page shows\n%s\nand the commands print\n%s", want.number, strings.Join(want.lines, "\n"), output)
				}
			}
		case b.kind == "" && last.until != "":
			last.take(b, regexp.MustCompile(`^(`+pattern(b.lines)+`)`))
		case len(goesOn) == 0 && b.kind != "":
			t.Fatalf("line %d: no command goes on", b.number)
		case b.kind == "console":
			last = goesOn[len(goesOn)-1]
			if last.converse(b) {
				goesOn = goesOn[:len(goesOn)-1]
			}
		case b.kind == press:
			last = goesOn[len(goesOn)-1]
			goesOn = goesOn[:len(goesOn)-1]
			last.send("\x03")
			last.end(b)
		case b.kind == "" && (i == 0 || blocks[i-1].kind != "sh"):
			t.Fatalf("line %d: no command prints this output", b.number)
		}
	}
	for _, s := range goesOn {
		t.Errorf("the page leaves a command that goes on until %s", s.until)
	}
}

// press is the kind of a block that interrupts a command. It has no lines.
const press = "Press Ctrl-C"

// until finds the comment of a command that goes on.
var until = regexp.MustCompile(`# until ([\w-]+)`)

// fails finds a command that has to fail.
var fails = regexp.MustCompile(`(?m)^.*# fails.*$`)

// ended is what a shell prints once its commands have ended. The shell does not see the word as the console of a guest
// does.
const ended = "commands-have-ended"

// block is a fenced one, or a press.
type block struct {
	kind   string // the language; "": output
	lines  []string
	number int // of its first line in the page
}

// parse returns what is typed and shown, and the number of words outside of code.
func parse(text string) (blocks []block, words int) {
	fenced := false
	for number, line := range strings.Split(text, "\n") {
		if info, ok := strings.CutPrefix(line, "```"); ok {
			if fenced = !fenced; fenced {
				blocks = append(blocks, block{kind: info, number: number + 1})
			}
			continue
		}
		if fenced {
			b := &blocks[len(blocks)-1]
			b.lines = append(b.lines, line)
			continue
		}
		words += len(strings.Fields(line))
		if strings.Contains(line, press) {
			blocks = append(blocks, block{kind: press, number: number + 1})
		}
	}
	typed := blocks[:0]
	for _, b := range blocks {
		switch b.kind {
		case "sh", "console", press, "":
			typed = append(typed, b)
		}
	}
	return typed, words
}

// pattern returns a regular expression for the output that the lines show.
func pattern(lines []string) string {
	var p strings.Builder
	for _, line := range lines {
		if strings.TrimSpace(line) == "..." {
			p.WriteString(`(?:.*\n)*?`)
			continue
		}
		p.WriteString(strings.ReplaceAll(regexp.QuoteMeta(strings.TrimRight(line, " ")), `\.\.\.`, `.*`) + ` *\n`)
	}
	return p.String()
}

// shell is a shell at a terminal.
type shell struct {
	t        testing.TB
	terminal *os.File
	pid      int
	// mounts is its mount namespace, if the page's machine is the shell's own. While it is open, the kernel gives its
	// number to no other one.
	mounts *os.File
	until  string // if its command goes on

	mu   sync.Mutex
	text []byte        // what the terminal shows, less what the reader took
	more chan struct{} // closed and replaced when there is more
	done bool          // no more will come
}

// open opens a shell. The machine of an own one ends with it.
func open(t testing.TB, shells Shells, own bool) *shell {
	t.Helper()
	cmd := shells("stty -echo && echo " + ended + " && exec bash --norc --noprofile --noediting +H -e -o pipefail -i")
	master, terminal := nstest.Terminal(t)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	s := &shell{t: t, terminal: master, pid: cmd.Process.Pid, more: make(chan struct{})}
	var reading sync.WaitGroup
	reading.Go(s.read)
	t.Cleanup(func() {
		s.kill()
		s.mounts.Close() // nil: it has none
		cmd.Wait()
		reading.Wait()
	})
	s.end(block{})
	s.send("PS1= PS2=; echo " + ended + "\n")
	s.end(block{})
	if own {
		mounts, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		s.mounts = mounts
	}
	return s
}

// kill ends the shell with what runs at its terminal, and all processes of its own machine: a page that fails may leave
// a daemon.
func (s *shell) kill() {
	_ = exec.Command("pkill", "--signal", "KILL", "--session", strconv.Itoa(s.pid)).Run() // it may have ended
	if s.mounts == nil {
		return
	}
	own, err := s.mounts.Stat()
	if err != nil {
		s.t.Error(err)
		return
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		s.t.Error(err)
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		if of, err := os.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid)); err == nil && os.SameFile(of, own) { // else it has ended
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// aptConf lets a page install what is installed already, and leaves the machine as it is.
const aptConf = `APT::Get::Upgrade "false"; DPkg::Lock::Timeout "300";`

// Environment is the reader's: the machine's, with an empty home directory, and with what Go keeps in the real one.
func Environment(t testing.TB) []string {
	t.Helper()
	apt := filepath.Join(t.TempDir(), "apt.conf")
	if err := os.WriteFile(apt, []byte(aptConf), 0o644); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "HOME="+t.TempDir(), "APT_CONFIG="+apt,
		"PATH=/usr/local/bin:"+os.Getenv("PATH"), "TERM=vt100", "GUESTWIRE_SANDBOX=")
	variables := []string{"GOCACHE", "GOENV", "GOMODCACHE", "GOPATH"}
	values := strings.Split(nstest.Run(t, "go", append([]string{"env"}, variables...)...), "\n")
	for i, variable := range variables {
		env = append(env, variable+"="+values[i])
	}
	return env
}

// noise is what a terminal does not show as text: control sequences (ECMA-48), carriage returns, bells.
var noise = regexp.MustCompile("\x1b\\[[0-9;?=]*[A-Za-z]|\x1b[c78=>]|\r|\x07")

// read reads what the terminal shows until the last process there has ended.
func (s *shell) read() {
	buffer := make([]byte, 1<<14)
	for {
		n, err := s.terminal.Read(buffer)
		s.mu.Lock()
		s.text = noise.ReplaceAll(append(s.text, buffer[:n]...), nil)
		s.done = err != nil // EIO
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// send types the text.
func (s *shell) send(text string) {
	s.t.Helper()
	if _, err := s.terminal.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// take waits until the terminal shows the expression, takes that away, and returns the first group.
func (s *shell) take(b block, want *regexp.Regexp) string {
	s.t.Helper()
	leak.Allow(patience)
	late := time.After(patience)
	for {
		s.mu.Lock()
		text, more, done := bytes.Clone(s.text), s.more, s.done
		at := want.FindSubmatchIndex(text)
		if at != nil {
			s.text = s.text[at[1]:]
		}
		s.mu.Unlock()
		if at != nil {
			return string(text[at[2]:at[3]])
		}
		if done {
			s.t.Fatalf("line %d: the shell has ended in\n%s\nit shows\n%s", b.number, strings.Join(b.lines, "\n"), text)
		}
		select {
		case <-more:
		case <-late:
			s.t.Fatalf("line %d: the page has\n%s\nthe terminal does not show %q, but\n%s", b.number, strings.Join(b.lines, "\n"), want, text)
		}
	}
}

// end waits until the command that goes on has ended.
func (s *shell) end(b block) {
	s.t.Helper()
	s.until = ""
	s.take(b, regexp.MustCompile(`(?s)^(.*?)`+ended+`\n`))
}

// prompted splits a line into a prompt and what is typed there.
var prompted = regexp.MustCompile(`^(\S* ?[#$] |\(\w+\) )(.*)$`)

// converse types a block into the guest, and compares what its console shows. It reports whether the command that goes
// on has ended.
func (s *shell) converse(b block) bool {
	s.t.Helper()
	shown := []string{"..."} // boot messages, the rest of the block before
	for _, line := range b.lines {
		match := prompted.FindStringSubmatch(line)
		if match == nil {
			shown = append(shown, line)
			continue
		}
		s.take(b, regexp.MustCompile(`^(`+pattern(shown)+`\n*)`+regexp.QuoteMeta(match[1])+`$`))
		s.send(match[2] + "\n")
		if strings.HasPrefix(match[2], s.until) {
			s.end(b)
			return true
		}
		shown = []string{match[2]} // the guest shows what is typed
	}
	s.take(b, regexp.MustCompile(`^(`+pattern(shown)+`)`))
	return false
}
