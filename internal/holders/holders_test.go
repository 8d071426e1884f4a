package holders_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/holders"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/tap"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) {
	if name := os.Getenv("HOLDERS_TAP"); name != "" {
		hold(name)
	}
	nstest.Main(m)
}

// hold is a process that has a tap open by a thread in the namespace of file 3, or in its own, until it is killed.
func hold(name string) {
	var files []*os.File
	open := func() (err error) {
		files, err = tap.OpenQueues(name, 1)
		return err
	}
	err := open
	if os.Getenv("HOLDERS_OUTSIDE") != "" {
		err = func() error { return netns.Do(os.NewFile(3, "ns"), open) }
	}
	if err := err(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("open")
	time.Sleep(time.Hour)
	runtime.KeepAlive(files)
}

// start starts this test's program as a process that holds the tap. Outside says that the process stays in the tests'
// namespace, as a launcher that serves many guests by threads does.
func start(t *testing.T, ns *nstest.Namespace, name string, outside bool) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	if !outside {
		cmd = exec.Command("nsenter", "--net="+ns.Path(), os.Args[0])
	}
	cmd.Env = append(os.Environ(), "HOLDERS_TAP="+name)
	if outside {
		cmd.Env = append(cmd.Env, "HOLDERS_OUTSIDE=1")
	}
	cmd.ExtraFiles = []*os.File{ns.File}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line := make([]byte, 200)
	if n, err := out.Read(line); err != nil || string(line[:n]) != "open\n" {
		t.Fatalf("the holder says %q, %v", line[:n], err)
	}
	return cmd
}

