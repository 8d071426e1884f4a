package infra

import "strings"

// ShellWord returns the text as one word of a POSIX shell's command line. The commands that a
// Step or an error offers have their names and paths by it: a process of the namespace may have
// chosen these.
//
// A text that means itself to a shell stays as it is. Other texts are in quotes, the empty text
// too.
func ShellWord(text string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:=,@%"
	switch {
	case text != "" && strings.Trim(text, plain) == "":
		return text
	case text != "" && strings.Trim(text, plain+" ") == "":
		return `"` + text + `"`
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
