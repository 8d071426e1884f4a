package examples_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// withVerbs are the programs of package commandline.
var withVerbs = []string{"guestwire-agent", "guestwire-launcher", "guestwire-exporter", "guestwire-node"}

// TestHelp80: the help of each program and verb fits into 80 columns, and a verb's help begins with an example.
func TestHelp80(t *testing.T) {
	for _, name := range withVerbs {
		general := help(t, "examples/"+name, "-help")
		texts := map[string]string{"": general}
		for line := range strings.Lines(general) {
			words := strings.Fields(line)
			if !regexp.MustCompile("^  [a-z]+  +[a-z]").MatchString(line) || slices.Contains([]string{"completion", "man", "version"}, words[0]) {
				continue
			}
			text := help(t, "examples/"+name, "help", words[0])
			texts[words[0]] = text
			if _, after, _ := strings.Cut(text, "\n\n"); !strings.HasPrefix(after, "  "+name+" "+words[0]) {
				t.Errorf("%s help %s does not begin with an example:\n%s", name, words[0], text)
			}
		}
		if len(texts) < 4 && name != "guestwire-exporter" {
			t.Errorf("%s: %d helps", name, len(texts))
		}
		for verb, text := range texts {
			for line := range strings.Lines(text) {
				if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 {
					t.Errorf("%s help %s: longer than 80 columns: %s", name, verb, line)
				}
			}
		}
	}
}

// TestNearVerb: a mistyped verb or flag gets the one that was meant, which is one.
func TestNearVerb(t *testing.T) {
	for line, meant := range map[string]string{"guestwire-agent setpu": "setup", "guestwire-agent statsu": "status", "guestwire-agent help tear": "teardown", "guestwire-launcher quemu": "qemu", "guestwire-node instal": "install"} {
		folder, args, _ := strings.Cut(line, " ")
		out, status := run(t, nstest.Program(t, "examples/"+folder), strings.Fields(args)...)
		if status != 2 || !strings.Contains(out, "(did you mean "+meant+"?)") {
			t.Errorf("%s: status %d, want %s: %s", line, status, meant, out)
		}
		help(t, "examples/"+folder, "help", meant)
	}
	for line, meant := range map[string]string{"guestwire-agent setup -bindnig auto": "binding", "guestwire-agent status -ntens x": "netns", "guestwire-launcher serve -stat x": "state", "guestwire-agent forget -nics eth0": "nic"} {
		folder, args, _ := strings.Cut(line, " ")
		if out, status := run(t, nstest.Program(t, "examples/"+folder), strings.Fields(args)...); status != 2 || !strings.Contains(out, "(did you mean -"+meant+"?)") {
			t.Errorf("%s: status %d, want -%s: %s", line, status, meant, out)
		}
	}
	for _, line := range []string{"quantum", "setup -quantum"} {
		if out, _ := run(t, nstest.Program(t, "examples/guestwire-agent"), strings.Fields(line)...); strings.Contains(out, "did you mean") {
			t.Errorf("nothing is near: %s", out)
		}
	}
}

// TestVersionFlag: version, -version and --version print the same.
func TestVersionFlag(t *testing.T) {
	for _, name := range withVerbs {
		want := help(t, "examples/"+name, "version")
		if !strings.HasPrefix(want, name+" ") || !strings.Contains(want, "go1.") {
			t.Errorf("%s version: %q", name, want)
		}
		for _, flag := range []string{"-v", "-version", "--version"} {
			if out := help(t, "examples/"+name, flag); out != want {
				t.Errorf("%s %s: %q, want %q", name, flag, out, want)
			}
		}
	}
}

