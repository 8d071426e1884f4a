package node

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestDaemonImage: the Containerfile and the archive of make image are the same image.
func TestDaemonImage(t *testing.T) {
	text, err := os.ReadFile("../../../examples/kubernetes/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	i := DaemonImage("guestwire.test/node:1", "/bin")
	for line := range strings.Lines(string(text)) {
		switch fields := strings.Fields(line); fields[0] {
		case "COPY":
			var files []string
			for _, name := range fields[1 : len(fields)-1] {
				files = append(files, "/"+name)
			}
			if have := slices.Sorted(maps.Keys(i.Files)); fields[len(fields)-1] != "/" || !slices.Equal(have, slices.Sorted(slices.Values(files))) {
				t.Errorf("the archive has %q, the Containerfile says %q", have, fields)
			}
		case "ENTRYPOINT":
			var words []string
			if err := json.Unmarshal([]byte(strings.Join(fields[1:], " ")), &words); err != nil || !slices.Equal(words, i.Entrypoint) {
				t.Errorf("the archive starts %q, the Containerfile says %q, %v", i.Entrypoint, words, err)
			}
		case "#", "FROM":
		default:
			t.Errorf("the Containerfile says %q, which the archive has not", line)
		}
	}
}
