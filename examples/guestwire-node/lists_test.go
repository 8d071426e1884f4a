package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/examples/guestwire/podsandbox"
)

// TestDispute: where another program removes the derived list whenever it sees it, as Cilium does by default, run says
// so, is not ready, and lets the node's directory alone for a while.
func TestDispute(t *testing.T) {
	n := newNode(t)
	write(t, n.conf+"/10-net.conflist", flannel)
	own := n.conf + "/00-guestwire.conflist"
	removals := make(chan bool, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if os.Rename(own, own+".cilium_bak") == nil {
				removals <- true
			}
			time.Sleep(time.Millisecond)
		}
	}()
	defer func() {
		cancel()
		<-ended
	}()
	var log strings.Builder
	o, err := parseArgs(n.args("run"))
	if err != nil {
		t.Fatal(err)
	}
	o.nri, o.log = "", slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), &log), nil))
	done := make(chan error, 1)
	go func() { done <- runNode(ctx, o) }()
	for range disputed {
		select {
		case <-removals:
		case <-time.After(patience):
			t.Fatal("the list is not written again")
		}
	}
	eventually(t, func() error {
		if _, err := os.Lstat(n.ready); err == nil {
			return errors.New("ready")
		}
		return nil
	})
	select {
	case <-removals:
		t.Error("the list is written again at once")
	case <-time.After(10 * settle):
	}
	cancel()
	if err := <-done; err != nil || !strings.Contains(log.String(), "cni.exclusive=false") {
		t.Errorf("%v, %s", err, &log)
	}
}

// TestMove: an installation for all pods becomes one for a RuntimeClass. The node's own list keeps guestwire for the
// DEL of the pods that it has wired, and wires no more.
func TestMove(t *testing.T) {
	n := newNode(t)
	write(t, n.conf+"/10-net.conflist", flannel)
	class := filepath.Dir(n.conf) + "/guestwire.d"
	if err := os.Mkdir(class, 0o755); err != nil { // as a mount of the DaemonSet does
		t.Fatal(err)
	}
	install := func(more ...string) {
		t.Helper()
		if err := run(t.Context(), n.args("install", more...), nil, discard()); err != nil {
			t.Fatal(err)
		}
	}
	install()
	write(t, n.state+"/sandbox1/eth0.json", "{}")
	for range 2 {
		install("-list-to", class)
		if text := read(t, n.conf+"/00-guestwire.conflist"); strings.Contains(text, `pod-annotations": true`) || !strings.Contains(text, n.dir) {
			t.Errorf("the node's own list is not for DEL alone:\n%s", text)
		}
		if text := read(t, class+"/00-guestwire.conflist"); !strings.Contains(text, `pod-annotations": true`) {
			t.Errorf("the class's list wires nothing:\n%s", text)
		}
	}
	if err := os.RemoveAll(n.state + "/sandbox1"); err != nil {
		t.Fatal(err)
	}
	install("-list-to", class)
	if have := names(t, n.conf); !slices.Equal(have, []string{"10-net.conflist"}) {
		t.Errorf("%q, want the network plugin's list alone", have)
	}
	if have := names(t, class); !slices.Equal(have, []string{"00-guestwire.conflist"}) {
		t.Errorf("%q in the class's directory", have)
	}
}

