package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// foreign is a network namespace that is owned by a user namespace with users from 100000 and groups from 200000 on. No
// process is in either.
func foreign(t *testing.T) *os.File {
	t.Helper()
	if os.Geteuid() != 0 || sandbox.OneUser() {
		nstest.Skip(t, "only root maps other users")
	}
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	defer runtime.UnlockOSThread()
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 200000, Size: 1000}},
	}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	in.Close()
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// mapOf is a process's map of users and of groups.
func mapOf(pid int) (string, error) {
	users, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil {
		return "", err
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/gid_map", pid))
	return strings.Join(strings.Fields(string(users)+string(groups)), " "), err
}

// TestInUserNamespace: the maps are those of the owner, also if it has no process, for many callers at once; and
// nothing of the child stays.
func TestInUserNamespace(t *testing.T) {
	ns := foreign(t)
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			child := 0
			own, err := InUserNamespace(t.Context(), ns, func(pid int) error {
				child = pid
				if have, err := mapOf(pid); err != nil || have != "0 100000 65536 0 200000 1000" {
					return fmt.Errorf("maps %q, %v", have, err)
				}
				return nil
			})
			if own || err != nil || child == 0 {
				t.Errorf("own %t, %v, child %d", own, err, child)
			}
			if err := unix.Kill(child, 0); err != unix.ESRCH {
				t.Errorf("the child is there: %v", err)
			}
		})
	}
	calls.Wait()

	failed := errors.New("failed")
	if _, err := InUserNamespace(t.Context(), ns, func(int) error { return failed }); err != failed {
		t.Errorf("%v, want the error of f", err)
	}
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if own, err := InUserNamespace(t.Context(), own, func(int) error { return failed }); !own || err != nil {
		t.Errorf("the own namespace: %t, %v", own, err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, err := InUserNamespace(t.Context(), null, func(int) error { return failed }); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("a file that is no namespace: %v", err)
	}
}

// TestInUserNamespaceUntraced: root of the user namespace cannot trace the child, which has a copy of this process's
// memory.
func TestInUserNamespaceUntraced(t *testing.T) {
	const helper = "GUESTWIRE_TEST_TRACE"
	if os.Getenv(helper) != "" { // root inside
		var pid int
		if _, err := fmt.Scan(&pid); err != nil {
			t.Fatal(err)
		}
		fmt.Println("trace:", unix.PtraceSeize(pid))
		return
	}
	if os.Geteuid() != 0 || sandbox.OneUser() {
		nstest.Skip(t, "only root maps other users")
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestInUserNamespaceUntraced$")
	cmd.Env = append(os.Environ(), helper+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET, Credential: &syscall.Credential{},
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 200000, Size: 1000}},
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out nstest.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil { // which to start a process with other users may have taken away
		t.Fatal(err)
	}
	_, err = InUserNamespace(t.Context(), ns, func(pid int) error {
		fmt.Fprintln(in, pid)
		return cmd.Wait()
	})
	if err != nil || !strings.Contains(out.String(), "trace: operation not permitted") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestInUserNamespaceStopped: who stops the child, as root of the user namespace can, does not hold the caller, neither
// before the child has answered, once ctx is done, nor after that.
func TestInUserNamespaceStopped(t *testing.T) {
	const helper = "GUESTWIRE_TEST_STOPPED"
	if os.Getenv(helper) != "" { // traced: its child is stopped when it has entered
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("stopped")
		go func() {
			nstest.Eventually(t, func() error { return isStopped(childOf(os.Getpid())) })
			cancel(stopped)
		}()
		if _, err := InUserNamespace(ctx, os.NewFile(3, "ns"), func(int) error { return nil }); !errors.Is(err, stopped) {
			t.Errorf("%v, want the cause of ctx", err)
		}
		return
	}
	ns := foreign(t)
	nstest.Need(t, "strace")
	var child int
	_, err := InUserNamespace(t.Context(), ns, func(pid int) error {
		child = pid
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			return err
		}
		nstest.Eventually(t, func() error { return isStopped(pid) })
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := unix.Kill(child, 0); err != unix.ESRCH {
		t.Errorf("the child is there: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "strace", "-f", "-o", "/dev/null", "-e", "trace=setns", "-e", "inject=setns:signal=SIGSTOP",
		os.Args[0], "-test.run", "^TestInUserNamespaceStopped$")
	cmd.Env = append(os.Environ(), helper+"=1")
	cmd.ExtraFiles = []*os.File{ns}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v, %s", err, out)
	}
}

// childOf is the number of the process's child, 0 without one.
func childOf(pid int) (child int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		if text, err := os.ReadFile(list); err == nil && len(text) > 0 {
			fmt.Sscan(string(text), &child)
		}
	}
	return child
}

// isStopped returns an error if the process is not stopped.
func isStopped(pid int) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if text := string(status); err == nil && !strings.Contains(text, "(stopped)") && !strings.Contains(text, "(tracing stop)") {
		err = fmt.Errorf("process %d is not stopped:\n%s", pid, status)
	}
	return err
}

// TestInUserNamespaceKilled: the child ends with this process.
func TestInUserNamespaceKilled(t *testing.T) {
	const helper = "GUESTWIRE_TEST_INSIDE"
	if os.Getenv(helper) != "" {
		_, err := InUserNamespace(t.Context(), os.NewFile(3, "ns"), func(pid int) error {
			fmt.Printf("child %d\n", pid)
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		})
		t.Fatalf("InUserNamespace returned: %v", err)
	}
	ns := foreign(t)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil { // so that this test can wait for the orphan
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), helper+"=1")
	cmd.ExtraFiles = []*os.File{ns}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var child int
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, scanned := fmt.Sscanf(line, "child %d", &child); err != nil || scanned != nil {
		t.Errorf("the helper says %q, %v", line, err)
	}
	fd := -1
	if child != 0 {
		if fd, err = unix.PidfdOpen(child, 0); err != nil {
			t.Error(err)
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	if fd < 0 {
		return
	}
	defer unix.Close(fd)
	ended := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(ended, int(time.Minute.Milliseconds()))
	for err == unix.EINTR {
		n, err = unix.Poll(ended, int(time.Minute.Milliseconds()))
	}
	if n != 1 || err != nil {
		t.Errorf("the child is still there: %v", err)
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	if _, err := unix.Wait4(child, nil, unix.WALL, nil); err != nil {
		t.Error(err)
	}
}
