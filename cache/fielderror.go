package cache

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/guestwire/guestwire/internal/syntax"
)

// FieldError reports a field that is wrong, of a Record, a Spec or another configuration. Error
// shortens a long value in the middle.
type FieldError struct {
	// Field is the field's path in JSON, such as ipv4.routes[2].gateway. Empty: the whole
	// document.
	Field string

	// Reason is what is wrong, and what is wanted.
	Reason string
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return syntax.Short(e.Reason)
	}
	return syntax.Short(e.Field) + ": " + syntax.Short(e.Reason)
}

func fieldErrorf(field, format string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// within returns the error of a part with the field's path in the whole, where the part is a field.
func within(field string, err error) error {
	var part *FieldError
	if errors.As(err, &part) {
		return &FieldError{Field: field + "." + part.Field, Reason: part.Reason}
	}
	return err
}

func checkLinkName(field, name string) error {
	if err := syntax.CheckLinkName(name); err != nil {
		return &FieldError{Field: field, Reason: err.Error()}
	}
	return nil
}

func checkPCIAddress(field, text string) error {
	if err := syntax.CheckPCIAddress(text); err != nil {
		return &FieldError{Field: field, Reason: err.Error()}
	}
	return nil
}

// isUnicast reports whether a station can have the address on a link.
func isUnicast(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == "" &&
		!a.Is4In6() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// checkName refuses a name that not all clients take. Empty: there is none.
func checkName(field, name string, most int) error {
	if name == "" {
		return nil
	}
	if err := syntax.CheckName(name, most); err != nil {
		return fieldErrorf(field, "%q has %v", name, err)
	}
	return nil
}

// checkText refuses what an option of text cannot carry: more than 255 octets, control characters.
func checkText(field, text string) error {
	if len(text) > 255 {
		return fieldErrorf(field, "%d octets, an option has at most 255", len(text))
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return fieldErrorf(field, "%q has control characters", text)
	}
	return nil
}
