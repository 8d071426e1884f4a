// Package commandline is what the command lines of agent, launcher and guestwire-node have in common: verbs with flags
// and a help of their own, and the version.
package commandline

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
)

// Error is a mistake in the command line.
type Error struct{ err error }

// Errorf returns an *Error.
func Errorf(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// Verb is what a program can do.
type Verb[Options any] struct {
	Name    string
	Short   string // a line for the list of verbs
	Flags   string // the names of its flags, in the order of the help
	Long    string // what the help of the verb says before the flags
	Command bool   // a command follows the flags
	Do      func(context.Context, *Options) error
}

// Has reports whether the verb has the flag.
func (v *Verb[Options]) Has(name string) bool { return slices.Contains(strings.Fields(v.Flags), name) }

// Program is a program whose command line is a verb and the verb's flags.
type Program[Options any] struct {
	Name          string
	Before, After string // what the help says before and after the list of verbs
	Verbs         []Verb[Options]
	// FlagSet returns the verb's flags, which set the options.
	FlagSet func(*Options, Verb[Options]) *flag.FlagSet
}

// Parse returns the verb with the values of its flags. The verb is nil if help was asked for: Parse prints it.
func (p *Program[Options]) Parse(stdout io.Writer, args []string) (*Verb[Options], *Options, *flag.FlagSet, error) {
	if len(args) == 0 {
		return nil, nil, nil, Errorf("a verb is missing: %s; see %s help", p.names(), p.Name)
	}
	name, args := args[0], args[1:]
	switch {
	case slices.Contains([]string{"help", "-h", "-help", "--help"}, name):
		return nil, nil, nil, p.help(stdout, args)
	case strings.HasPrefix(name, "-"):
		return nil, nil, nil, Errorf("%q before the verb: the verb comes first, then its flags; see %s help", name, p.Name)
	}
	v := p.verb(name)
	if v == nil {
		return nil, nil, nil, Errorf("%q is none of %s; see %s help", name, p.names(), p.Name)
	}
	o := new(Options)
	flags := p.FlagSet(o, *v)
	flags.SetOutput(io.Discard) // the error is printed once, by main
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil, nil, nil, p.help(stdout, []string{name})
	case err != nil:
		return nil, nil, nil, Errorf("%w; see %s help %s", err, p.Name, name)
	case v.Command && flags.NArg() == 0:
		return nil, nil, nil, Errorf("the command is missing; see %s help %s", p.Name, name)
	case !v.Command && flags.NArg() > 0:
		return nil, nil, nil, Errorf("%q is no flag; see %s help %s", flags.Arg(0), p.Name, name)
	}
	return v, o, flags, nil
}

func (p *Program[Options]) verb(name string) *Verb[Options] {
	for i := range p.Verbs {
		if p.Verbs[i].Name == name {
			return &p.Verbs[i]
		}
	}
	return nil
}

func (p *Program[Options]) names() string {
	var names []string
	for _, v := range p.Verbs {
		names = append(names, v.Name)
	}
	return strings.Join(names, ", ") + ", help"
}

// help prints the help of the program, or that of one verb.
func (p *Program[Options]) help(w io.Writer, args []string) error {
	if len(args) > 1 {
		return Errorf("help takes one verb")
	}
	if len(args) == 1 && args[0] != "help" {
		v := p.verb(args[0])
		if v == nil {
			return Errorf("%q is none of %s", args[0], p.names())
		}
		fmt.Fprintf(w, "%s %s: %s\n\n%s", p.Name, v.Name, v.Short, v.Long)
		if v.Flags != "" {
			fmt.Fprint(w, "\nFlags:\n")
			flags := p.FlagSet(new(Options), *v)
			flags.SetOutput(w)
			flags.PrintDefaults()
		}
		return nil
	}
	width := 0
	for _, v := range p.Verbs {
		width = max(width, len(v.Name))
	}
	fmt.Fprint(w, p.Before, "\n")
	for _, v := range p.Verbs {
		fmt.Fprintf(w, "  %s %-*s %s\n", p.Name, width, v.Name, v.Short)
	}
	fmt.Fprintf(w, "  %s help VERB  print the flags of a verb, and more about it\n\n%s", p.Name, p.After)
	return nil
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
