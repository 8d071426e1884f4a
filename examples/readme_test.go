package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
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

// TestReadmeCode: the README shows a function of the program that TestReadmeLauncher runs. What it shows compiles as it
// is.
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
	_, function, ok := strings.Cut(code, ")\n\n")
	if !ok || !strings.Contains(string(program), function) {
		t.Errorf("examples/qemu/main.go has not:\n%s", function)
	}
	pasted := filepath.Join(t.TempDir(), "launcher.go")
	if err := os.WriteFile(pasted, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, "go", "vet", pasted)
}

// TestTutorials types the tutorials that boot no machine.
func TestTutorials(t *testing.T) {
	for _, page := range []string{"firecracker", "test-your-launcher"} {
		t.Run(page, func(t *testing.T) { tutorial.TypePage(t, "docs/tutorials/"+page+".md") })
	}
}
