package netns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// finder is one run of Find.
type finder struct {
	ctx    context.Context
	self   string // the caller's number in /proc
	wanted map[file]*living
	mounts map[mounts]bool // that were read already
	tables tables          // of open files, that were read already
	missed []miss
	left   map[string]bool // processes that do not count; nil: all count, and so do the caller's open files
}

// scan looks at open files and at other mount namespaces only for a namespace that has no other place, as any user can
// make very many of them.
func (f *finder) scan() error {
	if err := f.walk(false); err != nil {
		return err
	}
	for _, l := range f.wanted {
		if !l.known && l.places == [kinds]*place{} {
			f.mounts, f.tables, f.missed = map[mounts]bool{}, nil, nil
			return f.walk(true)
		}
	}
	return nil
}

// walk looks at the mounts last: a program that makes a namespace mounts it and then lets its thread end.
func (f *finder) walk(all bool) error {
	if !seesNode() {
		f.missed = append(f.missed, miss{what: "processes outside of this PID namespace"})
	}
	var tasks []string // by their directories
	err := f.each("/proc", func(_ int, pid string) {
		if _, err := strconv.Atoi(pid); err == nil {
			tasks = append(tasks, f.process(pid, all)...)
		}
	})
	if err != nil {
		return err
	}
	f.readMounts("/proc/" + f.self)
	for _, task := range tasks {
		if all && f.ctx.Err() == nil {
			f.readMounts(task)
		}
	}
	if f.ctx.Err() != nil {
		return context.Cause(f.ctx)
	}
	return nil
}

// each calls visit with the name of each entry of a directory, which is open as at. The names are read in parts. It
// returns early if ctx ends.
func (f *finder) each(directory string, visit func(at int, name string)) error {
	const part = 512
	d, err := os.Open(directory)
	if err != nil {
		return err
	}
	defer d.Close()
	at := int(d.Fd())
	for f.ctx.Err() == nil {
		names, err := d.Readdirnames(part)
		for _, name := range names {
			if f.ctx.Err() != nil {
				return nil
			}
			visit(at, name)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// process looks at a process's threads and, if files is set, or it is the caller, at its open files. It returns the
// directories of the threads.
func (f *finder) process(pid string, files bool) []string {
	directory := "/proc/" + pid
	switch {
	case f.left[pid]:
		return nil
	case f.left != nil && pid == f.self:
		f.at(inProcess, "network namespaces of processes", unix.AT_FDCWD, directory+"/ns/net", directory+"/ns/net")
		return nil
	}
	var tasks []string
	err := f.each(directory+"/task", func(_ int, tid string) {
		task := directory
		if tid != pid {
			task += "/task/" + tid
		}
		tasks = append(tasks, task)
		if pid != f.self || tid == pid {
			f.at(inProcess, "network namespaces of processes", unix.AT_FDCWD, task+"/ns/net", task+"/ns/net")
		}
		// The threads of a process share its open files, unless one has unshared them. A main thread that has ended has
		// none.
		if !files && pid != f.self || f.tables.has(tid) {
			return
		}
		fds := task + "/fd"
		err := f.each(fds, func(at int, fd string) {
			f.at(openFile, "open files of processes", at, fd, fds+"/"+fd)
		})
		f.miss("open files of processes", directory, err)
	})
	f.miss("processes", directory, err)
	return tasks
}

// tables are tables of open files, by a task that has each of them, in the kernel's order (kcmp(2)).
type tables []int

// has reports whether the task's table is among the tables, and adds it. It is false where the kernel cannot compare.
func (t *tables) has(task string) bool {
	tid, err := strconv.Atoi(task)
	if err != nil {
		return false
	}
	i, found := slices.BinarySearchFunc(*t, tid, func(have, want int) int {
		const files = 2 // KCMP_FILES (linux/kcmp.h)
		order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(have), uintptr(want), files, 0, 0, 0)
		switch {
		case errno != 0:
			err = errno
			return 1
		case order == 0:
			return 0
		case order == 1: // less
			return -1
		}
		return 1
	})
	if err != nil {
		return false
	}
	if !found {
		*t = slices.Insert(*t, i, tid)
	}
	return found
}

// at looks at a link of /proc that leads to a file without a path. Name is the link's below a directory that is open.
func (f *finder) at(kind int, what string, directory int, name, path string) {
	id, err := identify(directory, name)
	if f.miss(what, path, err) {
		return
	}
	f.place(kind, id, path, func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) })
}

