package commandline

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Documents is the directory in which a package has docs and examples.
const Documents = "/usr/share/doc/guestwire"

// programs are those whose names a package changes. After such a name a text has a colon, or one of the words.
var (
	programs = []string{"agent", "launcher", "exporter"}
	words    = strings.Fields("setup plan config deactivate activate check repair status doctor list drops pin run hook exec teardown forget " +
		"xml serve qemu wires describes help version completion man >")
)

// Called returns the text with the programs' names as a package installs them, if the program was called by such a
// name: guestwire-agent in place of agent. A page of the documentation gets its path in Documents if it is there.
func Called(text string) string {
	prefix, _, found := strings.Cut(filepath.Base(os.Args[0]), "-")
	if !found || prefix != "guestwire" {
		return text
	}
	var out strings.Builder
	for len(text) > 0 {
		end := strings.IndexAny(text, " \t\n(\"`") + 1 // a name begins after one of these
		if end == 0 {
			end = len(text)
		}
		switch before := text[:end]; {
		case isProgram(text):
			out.WriteString("guestwire-")
		case strings.HasPrefix(before, "docs/") || strings.HasPrefix(before, "examples/"):
			path := strings.TrimRight(before[:len(before)-len(strings.TrimLeft(before, pathLetters))], "./-")
			if _, err := os.Stat(filepath.Join(Documents, path)); err == nil {
				out.WriteString(Documents + "/")
			}
		}
		out.WriteString(text[:end])
		text = text[end:]
	}
	return out.String()
}

// pathLetters are those of the documents' paths.
const pathLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-"

// isProgram reports whether the text begins with a command line, or with the name before an error.
func isProgram(text string) bool {
	return slices.ContainsFunc(programs, func(name string) bool {
		after, is := strings.CutPrefix(text, name)
		if !is || after == "" || !strings.ContainsRune(": \n", rune(after[0])) {
			return false
		}
		begins := func(word string) bool { return strings.HasPrefix(after[1:], word) }
		flag := len(after) > 2 && after[1] == '-' && 'a' <= after[2] && after[2] <= 'z'
		return after[0] == ':' || flag || slices.ContainsFunc(words, begins)
	})
}
