package examples_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/longjson"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// newHooked is newContainer, with a State that a container can name.
func newHooked(t *testing.T) (container, string) {
	t.Helper()
	c, before := newContainer(t)
	c.State = filepath.Join(c.State, "vm1")
	if err := os.Mkdir(c.State, 0o755); err != nil {
		t.Fatal(err)
	}
	return c, before
}

// process starts the container's first process, and returns its number and what ends it.
func (c container) process(t *testing.T) (pid int, end func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "inf")
	if err := netns.Do(c.Pod.File, cmd.Start); err != nil {
		t.Fatal(err)
	}
	end = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(end)
	return cmd.Process.Pid, end
}

// hook is a call of guestwire-agent hook as an OCI runtime makes it, of a container whose annotation names the State.
func (c container) hook(t *testing.T, id, status string, pid int) *exec.Cmd {
	t.Helper()
	state, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.2", "id": id, "status": status, "pid": pid, "bundle": "/none",
		"annotations": map[string]string{"guestwire/state": filepath.Base(c.State)},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), nstest.Program(t, "examples/guestwire-agent"), "hook", "-nic", "eth0", "-binding", "redirect",
		"-uid", strconv.Itoa(nstest.LauncherUID), "-state", filepath.Dir(c.State), "-dir", c.dir)
	cmd.Stdin = strings.NewReader(string(state))
	return cmd
}

func (c container) hooks(t *testing.T, id, status string, pid int) {
	t.Helper()
	if out, err := c.hook(t, id, status, pid).CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("hook of %s, %s: %v, %s", id, status, err, out)
	}
}

// TestHook: createRuntime wires the NIC, also twice; another container in the same namespace gets neither the State nor
// the NIC; poststop, also twice, gives the namespace back to no other container's harm.
func TestHook(t *testing.T) {
	t.Parallel()
	c, before := newHooked(t)
	pid, _ := c.process(t)
	c.hooks(t, "c1", "created", pid)
	c.hooks(t, "c1", "creating", pid)
	wired := c.Pod.Settled()
	if !strings.Contains(wired, "eth0-tap") {
		t.Fatalf("no tap:\n%s", wired)
	}
	record, err := os.ReadFile(filepath.Join(c.State, "eth0.json"))
	if err != nil {
		t.Fatal(err)
	}
	other := c
	other.State = filepath.Join(nstest.Dir(t), "vm2")
	if err := os.Mkdir(other.State, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		container
		want string
	}{{c, "is in use by NIC eth0"}, {other, `already wired for another one: for "c1"`}} {
		out, err := row.hook(t, "c2", "created", pid).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "guestwire-agent: container c2: ") || !strings.Contains(string(out), row.want) {
			t.Errorf("another container with %s: %v, %s; want %q", row.State, err, out, row.want)
		}
		row.hooks(t, "c2", "stopped", 0)
	}
	if left, err := os.ReadDir(other.State); err != nil || len(left) > 0 {
		t.Errorf("the refused container's directory has %v, %v", left, err)
	}
	if err := nstest.Difference(wired, c.Pod.Settled()); err != nil {
		t.Errorf("after another container: %v", err)
	}
	if still, err := os.ReadFile(filepath.Join(c.State, "eth0.json")); err != nil || string(still) != string(record) {
		t.Errorf("after another container, the record is %s, %v", still, err)
	}
	tap := nstest.OpenTap(t, c.Pod.File, "eth0-tap") // of a process that the container has left
	defer tap.Close()
	for range 2 {
		c.hooks(t, "c1", "stopped", 0)
		c.asFound(t, before)
	}
}

// TestHookRefusals: nothing is wired, and nothing is left.
func TestHookRefusals(t *testing.T) {
	t.Parallel()
	c, before := newHooked(t)
	for stdin, want := range map[string]string{
		"": "standard input has no container's state (EOF)",
		`{"status": "created", "pid": 1, "annotations": {"guestwire/state": "vm1"}}`:                                             "standard input has no container's state",
		`{"id": "c1", "status": "created", "pid": 1}`:                                                                            "annotation guestwire/state",
		`{"id": "c1", "status": "created", "pid": 1, "annotations": {"guestwire/state": ".."}}`:                                  "annotation guestwire/state",
		`{"id": "c1", "status": "created", "pid": 1, "annotations": {"guestwire/state": "a/vm1"}}`:                               "annotation guestwire/state",
		`{"id": "c1", "status": "created", "pid": 1, "annotations": {"guestwire/state": "vm2"}}`:                                 "make the directory",
		`{"id": "c1", "status": "running", "pid": 1, "annotations": {"guestwire/state": "vm1"}}`:                                 "as createRuntime and poststop",
		`{"id": "c1", "status": "created", "annotations": {"guestwire/state": "vm1"}}`:                                           "/proc/0/ns/net",
		`{"id": "c1", "status": "created", "pid": ` + strconv.Itoa(os.Getpid()) + `, "annotations": {"guestwire/state": "vm1"}}`: "give it one of its own",
	} {
		cmd := c.hook(t, "", "", 0)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s\n%v, %s; want %q", stdin, err, out, want)
		} else {
			c.isKept(t, string(out))
		}
	}
	c.asFound(t, before)
}

