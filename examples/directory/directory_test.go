package directory_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// inside has the paths for a process in a user namespace, one a line.
const inside = "DIRECTORY_TEST_INSIDE"

func TestMain(m *testing.M) {
	if paths := os.Getenv(inside); paths != "" {
		for path := range strings.Lines(paths) {
			dir, err := directory.Trusted(strings.TrimSpace(path))
			if err == nil {
				dir.Close()
			}
			fmt.Println(errors.Is(err, fs.ErrPermission), err)
		}
		return
	}
	nstest.Main(m)
}

// do fails the test at an error of a step.
func do(t *testing.T, steps ...error) {
	t.Helper()
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
}

// theirs makes a directory of another user's, in a directory that all can enter.
func theirs(t *testing.T) string {
	t.Helper()
	nstest.Need(t)
	dir := filepath.Join(nstest.Dir(t), "theirs")
	do(t, os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755), os.Chown(dir, nstest.LauncherUID, nstest.LauncherUID))
	if nstest.LauncherUID == 0 {
		nstest.LeaveOut(t, "the user namespace has one user")
	}
	return dir
}

// TestOpen: which paths are opened, and which are refused.
func TestOpen(t *testing.T) {
	t.Parallel()
	other := theirs(t)
	above := filepath.Dir(other)
	at := func(name string) string { return filepath.Join(above, name) }
	mkdir := func(path string, mode uint32) error {
		return errors.Join(os.Mkdir(path, 0o700), unix.Chmod(path, mode))
	}
	do(t, mkdir(at("ours"), 0o755), mkdir(at("group"), 0o775), mkdir(at("group/in"), 0o755), mkdir(at("sticky"), 0o1777), mkdir(at("sticky/ours"), 0o755),
		mkdir(at("sticky/theirs"), 0o755), os.Chown(at("sticky/theirs"), nstest.LauncherUID, -1), mkdir(at("theirs/in"), 0o755),
		os.Symlink("ours", at("link")), os.Symlink(at("link"), at("second")), os.Symlink("loop", at("loop")),
		os.Symlink("theirs", at("to-theirs")), os.Symlink(at("ours"), at("theirs/link")), os.Symlink("../ours", at("sticky/link")), os.Symlink("../ours", at("sticky/link-of-theirs")),
		os.Lchown(at("sticky/link-of-theirs"), nstest.LauncherUID, -1), os.WriteFile(at("file"), nil, 0o600))
	for _, c := range []struct {
		path, real string
		open       error // of Open
		trusted    error
	}{
		{"/", "/", nil, nil},
		{at("ours"), "", nil, nil},
		{at("ours/../ours/."), at("ours"), nil, nil},
		{at("link"), at("ours"), nil, nil},
		{at("second"), at("ours"), nil, nil},
		{at("sticky"), "", nil, nil},
		{at("sticky/ours"), "", nil, nil},
		{at("sticky/link"), at("ours"), nil, nil},
		{at("sticky/link-of-theirs"), "", fs.ErrPermission, fs.ErrPermission},
		{at("sticky/theirs"), "", nil, fs.ErrPermission},
		{at("theirs"), "", nil, fs.ErrPermission},
		{at("theirs/in"), "", nil, fs.ErrPermission},
		{at("to-theirs/in"), at("theirs/in"), nil, fs.ErrPermission},
		{at("theirs/link"), "", fs.ErrPermission, fs.ErrPermission},
		{at("group"), "", nil, fs.ErrPermission},
		{at("group/in"), "", nil, fs.ErrPermission},
		{at("absent"), "", fs.ErrNotExist, fs.ErrNotExist},
		{at("file"), "", unix.ENOTDIR, unix.ENOTDIR},
		{at("loop"), "", unix.ELOOP, unix.ELOOP},
	} {
		if c.real == "" {
			c.real = c.path
		}
		for name, call := range map[string]func(string) (*os.Root, error){"Open": directory.Open, "Trusted": directory.Trusted} {
			want := c.open
			if name == "Trusted" {
				want = c.trusted
			}
			dir, err := call(c.path)
			if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), above) {
				t.Errorf("%s of %s: %v, want %v", name, c.path, err, want)
			}
			if err != nil {
				continue
			}
			if filepath.Clean(dir.Name()) != c.real {
				t.Errorf("%s of %s: opened %s, want %s", name, c.path, filepath.Clean(dir.Name()), c.real)
			}
			dir.Close()
		}
	}
}