// readMounts looks at the mounts that a task sees, if no other task has shown them.
func (f *finder) readMounts(task string) {
	namespace, err := identify(unix.AT_FDCWD, task+"/ns/mnt")
	if f.miss("mounts of processes", task, err) {
		return
	}
	root, err := identify(unix.AT_FDCWD, task+"/root")
	if f.miss("mounts of processes", task, err) || f.mounts[mounts{namespace, root}] {
		return
	}
	info, err := os.Open(task + "/mountinfo")
	if errors.Is(err, unix.EINVAL) || f.miss("mounts of processes", task, err) { // EINVAL: it has ended
		return
	}
	defer info.Close()
	kind, above := otherMount, task+"/root"
	if task == "/proc/"+f.self {
		kind, above = ownMount, ""
	}
	lines := bufio.NewReader(info)
	for f.ctx.Err() == nil {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			f.mounts[mounts{namespace, root}] = true
			return
		}
		if errors.Is(err, unix.EINVAL) || f.miss("mounts of processes", task, err) {
			return
		}
		if id, path, ok := parseMount(line); ok {
			f.place(kind, id, printable(above+path), func() (int, error) { return openBelow(task+"/root", path, kind == otherMount) })
		}
	}
}

// parseMount returns the namespace that a line of mountinfo shows, if it is a network namespace, and the path
// where it is mounted (proc_pid_mountinfo(5)).
func parseMount(line string) (id file, path string, ok bool) {
	if !strings.Contains(line, " net:[") {
		return file{}, "", false
	}
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return file{}, "", false
	}
	major, minor, _ := strings.Cut(fields[2], ":")
	number, net := strings.CutPrefix(fields[3], "net:[")
	number, closed := strings.CutSuffix(number, "]")
	_, source, _ := strings.Cut(line, " - ")
	if !net || !closed || !strings.HasPrefix(source, "nsfs ") {
		return file{}, "", false
	}
	high, err1 := strconv.ParseUint(major, 10, 32)
	low, err2 := strconv.ParseUint(minor, 10, 32)
	inode, err3 := strconv.ParseUint(number, 10, 64)
	return file{unix.Mkdev(uint32(high), uint32(low)), inode}, MountPath(fields[4]), err1 == nil && err2 == nil && err3 == nil
}

// MountPath returns the path that a field of mountinfo stands for. Blanks and backslashes are octal there.
func MountPath(field string) string { return unescape.Replace(field) }

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// printable keeps a container's path from writing control characters to a terminal. Other paths stay as they are.
func printable(path string) string {
	if strings.ContainsFunc(path, func(c rune) bool { return !unicode.IsPrint(c) }) || !utf8.ValidString(path) {
		return strconv.Quote(path)
	}
	return path
}

// place notes a place of a wanted inode number. Open opens the place as a reference (O_PATH).
func (f *finder) place(kind int, id file, text string, open func() (int, error)) {
	l := f.wanted[id]
	if l == nil || l.places[kind] != nil && l.cookie != 0 {
		return
	}
	if l.cookie == 0 {
		ns, cookie, err := openPlace(id, text, open)
		if err == nil {
			ns.Close()
		}
		if err != nil && kind != ownMount && kind != otherMount && ended(err) {
			return
		}
		l.cookie, l.closed = cookie, l.closed || err != nil
	}
	if l.places[kind] == nil {
		l.places[kind] = &place{text, open}
	}
}

// miss is what could not be looked at, of how many processes, for one reason.
type miss struct {
	what   string
	reason error
	first  string // a process
	last   string
	count  int
}

func (m miss) String() string {
	if m.reason == nil {
		return m.what
	}
	return fmt.Sprintf("%s: %d, such as process %s: %v", m.what, m.count, m.first, m.reason)
}

// miss notes what could not be looked at below a directory of /proc. It returns whether there is an error.
func (f *finder) miss(what, path string, err error) bool {
	if err == nil {
		return false
	}
	if ended(err) {
		return true
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = errno // without a path
	}
	pid := strings.Split(path, "/")[2]
	for i := range f.missed {
		m := &f.missed[i]
		if m.what == what && m.reason == err {
			if m.last != pid {
				m.last = pid
				m.count++
			}
			return true
		}
	}
	f.missed = append(f.missed, miss{what: what, reason: err, first: pid, last: pid, count: 1})
	return true
}
