package main

import (
	"bytes"
	"os"
	"regexp"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/examples/logqueue"
)

// printLevels prints a table of which the first column may say how things are. On a terminal that word has a colour.
func printLevels(write func(table *tabwriter.Writer)) {
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	write(table)
	_ = table.Flush() // a buffer takes all
	said := logqueue.Plain(text.String())
	if colours(os.Stdout) {
		said = painted(said)
	}
	_ = stdout.write(said) // stdout keeps the error
}

// colours reports whether a text on the file is coloured: on a terminal, unless NO_COLOR is set (no-color.org).
func colours(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// levels are the words of a first column, by their colour: green, yellow and red (ECMA-48, Select Graphic Rendition).
var levels = []struct {
	words  *regexp.Regexp
	colour string
}{
	{regexp.MustCompile(`(?m)^ok\b`), "32"},
	{regexp.MustCompile(`(?m)^(warning|lost)\b`), "33"},
	{regexp.MustCompile(`(?m)^(fault|differs)\b`), "31"},
}

func painted(text string) string {
	for _, l := range levels {
		text = l.words.ReplaceAllString(text, "\x1b["+l.colour+"m$0\x1b[0m")
	}
	return text
}
