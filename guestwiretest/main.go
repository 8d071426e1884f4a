// Package guestwiretest is for tests of programs that use guestwire: launchers, CNI plugins, agents. It lays a pod with a
// world behind it, and runs a guest without a VM on the tap that phase1.Setup made.
//
//	func TestMain(m *testing.M) { guestwiretest.Main(m) }
//
// The tests run as root, and as an ordinary user where the kernel lets that user make user namespaces. Nothing of them
// stays on the machine, also after a panic or a kill: namespaces have no names, and journals and records are in a mount
// namespace that ends with the test process. Only processes that a test starts need an end of their own, such as
// SysProcAttr.Pdeathsig.
//
// A fixture (NewPod, NewGuest, a dump) fails the test itself. What a guest or a namespace does returns an error, as a test
// may expect one; such an operation ends with its context, and after a minute. Where the machine cannot run a test, the
// test is skipped, with the reason; with GUESTWIRE_REQUIRE=1 in the environment it fails.
package guestwiretest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/sandbox"
)

// Main is a TestMain: it starts the test binary again, with mounts of its own, and ends with its exit status. There,
// /run/netns, /run/guestwire.lock (phase1.DefaultDir), /etc/resolv.conf and /dev/net/tun are the tests' own; the device
// can be opened by every user. M is the *testing.M, or has a Run that does more before and after the tests.
//
// For an ordinary user the tests run as root of a user namespace. There is no other user there, no network but the
// loopback, and /dev/net/tun is the machine's. If the kernel refuses the namespace, the tests run outside, and NewPod
// skips them.
func Main(m interface{ Run() int }) {
	if err := sandbox.Enter(); err != nil && !errors.Is(err, fs.ErrPermission) {
		fmt.Fprintln(os.Stderr, "guestwiretest:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Skip skips the test with the reason, or fails it if GUESTWIRE_REQUIRE is set.
func skip(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("GUESTWIRE_REQUIRE") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// limit is for operations whose context has no deadline of its own.
const limit = time.Minute

// limited returns a context that ends with ctx or after the limit, with a cause that says so.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("a minute is over: %w", context.DeadlineExceeded))
}
