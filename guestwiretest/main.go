// Package guestwiretest is for tests of programs that use guestwire. It creates a pod with a world outside, and runs a
// guest without a VM on the tap that Setup made. examples/launchertest is a test to copy. TestMain has to call [Main],
// except for [FakeNIC], which needs no root and changes nothing.
//
// Nothing stays on the machine, also after a panic or a kill. A test must end the processes that it starts.
// launch.Start does that: its command is killed when the test's process ends.
//
// A fixture that cannot be made fails the test. What a guest or a namespace does returns an error within a minute. A
// test that the machine cannot run is skipped, with the reason. If GUESTWIRE_REQUIRE is not empty, it fails.
package guestwiretest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// Main runs the tests in another process of the test binary, and ends with its status. The process has its own
// /run/netns, phase1.DefaultDir, /etc/resolv.conf, and a /dev/net/tun that every user can open.
//
// Run by root, the process is root. Run by an ordinary user, it is root of a new user namespace without other users,
// and uses the machine's /dev/net/tun. If the kernel allows no such namespace, NewPod skips the test.
//
// m is the *testing.M, or another value whose Run calls it.
func Main(m interface{ Run() int }) {
	if err := sandbox.Enter(); err != nil && !errors.Is(err, fs.ErrPermission) {
		fmt.Fprintln(os.Stderr, "guestwiretest:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// skip skips the test with the reason, or fails it if GUESTWIRE_REQUIRE is set.
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