// TestHookLongInput: a value of the container's state that is far too long costs little, and has a short line in
// hook.log.
func TestHookLongInput(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	c, before := newHooked(t)
	state := []byte(`{"ociVersion": "1.0.2", "id": "c1", "status": "created", "pid": 0, "annotations": {"guestwire/state": "vm1", "other": "x"}}`)
	for _, octets := range []int{4 << 20, 300_000} { // more than hook reads, and less
		for path, text := range longjson.Documents(t, state, octets) {
			cmd := c.hook(t, "", "", 0)
			cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `ulimit -d 131072 && exec "$0" "$@"`}, cmd.Args...) // 128 MiB of memory
			cmd.Stdin = bytes.NewReader(text)
			out, err := cmd.CombinedOutput()
			if err == nil || len(out) > longjson.MostError || bytes.Contains(out, []byte("out of memory")) {
				t.Errorf("%s: %v, %d octets: %.300s", path, err, len(out), out)
			} else {
				c.isKept(t, string(out))
			}
		}
	}
	if log, err := os.Stat(filepath.Join(filepath.Dir(c.State), "hook.log")); err != nil || log.Size() > 64<<10 {
		t.Errorf("hook.log: %v, %v", log, err)
	}
	c.asFound(t, before)
}

// isKept checks that the last line of hook.log is what the hook has printed, which crun drops.
func (c container) isKept(t *testing.T, said string) {
	t.Helper()
	kept, err := os.ReadFile(filepath.Join(filepath.Dir(c.State), "hook.log"))
	if at := bytes.LastIndex(bytes.TrimRight(kept, "\n"), []byte("\n")) + 1; err != nil || !regexp.MustCompile(`^\d{4}-\d\d-\d\dT[^ ]* `+regexp.QuoteMeta(said)+`$`).Match(kept[at:]) {
		t.Errorf("hook.log: %v, %s\nwant %s", err, kept, said)
	}
}

// TestHookLog: a mistake in the hook's args is kept as well, the file does not grow for ever, and other verbs have
// none.
func TestHookLog(t *testing.T) {
	t.Parallel()
	var c container
	c.State = filepath.Join(t.TempDir(), "run", "vm1")
	path := filepath.Join(filepath.Dir(c.State), "hook.log")
	mistaken := func(args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), nstest.Program(t, "examples/guestwire-agent"), args...).CombinedOutput()
		if err == nil {
			t.Fatalf("%q: no error, %s", args, out)
		}
		if args[0] == "hook" {
			c.isKept(t, string(out))
		}
	}
	mistaken("plan", "-state", filepath.Dir(c.State))
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after plan, hook.log: %v", err)
	}
	mistaken("hook", "-nik", "eth0", "-state", filepath.Dir(c.State))
	mistaken("hook", "-nic", "eth0", "-config", "/none", "--state="+filepath.Dir(c.State))
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Fatal(err)
	}
	mistaken("hook", "-nik", "eth0", "-state", filepath.Dir(c.State))
	now, err := os.Stat(path)
	if err != nil || now.Size() > 1<<10 || now.Mode() != 0o600 {
		t.Errorf("after a full hook.log: %v, %v", now, err)
	}
	if old, err := os.Stat(path + ".old"); err != nil || old.Size() != 1<<20 {
		t.Errorf("the full hook.log: %v, %v", old, err)
	}
}

// TestHookNamespaceGone: poststop forgets a namespace that is gone. podman calls it when it has removed the NIC, and a
// socket of its own still keeps the namespace.
func TestHookNamespaceGone(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{false, true} {
		c, _ := newHooked(t)
		pid, end := c.process(t)
		c.hooks(t, "c1", "created", pid)
		end()
		if kept {
			c.Pod.IP("link del eth0")
			socket := -1
			err := netns.Do(c.Pod.File, func() (err error) {
				socket, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(socket)
		}
		c.Pod.End()
		for range 2 {
			c.hooks(t, "c1", "stopped", 0)
		}
		for _, dir := range []string{c.State, c.dir} {
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("kept %v: %s has %v, %v; want nothing", kept, dir, left, err)
			}
		}
	}
}

// TestHookNextContainer: a container whose network has gone without poststop does not keep the next one from the
// State, and a late poststop of the first one does not harm the next one.
func TestHookNextContainer(t *testing.T) {
	t.Parallel()
	c, _ := newHooked(t)
	pid, end := c.process(t)
	c.hooks(t, "c1", "created", pid)
	end()
	c.Pod.End()
	next, before := newContainer(t)
	next.State, next.dir = c.State, c.dir
	pid, _ = next.process(t)
	next.hooks(t, "c2", "created", pid)
	wired := next.Pod.Settled()
	next.hooks(t, "c1", "stopped", 0)
	if err := nstest.Difference(wired, next.Pod.Settled()); err != nil {
		t.Errorf("after the first container's poststop: %v", err)
	}
	next.hooks(t, "c2", "stopped", 0)
	next.asFound(t, before)
}

// TestHookKilled: what createRuntime leaves when it is killed, poststop or the next createRuntime finds.
func TestHookKilled(t *testing.T) {
	t.Parallel()
	c, before := newHooked(t)
	pid, _ := c.process(t)
	for _, file := range []string{c.dir + "/*/eth0.journal", c.State + "/eth0.json"} {
		for _, again := range []bool{false, true} {
			cmd := c.hook(t, "c1", "created", pid)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for found, end := []string(nil), time.Now().Add(time.Minute); len(found) == 0 && time.Now().Before(end); {
				found, _ = filepath.Glob(file)
			}
			cmd.Process.Kill()
			cmd.Wait()
			if again {
				c.hooks(t, "c1", "created", pid)
			}
			c.hooks(t, "c1", "stopped", 0)
			if err := nstest.Difference(before, c.Pod.Settled()); err != nil {
				t.Errorf("killed at %s, called again: %v: %v", file, again, err)
			}
		}
	}
	nstest.Run(t, nstest.Program(t, "examples/guestwire-agent"), "forget", "-dir", c.dir) // a killed call's locks
	c.asFound(t, before)
}
