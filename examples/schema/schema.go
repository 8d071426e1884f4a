// Package schema makes JSON schemas of Go types whose JSON is read strictly: without unknown fields, and without null
// where a value belongs.
package schema

import (
	"encoding"
	"reflect"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/infra"
)

// Schema is a JSON schema (draft 2020-12), as encoding/json writes it.
type Schema map[string]any

// bindings are those that a Spec can have.
var bindings = []infra.Binding{infra.Bridge{}, infra.Redirect{}, infra.Masquerade{}, infra.Routed{}, infra.Macvtap{}, infra.SRIOV{},
	infra.Passt{}, infra.Slirp{}, infra.Auto{}}

// egress matches the words of an infra.Egress, and not what they name.
const egress = `^\s*((allow|refuse)\s+\S+(\s+\S+)?|divert\s+\S+(\s+\S+)?\s+\S*:[0-9]+)\s*$`

// New returns the schema of a struct's JSON. It knows which fields there are, what kind of value each has, and the
// words of an infra.Egress. It does not know what Validate checks, such as ranges that the type does not have.
func New(v any) Schema {
	s := typeSchema(reflect.TypeOf(v))
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	return s
}

// Properties returns the schemas of an object's members.
func (s Schema) Properties() map[string]Schema { return s["properties"].(map[string]Schema) }

func typeSchema(t reflect.Type) Schema {
	if t == reflect.TypeFor[infra.Binding]() {
		return bindingSchema()
	}
	if t == reflect.TypeFor[infra.Egress]() {
		return withDoc(t, Schema{"type": "string", "pattern": egress})
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return withDoc(t, Schema{"type": "string"})
	}
	switch t.Kind() {
	case reflect.Struct:
		return withDoc(t, objectSchema(members(t)))
	case reflect.Pointer:
		return Schema{"anyOf": []Schema{typeSchema(t.Elem()), {"type": "null"}}}
	case reflect.Map:
		s := Schema{"type": "object", "additionalProperties": typeSchema(t.Elem())}
		if t.Key().Kind() != reflect.String {
			s["propertyNames"] = Schema{"pattern": "^(0|[1-9][0-9]*)$"}
		}
		return s
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 { // a json.RawMessage
			return Schema{}
		}
		return Schema{"type": "array", "items": typeSchema(t.Elem())}
	case reflect.Bool:
		return Schema{"type": "boolean"}
	case reflect.String:
		return Schema{"type": "string"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return Schema{"type": "integer", "minimum": 0, "maximum": ^uint64(0) >> (64 - t.Bits())}
	}
	return Schema{"type": "integer"}
}

func objectSchema(properties map[string]Schema) Schema {
	return Schema{"type": "object", "properties": properties, "additionalProperties": false}
}

// withDoc adds where the fields are described.
func withDoc(t reflect.Type, s Schema) Schema {
	if strings.Contains(t.PkgPath(), ".") { // neither of the standard library nor of the program
		s["description"] = "go doc " + t.PkgPath() + "." + t.Name()
	}
	return s
}

// members are those of a struct and of the structs that are embedded in it, by their JSON names.
func members(t reflect.Type) map[string]Schema {
	all := map[string]Schema{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			all[name] = typeSchema(f.Type)
		}
	}
	return all
}

// bindingSchema returns that of a binding: an object with one member, the binding's kind.
func bindingSchema() Schema {
	kinds := map[string]Schema{}
	for _, b := range bindings {
		kinds[string(b.Kind())] = typeSchema(reflect.TypeOf(b))
	}
	s := objectSchema(kinds)
	s["minProperties"], s["maxProperties"] = 1, 1
	return s
}

// Places returns where a member of the name can stand, as paths from the object on: "binding.masquerade.ports".
func (s Schema) Places(name string) (paths []string) {
	var walk func(at string, s Schema)
	walk = func(at string, s Schema) {
		properties, _ := s["properties"].(map[string]Schema)
		for member, of := range properties {
			path := strings.TrimPrefix(at+"."+member, ".")
			if member == name {
				paths = append(paths, path)
			}
			walk(path, of)
		}
		if items, is := s["items"].(Schema); is {
			walk(at+"[]", items)
		}
		for _, list := range []string{"anyOf", "oneOf"} {
			others, _ := s[list].([]Schema)
			for _, other := range others {
				walk(at, other)
			}
		}
	}
	walk("", s)
	slices.Sort(paths)
	return slices.Compact(paths)
}
