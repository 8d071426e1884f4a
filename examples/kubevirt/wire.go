package main

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// message has the fields of a message that are bytes, text or a message, by their number. KubeVirt's hooks use no
// others, so no code is generated.
type message map[protowire.Number][]string

// get returns the value of a field that is not repeated; empty: there is none.
func (m message) get(number protowire.Number) string { return strings.Join(m[number], "") }

func encode(m message) (text []byte) {
	for number, values := range m {
		for _, value := range values {
			text = protowire.AppendTag(text, number, protowire.BytesType)
			text = protowire.AppendString(text, value)
		}
	}
	return text
}

func decode(text []byte) (message, error) {
	m := message{}
	for len(text) > 0 {
		number, kind, length := protowire.ConsumeField(text)
		if length < 0 {
			return nil, protowire.ParseError(length)
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(text[protowire.SizeTag(number):])
			m[number] = append(m[number], string(value))
		}
		text = text[length:]
	}
	return m, nil
}

// codec is gRPC's codec for messages.
type codec struct{}

func (codec) Name() string                  { return "proto" }
func (codec) Marshal(v any) ([]byte, error) { return encode(v.(message)), nil }
func (codec) Unmarshal(text []byte, v any) (err error) {
	*v.(*message), err = decode(text)
	return err
}
