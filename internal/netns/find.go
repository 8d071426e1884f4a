package netns

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Find returns the places at which wanted network namespaces are found alive: "/run/netns/pod",
// "/proc/1234/ns/net", "/proc/1234/fd/7", "/run/netns/pod in the mount namespace of process 1234". Each
// namespace has at most one place of each kind, in this order: mounts of the caller's mount namespace, processes
// and threads, open files, mounts of other mount namespaces. A namespace that is not in the map was not found.
// A namespace of another boot is never found.
//
// The inode number leads to a place, and the cookie proves it, as the kernel uses inode numbers again. If none of the
// places can be opened, or one of the cookies is not known, the inode number decides: then a namespace that is gone may
// be found, but a living one is not missed.
//
// Unseen says what Find could not look at: "open files of processes: 3, such as process 1234: permission denied".
// The error means that nothing could be looked at.
//
// The caller's open files count like those of other processes, because each of them keeps the namespace alive.
// The caller's threads do not count, except the main one: a thread that Do has started ends with its call. Find
// does not see a namespace that is kept by a socket alone, by a file on its way through a socket, or by a mount
// namespace without a process.
//
// Find needs root to look at all processes. It reads nothing but /proc, and never waits for the file system of
// a container.
func Find(wanted []Identity) (places map[Identity][]string, unseen []string, err error) {
	boot, err := bootID()
	if err != nil {
		return nil, nil, err
	}
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return nil, nil, fmt.Errorf("look for network namespaces: %w", err)
	}
	f := finder{self: self, wanted: map[file]*living{}, mounts: map[mounts]bool{}}
	for _, id := range wanted {
		if id.BootID == boot {
			f.wanted[file{id.Device, id.Inode}] = &living{}
		}
	}
	if len(f.wanted) > 0 {
		if err := f.scan(); err != nil {
			return nil, nil, fmt.Errorf("look for network namespaces: %w", err)
		}
	}
	places = map[Identity][]string{}
	for _, id := range wanted {
		if l := f.wanted[file{id.Device, id.Inode}]; id.BootID == boot && l.is(id) && places[id] == nil {
			places[id] = l.list()
		}
	}
	for _, m := range f.missed {
		unseen = append(unseen, m.String())
	}
	return places, unseen, nil
}

// ErrNotSeen means that a namespace which Find has not found may be alive nevertheless.
var ErrNotSeen = errors.New("the node's other processes, which may be in it, are not visible in this PID namespace")

// CheckGone returns ErrNotSeen if the caller is not in the node's PID namespace, and the namespace, which Find has not
// found, is one of this boot: then Find has not seen the processes that keep it.
func CheckGone(id Identity) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	if id.BootID == boot && !seesNode() {
		return ErrNotSeen
	}
	return nil
}

// seesNode says whether /proc shows the processes of the node's PID namespace, which is the first one.
func seesNode() bool {
	const first = 0xEFFFFFFC // PROC_PID_INIT_INO (linux/proc_ns.h)
	pids, err := identify("/proc/1/ns/pid")
	if err != nil { // process 1 may have more rights than the caller
		pids, err = identify("/proc/self/ns/pid")
	}
	return err == nil && pids.inode == first
}

// The kinds of places, in the order of Find's result.
const (
	ownMount = iota
	inProcess
	openFile
	otherMount
	kinds
)

// mounts are what one mountinfo shows: the mounts of a mount namespace that are below a root directory.
type mounts struct{ namespace, root file }

// file is the identity of a file.
type file struct{ device, inode uint64 }

// living is the namespace that has an inode number now. One cookie that is read is the cookie of all places.
type living struct {
	places [kinds]string
	cookie uint64 // 0: not read
	closed bool   // a place could not be opened
}

// is says whether the namespace was found, and is the wanted one.
func (l *living) is(wanted Identity) bool {
	return l.places != [kinds]string{} && (l.cookie == 0 || wanted.Cookie == 0 || wanted.Cookie == l.cookie)
}

func (l *living) list() []string {
	var list []string
	for _, place := range l.places {
		if place != "" && l.closed && l.cookie == 0 {
			place += " (by its inode number)"
		}
		if place != "" {
			list = append(list, place)
		}
	}
	return list
}

// finder is one run of Find.
type finder struct {
	self   string // the caller's number in /proc
	wanted map[file]*living
	mounts map[mounts]bool // that were read already
	missed []miss
}

// scan looks at the mounts last: a program that makes a namespace mounts it and then lets its thread end.
func (f *finder) scan() error {
	processes, err := names("/proc")
	if err != nil {
		return err
	}
	if !seesNode() {
		f.missed = append(f.missed, miss{what: "processes outside of this PID namespace"})
	}
	var tasks []string // by their directories
	for _, pid := range processes {
		if _, err := strconv.Atoi(pid); err == nil {
			tasks = append(tasks, f.process(pid)...)
		}
	}
	f.readMounts("/proc/" + f.self)
	for _, task := range tasks {
		f.readMounts(task)
	}
	return nil
}

