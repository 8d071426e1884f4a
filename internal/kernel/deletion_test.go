package kernel

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netstate"
)

// TestGroupDeletion: after the deletion of a group its links have gone, their names are free for the operations after
// it, and other links stay. A group without links is no error.
func TestGroupDeletion(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Fatal("run as root: the test makes links in a namespace of its own")
	}
	runtime.LockOSThread()
	before, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return // the thread ends with the test
		}
		before.Close()
		runtime.UnlockOSThread()
	}()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	n, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	bridge := func(index int, name string, group uint32) netstate.Op {
		return netstate.LinkAdd{Index: index, Name: name, Kind: "bridge", MAC: mac4, MTU: 1500, Group: group}
	}
	const group, other = 0x67770007, 0x67770008
	err = n.Apply(t.Context(), []netstate.Op{
		bridge(11, "a", group), bridge(12, "b", group), bridge(13, "c", other),
		netstate.GroupDel{Group: group},
		netstate.LinkSet{Have: netstate.Link{Name: "c"}, Want: netstate.Link{Index: 13, Name: "a"}},
		bridge(11, "b", other),
	})
	if err != nil {
		t.Error(err)
	}
	links, err := n.Links()
	if err != nil {
		t.Error(err)
	}
	have := map[int]string{}
	for _, l := range links {
		if l.Group != 0 {
			have[l.Index] = l.Name
		}
	}
	if len(have) != 2 || have[13] != "a" || have[11] != "b" {
		t.Errorf("links are %v, want 13 a and 11 b alone", have)
	}
	err = n.Apply(t.Context(), []netstate.Op{netstate.GroupDel{Group: group}, netstate.LinkDel{Index: 13, Link: "a"}})
	if err != nil {
		t.Errorf("a group without links: %v", err)
	}
	if links, err := n.Links(); err != nil || len(links) != len(have) {
		t.Errorf("%d links, %v: the operation after the deletion was not carried out", len(links), err)
	}
	// lo has a kind that the kernel never deletes.
	err = n.Apply(t.Context(), []netstate.Op{netstate.LinkSet{Have: netstate.Link{Name: "lo"}, Want: netstate.Link{Index: 1, Name: "lo", Group: other}}, netstate.GroupDel{Group: other}})
	if !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "step 2 of 2: ip link del group") {
		t.Errorf("a group that the kernel does not delete: %v", err)
	}
	if links, err := n.Links(); err != nil || len(links) != len(have) {
		t.Errorf("%d links, %v: a part of the group was deleted", len(links), err)
	}
}
