package netns_test

import (
	"errors"
	"os"
	"testing"

	"github.com/guestwire/guestwire/internal/netns"
)

// TestNamed: a name is BOOT-INODE-COOKIE. That of this boot gives the whole identity back, that of another boot has 8
// characters of the boot's id.
func TestNamed(t *testing.T) {
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	id, err := netns.Identify(f)
	if err != nil {
		t.Fatal(err)
	}
	id.Cookie = 17
	if named, err := netns.Named(id.Name()); err != nil || named != id {
		t.Errorf("Named(%q) is %+v, %v; want %+v", id.Name(), named, err, id)
	}
	other := netns.Identity{BootID: "zzzzzzzz", Device: id.Device, Inode: 4026532281, Cookie: 17}
	if named, err := netns.Named("zzzzzzzz-4026532281-17"); err != nil || named != other {
		t.Errorf("a name of another boot: %+v, %v; want %+v", named, err, other)
	}
	for _, name := range []string{"", "eth0", "9c1e22f0-4026532281", "9c1e22f0-4026532281-17-1", "9c1e22f-4026532281-17", "9c1e22f0-inode-17", "9c1e22f0-4026532281-cookie"} {
		if id, err := netns.Named(name); !errors.Is(err, netns.ErrNoName) {
			t.Errorf("Named(%q) is %+v, %v; want ErrNoName", name, id, err)
		}
	}
}
