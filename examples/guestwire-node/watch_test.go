package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// TestMadeAnew: run follows a directory that another program removes and makes again, or puts another one in its place.
func TestMadeAnew(t *testing.T) {
	n := newNode(t)
	class := filepath.Dir(n.conf) + "/class.d"
	write(t, n.conf+"/10-net.conflist", flannel)
	write(t, n.conf+"/cbr0/50-a.conf", `{"type": "a"}`)
	if err := os.Mkdir(class, 0o755); err != nil {
		t.Fatal(err)
	}
	start(t, n.args("run", "-nri=", "-list-to", class)...)
	has := func(text string) {
		t.Helper()
		begin := time.Now()
		defer func() {
			if took := time.Since(begin); took > recheck/2 {
				t.Errorf("seen after %v: there is no watch", took)
			}
		}()
		eventually(t, func() error {
			list, err := os.ReadFile(class + "/00-guestwire.conflist")
			if _, bin := os.Lstat(n.bin + "/guestwire"); err != nil || bin != nil || !strings.Contains(string(list), text) {
				return fmt.Errorf("%v, %v: want %s in\n%s", bin, err, text, list)
			}
			return nil
		})
	}
	has(`"a"`)
	for i, dir := range []string{n.conf, class, n.bin, n.conf + "/cbr0"} {
		for _, remove := range []func(string) error{os.RemoveAll, func(dir string) error { return os.Rename(dir, fmt.Sprint(dir, ".", i)) }} {
			eventually(t, func() error { return remove(dir) }) // the program may write there at the same time
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if dir == n.conf {
				write(t, n.conf+"/10-net.conflist", flannel)
			}
			write(t, n.conf+"/cbr0/50-a.conf", `{"type": "b"}`)
			has(`"b"`)
			write(t, n.conf+"/cbr0/50-a.conf", `{"type": "c"}`) // by the new watch
			has(`"c"`)
		}
	}
}

// TestMountedDirectory: where the directory of a mount was removed, run, install and uninstall end with the reason. A
// descriptor of /proc leads to the removed directory, as the mount of a container does.
func TestMountedDirectory(t *testing.T) {
	for _, verb := range []string{"run", "install", "uninstall"} {
		for _, flag := range []string{"cni-bin", "cni-conf", "list-to", "state", "dir", "device-plugins", "nri"} {
			if verb != "run" && (flag == "device-plugins" || flag == "nri") {
				continue
			}
			n := newNode(t)
			write(t, n.conf+"/10-net.conflist", flannel)
			dir := filepath.Dir(n.conf) + "/mounted"
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			mounted := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
			value := mounted
			if flag == "nri" {
				value += "/nri.sock"
			}
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience/6)
			err = run(ctx, n.args(verb, "-"+flag, value), io.Discard, discard())
			cancel()
			if err == nil || !strings.Contains(err.Error(), mounted+" was removed on the node") || exitCode(err) != exitFailed {
				t.Errorf("%s -%s: %v", verb, flag, err)
			}
		}
	}
}

// TestMountRemoved: run ends when the directory of a mount is removed, and runs with a new mount.
func TestMountRemoved(t *testing.T) {
	n := newNode(t)
	write(t, n.conf+"/10-net.conflist", flannel)
	mount := func() (path string, done func()) {
		t.Helper()
		f, err := os.Open(n.conf)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("/proc/self/fd/%d", f.Fd()), func() { f.Close() }
	}
	path, done := mount()
	defer done()
	ended := make(chan error, 1)
	go func() { ended <- run(t.Context(), n.args("run", "-nri=", "-cni-conf", path), io.Discard, discard()) }()
	n.becomes(true, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")
	if err := os.RemoveAll(n.conf); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), path+" was removed") {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("run goes on")
	}
	write(t, n.conf+"/10-net.conflist", flannel)
	path, done = mount()
	defer done()
	start(t, n.args("run", "-nri=", "-cni-conf", path)...)
	n.becomes(true, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")
}

const runArgs = "GUESTWIRE_NODE_TEST_RUN"

