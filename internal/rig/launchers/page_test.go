package launchers

import (
	"os"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/golden"
)

// TestPages: the pages show the adapters that the tests call.
func TestPages(t *testing.T) {
	for page, file := range map[string]string{"urunc": "urunc_adapter_test.go", "fast-sandbox": "fastsandbox_adapter_test.go"} {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		shown := strings.TrimPrefix(string(code), "package launchers\n\n")
		golden.Parts(t, "../../../docs/how-to/"+page+".md", "internal/rig/launchers", map[string]string{page: "```go\n" + shown + "```\n"})
	}
}
