package commandline

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// tree is the command line as cobra has it: completion and near verbs are cobra's.
func (p *Program[Options]) tree() *cobra.Command {
	root := &cobra.Command{Use: p.called(), Short: p.Short, Run: func(*cobra.Command, []string) {}, SuggestionsMinimumDistance: 2}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Hidden: true})
	for _, v := range p.Verbs {
		command := root
		if v.Name != "" {
			command = &cobra.Command{Use: v.Name, Short: v.Short, Run: root.Run}
			root.AddCommand(command)
		}
		given := new(Options)
		command.Flags().SortFlags = false
		command.Flags().SetInterspersed(!v.Command)
		command.Flags().AddFlagSet(p.flagSet(given, v))
		command.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			if v.Command {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, name := range strings.Fields(v.Flags) {
			// The error is that of a flag that is not there, or has a function: neither can be.
			_ = command.RegisterFlagCompletionFunc(name, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
				if values := p.values(v.Name, name, given); values != nil {
					return values, cobra.ShellCompDirectiveNoFileComp
				}
				return nil, cobra.ShellCompDirectiveDefault
			})
		}
	}
	return root
}

// shells are those that the completion is for.
var shells = []string{"bash", "zsh", "fish"}

// complete prints the script for a shell, or what a script asks for.
func (p *Program[Options]) complete(stdout io.Writer, args []string) error {
	root := p.tree()
	if args[0] != "completion" {
		for _, command := range append(root.Commands(), root) {
			command.Flags().VisitAll(func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) })
		}
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(io.Discard)
		root.SetArgs(longFlags(args))
		if err := root.Execute(); err != nil {
			return err
		}
		text := out.String()
		if last := args[len(args)-1]; !strings.HasPrefix(last, "--") {
			text = regexp.MustCompile(`(?m)^--`).ReplaceAllString(text, "-")
		}
		_, err := io.WriteString(stdout, text)
		return err
	}
	switch {
	case len(args) != 2 || !slices.Contains(shells, args[1]):
		return Errorf("completion: name one shell of %s, as in %s completion bash >/etc/bash_completion.d/%s", strings.Join(shells, ", "), p.called(), p.called())
	case args[1] == "bash":
		return root.GenBashCompletionV2(stdout, true)
	case args[1] == "zsh":
		return root.GenZshCompletion(stdout)
	}
	return root.GenFishCompletion(stdout, true)
}

// longFlags are the arguments with two hyphens before each flag, as cobra wants them: -nic becomes --nic.
func longFlags(args []string) (long []string) {
	for _, arg := range args {
		if hyphens := len(arg) - len(strings.TrimLeft(arg, "-")); hyphens == 1 {
			arg = "-" + arg
		}
		long = append(long, arg)
	}
	return long
}

// manual is the manual page of the program, in section 8 (man(7)). A library that makes it from Markdown would take a
// tenth of the time in which an agent starts.
func (p *Program[Options]) manual() []byte {
	var page strings.Builder
	name, takes := p.called(), "[FLAG...]"
	if p.verb("") == nil {
		takes = "VERB " + takes
	}
	fmt.Fprintf(&page, ".TH %s 8 \"\" \"%s\" guestwire\n", strings.ToUpper(name), Version())
	section := func(title, text string) { fmt.Fprintf(&page, ".SH %s\n%s", title, roff(Called(text))) }
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
	section("MORE", p.After)
	section("FILES", "  "+Documents+"\n\nhas what is named as docs/ and examples/.\n")
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
