package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

// makesSocket has the directory in which the process makes a socket, and ends.
const makesSocket = "AGENT_TEST_MAKES_SOCKET"

func init() {
	if os.Getenv(makesSocket) != "" {
		runtime.LockOSThread() // the first one, which is stopped
	}
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(makesSocket); dir != "" {
		in, err := directory.Open(dir) // which listenReady refuses
		if err == nil {
			_, err = listenIn(in, uint32(nstest.LauncherUID))
		}
		fmt.Println(err)
		return
	}
	nstest.Main(m)
}

// TestRelayReady: of what the command says, the manager is told that the command is ready, and nothing else.
func TestRelayReady(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	name := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	cmd := exec.Command("true")
	given := os.Getenv("TMPDIR")
	t.Setenv("TMPDIR", "/absent")
	if _, err := relayReady(cmd, 0); err == nil || !strings.Contains(err.Error(), "(TMPDIR=/run)") {
		t.Errorf("without a directory: %v", err)
	}
	closed := t.TempDir() // below a directory that no other user can enter
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", closed)
	if _, err := relayReady(cmd, uint32(os.Getuid()+1)); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "cannot enter "+closed) {
		t.Errorf("in a directory that the user cannot enter: %v", err)
	}
	t.Setenv("TMPDIR", given)
	stop, err := relayReady(cmd, uint32(os.Getuid()))
	if err != nil {
		t.Fatal(err)
	}
	own := strings.TrimPrefix(cmd.Env[len(cmd.Env)-1], "NOTIFY_SOCKET=")
	command, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: own})
	if err != nil {
		t.Fatal(err)
	}
	defer command.Close()
	for _, message := range []string{"MAINPID=1", "READY=10", "", "STATUS=served\nREADY=1\nMAINPID=1\n"} {
		if _, err := command.Write([]byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	told := make([]byte, 64)
	if n, err := manager.Read(told); err != nil || string(told[:n]) != "READY=1" {
		t.Errorf("the manager is told %q, %v", told[:n], err)
	}
	stop()
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestReadyOfOthers: where another user could put a link in the place of the socket's directory, no socket is made. In
// the directory that the error names, it is.
func TestReadyOfOthers(t *testing.T) {
	other, victim := othersDirectory(t)
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "notify"))
	cmd := exec.Command("true")
	for _, dir := range []string{other, filepath.Join(other, "in")} {
		t.Setenv("TMPDIR", dir)
		_, err := relayReady(cmd, uint32(nstest.LauncherUID))
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), other+" (owner ") || !strings.Contains(err.Error(), "(TMPDIR=/run)") {
			t.Errorf("TMPDIR=%s: %v", dir, err)
		}
	}
	t.Setenv("TMPDIR", "/run")
	stop, err := relayReady(cmd, uint32(nstest.LauncherUID))
	if err != nil {
		t.Fatal(err)
	}
	stop()
	checkVictim(t, victim)
}

// TestReadySwapped: a user exchanges the socket's directory, and what is in it, while the socket is made. The user gets
// no other file: what was opened is what the user gets.
func TestReadySwapped(t *testing.T) {
	other, victim := othersDirectory(t)
	swapped, stop := nstest.Swap(t, other, nstest.LauncherUID, victim)
	for range 300 {
		in, err := directory.Open(other) // which listenReady refuses
		if err != nil {
			t.Fatal(err)
		}
		s, err := listenIn(in, uint32(nstest.LauncherUID))
		if err == nil {
			s.conn.Close()
			s.remove()
		}
		checkVictim(t, victim)
	}
	stop()
	t.Log(swapped(), "names exchanged in 300 rounds")
}

// TestOthersLink: where another user has put a symbolic link in the place of a hook's -state, no log is made where the
// link leads.
func TestOthersLink(t *testing.T) {
	link := nstest.OthersLink(t)
	for _, dir := range []string{link, filepath.Join(link, "run")} {
		if err := keepReason([]string{"-state", dir}, errors.New("any")); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), filepath.Dir(link)) {
			t.Errorf("hook.log in %s: %v", dir, err)
		}
	}
}

// TestReadySwappedAtEachCall is TestReadySwapped with an exchange between each two system calls.
func TestReadySwappedAtEachCall(t *testing.T) {
	nstest.Long(t)
	other, victim := othersDirectory(t)
	program := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), makesSocket+"="+other)
		return cmd
	}
	calls := []string{"mkdirat", "openat", "bind", "fchmodat", "fchmod", "fchownat", "unlinkat"}
	stops := nstest.SwapAtEachCall(t, program, calls, other, nstest.LauncherUID, victim, []string{"notify"}, func(string) { checkVictim(t, victim) })
	if stops < 10 {
		t.Errorf("%d stops: has strace seen the calls?", stops)
	}
	t.Log(stops, "stops")
}

// othersDirectory is a directory of the user, and a file that only root can read.
func othersDirectory(t *testing.T) (dir, victim string) {
	t.Helper()
	nstest.Need(t)
	if nstest.LauncherUID == 0 {
		nstest.LeaveOut(t, "the user namespace has one user")
	}
	above := nstest.Dir(t)
	dir, victim = filepath.Join(above, "theirs"), filepath.Join(above, "victim")
	err := errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(filepath.Join(dir, "in"), 0o755), os.Chown(dir, nstest.LauncherUID, -1), os.WriteFile(victim, nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return dir, victim
}

func checkVictim(t *testing.T, victim string) {
	t.Helper()
	info, err := os.Lstat(victim)
	if err != nil || info.Mode() != 0o600 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Fatalf("root's file: %v, owner %v, %v", info.Mode(), info.Sys().(*syscall.Stat_t).Uid, err)
	}
}
