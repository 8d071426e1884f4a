package logqueue

import (
	"fmt"
	"strings"
)

// mostShort is the length of a text that Short leaves as it is.
const mostShort = 2000

// Short returns the text of an error with the middle left out if it is long, as a value of an annotation or a flag may
// be. The text begins with what is wrong, and ends with the way out.
func Short(text string) string {
	if len(text) <= mostShort {
		return text
	}
	begin, end := text[:mostShort/2], text[len(text)-mostShort/2:]
	return strings.ToValidUTF8(fmt.Sprintf("%s [%d octets] %s", begin, len(text)-mostShort/2*2, end), "")
}
