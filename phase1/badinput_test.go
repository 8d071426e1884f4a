package phase1_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/wired"
	"github.com/guestwire/guestwire/phase1"
)

// TestBadInput wants a clear error, and the namespace and the state directory as they were.
func TestBadInput(t *testing.T) {
	nstest.Need(t)
	nstest.NeedRoot(t, "the test needs two users")
	n := nstest.NewNetwork(t)
	n.Pod.IP("route add 10.0.2.0/25 via 10.244.1.1")
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	foreign := filepath.Join(t.TempDir(), "foreign")
	if err := errors.Join(os.Mkdir(foreign, 0o755), os.Chown(foreign, nstest.LauncherUID, 0)); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(t.TempDir(), "shared")
	if err := errors.Join(os.Mkdir(shared, 0o755), os.Chmod(shared, 0o777)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o666)); err != nil {
		t.Fatal(err)
	}
	before := settled(t, n)
	field := func(name string) func(error) bool {
		return func(err error) bool {
			var f *cache.FieldError
			return errors.As(err, &f) && f.Field == name
		}
	}
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	for _, test := range []struct {
		name   string
		change func(*wired.NIC)
		want   func(error) bool
		text   string // part of the error: what to do
	}{
		{"no such NIC", func(c *wired.NIC) { c.Name = "eth7" }, is(fs.ErrNotExist), "the namespace has lo, eth0"},
		{"no NIC", func(c *wired.NIC) { c.Name = "" }, field("nic"), "want 1 to 15"},
		{"dots as name", func(c *wired.NIC) { c.Name = ".." }, field("nic"), `".."`},
		{"long name", func(c *wired.NIC) { c.Name = "eth0123456789abc" }, field("nic"), "at most 15"},
		{"path as name", func(c *wired.NIC) { c.Name = "../x" }, field("nic"), "no network interface's name"},
		{"loopback", func(c *wired.NIC) { c.Name = "lo" }, field("nic"), "loopback"},
		{"a pointer", func(c *wired.NIC) { c.Binding = &infra.Bridge{} }, field("binding"), "by value"},
		{"no user", func(c *wired.NIC) { c.Owner.UID = 1<<32 - 1 }, field("owner"), "no user's"},
		{"no binding", func(c *wired.NIC) { c.Binding = nil }, field("binding"), "bridge"},
		{"no namespace", func(c *wired.NIC) { c.NetNS = nil }, field("netns"), "/run/netns"},
		{"own namespace", func(c *wired.NIC) { c.NetNS = own }, is(phase1.ErrOwnNamespace), "name the pod's"},
		{"state in nothing", func(c *wired.NIC) { c.State = "/nonexistent/a/b" }, is(fs.ErrNotExist), "mkdir -p /nonexistent/a"},
		{"state of another", func(c *wired.NIC) { c.State = foreign }, is(fs.ErrPermission), "serves nothing else, chown root " + foreign + ")"},
		{"state of all", func(c *wired.NIC) { c.State = shared }, is(fs.ErrPermission), "serves nothing else, chmod 0755 " + shared + ")"},
		{"state at the record's path", func(c *wired.NIC) { c.State += "/eth0.json" }, field("state"), "is the path of a record: name its directory, " + n.State},
		{"state at the root", func(c *wired.NIC) { c.State = "/" }, field("state"), "name a directory of the guest's own, such as /run/guestwire/vm1"},
		{"state in a file's place", func(c *wired.NIC) { c.State = file }, is(unix.ENOTDIR), "state directory: " + file + ": not a directory: name another one"},
		{"journals in a file's place", func(c *wired.NIC) { c.Dir = file }, is(unix.ENOTDIR), "journal directory: " + file + ": not a directory: name another one"},
		{"journals in nothing", func(c *wired.NIC) { c.Dir = "/nonexistent/a/b" }, is(fs.ErrNotExist), "journal directory: /nonexistent/a is not there: make it first (mkdir -p /nonexistent/a)"},
		{"journals below a file", func(c *wired.NIC) { c.Dir = file + "/node" }, is(unix.ENOTDIR), file + ": not a directory: name another one"},
		{"too many queues", func(c *wired.NIC) { c.Queues = 257 }, field("queues"), "1 to 256"},
		{"collision", func(c *wired.NIC) { c.Binding = infra.Masquerade{} }, is(infra.ErrCollision), "choose another network"},
		{"small", func(c *wired.NIC) {
			c.Binding = infra.Masquerade{IPv4: netip.MustParsePrefix("10.1.0.0/31")}
		}, field("binding.masquerade.ipv4"), "at least a /30"},
		{"small IPv6", func(c *wired.NIC) {
			c.Binding = infra.Masquerade{IPv4: netip.MustParsePrefix("10.1.0.0/24"), IPv6: netip.MustParsePrefix("fd01::/127")}
		}, field("binding.masquerade.ipv6"), "at least a /126"},
		{"bad option", func(c *wired.NIC) { c.Options.Hostname = "a\nb" }, field("options.hostname"), "control"},
		{"bad device", func(c *wired.NIC) { c.Device.PCIAddress = "1:2" }, field("device.pciAddress"), "0000:03:10.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := config(n, infra.Bridge{})
			test.change(&c)
			_, err := c.Setup(t.Context())
			if err == nil || !test.want(err) {
				t.Fatalf("error %v is of another type", err)
			}
			if !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %q does not say %q", err, test.text)
			}
			if err := difference(before, n.Pod.Dump()); err != nil {
				t.Errorf("the namespace was changed: %v", err)
			}
			if left, _ := os.ReadDir(n.State); len(left) > 0 {
				t.Errorf("the state directory has %v", left)
			}
		})
	}

	t.Run("user without tun", func(t *testing.T) {
		if err := os.Chmod("/dev/net/tun", 0o600); err != nil { // the sandbox's
			t.Fatal(err)
		}
		defer os.Chmod("/dev/net/tun", 0o666)
		_, err := config(n, infra.Bridge{}).Setup(t.Context())
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "/dev/net/tun") {
			t.Errorf("error %v, want fs.ErrPermission for /dev/net/tun", err)
		}
	})
	t.Run("wired by another", func(t *testing.T) {
		setup(t, config(n, infra.Bridge{}))
		c := config(n, infra.Bridge{})
		c.State = t.TempDir()
		if _, err := c.Setup(t.Context()); !errors.Is(err, infra.ErrWired) || !errors.Is(err, fs.ErrExist) {
			t.Errorf("error %v, want ErrWired", err)
		}
		var bad *cache.FieldError
		if err := c.Teardown(t.Context()); !errors.As(err, &bad) || bad.Field != "state" || !strings.Contains(bad.Reason, n.State) {
			t.Errorf("teardown with another state directory: error %v, want a FieldError that names %s", err, n.State)
		}
		c = config(n, nil)
		if _, err := c.Setup(t.Context()); err == nil || !strings.Contains(err.Error(), "binding: missing") {
			t.Errorf("no binding: error %v", err)
		}
		c = config(n, infra.Masquerade{})
		if _, err := c.Setup(t.Context()); !errors.Is(err, infra.ErrWired) {
			t.Errorf("another binding: error %v, want ErrWired", err)
		}
		teardown(t, n, config(n, infra.Bridge{}), before)
	})
	t.Run("names in use", func(t *testing.T) {
		n.Pod.IP("link add eth0-tap type bridge")
		defer n.Pod.IP("link del eth0-tap")
		before := settled(t, n)
		if _, err := config(n, infra.Bridge{}).Setup(t.Context()); !errors.Is(err, infra.ErrWired) {
			t.Errorf("error %v, want ErrWired", err)
		}
		if err := difference(before, n.Pod.Dump()); err != nil {
			t.Errorf("the namespace was changed: %v", err)
		}
	})
	t.Run("waiting ends with the context", func(t *testing.T) {
		identity, err := netns.Identify(n.Pod.File)
		if err != nil {
			t.Fatal(err)
		}
		lock, err := os.Create(fmt.Sprintf("/run/guestwire.lock/%d", identity.Inode))
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		flock(t, lock)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		c := config(n, infra.Bridge{})
		for verb, call := range map[string]func(context.Context) error{"setup": func(ctx context.Context) error { return setupAlone(ctx, c) }, "check": c.Check, "teardown": c.Teardown,
			"hold": func(ctx context.Context) error { _, _, err := c.Hold(ctx); return err }} {
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: error %v, want the context's", verb, err)
			}
		}
	})
}

