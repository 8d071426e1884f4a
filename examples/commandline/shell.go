package commandline

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagSet has the flags of a verb, which set the options, as pflag has them.
func (p *Program[Options]) flagSet(o *Options, v Verb[Options]) *pflag.FlagSet {
	set := pflag.NewFlagSet(v.Name, pflag.ContinueOnError)
	set.SortFlags = false
	set.AddGoFlagSet(p.FlagSet(o, v))
	return set
}

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

func (p *Program[Options]) values(verb, flag string, given *Options) []string {
	if p.Values == nil {
		return nil
	}
	return p.Values(verb, flag, given)
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

// manual is the manual page of the program, in section 8.
func (p *Program[Options]) manual() []byte {
	var page strings.Builder
	name := p.called()
	title := strings.ToUpper(name)
	fmt.Fprintf(&page, "%% %s 8 \"\" \"%s\" \"guestwire\"\n\n# NAME\n\n%s - %s\n\n# SYNOPSIS\n\n", title, Version(), name, p.Short)
	if p.verb("") == nil {
		fmt.Fprintf(&page, "**%s** *VERB* [*FLAG*...]\n\n", name)
	} else {
		fmt.Fprintf(&page, "**%s** [*FLAG*...]\n\n", name)
	}
	fmt.Fprint(&page, "# DESCRIPTION\n\n", paragraphs(p.Before))
	for _, v := range p.Verbs {
		if v.Name != "" {
			fmt.Fprintf(&page, "# %s\n\n%s.\n\n%s", strings.ToUpper(v.Name), v.Short, paragraphs(v.Example+"\n"+v.Long))
		}
		fmt.Fprint(&page, paragraphs(strings.Replace(p.flags(&v), "Flags:\n", "Flags:\n\n", 1)))
	}
	fmt.Fprint(&page, "# MORE\n\n", paragraphs(cmp.Or(p.After, "See "+p.helpOf("")+".\n")))
	return md2man.Render([]byte(Called(page.String())))
}

// paragraphs are the help's text in Markdown: lines that are set in stay as they are.
func paragraphs(text string) string {
	return "\n" + regexp.MustCompile(`(?m)^  `).ReplaceAllString(text, "      ") + "\n"
}