// runInside runs guestwire-node in namespaces of its own: with a limit of inotify, or a mount.
func runInside(args string) {
	list := strings.Split(args, "\n")
	name, value, _ := strings.Cut(list[0], "=")
	err := error(nil)
	if from, ok := strings.CutPrefix(name, "mount "); ok {
		err = syscall.Mount(from, value, "", syscall.MS_BIND, "")
	} else {
		err = os.WriteFile("/proc/sys/user/"+name, []byte(value), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, list[0], err)
		os.Exit(exitUsage)
	}
	os.Args = append(os.Args[:1], list[1:]...)
	main()
}

// startInside starts it, with what runInside has to do first.
func startInside(t *testing.T, first string, args []string) (node *exec.Cmd, log *nstest.Output) {
	t.Helper()
	log = &nstest.Output{}
	node = exec.Command(os.Args[0])
	node.Env = append(os.Environ(), runArgs+"="+strings.Join(append([]string{first}, args...), "\n"))
	node.Stderr = log
	node.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	err := node.Start()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		nstest.Skip(t, "no user namespace can be made: "+err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return node, log
}

// TestMountRenamed: run ends when the directory of a mount, or one above it, is renamed, and so does one that is
// removed.
func TestMountRenamed(t *testing.T) {
	for name, change := range map[string]func(above string) error{
		"was renamed on the node, from ":   func(above string) error { return os.Rename(above+"/net.d", above+"/former") },
		"/former/net.d, and what is":       func(above string) error { return os.Rename(above, filepath.Dir(above)+"/former") },
		"/mounted was removed on the node": func(above string) error { return os.RemoveAll(above) },
	} {
		n := newNode(t)
		mounted, above := filepath.Dir(n.conf)+"/mounted", filepath.Dir(n.conf)+"/above"
		n.conf = above + "/net.d"
		write(t, n.conf+"/10-net.conflist", flannel)
		if err := os.Mkdir(mounted, 0o755); err != nil {
			t.Fatal(err)
		}
		node, log := startInside(t, "mount "+n.conf+"="+mounted, n.args("run", "-nri=", "-cni-conf", mounted))
		n.becomes(true, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")
		if err := change(above); err != nil {
			t.Fatal(err)
		}
		ended := time.AfterFunc(patience, func() { node.Process.Kill() })
		if err := node.Wait(); err == nil || node.ProcessState.ExitCode() != exitFailed || !strings.Contains(log.String(), name) {
			t.Errorf("%s: %v, %s", name, err, log)
		}
		ended.Stop()
	}
}

// TestWithoutInotify: where the kernel has no room for another watch, run says so with the way out, and tries again as
// soon as with one what has failed.
func TestWithoutInotify(t *testing.T) {
	for limit, want := range map[string]string{
		"max_inotify_instances=0": "raise fs.inotify.max_user_instances",
		"max_inotify_watches=0":   "raise fs.inotify.max_user_watches",
	} {
		n := newNode(t)
		node, log := startInside(t, limit, n.args("run", "-nri="))
		eventually(t, func() error {
			if !strings.Contains(log.String(), want) || !strings.Contains(log.String(), "no CNI list: the node") {
				return fmt.Errorf("want %s and that there is no list in %s", want, log)
			}
			return nil
		})
		begin := time.Now()
		write(t, n.conf+"/10-net.conflist", flannel)
		n.becomes(true, "guestwire", "guestwire-agent", "00-guestwire.conflist", "10-net.conflist")
		if took := time.Since(begin); took > recheck/2 {
			t.Errorf("%s: installed after %v, want about %v", limit, took, retry)
		}
		if err := node.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := node.Wait(); err != nil {
			t.Errorf("%s: %v, %s", limit, err, log)
		}
		if count := strings.Count(log.String(), "no watch"); count != 1 {
			t.Errorf("%s: said %d times in %s", limit, count, log)
		}
	}
}

// TestOtherWatches: a directory that cannot be watched is reported, and those after it are watched.
func TestOtherWatches(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "")
	w := &dirWatch{what: "test", log: discard()}
	defer w.close()
	w.add(dir+"/file/none", dir)
	if !strings.Contains(w.said, dir+"/file/none") {
		t.Errorf("said %q", w.said)
	}
	write(t, dir+"/new", "")
	select {
	case e := <-w.events():
		if filepath.Base(e.Name) != "new" {
			t.Errorf("%v", e)
		}
	case <-time.After(patience):
		t.Error("the directory is not watched")
	}
}
