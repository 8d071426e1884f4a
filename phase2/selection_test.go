package phase2_test

import "github.com/guestwire/guestwire/internal/test/nstest"

// selection leaves out what boots guests, and clients of guests.
var selection = nstest.Selection{
	Short: []nstest.Selected{
		{Test: "TestOpen", Why: "no namespace"},
		{Test: "TestOpenTap.*", Why: "the guest's tap, without a guest"},
		{Test: "TestServe.*", Why: "the responder follows records"},
		{Test: "TestResolvConf", Why: "no namespace"},
		{Test: "TestRereadResolvConf", Why: "no namespace"},
		{Test: "TestFollow.*", Why: "files that change"},
		{Test: "TestStopCause", Why: "no namespace"},
	},
}