// TestOutside: in a user namespace, a directory of a user from outside, such as the machine's root, is as good as
// root's where nobody else can write.
func TestOutside(t *testing.T) {
	t.Parallel()
	other := theirs(t)
	above := filepath.Dir(other)
	at := func(name string) string { return filepath.Join(above, name) }
	do(t, os.Chown(above, nstest.LauncherUID, -1), os.Mkdir(at("outside"), 0o755), os.Symlink("outside", at("link")), os.Mkdir(at("theirs/ours"), 0o755), os.Chown(at("theirs/ours"), nstest.LauncherUID, -1),
		os.Mkdir(at("sticky"), 0o700), os.Chmod(at("sticky"), 0o777|fs.ModeSticky), os.Mkdir(at("sticky/outside"), 0o755),
		os.Mkdir(at("sticky/ours"), 0o755), os.Chown(at("sticky/ours"), nstest.LauncherUID, -1))
	paths := []string{"/", at("outside"), at("link"), at("theirs/ours"), at("sticky/ours"), at("sticky/outside")}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), inside+"="+strings.Join(paths, "\n"))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{NoSetGroups: true}, // root's numbers inside
		Cloneflags:  syscall.CLONE_NEWUSER,                  // the namespace's root is the launcher's user
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nstest.LauncherUID, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nstest.LauncherUID, Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	do(t, err)
	for i, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if refused := strings.HasPrefix(line, "true"); refused != (paths[i] == at("sticky/outside")) || !refused && line != "false <nil>" {
			t.Errorf("%s: %s", paths[i], line)
		}
	}
}

// verbs are what a program makes in a directory.
var verbs = map[string]func(dir *os.Root) error{
	"Mkdir": func(dir *os.Root) error { return directory.Mkdir(dir, "made", 0o755) },
	"MkdirTemp": func(dir *os.Root) error {
		made, err := directory.MkdirTemp(dir, "made-")
		if err != nil {
			return err
		}
		defer made.Close()
		conn, err := directory.Receive(made, "socket")
		if err != nil {
			return err
		}
		return errors.Join(made.Lchown("socket", nstest.LauncherUID, -1), conn.Close())
	},
	"Write": func(dir *os.Root) error { return directory.Write(dir, "file", []byte("made"), 0o666) },
	"AsOwner": func(dir *os.Root) error {
		return directory.AsOwner(dir, func() error { return directory.Write(dir, "file", []byte("made"), 0o666) })
	},
	"Listen": func(dir *os.Root) error {
		listener, err := directory.Listen(dir, "stream")
		if err != nil {
			return err
		}
		return errors.Join(listener.Close(), dir.Remove("stream"))
	},
	"Lock": func(dir *os.Root) error {
		unlock, err := directory.Lock(context.Background(), dir, "lock")
		if err != nil {
			return err
		}
		unlock()
		return nil
	},
}

// TestReplaced: another user moves the directory that is open away, and puts a link in its place. All is made in the
// directory that was opened.
func TestReplaced(t *testing.T) {
	t.Parallel()
	for name, verb := range verbs {
		other, elsewhere := filepath.Join(theirs(t), "in"), nstest.Dir(t)
		do(t, os.Mkdir(other, 0o755))
		dir, err := directory.Open(other)
		do(t, err, os.Rename(other, other+".moved"), os.Symlink(elsewhere, other))
		if err := verb(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		dir.Close()
		if made, err := os.ReadDir(elsewhere); err != nil || len(made) > 0 {
			t.Errorf("%s: elsewhere %v, %v", name, made, err)
		}
	}
}

// TestPlanted: another user has put links in the place of all names. What they lead to stays.
func TestPlanted(t *testing.T) {
	t.Parallel()
	for name, verb := range verbs {
		other, victim := theirs(t), filepath.Join(nstest.Dir(t), "victim")
		do(t, os.WriteFile(victim, []byte("root's"), 0o600))
		for _, planted := range []string{"made", "file", ".file.new", "stream", "lock"} {
			do(t, os.Symlink(victim, filepath.Join(other, planted)))
		}
		dir, err := directory.Open(other)
		do(t, err)
		if err := verb(dir); err != nil && (!errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.EADDRINUSE) && name != "Lock" || !strings.Contains(err.Error(), other)) {
			t.Errorf("%s: %v", name, err)
		}
		dir.Close()
		asRoots(t, name, victim)
		if info, err := os.Lstat(filepath.Join(other, "file")); name == "Write" || name == "AsOwner" {
			if err != nil || info.Mode() != 0o666 {
				t.Errorf("%s: file %v, %v", name, info.Mode(), err)
			}
		}
	}
}

// asRoots checks a file that was root's, with the mode 0600.
func asRoots(t *testing.T, what, victim string) {
	t.Helper()
	var stat unix.Stat_t
	text, err := os.ReadFile(victim)
	do(t, err, unix.Stat(victim, &stat))
	if string(text) != "root's" || stat.Uid != 0 || stat.Mode&0o7777 != 0o600 {
		t.Errorf("%s: the other file has %q, owner %d, mode %04o", what, text, stat.Uid, stat.Mode&0o7777)
	}
}

