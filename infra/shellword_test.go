package infra_test

import (
	"os/exec"
	"strings"
	"testing"
	"unicode"

	"github.com/guestwire/guestwire/infra"
)

// TestShellWord: shells see each text as one word, with all its characters. What needs no quotes has none.
func TestShellWord(t *testing.T) {
	texts := []string{"", " ", "'", "''", "a'b", "$(id)", "`id`", "~", "*", "a\nb", "-n", "{a,b}", "#x", "!x", "\\", "\xff", "\x1b[2J", "ä", "a b", "a $x", "-\x1b", "%d\x1b\\n'", "\x1b\n", "\u202e", "é\x1b\ufffd"}
	for c := range rune(0x80) {
		if c != 0 { // which no word has
			texts = append(texts, "a"+string(c)+"b", string(c))
		}
	}
	var line, want strings.Builder
	for _, text := range texts {
		line.WriteString(" " + infra.ShellWord(text))
		want.WriteString(text + "\x00")
		if word := infra.ShellWord(text); !strings.HasSuffix(text, "\n") && strings.ContainsFunc(word, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }) {
			t.Errorf("%q: %q cannot be shown", text, word)
		}
	}
	for _, shell := range []string{"sh", "bash"} {
		out, err := exec.Command(shell, "-c", `printf '%s\0'`+line.String()).Output()
		if err != nil || string(out) != want.String() {
			t.Errorf("%s: %v: %q, want %q", shell, err, out, want.String())
		}
	}
	for text, want := range map[string]string{
		"": "''", "/run/netns/pod": "/run/netns/pod", "net.ipv4.ip_forward=1": "net.ipv4.ip_forward=1", "guestwire eth0": `"guestwire eth0"`, "a b$": "'a b$'",
	} {
		if have := infra.ShellWord(text); have != want {
			t.Errorf("%q: %s, want %s", text, have, want)
		}
	}
}
