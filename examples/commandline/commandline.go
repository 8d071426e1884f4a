// Package commandline is what the command lines of agent, launcher and guestwire-node have in common: verbs with flags
// and a help of their own, completion, manual pages and the version.
package commandline

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// Parse returns the verb with the values of its flags. The verb is nil if help, the version, the manual page or a
// shell's completion was asked for: Parse prints it.
func (p *Program[Options]) Parse(stdout io.Writer, args []string) (*Verb[Options], *Options, *flag.FlagSet, error) {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	switch name {
	case "help", "-h", "-help", "--help":
		return nil, nil, nil, p.help(stdout, args[1:])
	case "version", "-version", "--version":
		if len(args) > 1 {
			return nil, nil, nil, Errorf("%q after %s: it takes nothing", args[1], name)
		}
		_, err := fmt.Fprintln(stdout, p.called(), Version())
		return nil, nil, nil, err
	case "man":
		_, err := stdout.Write(p.manual())
		return nil, nil, nil, err
	case "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd:
		return nil, nil, nil, p.complete(stdout, args)
	}
	v := p.verb("")
	switch {
	case v != nil:
		name = ""
	case name == "":
		return nil, nil, nil, Errorf("a verb is missing: %s; see %s help", p.names(), p.Name)
	case strings.HasPrefix(name, "-"):
		return nil, nil, nil, Errorf("%q before the verb: the verb comes first, then its flags; see %s help", name, p.Name)
	default:
		if v, args = p.verb(name), args[1:]; v == nil {
			return nil, nil, nil, Errorf("%q is none of %s%s; see %s help", name, p.names(), p.meant(name), p.Name)
		}
	}
	o := new(Options)
	flags := p.FlagSet(o, *v)
	flags.SetOutput(io.Discard) // the error is printed once, by main
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil, nil, nil, p.help(stdout, []string{name})
	case err != nil:
		return nil, nil, nil, Errorf("%w; see %s", err, p.helpOf(name))
	case swallowed(flags) != "":
		return nil, nil, nil, Errorf("%s; see %s", swallowed(flags), p.helpOf(name))
	case v.Command && flags.NArg() == 0:
		return nil, nil, nil, Errorf("the command is missing: name it after --; see %s", p.helpOf(name))
	case !v.Command && flags.NArg() > 0:
		return nil, nil, nil, Errorf("%q is no flag; see %s", flags.Arg(0), p.helpOf(name))
	}
	return v, o, flags, nil
}

// swallowed names a flag without a value, which took the flag that follows for it. Empty: none.
func swallowed(flags *flag.FlagSet) (text string) {
	flags.Visit(func(f *flag.Flag) {
		value := f.Value.String()
		if name := strings.TrimLeft(value, "-"); name != value && flags.Lookup(name) != nil {
			text = fmt.Sprintf("-%s: its value is missing before %s", f.Name, value)
		}
	})
	return text
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
	return strings.Join(names, ", ") + ", version, help"
}

// meant asks whether one of the verbs was meant that differ little from the name.
func (p *Program[Options]) meant(name string) string {
	if near := p.tree().SuggestionsFor(name); len(near) > 0 {
		return " (did you mean " + strings.Join(near, " or ") + "?)"
	}
	return ""
}

// helpOf is the command that prints the help of a verb.
func (p *Program[Options]) helpOf(name string) string {
	if p.verb("") != nil {
		return p.Name + " -help"
	}
	return strings.TrimSpace(p.Name + " help " + name)
}

// help prints the help of the program, or that of one verb.
func (p *Program[Options]) help(w io.Writer, args []string) error {
	text := ""
	name := strings.Join(args, " ")
	v := p.verb(name)
	for _, b := range builtin {
		if b[0] == name {
			_, err := io.WriteString(w, Called(fmt.Sprintf("%s %s: %s\n", p.Name, name, b[1])))
			return err
		}
	}
	switch {
	case len(args) > 1:
		return Errorf("help takes one verb")
	case v == nil && name != "" && name != "help" && p.verb("") != nil:
		return Errorf("%q is no verb: the program has flags alone", name)
	case v == nil && name != "" && name != "help":
		return Errorf("%q is none of %s%s", name, p.names(), p.meant(name))
	case v == nil:
		text = fmt.Sprint(p.Before, "\n", p.list(), "\n", p.After)
	case name == "":
		text = fmt.Sprint(p.Before, p.flags(v), "\n", p.After)
	default:
		text = fmt.Sprintf("%s %s: %s\n\n%s\n%s%s", p.Name, name, v.Short, v.Example, v.Long, p.flags(v))
	}
	_, err := io.WriteString(w, Called(text))
	return err
}

// builtin are the verbs of each program, and what they do.
var builtin = [][2]string{
	{"completion", "print what completes commands in " + strings.Join(shells, ", ")},
	{"man", "print the manual page"},
	{"version", "print the version and the revision"},
}

// list has a line for each verb.
func (p *Program[Options]) list() (text string) {
	width := len("completion")
	for _, v := range p.Verbs {
		width = max(width, len(v.Name))
	}
	line := func(name, short string) { text += fmt.Sprintf("  %s %-*s  %s\n", p.Name, width, name, short) }
	for _, v := range p.Verbs {
		line(v.Name, v.Short)
	}
	for _, b := range builtin {
		line(b[0], b[1])
	}
	line("help VERB", "print the flags of a verb, and more about it")
	return text
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

// Called returns the text with the programs' names as a package installs them, if the program was called by such a
// name: guestwire-agent in place of agent.
func Called(text string) string {
	prefix, _, found := strings.Cut(filepath.Base(os.Args[0]), "-")
	if !found || prefix != "guestwire" {
		return text
	}
	return command().ReplaceAllString(text, "${1}guestwire-$2$3")
}

// called is the program's name, as a package installs it if it was called by such a name.
func (p *Program[Options]) called() string {
	return strings.TrimSuffix(Called(p.Name+":"), ":")
}

// command is a command line that a text names, or the name before an error.
var command = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)(^|[\s("` + "`" + `])(agent|launcher|exporter)([ \n](?:setup|plan|config|deactivate|activate|check|status|doctor|list|drops|pin|run|hook|exec|teardown|forget|` +
		`xml|serve|qemu|wires|describes|help|version|completion|man|>|-[a-z])|:)`)
})

// Time sets the time of a flag, which has a unit such as the example has.
func Time(to *time.Duration, example string) func(text string) error {
	return func(text string) (err error) {
		if *to, err = time.ParseDuration(text); err != nil {
			return errors.New("want a time with its unit, such as " + example)
		}
		return nil
	}
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
