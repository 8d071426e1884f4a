package node

import (
	"testing"

	"github.com/guestwire/guestwire/internal/rig/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }
