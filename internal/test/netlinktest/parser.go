package netlinktest

import (
	"reflect"
	"testing"
)

// Parser is a function that parses bytes from the kernel, from another program or from the network, with seeds that the
// function accepts.
type Parser struct {
	Name  string
	Seeds [][]byte
	Parse func([]byte) error
}

// Parsers are those of a package.
type Parsers []Parser

// CheckSeeds fails if a parser does not accept the messages that its fuzzing begins with, or has none.
func (all Parsers) CheckSeeds(t *testing.T) {
	for _, p := range all {
		if len(p.Seeds) == 0 {
			t.Errorf("%s: no seeds", p.Name)
		}
		for _, b := range p.Seeds {
			if err := p.Parse(b); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
		}
	}
}

// Fuzz gives each input to each parser: no bytes make one panic or hang.
func (all Parsers) Fuzz(f *testing.F) {
	all.addSeeds(f)
	f.Fuzz(func(_ *testing.T, b []byte) {
		for _, p := range all {
			p.Parse(b)
		}
	})
}

// FuzzRoundTrip calls each with each input that can be encoded. Each parses it, encodes the value and parses that, and
// gives check both values: they must be equal.
func (all Parsers) FuzzRoundTrip(f *testing.F, each func(t *testing.T, b []byte, check func(first, again any, err error))) {
	all.addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<14 {
			return // the encoded attributes could be too long for their 16 bits of length
		}
		each(t, b, func(first, again any, err error) {
			if err != nil || !reflect.DeepEqual(first, again) {
				t.Errorf("first %+v\nagain %+v, %v", first, again, err)
			}
		})
	})
}

func (all Parsers) addSeeds(f *testing.F) {
	for _, p := range all {
		for _, b := range p.Seeds {
			f.Add(b)
		}
	}
}
