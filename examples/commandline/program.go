package commandline

import (
	"context"
	"flag"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/pflag"

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
func Line(name string, said any) string { return Called(logqueue.Short(fmt.Sprintln(name, said))) }

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

// flagSet has the flags of a verb, which set the options, as pflag has them.
func (p *Program[Options]) flagSet(o *Options, v Verb[Options]) *pflag.FlagSet {
	set := pflag.NewFlagSet(v.Name, pflag.ContinueOnError)
	set.SortFlags = false
	set.AddGoFlagSet(p.FlagSet(o, v))
	return set
}

func (p *Program[Options]) values(verb, flag string, given *Options) []string {
	if p.Values == nil {
		return nil
	}
	return p.Values(verb, flag, given)
}

// flags are a verb's flags with their meaning, in lines of 80 columns.
func (p *Program[Options]) flags(v *Verb[Options]) string {
	set := p.flagSet(new(Options), *v)
	set.VisitAll(func(f *pflag.Flag) { f.Usage = Called(f.Usage) }) // before the lines are made
	if !set.HasFlags() {
		return ""
	}
	text := strings.ReplaceAll("\n"+set.FlagUsagesWrapped(80+inset), "\n      --", "\n       -")
	return "\nFlags:\n" + strings.ReplaceAll(text, "\n"+strings.Repeat(" ", inset), "\n")[1:]
}

// inset is how far pflag moves a name of many letters in, for a name of one letter before it, and its second hyphen.
const inset = 5

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

// called is the program's name, as a package installs it if it was called by such a name.
func (p *Program[Options]) called() string {
	return strings.TrimSuffix(Called(p.Name+":"), ":")
}
