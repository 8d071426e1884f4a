package infra_test

import (
	"testing"

	"github.com/guestwire/guestwire/infra"
)

func TestEtherTypeText(t *testing.T) {
	for text, want := range map[string]infra.EtherType{"0x8863": 0x8863, "0x0600": 0x600, "0x88cc": 0x88cc, "0x88CC": 0x88cc, "0x0000": 0, "0xffff": 0xffff} {
		var have infra.EtherType
		if err := have.UnmarshalText([]byte(text)); err != nil || have != want {
			t.Errorf("%s: %v, %v; want %v", text, have, err, want)
		}
	}
	for _, text := range []string{"", "0x", "8863", "34915", "0X8863", "0x88", "0x600", "0x18863", "0x+863", "0x8_63", " 0x8863", "0x886g", "PPPoE"} {
		have := infra.EtherType(7)
		if err := have.UnmarshalText([]byte(text)); err == nil || have != 7 {
			t.Errorf("%q: %v, %v; want an error", text, have, err)
		}
	}
	for e, want := range map[infra.EtherType]string{0x8863: "0x8863", 0x600: "0x0600", 0: "0x0000"} {
		if text, err := e.MarshalText(); err != nil || string(text) != want || e.String() != want {
			t.Errorf("%d: %s, %v; want %s", uint16(e), text, err, want)
		}
	}
}
