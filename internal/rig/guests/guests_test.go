// Package guests_test boots guests, and runs real DHCP clients in the place of guests.
package guests_test

import (
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }
