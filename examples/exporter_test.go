package examples_test

import (
	"context"
	"encoding/json"
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
	"unicode"

	"github.com/guestwire/guestwire/examples/guestwire/calls"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestExporter: metrics are printed whole or not at all, and what could not be looked at is reported.
func TestExporter(t *testing.T) {
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	n.State += "/vm1"
	agent, exporter := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-exporter")
	dir := filepath.Join(nstest.Dir(t), "node")
	if out, status := run(t, exporter, "-dir", dir); status != 1 || !strings.Contains(out, dir) || strings.Contains(out, "guestwire_wired_nics") {
		t.Errorf("the directory is not there: status %d\n%s", status, out)
	}
	if out, status := run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-uid", "0", "-binding", "redirect", "-state", n.State, "-dir", dir); status != 0 {
		t.Fatal(out)
	}
	pods, here := filepath.Join(filepath.Dir(n.State), "pods"), "../"+filepath.Base(n.State)
	links := []error{os.Mkdir(pods, 0o755), os.Symlink(here, pods+"/7d5a"), os.Symlink(here, pods+"/vms_vm1")}
	if err := errors.Join(append(links, os.Symlink("..", pods+"/theirs"), os.Symlink("../a b", pods+"/uid2"), os.Symlink(here, pods+"/\xff"))...); err != nil {
		t.Fatal(err)
	}
	single := nstest.NewNetwork(t)
	if out, status := run(t, agent, "setup", "-netns", single.Pod.Path(), "-nic", "eth0", "-uid", "0", "-binding", "redirect", "-state", single.State, "-dir", dir); status != 0 {
		t.Fatal(out)
	}
	for _, c := range []struct {
		args   []string
		status int
		text   string
	}{
		{[]string{"-dir", dir}, 0, "guestwire_wired_nics 2\n"},
		{[]string{"-dir", dir}, 0, `guestwire_pod_info{pod_name="vm1",pod_namespace="vms",state="` + n.State + `",uid="7d5a"} 1` + "\n"},
		{[]string{"-dir", dir}, 0, `guestwire_pod_info{pod_name="",pod_namespace="",state="` + single.State + `",uid=""} 1` + "\n"},
		{[]string{"-dir", dir, "all"}, 2, `guestwire-exporter: "all" is no flag`},
		{[]string{"-directory", dir}, 2, "see guestwire-exporter -help"},
		{[]string{"-dir", "node"}, 2, "want an absolute path"},
		{[]string{"-dir", dir, "-own"}, 1, "guestwire-exporter: "}, // the machine's own namespace, which no one wires
		{[]string{"-help"}, 0, "textfile collector"},
	} {
		if out, status := run(t, exporter, c.args...); status != c.status || !strings.Contains(out, c.text) {
			t.Errorf("exporter %v: status %d, want %d and %q:\n%s", c.args, status, c.status, c.text, out)
		}
	}

	// While another call works on the namespace, the other metrics are printed in time, and a signal ends the wait.
	info, err := os.Stat(n.Pod.Path())
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, strconv.FormatUint(info.Sys().(*syscall.Stat_t).Ino, 10)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	text, err := exec.CommandContext(late, exporter, "-dir", dir).CombinedOutput()
	if err != nil || !strings.Contains(string(text), "\nguestwire_wired_info{") || strings.Contains(string(text), `state="`+n.State+`"} 0`) || !strings.Contains(string(text), "no metrics after 3s") {
		t.Errorf("a namespace that cannot be looked at: %v\n%s", err, text)
	}
	var out, said strings.Builder
	cmd := exec.Command(exporter, "-dir", dir)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(2*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 || out.Len() > 0 || !strings.Contains(said.String(), "guestwire-exporter: no metrics: ") {
		t.Errorf("interrupted: %v, %q, %s", err, out.String(), said.String())
	}
}

// TestSeries measures how many series the node and a NIC have, for the page about metrics.
func TestSeries(t *testing.T) {
	nstest.Need(t)
	agent, exporter := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-exporter")
	dir, config, diverting := filepath.Join(nstest.Dir(t), "node"), filepath.Join(t.TempDir(), "egress.json"), filepath.Join(t.TempDir(), "divert.json")
	for file, egress := range map[string]string{config: `["refuse all"]`, diverting: `["divert all 443 :15443", "refuse all"]`} {
		if err := os.WriteFile(file, []byte(`{"egress": `+egress+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	of, order, reasons := map[string]string{}, []string{}, 0
	for _, c := range []struct{ name, flags string }{
		{"redirect", "-binding redirect"}, {"bridge", "-binding bridge"}, {"masquerade", "-binding masquerade"}, {"routed", "-binding routed"}, {"routed, with egress", "-binding routed -config " + config},
		{"routed, with egress that diverts", "-binding routed -config " + diverting},
	} {
		n := nstest.NewNetwork(t)
		nic := []string{"-netns", n.Pod.Path(), "-nic", "eth0", "-dir", dir}
		if out, status := run(t, agent, append(append([]string{"setup", "-uid", "0", "-state", n.State}, nic...), strings.Fields(c.flags)...)...); status != 0 {
			t.Fatal(out)
		}
		of[n.State], order = c.name, append(order, c.name)
		var report struct{ Drops []struct{ Reason string } }
		out, _ := stdout(t, agent, append([]string{"status", "-json"}, nic...)...)
		decode(t, out, &report)
		reasons = max(reasons, len(report.Drops))
	}
	if err := calls.Count(t.Context(), dir, "ADD", 0, time.Second); err != nil {
		t.Fatal(err)
	}
	out, _ := stdout(t, exporter, "-dir", dir)
	series := map[string]int{}
	for line := range strings.Lines(out) {
		state := regexp.MustCompile(`state="(.*?)"`).FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "guestwire_dropped_"): // as soon as the kernel has sent something to the NIC
			if strings.HasSuffix(line, " 0\n") {
				t.Errorf("a series without a packet: %s", line)
			}
		case state != nil:
			series[of[state[1]]]++
		case strings.HasPrefix(line, "guestwire_cni_call_"):
			series["call"]++
		default:
			series["node"]++
		}
	}
	text := "| of | series |\n| --- | --- |\n"
	row := func(of string, series int) { text += fmt.Sprintf("| %s | %d |\n", of, series) }
	row("the node; guestwire-node has one more, and two for -names", series["node"])
	row("each operation and code of CNI calls", series["call"])
	least, most := series[order[0]], series[order[0]]
	for _, name := range order {
		least, most = min(least, series[name]), max(most, series[name])
	}
	text += fmt.Sprintf("| a NIC, by its binding, egress and diverts | %d to %d |\n", least, most)
	row(fmt.Sprintf("each reason for which a NIC has dropped packets, of at most %d", reasons), 2)
	row("a node with 1,000 NICs under redirect, ADD and DEL without errors", series["node"]+2*series["call"]+1000*series["redirect"])
	golden.Parts(t, reference+"metrics.md", "examples", map[string]string{"series": text})
}

// TestExporterLarge: of a namespace with very many routes the exporter says why there are no metrics.
func TestExporterLarge(t *testing.T) {
	nstest.Need(t)
	agent, exporter := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-exporter")
	dir := filepath.Join(nstest.Dir(t), "node")
	for routes, found := range map[int]int{0: 1, 120000: 0} {
		n := nstest.NewNetwork(t)
		if out, status := run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-uid", "0", "-binding", "redirect", "-state", n.State, "-dir", dir); status != 0 {
			t.Fatal(out)
		}
		var lines strings.Builder
		for i := range routes {
			fmt.Fprintf(&lines, "route add %d.%d.%d.0/24 via 10.244.1.1 dev eth0\n", 20+i/65536, i/256%256, i%256)
		}
		file := filepath.Join(t.TempDir(), "routes")
		if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		n.Pod.Exec("ip", "-batch", file)
		out, status := run(t, exporter, "-dir", dir)
		metric := regexp.MustCompile(`(?m)^guestwire_differences\{.*state="` + n.State + `".*\} 0$`)
		if len(metric.FindAllString(out, -1)) != found || strings.Contains(out, "takes more than") != (found == 0) || status != 0 {
			t.Errorf("%d routes: status %d\n%s", routes, status, out)
		}
		if out, status := run(t, agent, "teardown", "-netns", n.Pod.Path(), "-nic", "eth0", "-state", n.State, "-dir", dir); status != 0 {
			t.Error(out)
		}
	}
}

// TestExporterTo: -to replaces the file with the rights of the directory's owner. Where another user has put links in
// the place of the file, of the temporary file or of the directory, nothing else is written.
func TestExporterTo(t *testing.T) {
	t.Parallel()
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	agent, exporter := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-exporter")
	dir := filepath.Join(nstest.Dir(t), "node")
	if out, status := run(t, agent, "setup", "-netns", n.Pod.Path(), "-nic", "eth0", "-uid", "0", "-binding", "redirect", "-state", n.State, "-dir", dir); status != 0 {
		t.Fatal(out)
	}
	above, elsewhere := nstest.Dir(t), nstest.Dir(t)
	victim, theirs, ours := filepath.Join(nstest.Dir(t), "victim"), filepath.Join(above, "theirs"), filepath.Join(above, "theirs", "ours")
	pipe, closed := filepath.Join(above, "pipe"), filepath.Join(above, "closed")
	steps := []error{syscall.Mkfifo(pipe, 0o600), os.WriteFile(victim, []byte("root's"), 0o600), os.Mkdir(theirs, 0o755), os.Mkdir(ours, 0o755), os.Chown(theirs, nstest.LauncherUID, nstest.LauncherUID),
		os.Mkdir(closed, 0o555), os.Chown(closed, nstest.LauncherUID, nstest.LauncherUID),
		os.Symlink(elsewhere, filepath.Join(theirs, "link")), os.Symlink(ours, filepath.Join(above, "link"))}
	for _, in := range []string{theirs, ours} {
		for _, name := range []string{"guestwire.prom", "guestwire.prom.new", ".guestwire.prom.new"} {
			steps = append(steps, os.Symlink(victim, filepath.Join(in, name)))
		}
	}
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		to     string
		status int
		text   string
		owner  int
	}{
		{filepath.Join(theirs, "guestwire.prom"), 0, "", nstest.LauncherUID},
		{filepath.Join(ours, "guestwire.prom"), 0, "", 0},
		{filepath.Join(ours, "guestwire.prom"), 0, "", 0},
		{filepath.Join(above, "link", "second.prom"), 0, "", 0},
		{filepath.Join(elsewhere, "root.prom"), 0, "", 0},
		{filepath.Join(theirs, "link", "guestwire.prom"), 1, "name the directory that it leads to", 0},
		{filepath.Join(above, "absent", "guestwire.prom"), 1, "create the directory", 0},
		{ours, 1, "name a file in it (-to " + filepath.Join(ours, "guestwire.prom") + ")", 0},
		{above + "/new/../", 1, "name a file in it (-to " + filepath.Join(above, "guestwire.prom") + ")", 0},
		{"/dev/shm/guestwire.prom", 1, "leave -to out to print", 0},
		{pipe, 1, "leave -to out to print", 0},
		{filepath.Join(closed, "guestwire.prom"), 1, "(chmod u+w " + closed + "), or give it to root", 0},
	} {
		if nstest.LauncherUID == 0 && c.status == 1 && (strings.Contains(c.to, "link") || strings.Contains(c.to, closed)) {
			continue // the user namespace has one user, who made the link
		}
		out, status := run(t, exporter, "-dir", dir, "-to", c.to)
		if status != c.status || !strings.Contains(out, c.text) || c.status == 0 && out != "" {
			t.Errorf("-to %s: status %d, want %d and %q:\n%s", c.to, status, c.status, c.text, out)
		}
		if _, way, offered := strings.Cut(out, "(chmod"); offered {
			way, _, _ = strings.Cut(way, ")")
			nstest.Run(t, "sh", "-c", "chmod"+way)
			out, c.status = run(t, exporter, "-dir", dir, "-to", c.to)
			if c.owner = nstest.LauncherUID; out != "" {
				t.Errorf("-to %s after chmod%s: %s", c.to, way, out)
			}
		}
		if c.status != 0 {
			continue
		}
		text, err := os.ReadFile(c.to)
		info, lost := os.Lstat(c.to)
		if errors.Join(err, lost) != nil || !strings.Contains(string(text), "\nguestwire_wired_nics 1\n") || info.Mode() != 0o644 || int(info.Sys().(*syscall.Stat_t).Uid) != c.owner {
			t.Errorf("-to %s: %v, owner %d, %v\n%s", c.to, info.Mode(), info.Sys().(*syscall.Stat_t).Uid, errors.Join(err, lost), text)
		}
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "root's" {
		t.Errorf("the file that the links lead to: %v\n%s", err, text)
	}
	if made, err := os.ReadDir(elsewhere); err != nil || len(made) != 1 || made[0].Name() != "root.prom" {
		t.Errorf("where the link of the directory leads: %v, %v", made, err)
	}
	if left, err := filepath.Glob(filepath.Join(above, "*", ".*.new")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestExporterOwn: in a container, a NIC that cannot be looked at costs no other NIC its metrics.
func TestExporterOwn(t *testing.T) {
	nstest.Need(t, "nsenter")
	n := nstest.NewNetwork(t)
	n.Pod.IP("link add net1 type veth peer name net1-peer")
	n.Pod.IP("addr add 10.9.0.2/24 dev net1")
	n.Pod.IP("link set net1 up")
	agent, exporter := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-exporter")
	dir := filepath.Join(nstest.Dir(t), "node")
	for _, nic := range []string{"eth0", "net1"} {
		if out, status := run(t, "nsenter", "--net="+n.Pod.Path(), agent, "setup", "-own", "-nic", nic, "-uid", "0", "-binding", "redirect", "-state", n.State, "-dir", dir); status != 0 {
			t.Fatal(out)
		}
	}
	journals, err := filepath.Glob(filepath.Join(dir, "*", "*.journal"))
	if err != nil || len(journals) != 2 {
		t.Fatalf("%q, %v", journals, err)
	}
	for _, damaged := range journals {
		text, err := os.ReadFile(damaged)
		if err == nil {
			err = os.WriteFile(damaged, []byte("{"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		bad := strings.TrimSuffix(filepath.Base(damaged), ".journal")
		out, status := run(t, "nsenter", "--net="+n.Pod.Path(), exporter, "-own", "-dir", dir)
		if status != 0 || strings.Count(out, "\nguestwire_differences{") != 1 || strings.Contains(out, `nic="`+bad+`",state="`+n.State+`"} 0`) || !strings.Contains(out, "guestwire-exporter: \""+bad+" in namespace") {
			t.Errorf("the journal of %s is damaged: status %d\n%s", bad, status, out)
		}
		if err := os.WriteFile(damaged, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestJSONPath: JSON has a path as it is, also one with characters that could move a terminal's cursor, and prints none
// of them.
func TestJSONPath(t *testing.T) {
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	agent := nstest.Program(t, "examples/guestwire-agent")
	state := filepath.Join(n.State, "vm\u00a01 \u200b \U000e0001 ä")
	nic := []string{"-netns", n.Pod.Path(), "-nic", "eth0", "-dir", filepath.Join(nstest.Dir(t), "node")}
	if out, status := run(t, agent, append([]string{"setup", "-uid", "0", "-binding", "redirect", "-state", state}, nic...)...); status != 0 {
		t.Fatal(out)
	}
	out, status := stdout(t, agent, append([]string{"status", "-json"}, nic...)...)
	var report struct{ State string }
	if err := json.Unmarshal([]byte(out), &report); err != nil || status != 0 || report.State != state {
		t.Errorf("status %d, %v, state %q, want %q", status, err, report.State, state)
	}
	if at := strings.IndexFunc(out, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }); at >= 0 || !strings.Contains(out, "ä") {
		t.Errorf("the output has a character that does not print, or none that does: %q", out)
	}
}

// TestLostOutput: what cannot be written is an error.
func TestLostOutput(t *testing.T) {
	nstest.Need(t)
	n := nstest.NewNetwork(t)
	agent, launcher, exporter := nstest.Program(t, "examples/guestwire-agent"), nstest.Program(t, "examples/guestwire-launcher"), nstest.Program(t, "examples/guestwire-exporter")
	dir := filepath.Join(nstest.Dir(t), "node")
	nic := []string{"-netns", n.Pod.Path(), "-nic", "eth0", "-dir", dir}
	if out, status := run(t, agent, append([]string{"setup", "-uid", "0", "-binding", "redirect", "-state", n.State}, nic...)...); status != 0 {
		t.Fatal(out)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, line := range [][]string{
		{agent, "help"}, {agent, "help", "setup"}, {agent, "version"}, {agent, "list", "-dir", dir}, {agent, "list", "-json", "-dir", dir},
		append([]string{agent, "status"}, nic...), append([]string{agent, "status", "-json"}, nic...), append([]string{agent, "check", "-json"}, nic...),
		append([]string{agent, "plan", "-uid", "0", "-binding", "redirect", "-state", n.State}, nic...),
		{launcher, "help"}, {launcher, "version"}, {launcher, "xml", "-state", n.State}, {launcher, "config", "-state", n.State},
		{exporter, "-dir", dir}, {exporter, "-help"},
	} {
		var said strings.Builder
		cmd := exec.Command(line[0], line[1:]...)
		cmd.Stdout, cmd.Stderr = full, &said
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said.String(), "no space left on device") {
			t.Errorf("%s %s: %v, %s", filepath.Base(line[0]), strings.Join(line[1:], " "), err, said.String())
		}
	}
}
