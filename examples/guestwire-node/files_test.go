package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func modified(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}

// hiddenPath is the name of a file that a call needs for a moment.
func hiddenPath(path, ending string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+ending)
}

// TestReplaceFile: a file comes with its mode, is left alone if it is the same, and is replaced together with what a
// killed call has left.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "list")
	for i, c := range []struct {
		text    string
		mode    os.FileMode
		changed bool
	}{
		{"one", 0o600, true},
		{"one", 0o600, false},
		{"one", 0o644, true},
		{"two", 0o755, true},
	} {
		write(t, hiddenPath(path, ".new"), "half")
		before, _ := os.Lstat(path)
		changed, err := replaceFile(t.Context(), path, []byte(c.text), c.mode)
		if err != nil || changed != c.changed {
			t.Errorf("%d: changed %v, %v", i, changed, err)
		}
		after, err := os.Lstat(path)
		if err != nil || after.Mode() != c.mode || read(t, path) != c.text {
			t.Errorf("%d: %v, %q, %v", i, after.Mode(), read(t, path), err)
		}
		if before != nil && os.SameFile(before, after) == c.changed {
			t.Errorf("%d: the file is the same one: %v", i, !c.changed)
		}
		if have := names(t, dir); !slices.Equal(have, []string{"list"}) {
			t.Errorf("%d: %q is left", i, have)
		}
	}
	// What has nothing to do leaves the directory alone: an engine that watches it would load all lists anew.
	discard := modified(t, dir)
	if changed, err := replaceFile(t.Context(), path, []byte("two"), 0o755); err != nil || changed {
		t.Errorf("the same again: changed %v, %v", changed, err)
	}
	if removed, err := removeFile(t.Context(), filepath.Join(dir, "none")); err != nil || removed {
		t.Errorf("a file that is not there: removed %v, %v", removed, err)
	}
	if now := modified(t, dir); now != discard {
		t.Errorf("the directory has changed at %v", now)
	}
	// A link is replaced, and what it leads to stays.
	target := filepath.Join(t.TempDir(), "target")
	write(t, target, "mine")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	if changed, err := replaceFile(t.Context(), path, []byte("mine"), 0o644); err != nil || !changed || read(t, target) != "mine" {
		t.Errorf("link: changed %v, %v", changed, err)
	}
	write(t, hiddenPath(path, ".new"), "half")
	for _, want := range []bool{true, false} {
		if removed, err := removeFile(t.Context(), path); err != nil || removed != want {
			t.Errorf("removed %v, %v", removed, err)
		}
	}
	if have := names(t, dir); len(have) > 0 {
		t.Errorf("%q is left", have)
	}
	if removed, err := removeFile(t.Context(), filepath.Join(dir, "none", "list")); err != nil || removed {
		t.Errorf("without the directory: removed %v, %v", removed, err)
	}
}

const replaceForever = "GUESTWIRE_NODE_TEST_REPLACE"

func large(letter string) []byte { return []byte(strings.Repeat(letter, 1<<20)) }

