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
	"net/netip"
	"reflect"
	"slices"
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
	if at, length := tooLong(text); length > 0 {
		return &Error{Field: field, Reason: fmt.Sprintf("a text, a name or a number of %d octets begins at octet %d, want at most %d", length, at, mostOctets)}
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if err := decode(field, dec, reflect.ValueOf(v).Elem()); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return &Error{Field: field, Reason: "something follows the object"}
	}
	return nil
}

// decode reads the next value into v.
func decode(path string, dec *json.Decoder, v reflect.Value) error {
	if decodesItself(v) {
		return decodeValue(path, dec, v)
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Map:
		return decodeObject(path, dec, v, false)
	case reflect.Pointer:
		return decodeObject(path, dec, v, true)
	case reflect.Slice:
		return decodeList(path, dec, v)
	}
	return decodeValue(path, dec, v)
}

// decodeObject reads an object into a struct, a map whose keys are numbers, or what a pointer leads to. A pointer may
// be null.
func decodeObject(path string, dec *json.Decoder, v reflect.Value, orNull bool) error {
	open, err := dec.Token()
	if orNull && err == nil && open == nil {
		return nil
	}
	if err != nil || open != json.Delim('{') {
		return &Error{Field: path, Reason: "want an object"}
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	member := decodeField
	if v.Kind() == reflect.Map {
		v.Set(reflect.MakeMap(v.Type()))
		member = decodeEntry
	}
	var seen []string // at most as many as a struct has fields, as others are refused; a map knows its own
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return &Error{Field: path, Reason: err.Error()}
		}
		name := key.(string) // a member's key is a string, or Token has failed
		if slices.Contains(seen, name) {
			return givenTwice(path, name)
		}
		if v.Kind() == reflect.Struct {
			seen = append(seen, name)
		}
		if err := member(path, name, dec, v); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return &Error{Field: path, Reason: err.Error()}
	}
	return nil
}

// decodeField reads a member of a struct.
func decodeField(path, name string, dec *json.Decoder, v reflect.Value) error {
	field, ok := fieldByTag(v, name)
	if !ok {
		reason := "no such field in this version"
		if near := nearest(name, fieldNames(v.Type())); near != "" {
			reason += fmt.Sprintf(": did you mean %q?", near)
		}
		return &Error{Field: join(path, name), Reason: reason}
	}
	return decode(join(path, name), dec, field)
}

// decodeEntry reads an entry of a map.
func decodeEntry(path, name string, dec *json.Decoder, v reflect.Value) error {
	at := path + "." + name
	number, err := strconv.ParseUint(name, 10, v.Type().Key().Bits())
	if err != nil || strconv.FormatUint(number, 10) != name {
		return &Error{Field: at, Reason: fmt.Sprintf("want %s as the name", inWords(v.Type().Key()))}
	}
	key := reflect.ValueOf(number).Convert(v.Type().Key())
	if v.MapIndex(key).IsValid() {
		return givenTwice(path, name)
	}
	value := reflect.New(v.Type().Elem()).Elem()
	if err := decode(at, dec, value); err != nil {
		return err
	}
	v.SetMapIndex(key, value)
	return nil
}

func givenTwice(path, name string) error {
	return &Error{Field: path, Reason: fmt.Sprintf("field %q is given twice", name)}
}

func decodeList(path string, dec *json.Decoder, v reflect.Value) error {
	if open, err := dec.Token(); err != nil || open != json.Delim('[') {
		return &Error{Field: path, Reason: "want a list"}
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, 1))
	for i := 0; dec.More(); i++ {
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		if err := decode(fmt.Sprintf("%s[%d]", path, i), dec, v.Index(i)); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return &Error{Field: path, Reason: err.Error()}
	}
	return nil
}

// mostOctets is more than the longest value needs, a DHCPv6 option of 65535 octets in hexadecimal digits. Errors quote
// values, and each level that holds a value copies it.
const mostOctets = 1 << 18

