package syntax

import (
	"bytes"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

// TestForms compares the checks of words and PCI addresses with regular expressions.
func TestForms(t *testing.T) {
	for _, form := range []struct {
		expression string
		is         func(string) bool
	}{
		{`^[A-Za-z0-9_.-]{1,15}$`, func(s string) bool { return IsWord(s, "_.-", MaxLinkName) }},
		{`^[A-Za-z0-9_.+-]{1,64}$`, func(s string) bool { return IsWord(s, "_.+-", 64) }},
		{`^[A-Za-z0-9_-]{1,64}$`, func(s string) bool { return IsWord(s, "_-", 64) }},
		{`^[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]$`, isPCIAddress},
	} {
		expression := regexp.MustCompile(form.expression)
		matched := 0
		for range 100_000 {
			text := nearly()
			want := expression.MatchString(text)
			if got := form.is(text); got != want {
				t.Fatalf("%s: %q: %v, want %v", form.expression, text, got, want)
			}
			if want {
				matched++
			}
		}
		if matched < 100 {
			t.Errorf("%s: %d texts match, too few to judge", form.expression, matched)
		}
	}
}

// TestCheckLinkName: the error says what is wrong.
func TestCheckLinkName(t *testing.T) {
	for name, want := range map[string]string{
		"e": "", "eth0": "", "fifteencharacte": "", "A-Z_a.z@": "no network interface's name", "A-Z_a.z9": "",
		"sixteencharacter": "has 16 characters", "": "no network interface's name", ".": "no network interface's name",
		"..": "no network interface's name", ".eth0": "no dot first", "a/b": "A-Z a-z 0-9", "eth 0": "A-Z a-z 0-9", "eth0\n": "A-Z a-z 0-9",
		"eth0@if2": "want eth0", "eth0@thirteenchars": "has 18 characters", "@if2": "A-Z a-z 0-9",
	} {
		err := CheckLinkName(name)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

// nearly returns a word or a PCI address, with up to three octets replaced.
func nearly() string {
	const octets = "azAZ09fgFG78_.+-:/@[`{ \n\x00é\xffİ"
	text := []byte("0000:01:00.0")
	if rand.IntN(2) == 0 {
		text = bytes.Repeat([]byte("a"), rand.IntN(70))
	}
	for range rand.IntN(4) {
		if len(text) > 0 {
			text[rand.IntN(len(text))] = octets[rand.IntN(len(octets))]
		}
	}
	return string(text)
}
