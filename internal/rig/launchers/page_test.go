package launchers

import (
	"os"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/golden"
)

// TestPages: the pages show the adapters that the tests call.
func TestPages(t *testing.T) {
	for page, file := range map[string]string{"urunc": "urunc_adapter_test.go", "fast-sandbox": "fastsandbox_adapter_test.go", "dns-proxy": "dnsproxy_adapter_test.go"} {
		adapter, err := os.ReadFile(file)
		_, code, ok := strings.Cut(string(adapter), "package launchers\n\n")
		if err != nil || !ok {
			t.Fatal(file, err)
		}
		golden.Parts(t, "../../../docs/how-to/"+page+".md", "internal/rig/launchers", map[string]string{page: "```go\n" + code + "```\n"})
	}
}
