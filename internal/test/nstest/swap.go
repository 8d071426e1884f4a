package nstest

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
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
		runtime.LockOSThread() // it is never unlocked: the thread ends with its user
		fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		if err != nil {
			begun <- err
			return
		}
		defer unix.Close(fd)
		if err := errors.Join(unix.Setfsgid(user), unix.Setfsuid(user)); err != nil {
			begun <- err
			return
		}
		s := swapper{fd: fd, dirs: map[int]string{}, target: target, count: &count}
		begun <- s.watch(dir)
		for {
			select {
			case <-end:
				ended <- nil
				return
			default:
				if err := s.step(); err != nil {
					ended <- err
					return
				}
			}
		}
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

type swapper struct {
	fd     int
	dirs   map[int]string // by their watches
	target string
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

func (s *swapper) exchange(dir, name string, isDir bool) {
	s.made++
	path, mine := filepath.Join(dir, name), filepath.Join(dir, own+strconv.Itoa(s.made))
	made := error(nil)
	if isDir {
		made = os.Mkdir(mine, 0o777)
	} else {
		made = os.Symlink(s.target, mine)
	}
	if made != nil || unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, mine, unix.RENAME_EXCHANGE) != nil {
		return // the program was faster
	}
	s.count.Add(1)
	if isDir {
		_ = s.watch(path)
	}
}