// TestCompletion: bash itself completes verbs, flags with one hyphen and with two, and their values.
func TestCompletion(t *testing.T) {
	nstest.Need(t, "bash")
	n, agent := nstest.NewNetwork(t), nstest.Program(t, "examples/guestwire-agent")
	path := n.Pod.Path()
	if out, status := run(t, agent, "setup", "-netns", path, "-nic", "eth0", "-binding", "redirect", "-uid", "107", "-state", n.State); status != 0 {
		t.Fatal(out)
	}
	dir := t.TempDir()
	if err := os.Symlink(agent, filepath.Join(dir, "guestwire-agent")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, c := range []struct {
		line string
		want []string
	}{
		{"guestwire-agent tea", []string{"teardown"}},
		{"guestwire-agent dr", []string{"drops"}},
		{"guestwire-agent setup -bi", []string{"-binding"}},
		{"guestwire-agent setup --bi", []string{"--binding"}},
		{"guestwire-agent setup -binding red", []string{"redirect"}},
		{"guestwire-agent setup --binding red", []string{"redirect"}},
		{"guestwire-agent setup -binding=red", []string{"redirect"}},
		{"guestwire-agent setup -st", strings.Fields("-standby (at the first setu…) -state (the DIR of the re…)")},
		{"guestwire-agent setup -state /x -sta", []string{"-standby"}},
		{"guestwire-agent plan -netns " + path + " -nic e", []string{"eth0", "eth0-dhcp", "eth0-tap"}},
		{"guestwire-agent status -netns " + path + " -nic ", []string{"eth0"}},
		{"guestwire-agent status -netns " + path[:len(path)-1], []string{path}},
		{"guestwire-agent exec -uid 0 -- l", nil},
	} {
		// The function is bash-completion's, as far as a line without quotes needs it.
		out, err := exec.Command("bash", "-c", `line=$1
_init_completion() {
	COMPREPLY=() cur=${line##* }
	read -ra words <<<"$line"
	[ -n "$cur" ] || words+=("")
	cword=$((${#words[@]} - 1)) prev=${words[cword - 1]}
}
source <(guestwire-agent completion bash)
COLUMNS=30 COMP_TYPE=9 __start_guestwire-agent
printf '%s\n' "${COMPREPLY[@]}"`, "bash", c.line).Output() // compopt says on standard error that no shell completes
		if got := strings.Fields(string(out)); err != nil || strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("%s: %q, %v, want %q", c.line, got, err, c.want)
		}
	}
	if out, _ := run(t, agent, "__complete", "setup", "-config", "/srv/a=b"); out != ":0\n" {
		t.Errorf("a file's name with =: %q, want files", out)
	}
}

// TestLauncherLog: -log appends to a file in place of standard error, and -quiet leaves out what is as it should be.
func TestLauncherLog(t *testing.T) {
	n := nstest.NewNetwork(t)
	wire(t, n, infra.Redirect{}, func(s *infra.Spec) { s.Owner = infra.Owner{Root: true} })
	file := filepath.Join(n.State, "log")
	g := nstest.Boot(t, n.Pod.File, nstest.Record(t, n.State, "eth0"), "guest")
	serve := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(nstest.Program(t, "examples/guestwire-launcher"), append([]string{"serve", "-state", n.State}, args...)...)
		var said nstest.Output
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := netns.Do(n.Pod.File, cmd.Start); err != nil {
			t.Fatal(err)
		}
		defer cmd.Process.Kill() // if it is still there
		if _, err := g.DHCPv4(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err, said.String())
		}
		return said.String()
	}
	for range 2 {
		if said := serve("-log", file); said != "" {
			t.Errorf("standard error has %q", said)
		}
	}
	text, err := os.ReadFile(file)
	if got := strings.Count(string(text), "router-withdrawn"); err != nil || got != 2 {
		t.Errorf("the file says of %d ends, want 2: %v\n%s", got, err, text)
	}
	if said := serve("-quiet"); said != "" {
		t.Errorf("-quiet: %s", said)
	}
	fifo := filepath.Join(n.State, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, n.State, n.State + "/none/log"} {
		if out, status := run(t, nstest.Program(t, "examples/guestwire-launcher"), "serve", "-state", n.State, "-log", path); status != 2 || !strings.Contains(out, "guestwire-launcher: -log: open "+path) {
			t.Errorf("-log %s: status %d: %s", path, status, out)
		}
	}
}