// TestOfferedPaths: the commands that errors offer have a path as one word, whatever the path is.
func TestOfferedPaths(t *testing.T) {
	nstest.Need(t)
	nstest.NeedRoot(t, "the test needs two users")
	n := nstest.NewNetwork(t)
	dir := filepath.Join(nstest.Dir(t), nstest.Hostile)
	mode := func(path string, mode fs.FileMode, owner int) string {
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, mode), os.Chown(path, owner, 0)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		state, begins, value string
	}{
		"no directory above": {filepath.Join(dir, "none", "vm1"), "mkdir -p", filepath.Join(dir, "none")},
		"of another":         {mode(filepath.Join(dir, "foreign"), 0o755, nstest.LauncherUID), "chown root", filepath.Join(dir, "foreign")},
		"of all":             {mode(filepath.Join(dir, "shared"), 0o777, 0), "chmod 0755", filepath.Join(dir, "shared")},
		"closed":             {filepath.Join(mode(filepath.Join(dir, "closed"), 0o700, 0), "vm1"), "chmod o+rx", filepath.Join(dir, "closed")},
	} {
		t.Run(name, func(t *testing.T) {
			nic := config(n, infra.Bridge{})
			nic.State = c.state
			_, err := nic.Setup(t.Context())
			nstest.Offers(t, fmt.Sprint(err), c.begins, c.value)
		})
	}
}
