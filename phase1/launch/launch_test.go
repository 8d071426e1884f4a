package launch_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/phase1/launch"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// TestLaunch: a command is in the namespace, has the user, and has no privileges. The caller's threads stay as they
// are.
func TestLaunch(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	before := threads(t)
	groups := keptGroups(t)
	dir := nstest.Dir(t)
	for _, test := range []struct {
		name     string
		ns       *os.File
		owner    infra.Owner
		groups   []uint32
		uid, gid int
		has      string
	}{
		{"root", pod.File, infra.Owner{Root: true}, nil, 0, 0, groups},
		{"own namespace", nil, nstest.Owner(), nil, nstest.LauncherUID, nstest.LauncherUID, groups},
		{"user", pod.File, infra.Owner{UID: 107, GID: 108}, nil, 107, 108, ""},
		{"any group, known user", pod.File, infra.Owner{UID: 65534}, nil, 65534, 65534, ""}, // nobody's is nogroup
		{"any group, unknown user", pod.File, infra.Owner{UID: 54321}, nil, 54321, 54321, ""},
		{"group that was asked for", pod.File, infra.Owner{UID: 107, GID: 108}, []uint32{36, 109}, 107, 108, "36 109"},
		{"root's group that was asked for", pod.File, infra.Owner{Root: true}, []uint32{36}, 0, 0, "36"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.owner != nstest.Owner() || len(test.groups) > 0 {
				nstest.NeedRoot(t, "the test needs other users")
			}
			cmd := exec.Command("sh", "-c", "cat /proc/self/status; readlink /proc/self/ns/net; pwd; cat; cat <&3; echo $WORD; echo complaint >&2")
			var out, complaints bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("input\n"), &out, &complaints
			cmd.Env = []string{"WORD=word", "PATH=" + os.Getenv("PATH")}
			cmd.Dir = dir
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			io.WriteString(w, "extra\n")
			w.Close()
			cmd.ExtraFiles = []*os.File{r}
			if err := launch.Start(cmd, test.ns, test.owner, test.groups...); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			got, want := privileges(out.String()), powerless(test.uid, test.gid, test.has)
			if !maps.Equal(got, want) {
				t.Errorf("privileges %v, want %v", got, want)
			}
			ns := test.ns
			if ns == nil {
				if ns, err = os.Open("/proc/self/ns/net"); err != nil {
					t.Fatal(err)
				}
				defer ns.Close()
			}
			if rest := fmt.Sprintf("%s\n%s\ninput\nextra\nword\n", linkOf(t, ns), dir); !strings.HasSuffix(out.String(), rest) {
				t.Errorf("%q does not end with %q", out.String(), rest)
			}
			if complaints.String() != "complaint\n" {
				t.Errorf("standard error %q", complaints.String())
			}
		})
	}
	if after := threads(t); !maps.Equal(before, after) {
		t.Errorf("the threads have %v, and had %v", after, before)
	}
}

// linkOf is what readlink(1) says of the namespace.
func linkOf(t *testing.T, ns *os.File) string {
	t.Helper()
	id, err := netns.Identify(ns)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("net:[%d]", id.Inode)
}

// threads says which privileges and namespaces the threads of this process have.
func threads(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	nstest.Eventually(t, func() error { // a thread that ends takes a moment
		clear(all)
		tasks, err := filepath.Glob("/proc/self/task/*")
		if err != nil {
			return err
		}
		for _, task := range tasks {
			status, err := os.ReadFile(task + "/status")
			ns, errNS := os.Readlink(task + "/ns/net")
			if err != nil || errNS != nil {
				continue // it has ended
			}
			all[fmt.Sprint(privileges(string(status)), ns)] = true
		}
		if len(all) != 1 {
			return fmt.Errorf("the threads differ: %v", all)
		}
		return nil
	})
	return all
}

// TestLaunchDiesWithParent: however the caller's process ends, the command ends; a thread of the caller's that ends
// does not end the command.
func TestLaunchDiesWithParent(t *testing.T) {
	// The program that is killed is this test binary.
	if path := os.Getenv("GUESTWIRE_TEST_LAUNCH"); path != "" {
		launchAndWait(t, path)
		return
	}
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	parent := exec.Command(os.Args[0], "-test.run", "^TestLaunchDiesWithParent$")
	parent.Env = append(os.Environ(), "GUESTWIRE_TEST_LAUNCH="+pod.Path())
	said, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer parent.Wait()
	defer parent.Process.Kill()
	var pid int
	if _, err := fmt.Fscanf(said, "child %d\n", &pid); err != nil {
		t.Fatal(err)
	}
	child, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("the child has ended before its parent: %v", err)
	}
	defer unix.Close(child)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	fds := []unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 60_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			unix.PidfdSendSignal(child, unix.SIGKILL, nil, 0)
			t.Errorf("the child is alive a minute after its parent: %v", err)
		}
		return
	}
}