// TestOf: of two namespaces whose taps have one name, each has its own process, inside of the namespace or outside, and
// a process that was killed is none.
func TestOf(t *testing.T) {
	nstest.KernelDecides(t, "the namespace of the tap that another process has open")
	nstest.Need(t)
	nstest.NeedTaps(t)
	command := filepath.Base(os.Args[0])
	command = command[:min(15, len(command))] // as the kernel has it
	one, other := nstest.New(t, "one"), nstest.New(t, "other")
	for _, ns := range []*nstest.Namespace{one, other} {
		ns.IP("tuntap add eth0-tap mode tap vnet_hdr")
	}
	of := func(ns *nstest.Namespace, open bool) (found map[string][]holders.Process, text string) {
		t.Helper()
		err := netns.Do(ns.File, func() (err error) {
			found, err = holders.Of(t.Context(), map[string]bool{"eth0-tap": open})
			text = holders.Name(t.Context(), "eth0-tap")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found, text
	}
	for _, outside := range []bool{false, true} {
		t.Run(fmt.Sprintf("outside %t", outside), func(t *testing.T) {
			begin := time.Now().Add(-2 * time.Second)
			first, second := start(t, one, "eth0-tap", outside), start(t, other, "eth0-tap", outside)
			for cmd, ns := range map[*exec.Cmd]*nstest.Namespace{first: one, second: other} {
				found, text := of(ns, true)
				have := found["eth0-tap"]
				if len(have) != 1 || have[0].PID != cmd.Process.Pid || have[0].Command != command ||
					have[0].Started.Before(begin) || have[0].Started.After(time.Now().Add(2*time.Second)) {
					t.Errorf("%+v, want process %d", found, cmd.Process.Pid)
				}
				if want := fmt.Sprintf("process %d (%s)", cmd.Process.Pid, command); text != want {
					t.Errorf("%q, want %q", text, want)
				}
			}
			// The processes of the namespace alone, of a tap that is not said to be open.
			if found, _ := of(one, false); (len(found) == 0) != outside {
				t.Errorf("a tap that is not said to be open: %v", found)
			}
			if text := nameUnknown(t, one); strings.Contains(text, holders.Unseen) || !strings.Contains(text, "canceled") {
				t.Errorf("without the time to look: %q, want that it is not known", text)
			}
			first.Process.Kill()
			unix.Waitid(unix.P_PID, first.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) // it stays a zombie
			if found, text := of(one, true); len(found) != 0 || text != holders.Unseen {
				t.Errorf("after the process was killed: %v, %q", found, text)
			}
			second.Process.Kill()
			second.Wait()
		})
	}
	t.Run("this process", func(t *testing.T) {
		var held []*os.File
		nstest.Attach(t, one.File, func() (err error) {
			held, err = tap.OpenQueues("eth0-tap", 1)
			return err
		})
		defer held[0].Close()
		if _, text := of(one, true); !strings.HasSuffix(text, ", this one)") || !strings.Contains(text, fmt.Sprint(os.Getpid())) {
			t.Errorf("%q, want this process", text)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := holders.Of(ended, nil); err == nil {
			t.Error("no error after the context's end")
		}
	})
}

// nameUnknown is Name without the time to look.
func nameUnknown(t *testing.T, ns *nstest.Namespace) (text string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := netns.Do(ns.File, func() error {
		text = holders.Name(ctx, "eth0-tap")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestPasst: another user's passt is found in its namespace alone, also by who may not trace it.
func TestPasst(t *testing.T) {
	nstest.NeedRoot(t, "it needs another user, and CAP_SYS_PTRACE to drop")
	n, other := nstest.New(t, "passt"), nstest.New(t, "other")
	for _, flag := range []string{"--interface eth0", "--interface=eth0", "-i eth0", "-ieth0"} {
		testPasst(t, n, other, strings.Fields(flag))
	}
}

func testPasst(t *testing.T, n, other *nstest.Namespace, flag []string) {
	cmd := exec.Command("sh", append([]string{"-c", "read forever", "passt"}, flag...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = netns.Do(n.File, cmd.Start)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	started(t, cmd.Process.Pid, "eth0\x00")
	find := func(ns *nstest.Namespace, nic string) (found []holders.Process) {
		err := netns.Do(ns.File, func() error {
			head, sets := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
			err := unix.Capget(&head, &sets[0])
			sets[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
			if err == nil {
				err = unix.Capset(&head, &sets[0])
			}
			if err == nil {
				_, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
			}
			if !errors.Is(err, os.ErrPermission) {
				return fmt.Errorf("the namespace of a process is seen: %v", err)
			}
			found, err = holders.Passt(t.Context(), nic)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return found
	}
	if found := find(n, "eth0"); len(found) != 1 || found[0].PID != cmd.Process.Pid {
		t.Errorf("%s: found %v, want process %d", flag, found, cmd.Process.Pid)
	}
	if found := append(find(n, "eth1"), find(other, "eth0")...); len(found) > 0 {
		t.Errorf("found %v for another NIC or namespace", found)
	}
}

// started waits until the process has its arguments: Start returns at the exec, before the kernel has them.
func started(t *testing.T, pid int, last string) {
	t.Helper()
	nstest.Eventually(t, func() error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if !strings.HasSuffix(string(text), last) {
			err = errors.Join(err, fmt.Errorf("cmdline is %q", text))
		}
		return err
	})
}

// TestProgram: a program has its whole name where the kernel has its first 15 octets, or "exe".
func TestProgram(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if sleep, err = filepath.EvalSymlinks(sleep); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, called, want string }{
		{"short", "/usr/bin/other", "short"},
		{"name-of-a-long-program", "/usr/bin/name-of-a-long-program", "name-of-a-long-program"},
		{"name-of-a-long-program", "something else", "name-of-a-long-"},
		{"exe", "/usr/local/bin/launcher", "launcher"},
		{"exe", "", filepath.Base(sleep)},
		{"exe", "/proc/self/exe", filepath.Base(sleep)},
		{"short", "esc\x1b", "short"},
		{"name-of-a-long-program", "name-of-a-long-\x1b[31m", "name-of-a-long-\ufffd[31m"},
		{"name-of-a-long-program", "name-of-a-long-" + strings.Repeat("A", 1000), "name-of-a-long-" + strings.Repeat("A", 240)},
	} {
		program := filepath.Join(t.TempDir(), c.file)
		if err := os.Symlink(sleep, program); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, "60")
		cmd.Args[0] = c.called
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		started(t, cmd.Process.Pid, "60\x00")
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if got := holders.Program(cmd.Process.Pid, strings.TrimSpace(string(comm))); got != c.want {
			t.Errorf("%s called as %q: %q, want %q", c.file, c.called, got, c.want)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
