package syntax_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/guestwire/guestwire/internal/syntax"
)

// TestDefaultIndex: both halves of a default route are one, and take precedence as in the kernel.
func TestDefaultIndex(t *testing.T) {
	for routes, want := range map[string]int{
		"":                     -1,
		"10.0.0.0/8 0.0.0.0/0": 1,
		"0.0.0.0/1":            -1,
		"0.0.0.0/1 0.0.0.0/0":  1,
		"0.0.0.0/1 0.0.0.0/1":  -1,
		"10.0.0.0/8 0.0.0.0/1 128.0.0.0/1 0.0.0.0/0": 1,
		"128.0.0.0/1 - 0.0.0.0/1":                    0,
		"::/0 ::/1 8000::/1":                         1,
		"2000::/3 ::/2 ::/0":                         2,
		"- 0.0.0.0/0 0.0.0.0/0":                      1,
		"0.0.0.0/2 64.0.0.0/2 128.0.0.0/1":           -1,
	} {
		destination := func(text string) netip.Prefix {
			p, _ := netip.ParsePrefix(text)
			return p
		}
		if have := syntax.DefaultIndex(strings.Fields(routes), destination); have != want {
			t.Errorf("%q: %d, want %d", routes, have, want)
		}
	}
}
