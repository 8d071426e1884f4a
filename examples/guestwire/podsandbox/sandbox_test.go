package podsandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1"
)

func TestMain(m *testing.M) { nstest.Main(m) } // the sandbox's root can lock

func lock(ctx context.Context, name string) (unlock func(), err error) {
	return directory.LockName(ctx, phase1.DefaultDir, name)
}

var eth0 = podsandbox.Attachment{Network: "podnet", IfName: "eth0"}

func newState(t *testing.T) podsandbox.State {
	return podsandbox.State(filepath.Join(t.TempDir(), "run", "guestwire"))
}

func begin(t *testing.T, s podsandbox.State, id, uid string, nics ...string) {
	t.Helper()
	for _, nic := range nics {
		if err := s.Begin(id, nic, eth0); err != nil {
			t.Fatal(err)
		}
	}
	if uid != "" {
		if err := s.Link(t.Context(), lock, named(uid), id); err != nil {
			t.Fatal(err)
		}
	}
}

// named is the pod with the UID.
func named(uid string) podsandbox.Pod {
	return podsandbox.Pod{UID: uid, Namespace: "vms", Name: "vm." + uid}
}

// leads returns where the pod's links lead to.
func leads(t *testing.T, s podsandbox.State, uid string) string {
	t.Helper()
	paths, err := s.PodDirs(named(uid))
	if err != nil || len(paths) != 2 {
		t.Fatal(paths, err)
	}
	var texts []string
	for _, path := range paths {
		text, err := os.Readlink(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	if texts[0] != texts[1] {
		t.Errorf("the links of %v lead to %q", paths, texts)
	}
	return texts[0]
}

// TestSandbox: a sandbox comes and goes, and the pod's next one comes before it goes.
func TestSandbox(t *testing.T) {
	s := newState(t)
	if ids, err := s.IDs(); err != nil || ids != nil {
		t.Errorf("at first: %q, %v", ids, err)
	}
	if nics, err := s.NICs("a"); err != nil || nics != nil {
		t.Errorf("at first: %v, %v", nics, err)
	}
	pods := func(want map[string]podsandbox.Pod) {
		t.Helper()
		if have, err := s.Pods(); err != nil || !maps.Equal(have, want) {
			t.Errorf("pods %v, %v, want %v", have, err, want)
		}
	}
	pods(nil)
	if err := errors.Join(s.Release(t.Context(), lock, "a"), s.Sweep(t.Context(), lock), s.End("a", "eth0")); err != nil {
		t.Errorf("without a State: %v", err)
	}
	begin(t, s, "a", "pod1", "eth0", "net1")
	pods(map[string]podsandbox.Pod{"a": named("pod1")})
	begin(t, s, "a", "pod1", "eth0")
	dir, err := s.Dir("a")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{string(s), filepath.Join(string(s), "pods"), dir} {
		if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeDir|0o755 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "eth0.json"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".net1.json.new"), nil, 0o644); err != nil { // of a call that is at work
		t.Fatal(err)
	}
	want := []podsandbox.NIC{{Name: "eth0", Record: true, Of: eth0}, {Name: "net1", Of: eth0}}
	if nics, err := s.NICs("a"); err != nil || !reflect.DeepEqual(nics, want) {
		t.Errorf("%v, %v, want %v", nics, err, want)
	}
	if err := s.Begin("a", "eth0", podsandbox.Attachment{Network: "podnet", IfName: "net1"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("another attachment's NIC: %v", err)
	}
	if err := s.Begin("a", "eth0", podsandbox.Attachment{Network: "renamed", IfName: "eth0"}); err != nil {
		t.Error(err)
	}
	begin(t, s, "b", "pod1", "eth0") // the pod's next sandbox
	pods(map[string]podsandbox.Pod{"b": named("pod1")})
	if ids, err := s.IDs(); err != nil || !slices.Equal(ids, []string{"a", "b"}) {
		t.Errorf("%q, %v", ids, err)
	}
	for _, nic := range []string{"eth0", "net1", "net1"} {
		if err := errors.Join(s.Release(t.Context(), lock, "a"), s.End("a", nic)); err != nil {
			t.Error(err)
		}
	}
	if err := s.Release(t.Context(), lock, "a"); err != nil {
		t.Error(err)
	}
	if nics, err := s.NICs("a"); err != nil || len(nics) != 1 || nics[0].Of != (podsandbox.Attachment{}) { // the record is still there
		t.Errorf("%v, %v", nics, err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "eth0.json")), os.Remove(filepath.Join(dir, ".net1.json.new")), s.Release(t.Context(), lock, "a"), s.Release(t.Context(), lock, "a")); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	if to := leads(t, s, "pod1"); to != "../b" {
		t.Errorf("the pod's link leads to %q", to)
	}
	if err := errors.Join(s.End("b", "eth0"), s.Release(t.Context(), lock, "b")); err != nil {
		t.Error(err)
	}
	if to := leads(t, s, "pod1"); to != "" {
		t.Errorf("the pod's link leads to %q", to)
	}
	pods(nil)
}

// TestSweep: links of sandboxes that are gone, and what a killed call left of one, go; others stay.
func TestSweep(t *testing.T) {
	s := newState(t)
	begin(t, s, "a", "pod1", "eth0")
	pods := filepath.Join(string(s), "pods")
	for name, text := range map[string]string{"pod2": "../b", "vms_vm.pod2": "../b", ".new": "../a", "theirs": "/etc"} {
		if err := os.Symlink(text, filepath.Join(pods, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sweep(t.Context(), lock); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(pods)
	if err != nil || len(entries) != 3 || entries[0].Name() != "pod1" || entries[1].Name() != "theirs" || entries[2].Name() != "vms_vm.pod1" {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestNames: no name leads out of the State.
func TestNames(t *testing.T) {
	s := podsandbox.DefaultState
	for name, ok := range map[string]bool{
		"a": true, "7d5a-11": true, "0123456789abcdef": true, "a.b_c": true, strings.Repeat("a", 255): true,
		"": false, ".": false, "..": false, "../a": false, "a/b": false, ".a": false, "-a": false, "a b": false, "ä": false, "a\x00": false, strings.Repeat("a", 256): false,
	} {
		_, dir := s.Dir(name)
		_, uid := s.PodDirs(podsandbox.Pod{UID: name})
		_, pod := s.PodDirs(podsandbox.Pod{Namespace: "a", Name: name})
		if (dir == nil) != ok || (uid == nil) != (ok || name == "") || ok && len(name) < 250 && pod != nil || strings.Contains(name, "/") && pod == nil {
			t.Errorf("%q: %v, %v, %v", name, dir, uid, pod)
		}
	}
	if _, err := s.Dir("pods"); err == nil {
		t.Error("a sandbox is called pods")
	}
	paths, err := s.PodDirs(podsandbox.Pod{UID: "pods", Namespace: "vms", Name: "vm-0.a"})
	if err != nil || !slices.Equal(paths, []string{"/run/guestwire/pods/pods", "/run/guestwire/pods/vms_vm-0.a"}) {
		t.Errorf("%q, %v", paths, err)
	}
}

func TestCheckID(t *testing.T) {
	for id, good := range map[string]bool{
		"A": true, "Z": true, "a": true, "z": true, "0": true, "9": true, "x_.-": true, strings.Repeat("a", 255): true,
		"": false, "@": false, "[": false, "`": false, "{": false, "/": false, ":": false, "-x": false, ".": false, strings.Repeat("a", 256): false,
	} {
		if err := podsandbox.CheckID(id); (err == nil) != good {
			t.Errorf("%.20q: %v", id, err)
		}
	}
}

// TestAtOnce: NICs of one sandbox come and go at once, as engines add several networks; no call fails, and nothing is
// left.
func TestAtOnce(t *testing.T) {
	s := newState(t)
	var working sync.WaitGroup
	for i := range 8 {
		working.Go(func() {
			nic, of := fmt.Sprintf("net%d", i), podsandbox.Attachment{Network: fmt.Sprint(i), IfName: "x"}
			for range 200 {
				err := s.Begin("a", nic, of)
				if err == nil {
					err = s.Link(t.Context(), lock, named("pod1"), "a")
				}
				if text := leads(t, s, "pod1"); text != "../a" {
					t.Errorf("the link leads to %q", text)
				}
				if err := errors.Join(err, s.End("a", nic), s.Release(t.Context(), lock, "a")); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	working.Wait()
	entries, err := os.ReadDir(string(s))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestLocked: a call waits for another one that holds the links, and not for ever. Link also waits if the link leads to
// the sandbox: the other call may be a Release that is about to remove it.
func TestLocked(t *testing.T) {
	s := newState(t)
	begin(t, s, "a", "", "eth0")
	if err := s.Link(t.Context(), lock, named("pod2"), "a"); err != nil {
		t.Fatal(err)
	}
	links := filepath.Join(string(s), "pods")
	unlock, err := lock(t.Context(), links)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for what, err := range map[string]error{"Link": s.Link(ctx, lock, named("pod1"), "a"), "Link again": s.Link(ctx, lock, named("pod2"), "a"), "Release": s.Release(ctx, lock, "a"), "Sweep": s.Sweep(ctx, lock)} {
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), links) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestOthersLink: where another user has put a symbolic link above the State, nothing is made or removed where the link
// leads.
func TestOthersLink(t *testing.T) {
	link := nstest.OthersLink(t)
	for _, s := range []podsandbox.State{podsandbox.State(link), podsandbox.State(filepath.Join(link, "run"))} {
		for name, call := range map[string]func() error{
			"Begin":   func() error { return s.Begin("sandbox", "eth0", eth0) },
			"Link":    func() error { return s.Link(t.Context(), lock, named("uid"), "sandbox") },
			"End":     func() error { return s.End("sandbox", "eth0") },
			"Release": func() error { return s.Release(t.Context(), lock, "file") },
			"Sweep":   func() error { return s.Sweep(t.Context(), lock) },
			"Pods":    func() error { _, err := s.Pods(); return err },
		} {
			if err := call(); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), filepath.Dir(link)) {
				t.Errorf("%s in %s: %v", name, s, err)
			}
		}
	}
}