// tooLong returns where the first value or name begins that has more than mostOctets, and how many it has. Length is 0
// if none has.
func tooLong(text []byte) (at, length int) {
	const between = " \t\r\n,:[]{}"
	for at < len(text) {
		end := at + 1
		switch {
		case text[at] == '"':
			for ; end < len(text) && text[end] != '"'; end++ {
				if text[end] == '\\' {
					end++
				}
			}
			end++
		case strings.IndexByte(between, text[at]) < 0:
			for end < len(text) && text[end] != '"' && strings.IndexByte(between, text[end]) < 0 {
				end++
			}
		}
		if end-at > mostOctets {
			return at, end - at
		}
		at = end
	}
	return 0, 0
}

func decodesItself(v reflect.Value) bool {
	switch v.Addr().Interface().(type) {
	case json.Unmarshaler, encoding.TextUnmarshaler:
		return true
	}
	return false
}

// decodeValue reads a value that encoding/json decodes.
func decodeValue(path string, dec *json.Decoder, v reflect.Value) error {
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return &Error{Field: path, Reason: err.Error()}
	}
	if string(raw) == "null" {
		return &Error{Field: path, Reason: "want a value, not null"}
	}
	err := json.Unmarshal(raw, v.Addr().Interface())
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		want, have := inWords(mismatch.Type), kindInWords(raw)
		if number, is := strings.CutPrefix(mismatch.Value, "number "); is { // a number that does not fit
			have = number
		}
		return &Error{Field: path, Reason: fmt.Sprintf("want %s, not %s", want, have)}
	}
	var inner *Error
	if errors.As(err, &inner) { // of a value that reads an object
		return &Error{Field: join(path, inner.Field), Reason: inner.Reason}
	}
	if err == nil {
		return nil
	}
	switch v.Interface().(type) { // netip's errors name its functions
	case netip.Addr:
		return &Error{Field: path, Reason: fmt.Sprintf("want an address, such as 10.1.0.7 or fd00::7, not %s", raw)}
	case netip.Prefix:
		return &Error{Field: path, Reason: fmt.Sprintf("want a network, such as 10.1.0.0/24 or fd00::/64, not %s", raw)}
	}
	return &Error{Field: path, Reason: err.Error()}
}

// join returns the name of the member at the path.
func join(path, member string) string {
	if path == "" || member == "" {
		return path + member
	}
	return path + "." + member
}

// inWords returns what a value of the type looks like in JSON.
func inWords(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a number from 0 to %d", ^uint64(0)>>(64-t.Bits()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	}
	return "a string" // also of a pointer: a value that reads text
}

// kindInWords returns what kind of value it is: the value can be long.
func kindInWords(raw json.RawMessage) string {
	switch raw[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "a list"
	case 't', 'f':
		return string(raw)
	}
	return "a number"
}

// longest is longer than each name of a field.
const longest = 64

// nearest returns the name that differs least from the wrong one, in the case of letters or in a third of them at most.
// Empty: no name is near. A long name is no mistyped one, and the search would take its time.
func nearest(wrong string, names []string) string {
	if len(wrong) > longest {
		return ""
	}
	best, least := "", len(wrong)/3+1
	for _, name := range names {
		if d := distance(strings.ToLower(wrong), strings.ToLower(name)); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is the number of letters to add, to leave out, to replace, or to exchange with the next one.
func distance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)} // for a without its last two letters, one, none
	for j := range rows[2] {
		rows[2][j] = j
	}
	for i := range len(a) {
		rows[0], rows[1], rows[2] = rows[1], rows[2], rows[0]
		rows[2][0] = i + 1
		for j := range len(b) {
			differs := 1
			if a[i] == b[j] {
				differs = 0
			}
			d := min(rows[1][j]+differs, rows[1][j+1]+1, rows[2][j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, rows[0][j-1]+1)
			}
			rows[2][j+1] = d
		}
	}
	return rows[2][len(b)]
}

// fieldNames returns the names that fieldByTag finds in a struct of the type.
func fieldNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Pointer && f.Tag == "" {
			names = append(names, fieldNames(f.Type.Elem())...)
		} else if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" {
			names = append(names, tag)
		}
	}
	return names
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