// process looks at a process's threads and open files, and returns the directories of the threads.
func (f *finder) process(pid string) []string {
	directory := "/proc/" + pid
	threads, err := names(directory + "/task")
	if f.miss("processes", directory, err) {
		return nil
	}
	var tasks []string
	filesRead := false
	for _, tid := range threads {
		task := directory
		if tid != pid {
			task += "/task/" + tid
		}
		tasks = append(tasks, task)
		if pid != f.self || tid == pid {
			f.at(inProcess, "network namespaces of processes", task+"/ns/net")
		}
		// The threads of a process share its open files. A main thread that has ended has none.
		if !filesRead {
			files, err := names(task + "/fd")
			f.miss("open files of processes", directory, err)
			for _, fd := range files {
				f.at(openFile, "open files of processes", task+"/fd/"+fd)
			}
			filesRead = len(files) > 0
		}
	}
	return tasks
}

// at looks at a link of /proc that leads to a file without a path.
func (f *finder) at(kind int, what, link string) {
	id, err := identify(link)
	if f.miss(what, link, err) {
		return
	}
	f.place(kind, id, link, func() (int, error) { return unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0) })
}

// readMounts looks at the mounts that a task sees, if no other task has shown them.
func (f *finder) readMounts(task string) {
	namespace, err := identify(task + "/ns/mnt")
	if f.miss("mounts of processes", task, err) {
		return
	}
	root, err := identify(task + "/root")
	if f.miss("mounts of processes", task, err) || f.mounts[mounts{namespace, root}] {
		return
	}
	text, err := os.ReadFile(task + "/mountinfo")
	if errors.Is(err, unix.EINVAL) || f.miss("mounts of processes", task, err) { // EINVAL: it has ended
		return
	}
	f.mounts[mounts{namespace, root}] = true
	kind, of := otherMount, " in the mount namespace of process "+strings.Split(task, "/")[2]
	if task == "/proc/"+f.self {
		kind, of = ownMount, ""
	}
	for line := range strings.Lines(string(text)) {
		if id, path, ok := parseMount(line); ok {
			f.place(kind, id, printable(path)+of, func() (int, error) { return openBelow(task+"/root", path, kind == otherMount) })
		}
	}
}

// parseMount returns the namespace that a line of mountinfo shows, if it is a network namespace, and the path
// where it is mounted (proc_pid_mountinfo(5)).
func parseMount(line string) (id file, path string, ok bool) {
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
	// Blanks and backslashes are octal in the path.
	path = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
	return file{unix.Mkdev(uint32(high), uint32(low)), inode}, path, err1 == nil && err2 == nil && err3 == nil
}

// printable keeps a container's path from writing control characters to a terminal.
func printable(path string) string {
	if quoted := strconv.Quote(path); quoted != `"`+path+`"` {
		return quoted
	}
	return path
}

// openBelow opens a path below another root directory, as a reference only. No symbolic link is followed. In a
// container's mounts nothing is waited for, as a file system in user space may never answer (RESOLVE_CACHED; the way to
// a mount is in the cache, except on some file systems).
func openBelow(root, path string, container bool) (int, error) {
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	}
	if container {
		how.Resolve |= 0x20 // RESOLVE_CACHED (linux/openat2.h)
	}
	// A mount or a rename anywhere on the machine disturbs the way, for a moment.
	for try := 0; ; try++ {
		fd, err := unix.Openat2(at, path, &how)
		if err != unix.EAGAIN || try == disturbed {
			return fd, err
		}
		time.Sleep(time.Millisecond)
	}
}

// disturbed is how often a way is tried again.
const disturbed = 20

// place notes a place of a wanted inode number. Open opens the place as a reference (O_PATH).
func (f *finder) place(kind int, id file, place string, open func() (int, error)) {
	l := f.wanted[id]
	if l == nil || l.places[kind] != "" && l.cookie != 0 {
		return
	}
	if l.cookie == 0 {
		cookie, err := cookieOf(id, open)
		if err != nil && kind != ownMount && kind != otherMount && ended(err) {
			return
		}
		l.cookie, l.closed = cookie, l.closed || err != nil
	}
	if l.places[kind] == "" {
		l.places[kind] = place
	}
}

// errMoved means that a place has another file by now.
var errMoved = errors.New("another file")

// cookieOf returns the cookie of the namespace that open opens.
func cookieOf(want file, open func() (int, error)) (uint64, error) {
	fd, err := open()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	// Only a namespace is opened for good: to open a FIFO would wait, and to open a device can do anything.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, err
	}
	if fs.Type != unix.NSFS_MAGIC {
		return 0, errMoved
	}
	ns, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	id, err := Identify(ns)
	if err != nil {
		return 0, err
	}
	if id.Device != want.device || id.Inode != want.inode {
		return 0, errMoved
	}
	if own, err := identify("/proc/thread-self/ns/net"); err == nil && own == want {
		err := id.AddCookie() // a caller without CAP_SYS_ADMIN is in this namespace already
		return id.Cookie, err
	}
	err = Do(ns, id.AddCookie)
	if errors.Is(err, unix.EPERM) {
		if cookie, ok := cookieOutside(ns); ok {
			return cookie, nil
		}
	}
	if err != nil {
		return 0, err
	}
	return id.Cookie, nil
}

// identify follows a link of /proc. It does not ask the file system behind the link, which may be a remote one.
func identify(link string) (file, error) {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &s)
	return file{unix.Mkdev(s.Dev_major, s.Dev_minor), s.Ino}, err
}

// names are those of a directory's entries.
func names(directory string) ([]string, error) {
	d, err := os.Open(directory)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// ended says whether the error means that the process has ended, or has closed or left what was looked at.
func ended(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, errMoved)
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
