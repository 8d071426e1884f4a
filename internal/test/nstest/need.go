package nstest

import (
	"os"
	"os/exec"
	"testing"

	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// Need skips the test if no namespace can be made, or a program is missing.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	if unable != nil {
		Skip(t, "no network namespace can be made: "+unable.Error())
	}
	for _, p := range append([]string{"ip", "bridge", "tc", "nft"}, programs...) {
		if _, err := exec.LookPath(p); err != nil {
			Skip(t, "no "+p+" on this machine")
		}
	}
}

// Long is for a test that takes more than two seconds on two idle cores. With -short it is left out.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		LeaveOut(t, "long, and -short is set")
	}
}

// NeedTaps skips the test if no tap can be made: an ordinary user's sandbox has the machine's device.
func NeedTaps(t testing.TB) {
	t.Helper()
	device, err := os.OpenFile(tap.Device, os.O_RDWR, 0)
	if err != nil {
		Skip(t, "no tap can be made: "+err.Error())
	}
	device.Close()
}

// NeedRoot skips the test where root is an ordinary user in a user namespace, and says why that is not enough.
func NeedRoot(t testing.TB, why string) {
	t.Helper()
	if sandbox.OneUser() {
		Skip(t, "an ordinary user cannot run it: "+why)
	}
}
