package vm

import (
	"testing"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// NeedGuest skips the test if this machine cannot boot a guest, and returns the user who runs the guests of Debian's
// libvirt.
func NeedGuest(t testing.TB) (uid, gid int) {
	t.Helper()
	nstest.Need(t)
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "the test needs two users")
	if err := Missing(); err != nil {
		nstest.Skip(t, err.Error())
	}
	uid, gid, err := LibvirtUser()
	if err != nil {
		t.Fatal(err)
	}
	return uid, gid
}
