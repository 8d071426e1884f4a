// Package holders finds the processes that have a tap open. The kernel says that a tap is open, and not by whom.
package holders

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// Process is a process that has a tap open. The fields are those of a process in phase1.Counters.
type Process struct {
	PID     int    `json:"pid"`
	Command string `json:"command"` // Program of /proc/PID/comm, printable
	// Started is the time at which the process started, to a second: the tap was opened later.
	Started time.Time `json:"started,omitzero"`
}

// Unseen stands for a process that /proc does not show.
const Unseen = "a process that is not visible here"

// String returns "process 1234 (qemu-system-x86)".
func (p Process) String() string {
	if p.PID == os.Getpid() {
		return fmt.Sprintf("process %d (%s, this one)", p.PID, p.Command)
	}
	return fmt.Sprintf("process %d (%s)", p.PID, p.Command)
}

// Name names the processes that have the open tap of the calling thread's network namespace open, for an error's text.
// It looks for ten seconds at most.
func Name(ctx context.Context, tap string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	found, err := Of(ctx, map[string]bool{tap: true})
	if err != nil {
		return fmt.Sprintf("a process that is not known (%v)", err)
	}
	processes := found[tap]
	if len(processes) == 0 {
		return Unseen
	}
	var texts []string
	for _, p := range processes {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}

// Of returns the processes that have taps of the calling thread's network namespace open, by the taps' names. It looks
// at the processes of the namespace. If a tap of which open is true is open in none of them, it looks at all others.
//
// A process is found if /proc shows it and the caller may look at its files: not one of an outer PID namespace, nor,
// without privileges, one of another user. A file on its way through a socket has no process.
//
// /proc has a tap's name and not its network namespace. A process outside of the namespace counts if the kernel says
// that its tap is one of the namespace (TUNGETDEVNETNS), or where the caller may not ask, if one of its threads is in
// the namespace.
func Of(ctx context.Context, open map[string]bool) (map[string][]Process, error) {
	own, err := identify(unix.AT_FDCWD, "/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("look for the processes at a tap: %w", err)
	}
	s := search{ctx: ctx, own: own, open: open, found: map[string][]Process{}}
	var others []string
	err = s.each("/proc", func(_ int, pid string) {
		if _, err := strconv.Atoi(pid); err != nil {
			return
		}
		if of, err := identify(unix.AT_FDCWD, "/proc/"+pid+"/ns/net"); err == nil && of == own {
			s.process(pid, false)
		} else {
			others = append(others, pid)
		}
	})
	for _, pid := range others {
		if s.complete() {
			break
		}
		s.process(pid, true)
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("look for the processes at a tap: %w", err)
	}
	for _, processes := range s.found {
		slices.SortFunc(processes, func(a, b Process) int { return a.PID - b.PID })
	}
	return s.found, nil
}

// Passt returns the processes of passt in the calling thread's network namespace that serve the NIC: by their command
// line, as their sockets do not say it.
func Passt(ctx context.Context, nic string) (found []Process, err error) {
	// To see the namespace of another user's process needs CAP_SYS_PTRACE, and to see its net/dev nothing.
	own, err := identify(unix.AT_FDCWD, "/proc/thread-self/net/dev")
	if err == nil {
		flags := []string{"--interface\x00", "--interface=", "-i\x00", "-i"}
		for i, flag := range flags {
			flags[i] = "\x00" + flag + nic + "\x00"
		}
		s := search{ctx: ctx}
		err = s.each("/proc", func(_ int, pid string) {
			number, failed := strconv.Atoi(pid)
			if failed != nil {
				return
			}
			if in, err := identify(unix.AT_FDCWD, "/proc/"+pid+"/net/dev"); err != nil || in != own {
				return
			}
			text, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			words := strings.Split(string(text), "\x00")
			program := slices.IndexFunc(words, isPasst)
			if program < 0 {
				return
			}
			arguments := strings.Join(words[program:], "\x00")
			if !slices.ContainsFunc(flags, func(flag string) bool { return strings.Contains(arguments, flag) }) {
				return
			}
			if p, ok := describe(number); ok {
				found = append(found, p)
			}
		})
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("look for passt: %w", err)
	}
	slices.SortFunc(found, func(a, b Process) int { return a.PID - b.PID })
	return found, nil
}

// isPasst reports whether the word of a command line is the program, also after a loader's name.
func isPasst(word string) bool {
	name := filepath.Base(word)
	return name == "passt" || strings.HasPrefix(name, "passt.")
}

// search is one call of Of.
type search struct {
	ctx   context.Context
	own   file
	open  map[string]bool
	found map[string][]Process
}

// complete reports whether each tap that is open has a process.
func (s *search) complete() bool {
	if s.ctx.Err() != nil {
		return true
	}
	for name, open := range s.open {
		if open && len(s.found[name]) == 0 {
			return false
		}
	}
	return true
}

// process looks at the files of a process. The threads of a process share them; a main thread that has ended has none.
// Outside says that the process is not in the namespace.
func (s *search) process(pid string, outside bool) {
	looked := s.files(pid, "/proc/"+pid, outside)
	if looked || !outside {
		return
	}
	_ = s.each("/proc/"+pid+"/task", func(_ int, tid string) {
		if tid != pid && !looked {
			looked = s.files(pid, "/proc/"+pid+"/task/"+tid, outside)
		}
	})
}

// files looks at the files of a task. It returns false if there are none.
func (s *search) files(pid, task string, outside bool) (any bool) {
	_ = s.each(task+"/fd", func(at int, fd string) {
		any = true
		if !isTun(at, fd) {
			return
		}
		name := tapOf(task + "/fdinfo/" + fd)
		if _, wanted := s.open[name]; !wanted || outside && !s.isOurs(pid, fd) {
			return
		}
		number, err := strconv.Atoi(pid)
		known := slices.ContainsFunc(s.found[name], func(p Process) bool { return p.PID == number })
		if p, ok := describe(number); ok && err == nil && !known {
			s.found[name] = append(s.found[name], p)
		}
	})
	return any
}

// isOurs reports whether the tap that the process has open is one of the namespace.
func (s *search) isOurs(pid, fd string) bool {
	process, err := strconv.Atoi(pid)
	number, err2 := strconv.Atoi(fd)
	if err != nil || err2 != nil {
		return false
	}
	of, err := namespaceOf(process, number)
	if err == nil {
		return of == s.own
	}
	inside := false
	_ = s.each("/proc/"+pid+"/task", func(at int, tid string) {
		of, err := identify(at, tid+"/ns/net")
		inside = inside || err == nil && of == s.own
	})
	return inside
}

// namespaceOf returns the network namespace of the tap that another process has open as fd. For a moment this process
// has it open as well.
func namespaceOf(process, fd int) (file, error) {
	pid, err := unix.PidfdOpen(process, 0)
	if err != nil {
		return file{}, err
	}
	defer unix.Close(pid)
	syscall.ForkLock.RLock() // no program that is being started gets a copy
	defer syscall.ForkLock.RUnlock()
	tap, err := unix.PidfdGetfd(pid, fd, 0)
	if err != nil {
		return file{}, err
	}
	defer unix.Close(tap)
	ns, err := unix.IoctlRetInt(tap, unix.TUNGETDEVNETNS)
	if err != nil {
		return file{}, err
	}
	defer unix.Close(ns)
	return identify(ns, "")
}

// isTun reports whether the file is one of /dev/net/tun, by the device's number: each container has a path of its own.
// It never waits for a file system.
func isTun(at int, fd string) bool {
	const major, minor = 10, 200 // TUN_MINOR, linux/miscdevice.h
	var s unix.Statx_t
	err := unix.Statx(at, fd, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &s)
	return err == nil && s.Mode&unix.S_IFMT == unix.S_IFCHR && s.Rdev_major == major && s.Rdev_minor == minor
}

// tapOf returns the name of the tap, which the line "iff:" of an fdinfo has (tun_chr_show_fdinfo); empty: there is
// none.
func tapOf(fdinfo string) string {
	text, err := os.ReadFile(fdinfo)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "iff:"); ok {
			return strings.TrimSpace(name)
		}
	}
	return ""
}

