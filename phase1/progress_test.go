package phase1_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestProgress: a call that waits for another one says so, and says for which process.
func TestProgress(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	identity, err := netns.Identify(n.Pod.File)
	if err != nil {
		t.Fatal(err)
	}
	c := config(n, infra.Redirect{})
	c.Dir = filepath.Join(nstest.Dir(t), "node")
	setup(t, c) // makes the directory
	lock, err := os.Create(filepath.Join(c.Dir, fmt.Sprint(identity.Inode)))
	if err != nil {
		t.Fatal(err)
	}
	flock(t, lock)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said []string
	c.Progress = func(text string) {
		said = append(said, text)
		lock.Close()
	}
	if err := c.Check(ctx); err != nil {
		t.Fatal(err)
	}
	who := fmt.Sprintf("process %d (", os.Getpid())
	if len(said) != 1 || !strings.Contains(said[0], who) || !strings.Contains(said[0], lock.Name()) {
		t.Errorf("said %q, want one line with %q and %s", said, who, lock.Name())
	}
}

// TestProgressOfGateway: a Setup that waits for a gateway which does not answer names the gateway.
func TestProgressOfGateway(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	n.Pod.IP("route replace default via fd00:244:1::99 dev eth0")
	c := config(n, infra.Redirect{})
	var said []string
	c.Progress = func(text string) { said = append(said, text) }
	setup(t, c)
	if len(said) != 1 || !strings.Contains(said[0], "fd00:244:1::99") {
		t.Errorf("Setup said %q, want one line with the gateway", said)
	}
}

// TestProgressOutside: Progress is not called on the call's thread, which is in the pod's network: a connection that it
// opens is the caller's, and not the pod's.
func TestProgressOutside(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	cookie := func() uint64 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
		}
		defer unix.Close(fd)
		cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err != nil {
			t.Error(err)
		}
		return cookie
	}
	own := cookie()
	c := config(n, infra.Masquerade{})
	c.Egress = policy(t, "allow all")
	setup(t, c)
	var said []string
	c.Progress = func(text string) {
		said = append(said, text)
		if cookie() != own {
			t.Errorf("%s: a socket of Progress is not the caller's", text)
		}
	}
	c.Egress = nil
	setup(t, c)   // says that the policy is taken away
	for range 2 { // the second one says that there is nothing
		if err := c.Teardown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if len(said) != 2 {
		t.Errorf("said %q, want two lines", said)
	}
}

// TestLockIsTaken: a lock that a killed call has left is free, and a lock that has lost its name does not count.
func TestLockIsTaken(t *testing.T) {
	t.Parallel()
	n := nstest.NewNetwork(t)
	identity, err := netns.Identify(n.Pod.File)
	if err != nil {
		t.Fatal(err)
	}
	c := config(n, infra.Redirect{})
	c.Dir = filepath.Join(nstest.Dir(t), "node")
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(c.Dir, fmt.Sprint(identity.Inode))
	lock, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	flock(t, lock)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	setup(t, c)
	writeFile(t, path, "")
	check(t, c)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the lock's file is left: %v", err)
	}
}
