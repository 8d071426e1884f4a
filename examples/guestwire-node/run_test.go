package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// testNode has the directories of a node, and the flags that name them.
type testNode struct {
	t                                          *testing.T
	from, bin, conf, state, dir, ready, socket string
}

func newNode(t *testing.T) *testNode {
	t.Helper()
	d := shortDir(t)
	n := &testNode{t, d + "/image", d + "/bin", d + "/net.d", d + "/state", d + "/lock", d + "/ready", d + "/nri.sock"}
	for _, path := range []string{n.bin, n.conf, n.state} {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, n.from+"/guestwire", "build 1")
	write(t, n.from+"/guestwire-agent", "agent 1")
	return n
}

func (n *testNode) args(name string, more ...string) []string {
	all := map[string]string{"from": n.from, "cni-bin": n.bin, "cni-conf": n.conf, "state": n.state, "dir": n.dir, "ready": n.ready, "nri": n.socket}
	args := []string{name}
	v := verbs[slices.IndexFunc(verbs, func(v verb) bool { return v.Name == name })]
	for _, flag := range strings.Fields(v.Flags) {
		if all[flag] != "" {
			args = append(args, "-"+flag, all[flag])
		}
	}
	return append(args, more...)
}

// becomes waits until the files of bin and conf are these, and the node is ready or not.
func (n *testNode) becomes(ready bool, want ...string) {
	n.t.Helper()
	eventually(n.t, func() error {
		have := append(names(n.t, n.bin), names(n.t, n.conf)...)
		err := run(n.t.Context(), []string{"ready", "-ready", n.ready}, nil, discard())
		if !slices.Equal(have, want) || (err == nil) != ready {
			return fmt.Errorf("%q, ready: %v; want %q, ready: %v", have, err, want, ready)
		}
		return nil
	})
}