// launchAndWait starts a command in the namespace, prints its number, and waits.
func launchAndWait(t *testing.T, path string) {
	t.Helper()
	ns, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	// The thread of this caller ends before the command.
	if err := netns.OnThread(func() error { return launch.Start(cmd, ns, nstest.Owner()) }); err != nil {
		t.Fatal(err)
	}
	for range 100 { // the threads that Go starts and ends meanwhile
		if err := netns.OnThread(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("child %d\n", cmd.Process.Pid)
	t.Fatal(cmd.Wait())
}

// TestLaunchFromThread: a caller on a thread in another namespace gets the namespace that it names, and without a name
// that of the process.
func TestLaunchFromThread(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		ns   *os.File
		want string
	}{{pod.File, linkOf(t, pod.File)}, {nil, own}} {
		err := netns.Do(pod.File, func() error {
			cmd := exec.Command("readlink", "/proc/self/ns/net")
			out, err := cmd.StdoutPipe()
			if err != nil {
				return err
			}
			if err := launch.Start(cmd, test.ns, nstest.Owner()); err != nil {
				return err
			}
			got, err := io.ReadAll(out) // also after the command's end, until Wait is called
			if err == nil && strings.TrimSpace(string(got)) != test.want {
				err = fmt.Errorf("the command is in %s, want %s", got, test.want)
			}
			return errors.Join(err, cmd.Wait())
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestLaunchErrors: what cannot be started says why, and leaves nothing.
func TestLaunchErrors(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	mount, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	defer mount.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	closed, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	attributes := func(a syscall.SysProcAttr) func(*exec.Cmd) { return func(c *exec.Cmd) { c.SysProcAttr = &a } }
	for _, test := range []struct {
		name   string
		change func(*exec.Cmd)
		ns     *os.File
		owner  infra.Owner
		groups []uint32
		text   string
		is     error
	}{
		{"no such program", func(c *exec.Cmd) { c.Path = "/no/such" }, pod.File, nstest.Owner(), nil, "start /no/such as user ", fs.ErrNotExist},
		{"no such program in PATH", func(c *exec.Cmd) { *c = *exec.Command("no-such") }, nil, nstest.Owner(), nil, "start no-such as user ", exec.ErrNotFound},
		{"no such directory", func(c *exec.Cmd) { c.Dir = "/no/such" }, nil, nstest.Owner(), nil, "/no/such", fs.ErrNotExist},
		{"namespace of another kind", nil, mount, nstest.Owner(), nil, "not a network namespace", netns.ErrNotNetNS},
		{"no namespace", nil, null, nstest.Owner(), nil, "not a network namespace", netns.ErrNotNetNS},
		{"closed file", nil, closed, nstest.Owner(), nil, "/proc/self/ns/net", os.ErrClosed},
		{"no user's number", nil, nil, infra.Owner{UID: 1<<32 - 1}, nil, "owner: 4294967295 is no user's", nil},
		{"credential", attributes(syscall.SysProcAttr{Credential: &syscall.Credential{}}), nil, nstest.Owner(), nil, "SysProcAttr.Credential: owner and groups name the user", nil},
		{"ambient", attributes(syscall.SysProcAttr{AmbientCaps: []uintptr{unix.CAP_NET_ADMIN}}), nil, nstest.Owner(), nil, "AmbientCaps", nil},
		{"the foreground", attributes(syscall.SysProcAttr{Foreground: true}), nil, nstest.Owner(), nil, "Foreground", nil},
		{"another process group", attributes(syscall.SysProcAttr{Setpgid: true, Pgid: os.Getpid()}), nil, nstest.Owner(), nil, "Pgid", nil},
		{"another signal", attributes(syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}), nil, nstest.Owner(), nil, "Pdeathsig", nil},
		{"tracer", attributes(syscall.SysProcAttr{Ptrace: true}), nil, nstest.Owner(), nil, "Ptrace", nil},
		{"new user namespace", attributes(syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}), nil, nstest.Owner(), nil, "Cloneflags", nil},
		{"new network namespace", attributes(syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET}), nil, nstest.Owner(), nil, "Unshareflags", nil},
		{"mapped users", attributes(syscall.SysProcAttr{UidMappings: []syscall.SysProcIDMap{{Size: 1}}}), nil, nstest.Owner(), nil, "UidMappings", nil},
		{"mapped groups", attributes(syscall.SysProcAttr{GidMappings: []syscall.SysProcIDMap{{Size: 1}}}), nil, nstest.Owner(), nil, "GidMappings", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			nstest.NothingHeld(t, func() {
				cmd := exec.Command("true")
				if test.change != nil {
					test.change(cmd)
				}
				given := cmd.SysProcAttr
				err := launch.Start(cmd, test.ns, test.owner, test.groups...)
				if err == nil {
					cmd.Wait()
				}
				if err == nil || !strings.Contains(err.Error(), test.text) || test.is != nil && !errors.Is(err, test.is) {
					t.Errorf("%v, want %q and %v", err, test.text, test.is)
				}
				if cmd.SysProcAttr != given {
					t.Error("cmd.SysProcAttr is another one")
				}
			})
		})
	}
	t.Run("started already", func(t *testing.T) {
		cmd := exec.Command("true")
		if err := launch.Start(cmd, nil, nstest.Owner()); err != nil {
			t.Fatal(err)
		}
		if err := launch.Start(cmd, nil, nstest.Owner()); err == nil {
			t.Error("a command is started twice")
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestLaunchRun: when the context ends, Run ends the command by SIGTERM, and returns the command's own end. See also
// phase2/vmm.
func TestLaunchRun(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.Command("sh", "-c", "readlink /proc/self/ns/net; exec sleep 1000")
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = in
	ended := make(chan error, 1)
	go func() { ended <- launch.Run(ctx, cmd, pod.File, nstest.Owner()); in.Close() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != linkOf(t, pod.File)+"\n" {
		t.Errorf("%q, %v", line, err)
	}
	cancel()
	if err := <-ended; fmt.Sprint(err) != "signal: terminated" {
		t.Errorf("%v", err)
	}
	again := exec.Command("true")
	if err := launch.Run(ctx, again, nil, nstest.Owner()); err != context.Canceled || again.Process != nil {
		t.Errorf("after the end of the context: %v", err)
	}
}

// TestLaunchFiles: the command does not get the files that the caller's process has without close-on-exec.
func TestLaunchFiles(t *testing.T) {
	nstest.Need(t)
	script := "echo extra >&3"
	for range 3 {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		script += fmt.Sprintf("; [ ! -e /proc/$$/fd/%d ] || readlink /proc/$$/fd/%[1]d", max(fd, 4)) // 3 is the extra one
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command("sh", "-c", script)
	cmd.ExtraFiles = []*os.File{w}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := launch.Start(cmd, nil, nstest.Owner()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if out.String() != "" || len(cmd.ExtraFiles) != 1 {
		t.Errorf("the command has files of the caller: %q; cmd.ExtraFiles are %v", out.String(), cmd.ExtraFiles)
	}
	if line, err := bufio.NewReader(r).ReadString('\n'); line != "extra\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// TestLaunchSys: in /sys a command finds the links of its namespace, as a VMM does that asks there for its tap. All
// that is mounted below /sys is there as before, and the caller's mounts stay.
func TestLaunchSys(t *testing.T) {
	nstest.Need(t)
	pod := nstest.New(t, "pod")
	pod.IP("link add vmtap0 type bridge")
	mounts := func(of string) (paths []string) {
		for line := range strings.Lines(of) {
			if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4]+"/", "/sys/") {
				options, _, _ := strings.Cut(f[5], ",")
				paths = append(paths, f[4]+" "+options+" "+f[len(f)-3])
			}
		}
		slices.Sort(paths)
		return slices.Compact(paths)
	}
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if may := exec.Command("ip", "netns", "exec", pod.Name, "true").Run(); may != nil {
		nstest.LeaveOut(t, "this user may not mount a /sys")
	}
	cmd := exec.Command("sh", "-c", "ls -m /sys/class/net; cat /proc/self/mountinfo")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := launch.Run(t.Context(), cmd, pod.File, nstest.Owner()); err != nil {
		t.Fatal(err)
	}
	links, table, _ := strings.Cut(out.String(), "\n")
	if links != "lo, vmtap0" {
		t.Errorf("/sys/class/net has %s, want lo, vmtap0", links)
	}
	if have, want := mounts(table), mounts(string(before)); !slices.Equal(have, want) {
		t.Errorf("below /sys is mounted\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	if after, err := os.ReadFile("/proc/self/mountinfo"); err != nil || !slices.Equal(mounts(string(after)), mounts(string(before))) {
		t.Errorf("the caller's mounts are\n%s\nand were\n%s", after, before)
	}
}
