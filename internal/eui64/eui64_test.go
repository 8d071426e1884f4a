package eui64

import (
	"net/netip"
	"testing"
)

func TestLinkLocal(t *testing.T) {
	if have := LinkLocal([6]byte{0x0a, 0x58, 0x0a, 0xf4, 0x01, 0x07}); have != netip.MustParseAddr("fe80::858:aff:fef4:107") {
		t.Errorf("%v", have)
	}
}
