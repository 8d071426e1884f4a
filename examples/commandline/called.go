package commandline

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// Documents is the directory in which a package has docs and examples.
const Documents = "/usr/share/doc/guestwire"

// Called returns the text with the programs' names as a package installs them, if the program was called by such a
// name: guestwire-agent in place of agent. A page of the documentation gets its path in Documents if it is there.
func Called(text string) string {
	prefix, _, found := strings.Cut(filepath.Base(os.Args[0]), "-")
	if !found || prefix != "guestwire" {
		return text
	}
	if strings.Contains(text, "docs/") || strings.Contains(text, "examples/") {
		text = document().ReplaceAllStringFunc(text, func(found string) string {
			before, path := found[:1], found[1:]
			if _, err := os.Stat(filepath.Join(Documents, path)); err != nil {
				return found
			}
			return before + filepath.Join(Documents, path)
		})
	}
	return command().ReplaceAllString(text, "${1}guestwire-$2$3")
}

// document is the path of a page or an example in a text.
var document = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("[\\s(\"`](docs|examples)/[\\w./-]*\\w")
})

// command is a command line that a text names, or the name before an error.
var command = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)(^|[\s("` + "`" + `])(agent|launcher|exporter)([ \n](?:setup|plan|config|deactivate|activate|check|status|doctor|list|drops|pin|run|hook|exec|teardown|forget|` +
		`xml|serve|qemu|wires|describes|help|version|completion|man|>|-[a-z])|:)`)
})
