package cache

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Data is the value of an option: any bytes, in Go as they are. Its text, in JSON and in messages, is
// the same, or hexadecimal after 0x if the bytes cannot be read as text or begin with 0x: 0x41 in JSON
// is the letter A.
type Data string

// MarshalText returns the text, from which UnmarshalText makes the same Data.
func (d Data) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Data) String() string {
	if strings.HasPrefix(string(d), "0x") || !utf8.ValidString(string(d)) || strings.ContainsFunc(string(d), unicode.IsControl) {
		return "0x" + hex.EncodeToString([]byte(d))
	}
	return string(d)
}

// UnmarshalText takes bytes from text, or from hexadecimal after 0x.
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
