// Package netlinktest takes netlink messages apart for tests, and fuzzes parsers of messages.
package netlinktest

import (
	"testing"

	"github.com/guestwire/guestwire/internal/netlink"
)

// Inside is the value of the attribute that the kinds lead to, from attribute to attribute after a header of n bytes.
func Inside(t testing.TB, message []byte, n int, kinds ...uint16) []byte {
	t.Helper()
	for _, want := range kinds {
		var found []byte
		err := netlink.EachAttribute(message, n, func(kind uint16, v []byte) error {
			if kind == want {
				found = v
			}
			return nil
		})
		if err != nil || found == nil {
			t.Fatalf("no attribute %d: %v", want, err)
		}
		message, n = found, 0
	}
	return message
}
