// Package refusal checks records for the packages that describe a guest's network device to a VMM.
package refusal

import (
	"fmt"

	"github.com/guestwire/guestwire/cache"
)

// Describe returns what describe makes of a valid record. The error names the record's interface.
func Describe[Description any](rec *cache.Record, describe func(*cache.Record) (Description, error)) (Description, error) {
	var none Description
	if err := rec.Validate(); err != nil {
		return none, fmt.Errorf("record of interface %q: %w", rec.Name, err)
	}
	d, err := describe(rec)
	if err != nil {
		return none, fmt.Errorf("interface %s: %w", rec.Name, err)
	}
	return d, nil
}

// First keeps the first reason to refuse a record, or the options beside it. The zero value has none.
type First struct{ err error }

// If adds a reason if the field is wrong.
func (f *First) If(wrong bool, field, format string, args ...any) {
	if wrong && f.err == nil {
		f.err = &cache.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
}

// Err returns a *cache.FieldError, or nil if there is no reason.
func (f *First) Err() error { return f.err }
