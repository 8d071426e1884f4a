package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
)

// columns is the width of a terminal that nobody made wider.
const columns = 80

// story prints what is done, in lines of at most 80 columns. Only the plans, which verbose asks for, are not folded, as
// they are commands.
type story struct {
	out             io.Writer
	colour, verbose bool
}

// newStory prints in colour if the file is a terminal, unless NO_COLOR is set (no-color.org).
func newStory(file *os.File, verbose bool) story {
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return story{file, err == nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb", verbose}
}

// The colours, as ECMA-48's Select Graphic Rendition numbers them.
const (
	bold  = "1"
	faint = "2"
	red   = "31"
	green = "32"
)

func (s story) in(colour, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (s story) title(b infra.Binding) {
	what := map[cache.Kind]string{
		cache.BindingBridge:     "the guest is the pod",
		cache.BindingRedirect:   "the guest is the pod, and the NIC stays as it is",
		cache.BindingRouted:     "the guest has the pod's addresses, and the pod routes",
		cache.BindingMasquerade: "the guest is behind the pod",
	}[b.Kind()]
	fmt.Fprintf(s.out, "\n%s\n", s.in(bold, fmt.Sprintf("== %s binding: %s ==", b.Kind(), what)))
}

// step prints a step that has succeeded.
func (s story) step(format string, args ...any) {
	for i, line := range fold("✓ "+fmt.Sprintf(format, args...), columns) {
		if i == 0 {
			line = s.in(green, "✓") + strings.TrimPrefix(line, "✓")
		}
		fmt.Fprintln(s.out, line)
	}
}

// quote prints text indented, like a program's output.
func (s story) quote(text string) {
	for line := range strings.Lines(text) {
		for _, line := range fold(quoted(line), columns) {
			fmt.Fprintln(s.out, s.in(faint, line))
		}
	}
}

// quoteCommands prints text that someone may copy.
func (s story) quoteCommands(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintln(s.out, s.in(faint, quoted(line)))
	}
}

func quoted(line string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(line, " \n"), "\t", "  ")
}

// fold breaks a line at spaces. What follows stands below the line's last column, which two spaces or more precede. A
// word that is longer is not broken.
func fold(line string, width int) []string {
	words := strings.TrimLeft(line, " ")
	indent := len(line) - len(words) + 2
	if at := strings.LastIndex(words, "  "); at >= 0 {
		if column := utf8.RuneCountInString(line[:len(line)-len(words)+at+2]); column <= width/2 {
			indent = column
		}
	}
	var lines []string
	for utf8.RuneCountInString(line) > width {
		at := len(string([]rune(line)[:width+1]))
		start := len(line) - len(strings.TrimLeft(line, " "))
		end := strings.LastIndex(line[:at], " ")
		if end <= start {
			more := strings.Index(line[start:], " ")
			if more < 0 {
				break
			}
			end = start + more
		}
		lines = append(lines, strings.TrimRight(line[:end], " "))
		line = strings.Repeat(" ", indent) + strings.TrimLeft(line[end:], " ")
	}
	return append(lines, line)
}