// replaceUntilKilled gives the file one text after the other.
func replaceUntilKilled(path string) {
	for {
		for _, letter := range []string{"a", "b"} {
			if _, err := replaceFile(context.Background(), path, large(letter), 0o644); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
}

// TestKilled: two processes replace a file at once, and one is killed: the file is the one or the other, and the other
// process goes on.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "list")
	if _, err := replaceFile(t.Context(), path, large("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	halves := 0
	for i := range 30 {
		killed := exec.Command(os.Args[0])
		killed.Env = append(os.Environ(), replaceForever+"="+path)
		killed.Stderr = os.Stderr
		if err := killed.Start(); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error { // until it has begun
			if now, err := os.Lstat(path); err != nil || os.SameFile(now, before) {
				return fmt.Errorf("the file is not replaced: %v", err)
			}
			return nil
		})
		for range 3 {
			if _, err := replaceFile(t.Context(), path, large("c"), 0o644); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Duration(i) * time.Millisecond / 10) // to be killed elsewhere each time
		if err := killed.Process.Kill(); err != nil {
			t.Error(err)
		}
		if err := killed.Wait(); err.Error() != "signal: killed" {
			t.Fatal(err)
		}
		text := read(t, path)
		if len(text) != 1<<20 || strings.Trim(text, text[:1]) != "" {
			t.Fatalf("kill %d: half a file of %d octets", i, len(text))
		}
		if _, err := os.Lstat(hiddenPath(path, ".new")); err == nil {
			halves++
		}
		if _, err := replaceFile(t.Context(), path, large("d"), 0o644); err != nil {
			t.Error(err)
		}
		if have := names(t, dir); !slices.Equal(have, []string{"list"}) {
			t.Errorf("%q is left", have)
		}
	}
	t.Logf("%d of 30 kills left a temporary file, which the next call has removed", halves)
}

// TestLockIsOurs: nobody can open what replaceFile and removeFile lock but the user whose file it is. The file that
// they lock goes with the call, and a call that has to wait ends with its context.
func TestLockIsOurs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "list")
	write(t, path, "one")
	for _, name := range []string{dir, path} { // what others can open, they can lock
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if changed, err := replaceFile(ctx, path, []byte("two"), 0o644); err != nil || !changed {
		t.Errorf("while another user holds the directory: changed %v, %v", changed, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	unlock, err := directory.Lock(ctx, root, "."+filepath.Base(path)+".lock")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(hiddenPath(path, ".lock")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the lock: %v, %v; want mode 0600", info, err)
	}
	cause := errors.New("enough")
	ended, end := context.WithCancelCause(t.Context())
	end(cause)
	_, err = replaceFile(ended, path, []byte("three"), 0o644)
	_, removeErr := removeFile(ended, path)
	if !errors.Is(err, cause) || !errors.Is(removeErr, cause) {
		t.Errorf("while another call works: %v, %v; want %v", err, removeErr, cause)
	}
	unlock()
	if err := os.WriteFile(hiddenPath(path, ".lock"), nil, 0o600); err != nil { // of a killed call
		t.Fatal(err)
	}
	if removed, err := removeFile(ctx, path); err != nil || !removed {
		t.Errorf("removed %v, %v", removed, err)
	}
	if have := names(t, dir); len(have) > 0 {
		t.Errorf("%q is left", have)
	}
}

// TestMissing: what is not there is named with the way out, which works.
func TestMissing(t *testing.T) {
	n := newNode(t)
	write(t, n.conf+"/10-net.conflist", flannel)
	class := filepath.Dir(n.conf) + "/class.d"
	install := func(want string) {
		t.Helper()
		err := run(t.Context(), n.args("install", "-list-to", class), io.Discard, discard())
		if text := fmt.Sprint(err); !strings.Contains(text, want) {
			t.Errorf("%s, want %q", text, want)
		}
	}
	if err := os.Remove(n.from + "/guestwire"); err != nil {
		t.Fatal(err)
	}
	install("binary guestwire: not in " + n.from + ": file does not exist: name its directory with -from, or build the CNI plugin as " + n.from + "/guestwire")
	write(t, n.from+"/guestwire", "build 1")
	for _, dir := range []string{n.bin, class} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		install("create it (mkdir -p " + dir + ")")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	install("<nil>")
	if err := os.RemoveAll(n.conf); err != nil {
		t.Fatal(err)
	}
	install(n.conf + ": no CNI list, and no such directory")
	write(t, n.conf+"/10-net.conflist", flannel)
	install("<nil>")
}

// TestBinaries: the binaries are found beside the program, and where a package has the plugin in a directory of its
// own.
func TestBinaries(t *testing.T) {
	for _, c := range []struct{ plugin, agent string }{{"bin/guestwire", "bin/guestwire-agent"}, {"lib/cni/guestwire", "bin/guestwire-agent"}} {
		usr := t.TempDir()
		for _, file := range []string{c.plugin, c.agent} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(usr, file)), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(usr, file), file)
		}
		for i, want := range []string{c.plugin, c.agent} {
			b := binaries[i]
			if text, err := readFirst(besides(usr+"/bin/guestwire-node"), b.name); err != nil || string(text) != want {
				t.Errorf("%s of %v: %q, %v", b.name, c, text, err)
			}
		}
	}
}

// TestOthersLink: where another user has put a symbolic link in the place of a directory that a flag names, nothing is
// made or removed where the link leads.
func TestOthersLink(t *testing.T) {
	link := nstest.OthersLink(t)
	ready := &readiness{file: filepath.Join(link, "ready"), log: discard()}
	plugin := &devicePlugin{devicePlugins: &devicePlugins{dir: link}, name: "tun"}
	for name, call := range map[string]func() error{
		"replaceFile": func() error {
			_, err := replaceFile(t.Context(), filepath.Join(link, "guestwire"), []byte("text"), 0o755)
			return err
		},
		"removeFile": func() error {
			_, err := removeFile(t.Context(), filepath.Join(link, "file"))
			return err
		},
		"ready":     ready.update,
		"not ready": (&readiness{file: filepath.Join(link, "file")}).clear,
		"socket":    func() error { return plugin.listen(false) },
	} {
		if err := call(); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), link+": a symbolic link") {
			t.Errorf("%s: %v", name, err)
		}
	}
	plugin.stop()
}
