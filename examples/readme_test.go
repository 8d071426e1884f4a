package examples_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

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

// TestReadmePrograms runs the first lines of the README's section "Programs" as they are, on a machine on which
// guestwire never ran.
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
