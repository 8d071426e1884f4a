package phase1_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// errnos are what the system calls fail with.
var errnos = []unix.Errno{
	unix.ENOMEM, unix.EPERM, unix.EBUSY, unix.EEXIST, unix.EINVAL, unix.ENODEV, unix.EIO, unix.ENOSPC, unix.EINTR, unix.ENOBUFS,
}

// traced are the system calls by which anything is changed, and those by which the kernel is asked.
var traced = []string{
	"openat", "mkdirat", "fchmod", "fchmodat", "fchown", "fchownat", "renameat", "renameat2", "fsync", "write", "unlinkat", "flock",
	"sendto", "sendmsg", "ioctl", "recvfrom", "recvmsg",
}

// point is a system call of a run.
type point struct {
	call string
	n    int    // which one of its kind on its thread: so strace counts
	what string // the call, what it is about, and which one of these it is: the same in every run
	// mutates says that the call changes something: the others read.
	mutates bool
}

// harm is what strace does at a point.
type harm struct {
	point
	errno unix.Errno // 0: kill -9
}

func (h harm) String() string {
	if h.errno == 0 {
		return "kill at " + h.what
	}
	return unix.ErrnoName(h.errno) + " at " + h.what
}

func (h harm) inject() string {
	if h.errno == 0 {
		return fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", h.call, h.n)
	}
	return fmt.Sprintf("inject=%s:error=%s:when=%d", h.call, unix.ErrnoName(h.errno), h.n)
}

// injections are strace's flags. It keeps one injection a system call: two of a kind have to be the
// same error, and are a range that has only its ends.
func injections(harms []harm) []string {
	if len(harms) == 2 && harms[0].call == harms[1].call {
		first, last := harms[0], harms[1]
		return []string{"-e", fmt.Sprintf("%s..%d+%d", first.inject(), last.n, last.n-first.n)}
	}
	var flags []string
	for _, h := range harms {
		flags = append(flags, "-e", h.inject())
	}
	return flags
}

// operation is a call of the agent to be harmed. A trial prepares the first operation, harms each call, and finishes.
type operation struct {
	args    []string
	found   func(file bool) error  // what a call that fails leaves, in addition to a file that its error names; nil: anything
	prepare func() error           // as far as to the call
	done    func() error           // what is there after a call that succeeds
	always  func() error           // what holds whatever became of the call; nil: nothing
	finish  func(again bool) error // goes on without harm, and restores the namespace. Again: Setup comes before Teardown
}

// attempt is an operation that meets harm.
type attempt struct {
	*operation
	harms []harm
}

// trial are attempts, one after the other.
type trial struct {
	attempts []attempt
	again    bool
}

func (c trial) String() string {
	var words []string
	for _, a := range c.attempts {
		words = append(words, fmt.Sprintf("%s with %v", a.args[0], a.harms))
	}
	return fmt.Sprintf("%s, again %v", strings.Join(words, ", then "), c.again)
}

// result is what became of an attempt.
type result struct {
	points   []point
	injected int // index of the point after the first error that was injected
	hits     []string
	errnos   []string // of the hits that were errors
	stray    bool     // an error met another call of the same kind, one that is none of the program's work
	killed   bool
	err      error
}

var (
	traceLine = regexp.MustCompile(`^(\d+) +([a-z0-9]+)\((.*)`)
	resumed   = regexp.MustCompile(`^(\d+) +<\.\.\. ([a-z0-9]+) resumed>`)
	injected  = regexp.MustCompile(` = -1 (E[A-Z]+) .*\(INJECTED\)`)
	about     = regexp.MustCompile(`TUN[A-Z]+|nlmsg_type=\w+|"[^"{]*"|<[^>]*>`)
	varies    = regexp.MustCompile(`[0-9a-f]{8}-\d+-\d+|"\d+"|/node/\d+|state-[0-9a-f]{16}|socket:\[\d+\]|guestwire-test-\d+|/proc/\d+|pid=\d+`)
)

// mutates reports whether a call changes anything, as strace prints it.
func mutates(call, args string) bool {
	switch call {
	case "openat":
		return strings.Contains(args, "O_WRONLY") || strings.Contains(args, "O_RDWR") || strings.Contains(args, "O_CREAT")
	case "sendto", "sendmsg": // a dump only reads
		return !strings.Contains(args, "NLM_F_REQUEST|0x300") && !strings.Contains(args, "NLM_F_DUMP")
	case "ioctl":
		return strings.Contains(args, "TUNSET")
	case "recvfrom", "recvmsg":
		return false
	}
	return true
}

// parse reads strace's output.
func parse(trace string, harms []harm) result {
	var r result
	counts, seen := map[string]int{}, map[string]int{}
	last := map[string]string{} // the call that a thread is in
	again := map[string]bool{}  // threads whose call the kernel begins anew: a lock of its own was taken
	for line := range strings.Lines(trace) {
		errno := injected.FindStringSubmatch(line)
		thread, _, _ := strings.Cut(line, " ")
		restarted := again[thread]
		again[thread] = strings.Contains(line, "= ? ERESTART")
		if m := resumed.FindStringSubmatch(line); m != nil {
			if what := last[thread]; errno != nil && what != "" {
				r.hit(what, errno)
			} else if errno != nil {
				r.stray = true
			}
			continue
		}
		m := traceLine.FindStringSubmatch(line)
		if m == nil {
			r.killed = r.killed || strings.Contains(line, "killed by SIGKILL")
			continue
		}
		call, args := m[2], m[3]
		counts[thread+call]++
		ofProgram := call != "ioctl" && call != "write" || strings.Contains(args, "TUNSET") || strings.Contains(args, "</")
		if !ofProgram || strings.Contains(args, specName) || strings.Contains(args, inactiveName) { // a terminal's, a pipe's, the runtime's, the trial's own
			last[thread] = ""
			r.stray = r.stray || errno != nil
			continue
		}
		if restarted && last[thread] != "" {
			if errno != nil {
				r.hit(last[thread], errno)
			}
			continue
		}
		what := call + " " + varies.ReplaceAllString(strings.Join(about.FindAllString(args[:min(len(args), 160)], 2), " "), "*")
		seen[what]++
		what = fmt.Sprintf("%s #%d", what, seen[what])
		last[thread] = what
		p := point{call, counts[thread+call], what, mutates(call, args)}
		r.points = append(r.points, p)
		killer := slices.ContainsFunc(harms, func(h harm) bool { return h.errno == 0 && h.call == p.call && h.n == p.n })
		if errno != nil {
			r.hit(what, errno)
		} else if killer {
			r.hits = append(r.hits, what)
		}
	}
	return r
}

// hit notes that a call was made to fail.
func (r *result) hit(what string, errno []string) {
	r.hits = append(r.hits, what)
	r.errnos = append(r.errnos, errno[1])
	if len(r.hits) == 1 {
		r.injected = len(r.points)
	}
}
