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

// TestWordsToVM: who has a VM reads at most 700 words until it runs: the README through its table of tutorials, and a
// page until the heading or the sentence that is named here, with code and output.
func TestWordsToVM(t *testing.T) {
	until := func(text, end string) int {
		text, _, ok := strings.Cut(text, "\n"+end)
		if !ok {
			t.Errorf("no line begins with %q", end)
		}
		return len(strings.Fields(text))
	}
	entrance := until(readme(t), "## In Go")
	for page, end := range map[string]string{
		"tutorials/first-vm.md":   "## Give the network back",
		"tutorials/qemu.md":       "## Look at it",
		"tutorials/libvirt.md":    "## Give the network back",
		"tutorials/container.md":  "## 5. What guestwire did",
		"tutorials/kubernetes.md": "## 6. The end",
		"how-to/install.md":       "The unit's end gives the NIC back",
	} {
		text, err := os.ReadFile("../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		if words := entrance + until(string(text), end); words > 700 {
			t.Errorf("docs/%s: %d words, %d of them in the README; at most 700", page, words, entrance)
		}
	}
}

// TestTutorials types the tutorials that boot no machine.
func TestTutorials(t *testing.T) {
	for _, page := range []string{"firecracker", "test-your-launcher"} {
		t.Run(page, func(t *testing.T) { tutorial.TypePage(t, "docs/tutorials/"+page+".md") })
	}
}
