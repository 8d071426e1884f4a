// Package infra is what a launcher writes: a [Spec] for one NIC, in Go or JSON, with how the guest is attached (the
// bindings) and what it may send. The package changes nothing: the methods Plan and Setup of phase1.NIC take the Spec.
package infra

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/internal/strictjson"
)

// Binding is how the guest is attached to the NIC: a [Bridge], [Redirect], [Masquerade], [Routed], [Macvtap], [SRIOV],
// [Passt], [Slirp] or [Auto], by value. No other package can add one.
type Binding interface {
	// Kind is the binding's name in a Spec's JSON and in a record, such as "bridge".
	Kind() cache.Kind

	// validate checks the binding's own fields. The error is a *cache.FieldError.
	validate() error
	// validateGuard checks what the binding allows of a guard. The error is a
	// *cache.FieldError.
	validateGuard(Guard) error
}

// bindings are all of them, with their defaults, in the order in which messages list them.
var bindings = []Binding{Bridge{}, Redirect{}, Masquerade{}, Routed{}, Macvtap{}, SRIOV{}, Passt{}, Slirp{}, Auto{}}

// NewBinding returns the binding of a kind, with its defaults. For an unknown kind the error is a *cache.FieldError
// that lists the known ones.
func NewBinding(kind cache.Kind) (Binding, error) {
	for _, b := range bindings {
		if b.Kind() == kind {
			return b, nil
		}
	}
	return nil, &cache.FieldError{Field: "binding", Reason: fmt.Sprintf("%q, want %s", kind, kinds())}
}

// kinds is the list for messages: "bridge", "redirect" or "auto".
func kinds() string {
	var names []string
	for _, b := range bindings {
		names = append(names, fmt.Sprintf("%q", b.Kind()))
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// checkType refuses a nil binding, a pointer to a binding, and a struct of another package that embeds a binding.
func checkType(b Binding) error {
	if b == nil {
		return &cache.FieldError{Field: "binding", Reason: "missing, want " + kinds()}
	}
	for _, known := range bindings {
		if reflect.TypeOf(b) == reflect.TypeOf(known) {
			return nil
		}
	}
	return &cache.FieldError{Field: "binding", Reason: fmt.Sprintf("%T, want one of this package's bindings by value", b)}
}

// taggedBinding is a binding in JSON: an object with one member, the binding's kind.
type taggedBinding struct{ Binding }

func (t taggedBinding) IsZero() bool { return t.Binding == nil }

func (t taggedBinding) MarshalJSON() ([]byte, error) {
	fields, err := json.Marshal(t.Binding)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[cache.Kind]json.RawMessage{t.Kind(): fields})
}

func (t *taggedBinding) UnmarshalJSON(text []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || len(members) != 1 || repeated(text) {
		return &strictjson.Error{Reason: `want an object with one member, such as {"bridge": {}}`}
	}
	for kind, fields := range members {
		b, err := NewBinding(cache.Kind(kind))
		if err != nil {
			return &strictjson.Error{Reason: fmt.Sprintf("%q, want %s", kind, kinds())}
		}
		value := reflect.New(reflect.TypeOf(b))
		if err := strictjson.Unmarshal(kind, fields, value.Interface()); err != nil {
			return err
		}
		t.Binding = value.Elem().Interface().(Binding)
	}
	return nil
}

// repeated reports whether the object, which has one member in a map, has more than one in the text.
func repeated(text []byte) bool {
	dec := json.NewDecoder(bytes.NewReader(text))
	depth, members := 0, 0
	for {
		token, err := dec.Token()
		if err != nil {
			return members > 1
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			if depth == 1 {
				members++
			}
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}