// TestSwapped: the owner of the directory exchanges all that is made there, as fast as possible. What the user's links
// lead to stays.
func TestSwapped(t *testing.T) {
	t.Parallel()
	other, victim := theirs(t), filepath.Join(nstest.Dir(t), "victim")
	do(t, os.WriteFile(victim, []byte("root's"), 0o600))
	dir, err := directory.Open(other)
	do(t, err)
	defer dir.Close()
	swapped, stop := nstest.Swap(t, other, nstest.LauncherUID, victim)
	for range 50 {
		for name, verb := range verbs {
			_ = verb(dir) // an error says that something was replaced
			asRoots(t, name, victim)
		}
	}
	stop()
	t.Log(fmt.Sprint(swapped(), " names exchanged in 50 rounds of ", len(verbs)))
}

// TestMake: directories have the mode 0755, and are made where nobody else can replace them.
func TestMake(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	other := theirs(t)
	path := filepath.Join(filepath.Dir(other), "a/b")
	for range 2 {
		dir, err := directory.Make(path, 0o755)
		do(t, err)
		dir.Close()
		for _, made := range []string{path, filepath.Dir(path)} {
			if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("%s: %v, %v", made, info.Mode(), err)
			}
		}
	}
	if dir, err := directory.Make(filepath.Join(other, "in"), 0o755); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), other) {
		t.Errorf("below another user's directory: %v, %v", dir, err)
	}
}

// TestLock: a lock is a file that root alone can open. A file of another user's, and one with a second name, is left as
// it is. Who waits for a lock names its holder.
func TestLock(t *testing.T) {
	other, victim := theirs(t), filepath.Join(nstest.Dir(t), "victim")
	do(t, os.WriteFile(victim, []byte("root's"), 0o600), os.WriteFile(filepath.Join(other, "open"), nil, 0o644), os.WriteFile(filepath.Join(other, "theirs"), nil, 0o600),
		os.Chown(filepath.Join(other, "theirs"), nstest.LauncherUID, -1), os.Link(victim, filepath.Join(other, "linked")))
	dir, err := directory.Open(other)
	do(t, err)
	defer dir.Close()
	for _, name := range []string{"open", "theirs", "linked"} {
		if _, err := directory.Lock(t.Context(), dir, name); err == nil || !strings.Contains(err.Error(), filepath.Join(other, name)+": mode ") {
			t.Errorf("%s: %v", name, err)
		}
		do(t, os.Remove(filepath.Join(other, name))) // the way out
		unlock, err := directory.Lock(t.Context(), dir, name)
		do(t, err)
		unlock()
	}
	asRoots(t, "linked", victim)

	cause := errors.New("enough")
	ended, end := context.WithCancelCause(t.Context())
	end(cause)
	written, err := dir.OpenFile("full", os.O_RDWR|os.O_CREATE, 0o600) // of a holder that could not write on a full disk
	do(t, err, unix.Flock(int(written.Fd()), unix.LOCK_EX))
	if _, err := directory.Lock(ended, dir, "full"); !errors.Is(err, cause) || !strings.HasPrefix(err.Error(), "another process works on it") {
		t.Error(err)
	}
	do(t, written.Close())

	journals := filepath.Join(filepath.Dir(other), "journals")
	unlock, err := directory.LockName(t.Context(), journals, "/run/vm1")
	do(t, err)
	if info, err := os.Stat(journals); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := directory.LockName(ended, journals, "/run/vm1"); !errors.Is(err, cause) || !strings.HasPrefix(err.Error(), fmt.Sprintf("lock of /run/vm1: process %d works on it", os.Getpid())) {
		t.Error(err)
	}
	unlock()
	unlock, err = directory.LockName(t.Context(), journals, "/run/vm1")
	do(t, err)
	unlock()
	if left, err := os.ReadDir(journals); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	typo := filepath.Join(filepath.Dir(other), "typo")
	if _, err := directory.LockName(t.Context(), filepath.Join(typo, "journals"), "/run/vm1"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), typo) {
		t.Error(err)
	}
	if _, err := os.Lstat(typo); !errors.Is(err, fs.ErrNotExist) { // Setup would take it for the node's
		t.Errorf("a path that may be mistyped is made: %v", err)
	}
	var field *cache.FieldError // which programs report as a mistake of the caller's
	if _, err := directory.LockName(t.Context(), "journals", "/run/vm1"); !errors.As(err, &field) || !strings.Contains(err.Error(), `dir: "journals", want an absolute path`) {
		t.Error(err)
	}
}
