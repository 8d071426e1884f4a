package logqueue

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// mostShort is the length of a line that Short leaves as it is.
const mostShort = 2000

// Short returns the text of an error as Plain does, with the middle of each long line left out: a flag, an annotation
// or a path may be long. A line begins with what is wrong, and ends with the way out.
func Short(text string) string {
	var short strings.Builder
	for line := range strings.Lines(Plain(text)) {
		if len(line) > mostShort {
			begin, end := line[:mostShort/2], line[len(line)-mostShort/2:]
			line = strings.ToValidUTF8(fmt.Sprintf("%s [%d octets] %s", begin, len(line)-mostShort/2*2, end), "")
		}
		short.WriteString(line)
	}
	return short.String()
}

// Plain returns the text as a terminal can print it. The name of a link or a path may have control characters, or be no
// UTF-8: they become \x1b or \xff. The end of a line and the tabulator stay.
func Plain(text string) string {
	var plain strings.Builder
	for len(text) > 0 {
		c, n := utf8.DecodeRuneInString(text)
		shown := text[:n]
		if c == utf8.RuneError && n == 1 || c != '\n' && c != '\t' && !unicode.IsPrint(c) {
			shown = strconv.Quote(shown)
			shown = shown[1 : len(shown)-1]
		}
		plain.WriteString(shown)
		text = text[n:]
	}
	return plain.String()
}
