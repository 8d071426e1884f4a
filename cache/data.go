package cache

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Data is the bytes of an option. In JSON it is a text. A text that begins with 0x is hexadecimal: "0x41" is the letter
// A. Bytes that are no readable text are written in this way.
type Data string

func (d Data) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Data) String() string {
	if strings.HasPrefix(string(d), "0x") || !utf8.ValidString(string(d)) || strings.ContainsFunc(string(d), unicode.IsControl) {
		return "0x" + hex.EncodeToString([]byte(d))
	}
	return string(d)
}

func (d *Data) UnmarshalText(text []byte) error {
	digits, ok := strings.CutPrefix(string(text), "0x")
	if !ok {
		*d = Data(text)
		return nil
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return fmt.Errorf("%q: want an even number of hexadecimal digits after 0x: %w", text, err)
	}
	*d = Data(b)
	return nil
}
