package kernel

import (
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
)

// TestDeletesLink: only a deletion of a link goes without the lock.
func TestDeletesLink(t *testing.T) {
	for _, kind := range []int{unix.RTM_NEWLINK, unix.RTM_SETLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_DELROUTE, unix.RTM_DELLINK} {
		message := nl.NewNetlinkRequest(kind, 0).Serialize()
		if have := deletesLink(message); have != (kind == unix.RTM_DELLINK) {
			t.Errorf("type %d: %v", kind, have)
		}
	}
}

// TestRtnlIsGivenBack: an operation of each way that takes the lock gives it back, also if the kernel refuses it.
func TestRtnlIsGivenBack(t *testing.T) {
	if err := writeSysctl(netstate.SysctlSet{Path: "net/none", Value: "1"}); err == nil {
		t.Error("a sysctl that is not there was written")
	}
	if !rtnl.TryLock() {
		t.Fatal("the lock is held after an error")
	}
	rtnl.Unlock()
}