// TestLogRotation: logrotate gives the log of -log and the events another file, by copytruncate, or the log by a new
// file and SIGHUP, also to guestwire-agent exec. The guest is served, and no line is lost, twice or cut.
func TestLogRotation(t *testing.T) {
	nstest.NeedRoot(t, "logrotate wants files of root")
	nstest.Need(t, "logrotate")
	const hup = "create\npostrotate\nkill -HUP $(cat DIR/pid)\nendscript"
	agent, launcher := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-launcher")
	for how, test := range map[string]struct {
		before string // the launcher
		rotate string
		files  []string
		first  string // in the new log
	}{
		"copytruncate":                {"", "copytruncate", []string{"log", "events"}, ""},
		"create, and HUP":             {"", hup, []string{"log"}, "the log was opened again"},
		"HUP to guestwire-agent exec": {agent + " exec -uid 0 --", hup, []string{"log"}, "the log was opened again"},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			n := nstest.NewNetwork(t)
			wire(t, n, infra.Redirect{}, func(s *infra.Spec) { s.Owner = infra.Owner{Root: true} })
			g := nstest.Boot(t, n.Pod.File, nstest.Record(t, n.State, "eth0"), "guest")
			dir := nstest.Dir(t)
			cmd := exec.Command("sh", "-c", fmt.Sprintf("echo $$ >%s/pid; exec %s %s serve -state %s -log %[1]s/log -events >>%[1]s/events", dir, test.before, launcher, n.State))
			var said nstest.Output
			cmd.Stderr = &said
			if err := netns.Do(n.Pod.File, cmd.Start); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill() // if it is still there
			config := "su root root\n"
			for _, file := range test.files {
				config += filepath.Join(dir, file) + " {\nrotate 9\n" + strings.ReplaceAll(test.rotate, "DIR", dir) + "\n}\n"
			}
			if err := os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o644); err != nil {
				t.Fatal(err)
			}
			leases := func(file string) (n int) {
				text, err := os.ReadFile(filepath.Join(dir, file))
				if err != nil || strings.ContainsRune(string(text), 0) {
					t.Fatalf("%s: %v, %q", file, err, text)
				}
				return strings.Count(string(text), "dhcpv4-leased")
			}
			for round := range 3 {
				if _, err := g.DHCPv4(t.Context()); err != nil {
					t.Fatal(err, said.String())
				}
				for _, file := range test.files {
					nstest.Eventually(t, func() error {
						if got := leases(file); got != 1 {
							return fmt.Errorf("round %d: %s says of %d leases, want 1", round, file, got)
						}
						return nil
					})
				}
				if out, err := exec.Command("logrotate", "--force", "--state", filepath.Join(dir, "state"), filepath.Join(dir, "config")).CombinedOutput(); err != nil {
					t.Fatal(err, string(out))
				}
				nstest.Eventually(t, func() error {
					if text, err := os.ReadFile(filepath.Join(dir, "log")); err != nil || !strings.Contains(string(text), test.first) {
						return fmt.Errorf("the new log is %q, %v; want %q", text, err, test.first)
					}
					return nil
				})
				for _, file := range test.files {
					if got := leases(file + ".1"); got != 1 {
						t.Errorf("round %d: %s.1 says of %d leases, want 1", round, file, got)
					}
				}
			}
			// A log that cannot be opened again stays where it is.
			log, old := filepath.Join(dir, "log"), filepath.Join(dir, "old")
			if err := errors.Join(os.Rename(log, old), os.Mkdir(log, 0o755)); err != nil {
				t.Fatal(err)
			}
			if test.rotate == hup {
				if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
					t.Fatal(err)
				}
				nstest.Eventually(t, func() error {
					if text, err := os.ReadFile(old); err != nil || !strings.Contains(string(text), "stays in the old file") {
						return fmt.Errorf("%v, %s", err, text)
					}
					return nil
				})
			}
			if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil || said.String() != "" {
				t.Error(err, said.String())
			}
			if text, err := os.ReadFile(old); err != nil || !strings.Contains(string(text), "router-withdrawn") {
				t.Errorf("the end is not in the log: %v\n%s", err, text)
			}
		})
	}
}

