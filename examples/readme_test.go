package examples_test

import (
	"os"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/tutorial"
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

// TestReadmePrograms types the first lines of the README's section "Programs".
func TestReadmePrograms(t *testing.T) {
	_, section, _ := strings.Cut(readme(t), "\n## Programs\n")
	_, lines, _ := strings.Cut(section, "\n    ")
	lines, _, _ = strings.Cut(lines, "\n\n")
	setup, serve, wired := strings.Cut(lines, "    agent exec ")
	serve, status, served := strings.Cut(serve, "another shell\n")
	status, teardown, ok := strings.Cut(status, "    agent teardown ")
	if !wired || !served || !ok {
		t.Fatalf("the section has the lines %q", lines)
	}
	tutorial.Type(t, strings.Join([]string{
		"```sh", setup, "```", "```", "...", `  <target dev="eth0-tap" managed="no"></target>`, "...", "```",
		"```sh", "agent exec " + serve, "```", "```", "...serving the guest...", "```",
		"```sh", status, "```", "```", "...", "...as recorded...", "...", "```",
		"Press Ctrl-C",
		"```sh", "agent teardown " + teardown, `[ -z "$(ip -n pod link show type tun)" ]; agent list; ip netns del pod; ip netns del world`, "```",
	}, "\n"))
}

// TestTutorials types the tutorials that boot no machine.
func TestTutorials(t *testing.T) {
	for _, page := range []string{"firecracker", "test-your-launcher"} {
		t.Run(page, func(t *testing.T) { tutorial.TypePage(t, "docs/tutorials/"+page+".md") })
	}
}
