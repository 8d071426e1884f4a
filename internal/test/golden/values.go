package golden

import "encoding"

// Values parses texts. It panics at one that is no T.
func Values[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](texts ...string) []T {
	var all []T
	for _, text := range texts {
		var v T
		if err := P(&v).UnmarshalText([]byte(text)); err != nil {
			panic(err)
		}
		all = append(all, v)
	}
	return all
}