// TestManual: the manual page has each verb with its flags, and no line of its text is taken for a request (man(7)).
func TestManual(t *testing.T) {
	for _, name := range withVerbs {
		page := help(t, "examples/"+name, "man")
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !regexp.MustCompile(`^\.(TH .*|SH [A-Z ]+|PP|EX|EE)\n$`).MatchString(line) {
				t.Errorf("%s man: %q is a request", name, line)
			}
		}
		for heading, words := range map[string][]string{
			"EXIT STATUS": {"0: done", "1: failed", "2: a flag"},
			"SEE ALSO":    {"docs/reference/commands.md", "docs/reference/exit-codes.md", "docs/reference/cni.md"},
		} {
			if heading == "SEE ALSO" {
				for _, other := range withVerbs {
					if other != name {
						words = append(words, other+"(8)")
					}
				}
			}
			_, section, _ := strings.Cut(strings.ReplaceAll(page, `\-`, "-"), "\n.SH "+heading+"\n")
			section, _, _ = strings.Cut(section, "\n.SH ")
			for _, word := range words {
				if !strings.Contains(section, word) {
					t.Errorf("%s man: %s lacks %q: %q", name, heading, word, section)
				}
			}
			if strings.Contains(section, name+"(8)") {
				t.Errorf("%s man: %s names the page itself", name, heading)
			}
		}
		if strings.Contains(page, ".SH MORE\n.SH") || strings.Count(page, "The exit code is 0") != 1 {
			t.Errorf("%s man: MORE is empty, or has the exit codes again", name)
		}
		if strings.Count(page, ".EX\n") != strings.Count(page, ".EE\n") {
			t.Errorf("%s man: a text that is set in does not end", name)
		}
		for _, m := range regexp.MustCompile(`(?m)^  ([a-z]+)  +[a-z]`).FindAllStringSubmatch(help(t, "examples/"+name, "-help"), -1) {
			if verb := m[1]; !slices.Contains([]string{"completion", "man", "version", "help"}, verb) {
				_, section, found := strings.Cut(page, "\n.SH "+strings.ToUpper(verb)+"\n")
				section, _, _ = strings.Cut(section, "\n.SH ")
				for _, f := range regexp.MustCompile(`(?m)^  -([a-z-]+)`).FindAllStringSubmatch(help(t, "examples/"+name, "help", verb), -1) {
					if flag := `  \-` + strings.ReplaceAll(f[1], "-", `\-`); !found || !strings.Contains(section, "\n"+flag) {
						t.Errorf("%s man: %s lacks %s", name, verb, flag)
					}
				}
			}
		}
	}
}

// TestLauncherLogOfFailure: with -log, why the launcher fails is on standard error, and in the file as well.
func TestLauncherLogOfFailure(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "log")
	for _, line := range []string{"serve", "qemu"} {
		args := []string{line, "-state", dir + "/none", "-log", file}
		if line == "qemu" {
			args = append(args, "--", "true")
		}
		out, status := run(t, nstest.Program(t, "examples/guestwire-launcher"), args...)
		text, err := os.ReadFile(file)
		if status != 1 || err != nil || !strings.Contains(out, "guestwire-launcher: ") || !strings.HasSuffix(string(text), out) {
			t.Errorf("%s: status %d, %q; the file has %q, %v", line, status, out, text, err)
		}
	}
}