// describe returns false if the process has ended.
func describe(pid int) (Process, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// "1234 (a command) S 1 ...": the command can have blanks and brackets (proc_pid_stat(5))
	first, last := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if err != nil || first < 0 || last < first {
		return Process{}, false
	}
	p := Process{PID: pid, Command: Program(pid, string(stat[first+1:last]))}
	const start, perSecond = 22 - 3, 100 // the field after the state's, in USER_HZ
	fields := strings.Fields(string(stat[last+1:]))
	var now unix.Timespec
	if len(fields) <= start || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return p, true
	}
	if ticks, err := strconv.ParseInt(fields[start], 10, 64); err == nil {
		age := time.Duration(now.Nano()) - time.Duration(ticks)*(time.Second/perSecond)
		p.Started = time.Now().Add(-age).Round(time.Second)
	}
	return p, true
}

// Program returns the name of the program of a process whose comm it gets. A comm ends after 15 octets (TASK_COMM_LEN),
// and is "exe" where a program has started itself by /proc/self/exe: then the name is that of the command line, if it
// has one, or of the program's file. It is printable, and no longer than a file's name.
func Program(pid int, comm string) string {
	const cut, self, longest = 15, "exe", unix.NAME_MAX
	name := comm
	if comm == self || len(comm) >= cut {
		first, _, _ := strings.Cut(beginning(fmt.Sprintf("/proc/%d/cmdline", pid)), "\x00")
		if base := filepath.Base(first); first != "" && (comm == self || strings.HasPrefix(base, comm)) {
			name = base
		}
	}
	if file, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); name == self && err == nil {
		name = filepath.Base(file)
	}
	return strings.Map(printable, name[:min(longest, len(name))])
}

// beginning is that of a file, as far as a path could be. A process chooses how long its command line is.
func beginning(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text := make([]byte, unix.PathMax)
	n, _ := f.Read(text) // what cannot be read is no name
	return string(text[:n])
}

// printable keeps a process's name from writing control characters to a terminal.
func printable(c rune) rune {
	if unicode.IsPrint(c) {
		return c
	}
	return unicode.ReplacementChar
}

// each calls visit with the name of each entry of a directory, which is open as at, until ctx ends.
func (s *search) each(directory string, visit func(at int, name string)) error {
	d, err := os.Open(directory)
	if err != nil {
		return err
	}
	defer d.Close()
	for s.ctx.Err() == nil {
		names, err := d.Readdirnames(512)
		for _, name := range names {
			if s.ctx.Err() != nil {
				return nil
			}
			visit(int(d.Fd()), name)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// file is the identity of a file.
type file struct{ device, inode uint64 }

func identify(at int, path string) (file, error) {
	var s unix.Statx_t
	err := unix.Statx(at, path, unix.AT_EMPTY_PATH|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &s)
	return file{unix.Mkdev(s.Dev_major, s.Dev_minor), s.Ino}, err
}
