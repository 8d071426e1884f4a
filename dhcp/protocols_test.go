package dhcp

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/test/golden"
)

// TestProtocols: the tables of docs/reference/protocols.md have the names in the comments of Reason and Kind.
func TestProtocols(t *testing.T) {
	golden.Parts(t, "../docs/reference/protocols.md", "dhcp", map[string]string{"reasons": tableReasons(t), "events": tableEvents(t)})
}

// documentedName is a row of the table in a type's doc comment.
type documentedName struct{ name, text string }

func documentedNames(t *testing.T, file, typ string) (names []documentedName) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	doc := regexp.MustCompile(`(?://.*\n)+type ` + typ + ` `).FindString(string(source))
	for _, m := range regexp.MustCompile(`(?m)^//\t(\S+) +(.*)$`).FindAllStringSubmatch(doc, -1) {
		names = append(names, documentedName{m[1], m[2]})
	}
	return names
}

func tableReasons(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| reason | what is ignored |\n| --- | --- |\n")
	for _, n := range documentedNames(t, "ignored.go", "Reason") {
		fmt.Fprintf(&b, "| `%s` | %s |\n", n.name, n.text)
	}
	return b.String()
}

func tableEvents(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| event | when | level in the log |\n| --- | --- | --- |\n")
	for _, n := range documentedNames(t, "event.go", "Kind") {
		fmt.Fprintf(&b, "| `%s` | %s | %v |\n", n.name, n.text, kinds[indexOf(Kind(n.name))].level)
	}
	return b.String()
}
