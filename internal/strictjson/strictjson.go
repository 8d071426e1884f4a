// Package strictjson decodes JSON as encoding/json does, but refuses what that passes over: unknown fields,
// fields in another case, repeated fields, and null where a value belongs. The error names the field.
package strictjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// Error says what is wrong with one field.
type Error struct {
	Field  string // such as ipv4.routes[2].gateway; empty: the whole document
	Reason string
}

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + ": " + e.Reason
}

// Unmarshal fills the struct that v points to. A field is known by its json tag, as one of an embedded
// pointer to a struct is, if the tag of another field does not hide it. A type that implements
// json.Unmarshaler or encoding.TextUnmarshaler decodes itself; an Error that it returns is completed.
//
// Field is where the text stands in its document, and begins Error.Field; empty: the text is the document.
// The error is an *Error, and then v may be filled in part.
func Unmarshal(field string, text []byte, v any) error {
	return decode(field, text, reflect.ValueOf(v).Elem())
}

func decode(path string, raw json.RawMessage, v reflect.Value) error {
	raw = bytes.Trim(raw, " \t\r\n") // RFC 8259 section 2; bytes.TrimSpace takes more
	switch {
	case decodesItself(v):
		return decodeValue(path, raw, v)
	case v.Kind() == reflect.Pointer:
		if string(raw) == "null" {
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		return decode(path, raw, v.Elem())
	case v.Kind() == reflect.Struct:
		return decodeStruct(path, raw, v)
	case v.Kind() == reflect.Slice:
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil || items == nil {
			return &Error{Field: path, Reason: "want a list"}
		}
		v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
		for i, item := range items {
			if err := decode(fmt.Sprintf("%s[%d]", path, i), item, v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	case v.Kind() == reflect.Map:
		return decodeMap(path, raw, v)
	default:
		return decodeValue(path, raw, v)
	}
}

func decodesItself(v reflect.Value) bool {
	switch v.Addr().Interface().(type) {
	case json.Unmarshaler, encoding.TextUnmarshaler:
		return true
	}
	return false
}

func decodeValue(path string, raw json.RawMessage, v reflect.Value) error {
	if string(raw) == "null" {
		return &Error{Field: path, Reason: "want a value, not null"}
	}
	err := json.Unmarshal(raw, v.Addr().Interface())
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) && mismatch.Type.Kind() == reflect.Pointer { // a value that reads text
		return &Error{Field: path, Reason: "want a string, not a " + mismatch.Value}
	}
	if mismatch != nil {
		return &Error{Field: path, Reason: fmt.Sprintf("want %v, not a %s", mismatch.Type, mismatch.Value)}
	}
	var inner *Error
	if errors.As(err, &inner) { // of a value that reads an object
		return &Error{Field: join(path, inner.Field), Reason: inner.Reason}
	}
	if err != nil {
		return &Error{Field: path, Reason: err.Error()}
	}
	return nil
}

// join returns the name of the member at the path.
func join(path, member string) string {
	if path == "" || member == "" {
		return path + member
	}
	return path + "." + member
}

func decodeStruct(path string, raw json.RawMessage, v reflect.Value) error {
	members, err := objectMembers(raw)
	if err != nil {
		return &Error{Field: path, Reason: err.Error()}
	}
	for _, m := range members {
		at := join(path, m.name)
		field, ok := fieldByTag(v, m.name)
		if !ok {
			return &Error{Field: at, Reason: "no such field in this version"}
		}
		if err := decode(at, m.value, field); err != nil {
			return err
		}
	}
	return nil
}

// decodeMap fills a map whose keys are numbers.
func decodeMap(path string, raw json.RawMessage, v reflect.Value) error {
	members, err := objectMembers(raw)
	if err != nil {
		return &Error{Field: path, Reason: err.Error()}
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(members)))
	for _, m := range members {
		at := path + "." + m.name
		number, err := strconv.ParseUint(m.name, 10, v.Type().Key().Bits())
		if err != nil || strconv.FormatUint(number, 10) != m.name {
			return &Error{Field: at, Reason: fmt.Sprintf("want a number of at most %d bits for a name", v.Type().Key().Bits())}
		}
		value := reflect.New(v.Type().Elem()).Elem()
		if err := decode(at, m.value, value); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(number).Convert(v.Type().Key()), value)
	}
	return nil
}

type member struct {
	name  string
	value json.RawMessage
}

func objectMembers(raw json.RawMessage) ([]member, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("want an object")
	}
	var members []member
	seen := map[string]bool{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name := key.(string) // a member's key is a string, or Token has failed
		if seen[name] {
			return nil, fmt.Errorf("field %q is given twice", name)
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		members = append(members, member{name, value})
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("something follows the object")
	}
	return members, nil
}

// fieldByTag returns the field with the JSON name, as encoding/json finds it: one of the struct itself hides
// one of a struct that is embedded by a pointer.
func fieldByTag(v reflect.Value, name string) (reflect.Value, bool) {
	for i := range v.NumField() {
		tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if tag != "" && tag == name { // the name can be empty, as the tag of an embedded struct is
			return v.Field(i), true
		}
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.Anonymous && f.Type.Kind() == reflect.Pointer && f.Tag == "" {
			return fieldByTag(v.Field(i).Elem(), name)
		}
	}
	return reflect.Value{}, false
}
