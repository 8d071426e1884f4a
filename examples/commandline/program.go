package commandline

import (
	"context"
	"flag"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/examples/logqueue"
)

// Error is a mistake in the command line. Its text is short, whatever the command line is.
type Error struct{ err error }

// Errorf returns an *Error.
func Errorf(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }

func (e *Error) Error() string { return logqueue.Short(e.err.Error()) }

func (e *Error) Unwrap() error { return e.err }

// Line is what a program prints of an error or a report of the library, after its name: the programs are named as they
// were called, and the text is short and has no control characters, whatever it quotes.
func Line(name string, said any) string { return logqueue.Short(fmt.Sprintln(name, said)) }

// Verb is what a program can do.
type Verb[Options any] struct {
	Name    string
	Short   string // a line for the list of verbs
	Flags   string // the names of its flags, in the order of the help
	Example string // commands, set in
	Long    string // what the help of the verb says before the flags
	Command bool   // a command follows the flags
	Do      func(context.Context, *Options) error
}

// Has reports whether the verb has the flag.
func (v *Verb[Options]) Has(name string) bool { return slices.Contains(strings.Fields(v.Flags), name) }

// Flags defines the flags of a verb. One that the verb does not name is left out.
type Flags struct {
	*flag.FlagSet
	has func(name string) bool
}

// NewFlags returns the flags of the verb, none yet.
func NewFlags[Options any](v Verb[Options]) Flags {
	return Flags{flag.NewFlagSet(v.Name, flag.ContinueOnError), v.Has}
}

// String defines a flag with a text. It hides that of flag.FlagSet, as Bool and Func do.
func (f Flags) String(to *string, name, value, usage string) {
	if f.has(name) {
		f.StringVar(to, name, value, usage)
	}
}

// Bool defines a flag without a value.
func (f Flags) Bool(to *bool, name, usage string) {
	if f.has(name) {
		f.BoolVar(to, name, false, usage)
	}
}

// Func defines a flag whose value is parsed by the function.
func (f Flags) Func(name, usage string, parse func(text string) error) {
	if f.has(name) {
		f.FlagSet.Func(name, usage, parse)
	}
}

// Program is a program whose command line is a verb and the verb's flags, or flags alone.
type Program[Options any] struct {
	Name          string
	Short         string // what it does, a line for the manual page
	Before, After string // what the help says before and after the list of verbs
	// Verbs are in the order of the help. A program without verbs has one whose name is empty.
	Verbs []Verb[Options]
	// FlagSet returns the verb's flags, which set the options.
	FlagSet func(*Options, Verb[Options]) *flag.FlagSet
	// Values returns what can follow the flag, for a shell's completion, after the flags that were given already. Nil
	// stands for files.
	Values func(verb, flag string, given *Options) []string
}

func (p *Program[Options]) verb(name string) *Verb[Options] {
	for i := range p.Verbs {
		if p.Verbs[i].Name == name {
			return &p.Verbs[i]
		}
	}
	return nil
}

// flags are a verb's flags with their meaning, in lines of 80 columns.
func (p *Program[Options]) flags(v *Verb[Options]) string {
	const gap, columns = 3, 80
	set := p.FlagSet(new(Options), *v)
	var names, usages []string
	width := 0
	set.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" {
			usage += fmt.Sprintf(" (default %q)", f.DefValue)
		}
		names, usages = append(names, strings.TrimRight("  -"+f.Name+" "+value, " ")), append(usages, usage)
		width = max(width, len(names[len(names)-1]))
	})
	if names == nil {
		return ""
	}
	text := "\nFlags:\n"
	for i, name := range names {
		text += fmt.Sprintf("%-*s%s\n", width+gap, name, strings.Join(wrap(usages[i], columns-width-gap), "\n"+strings.Repeat(" ", width+gap)))
	}
	return text
}

// wrap returns lines that are shorter than the width. All but the last are five letters shorter, so that no word stands
// alone in the last one.
func wrap(text string, width int) (lines []string) {
	for len(text) >= width {
		at := strings.LastIndexByte(text[:width-5], ' ')
		if at < 0 {
			break
		}
		lines, text = append(lines, text[:at]), text[at+1:]
	}
	return append(lines, text)
}

// Version returns the program's version and revision, as the go command noted them: "v0.1.0, revision 1f3a...".
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	text := info.Main.Version
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			text += ", revision " + s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			text += ", modified"
		}
	}
	return text + ", " + info.GoVersion
}
