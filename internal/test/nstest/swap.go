package nstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Swap has an ordinary user race a program that works in a directory of this user: the user exchanges at once what the
// program makes there. A directory becomes one of the user's, in which the same happens; any other file becomes a
// symbolic link to the target. Swapped is how often that succeeded. It ends with stop.
func Swap(t *testing.T, dir string, user int, target string) (swapped func() int, stop func()) {
	t.Helper()
	var count atomic.Int64
	end, begun, ended := make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() {
		ended <- as(user, func() error {
			fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
			if err != nil {
				begun <- err
				return nil
			}
			defer unix.Close(fd)
			s := swapper{fd: fd, dirs: map[int]string{}, target: target, count: &count}
			begun <- s.watch(dir)
			for {
				select {
				case <-end:
					return nil
				default:
					if err := s.step(); err != nil {
						return err
					}
				}
			}
		})
	}()
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
	return func() int { return int(count.Load()) }, func() {
		close(end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// SwapAtEachCall runs a program again and again, and stops it once in each run: after the first system call of a name
// on its first thread, after the second, and so on, for each of the calls. While it is stopped, an ordinary user
// exchanges what is in the directory, as Swap does; a directory then has links to the target under these names. Judge
// is called after each run. Stops is the number of runs with a stop.
func SwapAtEachCall(t *testing.T, program func() *exec.Cmd, calls []string, dir string, user int, target string, names []string, judge func(stop string)) (stops int) {
	t.Helper()
	Need(t, "strace")
	for _, call := range calls {
		for n := 1; swapAt(t, program(), call, n, dir, user, &swapper{fd: -1, target: target, names: names, count: new(atomic.Int64)}); n++ {
			stops++
			judge(fmt.Sprint(call, " ", n))
			if err := removeAll(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	return stops
}

// swapAt reports whether there is an nth such call.
func swapAt(t *testing.T, cmd *exec.Cmd, call string, n int, dir string, user int, s *swapper) (stopped bool) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	args := []string{"-o", log, "-e", "trace=" + call, "-e", fmt.Sprintf("inject=%s:signal=SIGSTOP:when=%d", call, n), cmd.Path}
	traced := exec.CommandContext(t.Context(), "strace", append(args, cmd.Args[1:]...)...)
	traced.Env, traced.SysProcAttr = cmd.Env, &syscall.SysProcAttr{Setpgid: true}
	if err := errors.Join(os.WriteFile(log, nil, 0o600), traced.Start()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = traced.Wait() // the program may fail because of what was exchanged
		close(ended)
	}()
	defer func() { <-ended }()
	Eventually(t, func() error {
		select {
		case <-ended:
			return nil
		default:
		}
		text, err := os.ReadFile(log)
		if stopped = err == nil && strings.Contains(string(text), "stopped by SIGSTOP"); stopped {
			return nil
		}
		return fmt.Errorf("the program neither stops nor ends: %v: %s", err, text)
	})
	if stopped {
		if err := errors.Join(as(user, func() error { return s.all(dir) }), unix.Kill(-traced.Process.Pid, unix.SIGCONT)); err != nil {
			t.Fatal(err)
		}
	}
	return stopped
}

func removeAll(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// as calls f with the rights of a user, on a thread that ends with it.
func as(user int, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // it is never unlocked
		if err := errors.Join(unix.Setfsgid(user), unix.Setfsuid(user)); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

type swapper struct {
	fd     int
	dirs   map[int]string // by their watches
	target string
	names  []string // of links in the user's directories
	count  *atomic.Int64
	made   int
}

// own begins the names that the user makes.
const own = ".swap-"

func (s *swapper) watch(dir string) error {
	wd, err := unix.InotifyAddWatch(s.fd, dir, unix.IN_CREATE)
	s.dirs[wd] = dir
	return err
}

// step exchanges what has come within the last moment.
func (s *swapper) step() error {
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, 10); n == 0 || err == unix.EINTR {
		return nil
	}
	events := make([]byte, 4096)
	n, err := unix.Read(s.fd, events)
	if err != nil {
		return err
	}
	for at := 0; at < n; {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&events[at]))
		name := strings.TrimRight(string(events[at+unix.SizeofInotifyEvent:][:event.Len]), "\x00")
		at += unix.SizeofInotifyEvent + int(event.Len)
		if name != "" && !strings.HasPrefix(name, own) {
			s.exchange(s.dirs[int(event.Wd)], name, event.Mask&unix.IN_ISDIR != 0)
		}
	}
	return nil
}

// all exchanges all that is in the directory.
func (s *swapper) all(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		s.exchange(dir, e.Name(), e.IsDir())
	}
	return err
}

func (s *swapper) exchange(dir, name string, isDir bool) {
	s.made++
	path, mine := filepath.Join(dir, name), filepath.Join(dir, own+strconv.Itoa(s.made))
	made := error(nil)
	if isDir {
		made = os.Mkdir(mine, 0o777)
		for _, name := range s.names {
			made = errors.Join(made, os.Symlink(s.target, filepath.Join(mine, name)))
		}
	} else {
		made = os.Symlink(s.target, mine)
	}
	if made != nil || unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, mine, unix.RENAME_EXCHANGE) != nil {
		return // the program was faster
	}
	s.count.Add(1)
	if isDir && s.fd >= 0 {
		_ = s.watch(path)
	}
}
