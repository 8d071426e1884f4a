package netns_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// helper is set for a process that a test starts from its own program.
const helper = "GUESTWIRE_FIND_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helper) {
	case "thread":
		holdByThread()
	case "find":
		findForParent()
	}
	nstest.Main(m)
}

// holdByThread makes a namespace with a thread, prints its identity, and waits for the end of the input.
func holdByThread() {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			holdByThread() // while this goroutine has the main thread
		}
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			id, err := identify("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			fmt.Printf("%d ", unix.Gettid())
			if err := json.NewEncoder(os.Stdout).Encode(id); err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, os.Stdin)
			return err
		}()
	}()
	if err := <-done; err != nil {
		fmt.Println(err)
	}
	os.Exit(0)
}

// findForParent looks for the identity in the input, as another user.
func findForParent() {
	var id netns.Identity
	err := json.NewDecoder(os.Stdin).Decode(&id)
	var found map[netns.Identity]*netns.Found
	var unseen []string
	if err == nil {
		found, unseen, err = netns.Find(context.Background(), []netns.Identity{id})
	}
	fmt.Printf("places: %q\nunseen: %s\nerror: %v\n", placesOf(found[id]), strings.Join(unseen, "; "), err)
	os.Exit(0)
}

// identify returns a namespace's identity with the cookie.
func identify(path string) (netns.Identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return netns.Identity{}, err
	}
	defer f.Close()
	id, err := netns.Identify(f)
	if err != nil {
		return id, err
	}
	return id, netns.Do(f, func() error { return id.AddCookie() })
}

func mustIdentify(t *testing.T, path string) netns.Identity {
	t.Helper()
	id, err := identify(path)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func placesOf(found *netns.Found) []string {
	if found == nil {
		return nil
	}
	return found.Places()
}

// checkPlaces checks where a namespace is found by a walk, and that it opens there; nothing is wanted of one that is
// gone.
func checkPlaces(t *testing.T, id netns.Identity, want ...string) {
	t.Helper()
	defer netns.WithoutHandles()()
	found := find(t, id)
	if !slices.Equal(placesOf(found[id]), want) {
		t.Errorf("%+v: found at %q, want %q", id, placesOf(found[id]), want)
	}
	if len(want) > 0 && !strings.HasSuffix(want[0], "(by its inode number)") {
		checkOpens(t, found[id], id)
	}
}

func find(t *testing.T, wanted ...netns.Identity) map[netns.Identity]*netns.Found {
	t.Helper()
	found, _, err := netns.Find(t.Context(), wanted)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func checkOpens(t *testing.T, found *netns.Found, want netns.Identity) {
	t.Helper()
	if found == nil {
		t.Errorf("%+v is not found", want)
		return
	}
	ns, err := found.Open()
	if err != nil {
		t.Error(err)
		return
	}
	defer ns.Close()
	if id := mustIdentify(t, fmt.Sprintf("/proc/self/fd/%d", ns.Fd())); id != want {
		t.Errorf("opened %+v, want %+v", id, want)
	}
}

// start starts a program that runs until stop or the end of the test.
func start(t *testing.T, cmd *exec.Cmd) (stop func()) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	t.Cleanup(stop)
	return stop
}

// process starts a process in a new namespace.
func process(t *testing.T) (cmd *exec.Cmd, id netns.Identity, stop func()) {
	t.Helper()
	cmd = exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	stop = start(t, cmd)
	return cmd, mustIdentify(t, netOf(cmd)), stop
}

func netOf(cmd *exec.Cmd) string { return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid) }

func TestFindProcess(t *testing.T) {
	nstest.Need(t)
	cmd, id, stop := process(t)
	checkPlaces(t, id, netOf(cmd))
	f, err := os.Open(netOf(cmd))
	if err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
	checkPlaces(t, id, netOf(cmd), own)
	stop()
	checkPlaces(t, id, own) // the kernel keeps the namespace for the caller as for any other process
	f.Close()
	checkPlaces(t, id)
}

func TestFindThread(t *testing.T) {
	nstest.Need(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helper+"=thread")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stop := start(t, cmd)
	line, err := bufio.NewReader(out).ReadString('\n')
	tid, text, _ := strings.Cut(line, " ")
	var id netns.Identity
	if err != nil || json.Unmarshal([]byte(text), &id) != nil {
		t.Fatalf("%q, %v", line, err)
	}
	checkPlaces(t, id, fmt.Sprintf("/proc/%d/task/%s/ns/net", cmd.Process.Pid, tid))
	stop()
	checkPlaces(t, id)
}

