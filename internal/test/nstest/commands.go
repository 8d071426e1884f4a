package nstest

import (
	"os"
	"strings"
	"testing"
)

// Commands returns the commands of a document that stand below the heading: the lines that are indented by four blanks,
// and in no fence. An empty heading stands for the whole document.
func Commands(t testing.TB, path, heading string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	section := string(text)
	if heading != "" {
		_, section, _ = strings.Cut(section, "\n## "+heading+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
	}
	var commands strings.Builder
	fenced := false
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		if command, ok := strings.CutPrefix(line, "    "); ok {
			commands.WriteString(command)
		}
	}
	if commands.Len() == 0 {
		t.Fatalf("%s has no commands below %q", path, heading)
	}
	return commands.String()
}