// TestRun: run installs, follows what other programs do, takes nothing away when it ends, and uninstall gives all back.
func TestRun(t *testing.T) {
	n := newNode(t)
	write(t, n.ready, "") // of a run that was killed
	stop := start(t, n.args("run")...)
	n.becomes(false, "guestwire", "guestwire-agent")
	write(t, n.conf+"/10-net.conflist", flannel)
	n.becomes(false, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist") // without an engine
	kill := startEngine(t, n.socket)
	n.becomes(true, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")

	// Other programs remove the derived list, and write theirs anew by a rename.
	if err := os.Remove(n.conf + "/00-guestwire.conflist"); err != nil {
		t.Fatal(err)
	}
	n.becomes(true, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")
	write(t, n.conf+"/10-net.conflist.tmp", strings.Replace(flannel, "cbr0", "cbr1", 1))
	if err := os.Rename(n.conf+"/10-net.conflist.tmp", n.conf+"/10-net.conflist"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if text := read(t, n.conf+"/00-guestwire.conflist"); !strings.Contains(text, "cbr1") {
			return fmt.Errorf("the list is not derived again: %s", text)
		}
		return nil
	})
	// Half a file, which its program is still writing.
	list := read(t, n.conf+"/00-guestwire.conflist")
	write(t, n.conf+"/10-net.conflist", flannel[:50])
	n.becomes(false, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")
	if read(t, n.conf+"/00-guestwire.conflist") != list {
		t.Error("half a file has changed the list")
	}
	write(t, n.conf+"/10-net.conflist", flannel)
	n.becomes(true, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")
	kill()
	n.becomes(false, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")
	startEngine(t, n.socket)
	n.becomes(true, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")

	if err := stop(); err != nil {
		t.Fatal(err)
	}
	n.becomes(false, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")

	// Another build, under a plugin that runs; the same build is left alone.
	old, err := os.Open(n.bin + "/guestwire")
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	write(t, n.from+"/guestwire", "build 2")
	agent, err := os.Lstat(n.bin + "/guestwire-agent")
	if err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), n.args("install"), nil, discard()); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 100)
	if count, err := old.ReadAt(text, 0); string(text[:count]) != "build 1" || read(t, n.bin+"/guestwire") != "build 2" {
		t.Errorf("the running plugin reads %q, %v", text[:count], err)
	}
	if now, err := os.Lstat(n.bin + "/guestwire-agent"); err != nil || !os.SameFile(now, agent) {
		t.Errorf("the same agent was written again, %v", err)
	}

	// While a pod is wired the binaries stay.
	write(t, n.state+"/sandbox1/eth0.json", "{}")
	if err := run(t.Context(), n.args("uninstall"), nil, discard()); err == nil || !strings.Contains(err.Error(), "1 sandboxes are wired ("+n.state+"/sandbox1") {
		t.Error(err)
	}
	n.becomes(false, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")
	// The list is for DEL alone, and follows its source.
	if text := read(t, n.conf+"/00-guestwire.conflist"); strings.Contains(text, `pod-annotations": true`) || !strings.Contains(text, n.dir) {
		t.Errorf("new pods are still wired by\n%s", text)
	}
	// As the DaemonSet calls it, which does not know whether there is a RuntimeClass.
	if err := run(t.Context(), n.args("install"), nil, discard()); err != nil {
		t.Fatal(err)
	}
	stop = start(t, n.args("uninstall", "-stay", "-list-to", filepath.Join(n.from, "none"))...)
	eventually(t, func() error {
		if text := read(t, n.conf+"/00-guestwire.conflist"); strings.Contains(text, `pod-annotations": true`) {
			return fmt.Errorf("new pods are still wired by\n%s", text)
		}
		return nil
	})
	write(t, n.conf+"/10-net.conflist", strings.Replace(flannel, "cbr0", "cbr2", 1))
	eventually(t, func() error {
		if text := read(t, n.conf+"/00-guestwire.conflist"); !strings.Contains(text, "cbr2") {
			return fmt.Errorf("the list is not derived again: %s", text)
		}
		return nil
	})
	write(t, n.conf+"/10-net.conflist", flannel)
	if err := os.RemoveAll(n.state + "/sandbox1"); err != nil {
		t.Fatal(err)
	}
	n.becomes(true, "10-net.conflist")
	if err := stop(); err != nil {
		t.Error(err)
	}
	if read(t, n.conf+"/10-net.conflist") != flannel {
		t.Error("the node's own list has changed")
	}
	if err := run(t.Context(), n.args("uninstall"), nil, discard()); err != nil {
		t.Errorf("a second time: %v", err)
	}
	write(t, n.state+"/sandbox1/eth0.json", "{}")
	if err := run(t.Context(), n.args("install"), nil, discard()); err != nil {
		t.Error(err)
	}
	if err := run(t.Context(), n.args("uninstall", "-force"), nil, discard()); err != nil {
		t.Error(err)
	}
	n.becomes(false, "10-net.conflist")
}

// TestDrain: one uninstall serves installations for all pods and for a RuntimeClass, so it names a -list-to for either.
func TestDrain(t *testing.T) {
	for _, flags := range [][]string{nil, {"-list-to", "class.d"}} {
		n := newNode(t)
		class := filepath.Join(n.conf, "../class.d")
		if err := os.Mkdir(class, 0o755); err != nil { // as a mount of the DaemonSet does
			t.Fatal(err)
		}
		if flags != nil {
			flags[1] = class
		}
		write(t, n.conf+"/10-net.conflist", flannel)
		if err := run(t.Context(), n.args("install", flags...), nil, discard()); err != nil {
			t.Fatal(err)
		}
		write(t, n.state+"/sandbox1/eth0.json", "{}")
		uninstall := n.args("uninstall", "-list-to", class)
		if err := run(t.Context(), uninstall, nil, discard()); err == nil {
			t.Error("uninstall has succeeded while a pod is wired")
		}
		dir := n.conf
		if flags != nil {
			dir = class
		}
		if text := read(t, dir+"/00-guestwire.conflist"); strings.Contains(text, `pod-annotations": true`) {
			t.Errorf("install %q, uninstall -list-to: new pods are still wired by\n%s", flags, text)
		}
		if err := os.RemoveAll(n.state + "/sandbox1"); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), uninstall, nil, discard()); err != nil {
			t.Error(err)
		}
		n.becomes(false, "10-net.conflist")
		// containerd 2.2.9 ends when a directory of CNI lists is removed: "cni conf dir is removed, stop watching".
		if left, err := os.ReadDir(class); err != nil || len(left) > 0 {
			t.Errorf("%s is %v, %v; want it empty", class, left, err)
		}
	}
}

// TestBusyDirectory: a program that writes into the directory without a pause does not keep run from its work.
func TestBusyDirectory(t *testing.T) {
	n := newNode(t)
	write(t, n.conf+"/10-net.conflist", flannel)
	start(t, n.args("run", "-nri=")...)
	n.becomes(true, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = os.WriteFile(n.conf+"/log", nil, 0o644)
			time.Sleep(settle / 10)
		}
	}()
	defer func() {
		cancel()
		<-ended
	}()
	if err := os.Remove(n.conf + "/00-guestwire.conflist"); err != nil {
		t.Fatal(err)
	}
	n.becomes(true, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist", "log")
}