// TestFindFile: a namespace that only an open file keeps, which was opened by a path that is gone, so the link
// of /proc does not name the namespace.
func TestFindFile(t *testing.T) {
	nstest.Need(t)
	nstest.Run(t, "ip", "netns", "add", "file")
	id := mustIdentify(t, "/run/netns/file")
	f, err := os.Open("/run/netns/file")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "600")
	cmd.ExtraFiles = []*os.File{f}
	stop := start(t, cmd)
	f.Close()
	nstest.Run(t, "ip", "netns", "del", "file")
	checkPlaces(t, id, fmt.Sprintf("/proc/%d/fd/3", cmd.Process.Pid))
	stop()
	checkPlaces(t, id)
}

func TestFindMount(t *testing.T) {
	nstest.Need(t)
	cmd, id, stop := process(t)
	path := filepath.Join(t.TempDir(), nstest.Hostile)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, "mount", "--bind", netOf(cmd), path)
	checkPlaces(t, id, path, netOf(cmd))
	stop()
	checkPlaces(t, id, path)
	nstest.Run(t, "umount", path)
	checkPlaces(t, id)
}

// TestFindOtherMount: a mount of another mount namespace alone. What its owner puts over the mount's path is
// neither opened nor waited for.
func TestFindOtherMount(t *testing.T) {
	nstest.Need(t)
	inside, id, stopInside := process(t)
	directory := t.TempDir()
	path := filepath.Join(directory, "net")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", `set -e
mount --bind "$1" "$2"; echo ready; read line
mount -t tmpfs none "${2%/*}"; mkfifo "$2"; echo ready; read line
rm "$2"; ln -s /proc/1/ns/net "$2"; echo ready; read line`, "sh", netOf(inside), path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stop := start(t, cmd)
	lines := bufio.NewReader(out)
	ready := func() {
		t.Helper()
		if line, err := lines.ReadString('\n'); line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	ready()
	stopInside()
	place := fmt.Sprintf("/proc/%d/root%s", cmd.Process.Pid, path)
	checkPlaces(t, id, place)
	another := id
	another.Cookie++
	checkPlaces(t, another)
	for range 2 { // a FIFO, a symbolic link
		fmt.Fprintln(in)
		ready()
		checkPlaces(t, id, place+" (by its inode number)")
	}
	stop()
	checkPlaces(t, id)
}

// TestFindAnother: an inode number that the kernel uses again is another namespace. One that was looked for
// without a cookie is found.
func TestFindAnother(t *testing.T) {
	nstest.Need(t)
	n := nstest.New(t, "another")
	id := mustIdentify(t, n.Path())
	reused, older, otherBoot, otherDevice := id, id, id, id
	reused.Cookie++
	older.Cookie = 0
	otherBoot.BootID = "00000000-0000-0000-0000-000000000000"
	otherDevice.Device++
	walk := netns.WithoutHandles()
	byWalk := find(t, reused, older, otherBoot, otherDevice, id, id)
	walk()
	found := find(t, reused, older, otherBoot, otherDevice, id, id)
	for _, c := range []struct {
		what string
		id   netns.Identity
		want []string
	}{
		{"of another cookie", reused, nil},
		{"of another boot", otherBoot, nil},
		{"of another device", otherDevice, nil},
		{"of no cookie", older, []string{n.Path()}},
		{"itself", id, []string{n.Path()}},
	} {
		for _, have := range []map[netns.Identity]*netns.Found{byWalk, found} {
			// A walk for the namespace that is not found lists open files of the others as well.
			if places := placesOf(have[c.id]); !slices.Equal(places[:min(1, len(places))], c.want) {
				t.Errorf("the namespace %s is found at %q, want %q first", c.what, places, c.want)
			}
		}
	}
}

// TestFindWhileProcessesEnd: that is no error, and nothing that was not seen. An ordinary user may not look at other
// users' processes, whose number changes meanwhile.
func TestFindWhileProcessesEnd(t *testing.T) {
	nstest.Need(t)
	n := nstest.New(t, "busy")
	id := mustIdentify(t, n.Path())
	defer netns.WithoutHandles()()
	gone := id
	gone.Inode, gone.Cookie = 1, 1 // so that open files are looked at
	kinds := func(unseen []string) []string {
		kinds := slices.Clone(unseen)
		for i := range kinds {
			kinds[i] = regexp.MustCompile(`processes: \d+, such as process \d+`).ReplaceAllString(kinds[i], "processes")
		}
		return kinds
	}
	_, before, err := netns.Find(t.Context(), []netns.Identity{id, gone})
	if err != nil {
		t.Fatal(err)
	}
	stop := start(t, exec.Command("sh", "-c", "while :; do /bin/true & /bin/true & wait; done"))
	for range 20 {
		found, unseen, err := netns.Find(t.Context(), []netns.Identity{id, gone})
		if err != nil || found[id] == nil || !slices.Equal(kinds(unseen), kinds(before)) {
			t.Fatalf("found at %q, unseen %q, %v; unseen before %q", placesOf(found[id]), unseen, err, before)
		}
	}
	stop()
}

// TestFindUnprivileged: what a user may not look at is said.
func TestFindUnprivileged(t *testing.T) {
	nstest.Need(t)
	if sandbox.OneUser() {
		nstest.LeaveOut(t, "one user")
	}
	_, id, _ := process(t)
	text, err := json.Marshal(id)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helper+"=find")
	cmd.Stdin = strings.NewReader(string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(nstest.LauncherUID), Gid: uint32(nstest.LauncherUID)}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"places: []\n", "network namespaces of processes: ", "open files of processes: ", "mounts of processes: ", ", such as process 1: permission denied", "error: <nil>\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("have\n%s\nwant %q", out, want)
		}
	}
}

// TestFindWithoutEntering: a caller without CAP_SYS_ADMIN takes no namespace for another one that had its inode number,
// where the kernel reports the numbers of namespaces; elsewhere it says that it knows the inode number alone.
func TestFindWithoutEntering(t *testing.T) {
	nstest.Need(t, "setpriv")
	n := nstest.New(t, "closed")
	id := mustIdentify(t, n.Path())
	another := id
	another.Cookie++
	_, err := unix.IoctlGetInt(int(n.File.Fd()), 0x8008b70d) // NS_GET_ID
	named := err == nil
	for _, c := range []struct {
		id    netns.Identity
		found bool
	}{{id, true}, {another, !named}} {
		text, err := json.Marshal(c.id)
		if err != nil {
			t.Fatal(err)
		}
		program, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", program)
		cmd.Env = append(os.Environ(), helper+"=find")
		cmd.Stdin = strings.NewReader(string(text))
		out, err := cmd.CombinedOutput()
		if found := strings.Contains(string(out), n.Path()); err != nil || found != c.found || strings.Contains(string(out), "by its inode number") != !named {
			t.Errorf("%v, %s; want it found: %v", err, out, c.found)
		}
	}
}

// BenchmarkFind looks for 300 namespaces among those of the machine.
func BenchmarkFind(b *testing.B) {
	nstest.Need(b)
	var wanted []netns.Identity
	for i := range 300 {
		name := fmt.Sprintf("bench%d", i)
		nstest.Run(b, "ip", "netns", "add", name)
		b.Cleanup(func() { nstest.Run(b, "ip", "netns", "del", name) })
		id, err := identify("/run/netns/" + name)
		if err != nil {
			b.Fatal(err)
		}
		wanted = append(wanted, id)
	}
	for b.Loop() {
		found, _, err := netns.Find(b.Context(), wanted)
		if err != nil || len(found) != len(wanted) {
			b.Fatalf("%d found, %v", len(found), err)
		}
	}
}

// TestHeld: a mount, another process and its open file hold a namespace; the excepted process, the caller's open files
// and its threads do not.
func TestHeld(t *testing.T) {
	nstest.Need(t)
	cmd, id, stop := process(t)
	f, err := os.Open(netOf(cmd))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	holds := func(want bool, what string, except ...int) {
		t.Helper()
		held, err := netns.Held(t.Context(), []netns.Identity{id}, except)
		if err != nil || held[id] != want {
			t.Errorf("%s: %v, %v", what, held, err)
		}
	}
	holds(true, "a process")
	holds(false, "the excepted process", cmd.Process.Pid)
	other := exec.Command("sleep", "600")
	other.ExtraFiles = []*os.File{f}
	end := start(t, other)
	holds(true, "a file of another process", cmd.Process.Pid)
	holds(false, "two excepted processes", cmd.Process.Pid, other.Process.Pid)
	end()
	stop()
	if err := netns.Do(f, func() error {
		holds(false, "the caller's thread")
		return nil
	}); err != nil {
		t.Error(err)
	}
	n := nstest.New(t, "held")
	if id, err = identify(n.Path()); err != nil {
		t.Fatal(err)
	}
	holds(true, "a mount")
	n.End()
	holds(false, "nothing")
}
