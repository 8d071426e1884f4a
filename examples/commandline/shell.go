package commandline

import (
	"cmp"
	"embed"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// The words by which a completion's script asks what can follow, with the meanings and without. An answer has a line
// for each proposal, and ends with files or with listed: whether the name of a file can follow as well. These are
// cobra's words, so that a script that cobra made works, too.
const (
	askWord, askPlain = "__complete", "__completeNoDesc"
	files, listed     = ":0", ":4"
)

//go:embed completion
var scripts embed.FS

// shells are those that the completion is for.
var shells = []string{"bash", "zsh", "fish"}

// script prints the completion for a shell.
func (p *Program[Options]) script(stdout io.Writer, args []string) error {
	if len(args) != 1 || !slices.Contains(shells, args[0]) {
		return Errorf("completion: name one shell of %s, as in %s completion bash >/etc/bash_completion.d/%s", strings.Join(shells, ", "), p.Name, p.Name)
	}
	text, err := scripts.ReadFile("completion/" + args[0])
	if err == nil {
		_, err = io.WriteString(stdout, strings.ReplaceAll(string(text), "PROGRAM", p.Name))
	}
	return err
}

// complete prints what can follow the words before the last one, and begins as the last.
func (p *Program[Options]) complete(stdout io.Writer, ask string, words []string) error {
	if len(words) == 0 {
		words = []string{""}
	}
	last := words[len(words)-1]
	proposals, end := p.proposals(words[:len(words)-1], last)
	if _, value, found := strings.Cut(last, "="); found && strings.HasPrefix(last, "-") {
		last = value
	}
	for _, line := range append(slices.DeleteFunc(proposals, func(line string) bool { return !strings.HasPrefix(line, last) }), end) {
		if ask == askPlain {
			line, _, _ = strings.Cut(line, "\t")
		}
		if _, err := fmt.Fprintln(stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// proposals are verbs, flags or values of a flag, each with its meaning after a tab.
func (p *Program[Options]) proposals(words []string, last string) (proposals []string, end string) {
	v := p.verb("")
	switch {
	case v != nil:
	case len(words) == 0:
		for _, v := range p.Verbs {
			proposals = append(proposals, v.Name+"\t"+v.Short)
		}
		slices.Sort(proposals)
		return proposals, listed
	default:
		if v, words = p.verb(words[0]), words[1:]; v == nil {
			return nil, files
		}
	}
	given := new(Options)
	set := p.FlagSet(given, *v)
	set.SetOutput(io.Discard)
	_ = set.Parse(words) // the line is not yet whole
	if v.Command && set.NArg() > 0 || slices.Contains(words, "--") {
		if v.Command {
			return nil, files
		}
		return nil, listed
	}
	name, _, hasValue := strings.Cut(last, "=")
	hasValue = hasValue && strings.HasPrefix(last, "-") // else it is in the value of the flag before
	if !hasValue && len(words) > 0 {
		name = words[len(words)-1]
	}
	if f := set.Lookup(strings.TrimLeft(name, "-")); f != nil && strings.HasPrefix(name, "-") && (hasValue || !isBool(f)) {
		if p.Values != nil {
			proposals = p.Values(v.Name, f.Name, given)
		}
		if proposals == nil {
			return nil, files
		}
		return proposals, listed
	}
	switch {
	case strings.HasPrefix(last, "-"):
		hyphens := last[:len(last)-len(strings.TrimLeft(last, "-"))]
		set.VisitAll(func(f *flag.Flag) {
			_, usage := flag.UnquoteUsage(f)
			proposals = append(proposals, hyphens+f.Name+"\t"+usage)
		})
		set.Visit(func(f *flag.Flag) {
			proposals = slices.DeleteFunc(proposals, func(line string) bool { return strings.HasPrefix(line, hyphens+f.Name+"\t") })
		})
		return append(proposals, hyphens+"help\thelp for "+cmp.Or(v.Name, p.Name)), listed
	case v.Command:
		return nil, files
	}
	return nil, listed
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// exit begins the paragraph of a program's After that has the exit codes. It is the last one.
const exit = "The exit code is "

// programs are those with a manual page, and pages what they share.
var programs = []string{"guestwire-agent", "guestwire-exporter", "guestwire-launcher", "guestwire-node"}

const pages = `  docs/reference/commands.md
  docs/reference/exit-codes.md
  docs/reference/cni.md       guestwire, the CNI plugin

`

// named says where the pages are that help and errors name.
const named = `What is named as docs/ or examples/ is in the repository, and in
/usr/share/doc/guestwire of a package.
`

// manual is the manual page of the program, in section 8 (man(7)). A library that makes it from Markdown would take a
// tenth of the time in which an agent starts.
func (p *Program[Options]) manual() []byte {
	var page strings.Builder
	name, takes := p.Name, "[FLAG...]"
	if p.verb("") == nil {
		takes = "VERB " + takes
	}
	fmt.Fprintf(&page, ".TH %s 8 \"\" \"%s\" guestwire\n", strings.ToUpper(name), Version())
	section := func(title, text string) { fmt.Fprintf(&page, ".SH %s\n%s", title, roff(text)) }
	section("NAME", name+" - "+p.Short)
	section("SYNOPSIS", name+" "+takes)
	section("DESCRIPTION", p.Before)
	for _, v := range p.Verbs {
		if v.Name == "" {
			section("FLAGS", strings.TrimPrefix(p.flags(&v), "\nFlags:\n"))
		} else {
			section(strings.ToUpper(v.Name), v.Short+".\n\n"+v.Example+"\n"+v.Long+p.flags(&v))
		}
	}
	more, codes, _ := strings.Cut(p.After, exit)
	if more != "" {
		section("MORE", more)
	}
	section("EXIT STATUS", exit+codes)
	others := slices.DeleteFunc(slices.Clone(programs), func(other string) bool { return other == name })
	section("SEE ALSO", strings.Join(others, "(8), ")+"(8)\n\n"+pages+named)
	return []byte(page.String())
}

// roff is the help's text for man(7): lines that are set in stay as they are, and an empty line begins a paragraph.
func roff(text string) string {
	var out strings.Builder
	setIn := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch is := strings.HasPrefix(line, "  "); {
		case is && !setIn:
			out.WriteString(".EX\n")
			setIn = true
		case !is && setIn:
			out.WriteString(".EE\n")
			setIn = false
		}
		if line == "" {
			line = ".PP"
		} else {
			line = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(line)
			if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
				line = `\&` + line
			}
		}
		out.WriteString(line + "\n")
	}
	if setIn {
		out.WriteString(".EE\n")
	}
	return out.String()
}
