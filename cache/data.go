package cache

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Data is the value of an option: any bytes. In JSON and in messages, Data is text if the bytes are readable text, and
// otherwise hexadecimal digits after 0x. Text in JSON that begins with 0x is always hexadecimal: 0x41 is the letter A.
type Data string

// MarshalText returns String, from which UnmarshalText makes the same Data.
func (d Data) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String returns the bytes as text or, after 0x, in hexadecimal digits.
func (d Data) String() string {
	if strings.HasPrefix(string(d), "0x") || !utf8.ValidString(string(d)) || strings.ContainsFunc(string(d), unicode.IsControl) {
		return "0x" + hex.EncodeToString([]byte(d))
	}
	return string(d)
}

// UnmarshalText reads text, or hexadecimal digits after 0x.
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
