package infra

import (
	"fmt"
	"strings"
	"unicode"
)

// ShellWord returns the text as one word of a POSIX shell's command line. The commands that a
// Step or an error offers have their names and paths by it: a process of the namespace may have
// chosen these.
//
// A text that means itself to a shell stays as it is. Other texts are in quotes, the empty text
// too. A text with characters that a terminal does not print, such as ESC, is a call of printf:
// the word can be shown and copied.
func ShellWord(text string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:=,@%"
	switch {
	case text != "" && strings.Trim(text, plain) == "":
		return text
	case text != "" && strings.Trim(text, plain+" ") == "":
		return `"` + text + `"`
	case strings.ContainsFunc(text, isUnseen) && !strings.HasSuffix(text, "\n"): // which $() would cut off
		var octal strings.Builder
		for i := range len(text) {
			if strings.Trim(text[i:i+1], plain+" ") == "" {
				octal.WriteByte(text[i])
			} else {
				fmt.Fprintf(&octal, `\0%03o`, text[i])
			}
		}
		return `"$(printf %b '` + octal.String() + `')"`
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// isUnseen reports whether a terminal would not print the character. A line may end in a word.
func isUnseen(c rune) bool { return c != '\n' && !unicode.IsPrint(c) || c == unicode.ReplacementChar }
