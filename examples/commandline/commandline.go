// Package commandline is what the command lines of agent, launcher and guestwire-node have in common: verbs with flags
// and a help of their own, completion, manual pages and the version.
package commandline

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

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
	case "version", "-v", "-version", "--version":
		if len(args) > 1 {
			return nil, nil, nil, Errorf("%q after %s: it takes nothing", args[1], name)
		}
		_, err := fmt.Fprintln(stdout, p.Name, Version())
		return nil, nil, nil, err
	case "man":
		_, err := stdout.Write(p.manual())
		return nil, nil, nil, err
	case "completion":
		return nil, nil, nil, p.script(stdout, args[1:])
	case askWord, askPlain:
		return nil, nil, nil, p.complete(stdout, name, args[1:])
	}
	v := p.verb("")
	switch {
	case v != nil:
		name = ""
	case name == "":
		return nil, nil, nil, Errorf("a verb is missing: %s; see %s help", strings.Join(p.names(), ", "), p.Name)
	case strings.HasPrefix(name, "-"):
		return nil, nil, nil, Errorf("%q before the verb: the verb comes first, then its flags; see %s help", name, p.Name)
	default:
		if v, args = p.verb(name), args[1:]; v == nil {
			return nil, nil, nil, p.unknown(name)
		}
	}
	o := new(Options)
	flags := p.FlagSet(o, *v)
	flags.SetOutput(io.Discard) // the error is printed once, by main
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil, nil, nil, p.help(stdout, []string{name})
	case err != nil:
		return nil, nil, nil, Errorf("%w%s; see %s", err, undefined(flags, err), p.helpOf(name))
	case misgiven(flags) != "":
		return nil, nil, nil, Errorf("%s; see %s", misgiven(flags), p.helpOf(name))
	case v.Command && flags.NArg() == 0:
		return nil, nil, nil, Errorf("the command is missing: name it after --; see %s", p.helpOf(name))
	case !v.Command && flags.NArg() > 0:
		return nil, nil, nil, Errorf("%q is no flag; see %s", flags.Arg(0), p.helpOf(name))
	}
	return v, o, flags, nil
}

// mostValue is the length of the longest path (PATH_MAX of linux/limits.h).
const mostValue = 4095

// misgiven names a flag without a value, which took the flag that follows for it, or a flag whose value is too long for
// a path or a name. A flag with a function (flag.Func) checks its own value. Empty: none.
func misgiven(flags *flag.FlagSet) (text string) {
	flags.Visit(func(f *flag.Flag) {
		value := f.Value.String()
		if name := strings.TrimLeft(value, "-"); name != value && flags.Lookup(name) != nil {
			text = fmt.Sprintf("-%s: its value is missing before %s", f.Name, value)
		} else if len(value) > mostValue {
			text = fmt.Sprintf("-%s: its value has %d octets, want at most %d", f.Name, len(value), mostValue)
		}
	})
	return text
}

func (p *Program[Options]) names() (names []string) {
	for _, v := range p.Verbs {
		names = append(names, v.Name)
	}
	for _, b := range builtin {
		names = append(names, b[0])
	}
	return append(names, "help")
}

// unknown says which verbs there are, and asks whether one of them was meant.
func (p *Program[Options]) unknown(name string) error {
	names := p.names()
	return Errorf("%q is none of %s%s; see %s help", name, strings.Join(names, ", "), didYouMean(name, names, ""), p.Name)
}

// undefined asks whether another flag was meant, if the error is that there is no such flag.
func undefined(flags *flag.FlagSet, err error) string {
	wrong, is := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !is {
		return ""
	}
	var names []string
	flags.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	return didYouMean(wrong, names, "-")
}

// didYouMean asks for the names that differ little from the wrong one, or begin with it. Empty: none does.
func didYouMean(wrong string, names []string, before string) string {
	wrong = strings.ToLower(wrong)
	var meant []string
	for _, name := range names {
		if name != "" && (near(wrong, name, min(2, len(name)/2)) || strings.HasPrefix(name, wrong)) {
			meant = append(meant, before+name)
		}
	}
	if meant == nil {
		return ""
	}
	return " (did you mean " + strings.Join(meant, " or ") + "?)"
}

// near reports whether at most so many letters of a have to be inserted, deleted or replaced to get b.
func near(a, b string, most int) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	switch {
	case a == "" || b == "":
		return len(a)+len(b) <= most
	case most == 0:
		return false
	}
	return near(a[1:], b, most-1) || near(a, b[1:], most-1) || near(a[1:], b[1:], most-1)
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
			_, err := fmt.Fprintf(w, "%s %s: %s\n", p.Name, name, b[1])
			return err
		}
	}
	switch {
	case len(args) > 1:
		return Errorf("help takes one verb")
	case v == nil && name != "" && name != "help" && p.verb("") != nil:
		return Errorf("%q is no verb: the program has flags alone", name)
	case v == nil && name != "" && name != "help":
		return p.unknown(name)
	case v == nil:
		text = fmt.Sprint(p.Before, "\n", p.list(), "\n", p.After, "\n", named)
	case name == "":
		text = fmt.Sprint(p.Before, p.flags(v), "\n", p.After, "\n", named)
	default:
		text = fmt.Sprintf("%s %s: %s\n\n%s\n%s%s", p.Name, name, v.Short, v.Example, v.Long, p.flags(v))
	}
	_, err := io.WriteString(w, text)
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
	line := func(name, short string) { text += fmt.Sprintf("  %-*s  %s\n", width, name, short) }
	for _, v := range p.Verbs {
		line(v.Name, v.Short)
	}
	for _, b := range builtin {
		line(b[0], b[1])
	}
	line("help VERB", "print the flags of a verb, and more about it")
	return text
}

// Time sets the time of a flag, which has a unit such as the example has.
func Time(to *time.Duration, example string) func(text string) error {
	return func(text string) (err error) {
		if *to, err = time.ParseDuration(text); err != nil {
			return errors.New("want a time with its unit, such as " + example)
		}
		return nil
	}
}