// TestBinaryFirst: a list never names a plugin that is not there.
func TestBinaryFirst(t *testing.T) {
	n := newNode(t)
	write(t, n.conf+"/10-net.conflist", flannel)
	for _, name := range []string{"guestwire-agent", "guestwire"} {
		if err := os.Remove(filepath.Join(n.from, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(t.Context(), n.args("install"), nil, discard()); err == nil || !strings.Contains(err.Error(), "binary guestwire: ") {
		t.Error(err)
	}
	n.becomes(false, "10-net.conflist")
	stop := start(t, n.args("run")...)
	write(t, n.from+"/guestwire", "build 1") // the agent is optional
	n.becomes(false, "guestwire", "00-guestwire.conflist", "10-net.conflist")
	for i := range 5 { // also twice in a moment
		if err := os.Remove(n.bin + "/guestwire"); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			write(t, n.bin+"/guestwire", "")
			if err := os.Remove(n.bin + "/guestwire"); err != nil {
				t.Fatal(err)
			}
		}
		n.becomes(false, "guestwire", "00-guestwire.conflist", "10-net.conflist")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestSweep: the sweep removes directories of sandboxes without NICs, notes of an ADD that ended long ago, and links of
// pods that lead nowhere. It leaves what has a record, and what an ADD may be working on: also if the note seems to be
// old, as after a step of the node's clock, and if the ADD goes on with the note of an earlier one. So does uninstall.
func TestSweep(t *testing.T) {
	n := newNode(t)
	state := podsandbox.State(n.state)
	of := podsandbox.Attachment{Network: "net", IfName: "eth0"}
	begin := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			if err := state.Begin(id, "eth0", of); err != nil {
				t.Fatal(err)
			}
			if err := state.Link(t.Context(), func(ctx context.Context, name string) (func(), error) { return directory.LockName(ctx, n.dir, name) }, podsandbox.Pod{UID: "pod-" + id}, id); err != nil {
				t.Fatal(err)
			}
		}
	}
	begin("wired", "begun", "again", "old", "empty")
	write(t, n.state+"/wired/eth0.json", "{}")
	if err := state.End("empty", "eth0"); err != nil {
		t.Fatal(err)
	}
	long := unix.NsecToTimeval(time.Now().Add(-time.Hour).UnixNano())
	for _, id := range []string{"wired", "begun", "again", "old"} {
		if err := unix.Lutimes(filepath.Join(n.state, id, ".eth0"), []unix.Timeval{long, long}); err != nil {
			t.Fatal(err)
		}
	}
	o, err := parseArgs(n.args("run"))
	if err != nil {
		t.Fatal(err)
	}
	o.log = discard()
	sweep := func(want ...string) {
		t.Helper()
		if wired, err := o.wired(); err != nil || !slices.Equal(wired, want) {
			t.Errorf("wired: %q, %v, want %q", wired, err, want)
		}
		if err := o.sweepOnce(t.Context()); err != nil && os.Geteuid() == 0 {
			t.Error(err)
		}
		var links []string
		for _, id := range want {
			links = append(links, "pod-"+id)
		}
		if have := names(t, n.state); !slices.Equal(have, slices.Sorted(slices.Values(append(want, "pods")))) {
			t.Errorf("%q, want %q", have, want)
		}
		if have := names(t, n.state+"/pods"); !slices.Equal(have, links) {
			t.Errorf("%q, want %q", have, links)
		}
	}
	sweep("again", "begun", "old", "wired")
	for path, seen := range o.notes {
		if seen.since = seen.since.Add(-time.Hour); !strings.Contains(path, "/begun/") {
			o.notes[path] = seen
		}
	}
	begin("again")
	// uninstall waits for what the sweep leaves, and not for what it removes.
	sweep("again", "begun", "wired")
	if err := os.RemoveAll(n.state + "/begun"); err != nil {
		t.Fatal(err)
	}
	sweep("again", "wired")
	if len(o.notes) != 1 {
		t.Errorf("notes that are gone: %v", o.notes)
	}
}

// TestUninstallAll: uninstall removes the derived list also if another -list-name or -list-to made it, as a list
// without its plugin breaks every pod. For the same reason the binaries stay while a list of an administrator names
// guestwire.
func TestUninstallAll(t *testing.T) {
	n := newNode(t)
	write(t, n.conf+"/10-net.conflist", flannel)
	if err := run(t.Context(), n.args("install", "-list-name", "05-guestwire.conflist"), nil, discard()); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), n.args("uninstall"), nil, discard()); err != nil {
		t.Fatal(err)
	}
	n.becomes(false, "10-net.conflist")

	// Multus has a copy of the list in its own file.
	write(t, n.conf+"/00-multus.conf", `{"type": "multus", "name": "m", "cniVersion": "1.0.0", "delegates": [{"name": "cbr0", "plugins": [{"type": "flannel"}, {"type": "guestwire"}]}]}`)
	if err := run(t.Context(), n.args("install", "-list-name", "01-guestwire.conflist"), nil, discard()); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), n.args("uninstall"), nil, discard()); err == nil || !strings.Contains(err.Error(), "00-multus.conf names guestwire") {
		t.Error(err)
	}
	n.becomes(false, "guestwire", "guestwire-agent", "00-multus.conf", "10-net.conflist")
	if err := os.Remove(n.conf + "/00-multus.conf"); err != nil {
		t.Fatal(err)
	}

	// Drop-ins of a list, and of Multus, which names their directory.
	for dir, file := range map[string]string{"cbr0": flannel, "vendor-chain": `{"type": "multus-shim", "name": "m", "cniVersion": "1.0.0", "auxiliaryCNIChainName": "vendor-chain"}`} {
		write(t, n.conf+"/10-net.conflist", file)
		write(t, n.conf+"/"+dir+"/50-guestwire.conf", `{"type": "guestwire"}`)
		if err := run(t.Context(), n.args("uninstall"), nil, discard()); err == nil || !strings.Contains(err.Error(), n.conf+"/"+dir+"/50-guestwire.conf names guestwire") {
			t.Errorf("drop-in of %s: %v", dir, err)
		}
		n.becomes(false, "guestwire", "guestwire-agent", "10-net.conflist", dir)
		if err := os.RemoveAll(n.conf + "/" + dir); err != nil {
			t.Fatal(err)
		}
	}
	write(t, n.conf+"/10-net.conflist", flannel)

	// CRI-O ends a pod by the list that the pod was made with.
	for _, args := range [][]string{n.args("install"), n.args("uninstall", "-keep-plugin")} {
		if err := run(t.Context(), args, nil, discard()); err != nil {
			t.Fatal(err)
		}
	}
	n.becomes(false, "guestwire", "10-net.conflist")

	// The second list of a RuntimeClass.
	class := filepath.Join(filepath.Dir(n.conf), "class.d")
	own := strings.Replace(bridge, `"type": "bridge"`, `"type": "guestwire"`, 1)
	write(t, class+"/20-second.conf", own)
	if err := run(t.Context(), n.args("install", "-list-to", class), nil, discard()); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), n.args("uninstall", "-list-to", class), nil, discard()); err == nil || !strings.Contains(err.Error(), class+"/20-second.conf names guestwire") {
		t.Error(err)
	}
	n.becomes(false, "guestwire", "guestwire-agent", "10-net.conflist")
	stop := start(t, n.args("uninstall", "-list-to", class, "-stay")...)
	if err := os.Remove(class + "/20-second.conf"); err != nil {
		t.Fatal(err)
	}
	n.becomes(true, "10-net.conflist")
	if err := stop(); err != nil {
		t.Error(err)
	}
}
