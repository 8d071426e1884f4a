package commandline

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// Called returns the text with the programs' names as a package installs them, if the program was called by such a
// name: guestwire-agent in place of agent.
func Called(text string) string {
	prefix, _, found := strings.Cut(filepath.Base(os.Args[0]), "-")
	if !found || prefix != "guestwire" {
		return text
	}
	return command().ReplaceAllString(text, "${1}guestwire-$2$3")
}

// command is a command line that a text names, or the name before an error.
var command = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)(^|[\s("` + "`" + `])(agent|launcher|exporter)([ \n](?:setup|plan|config|deactivate|activate|check|status|doctor|list|drops|pin|run|hook|exec|teardown|forget|` +
		`xml|serve|qemu|wires|describes|help|version|completion|man|>|-[a-z])|:)`)
})
