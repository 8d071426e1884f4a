package node

import (
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m, selection) }

var selection = nstest.Selection{
	Short: []nstest.Selected{
		{Test: "TestImage", Why: "needs nothing"},
		{Test: "TestNode", Why: "the machine stays as it is"},
		{Test: "TestPods/redirect", Why: "an engine, the plugin, the launcher and a guest"},
	},
}
