package sandbox_test

import (
	"testing"

	"github.com/guestwire/guestwire/internal/rig/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
