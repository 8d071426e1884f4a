package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoProgram means that a program is not installed.
var ErrNoProgram = errors.New("not in PATH")

// need says which of the programs are missing. The error is ErrNoProgram.
func need(programs ...string) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", strings.Join(missing, ", "), ErrNoProgram)
}

// Dump is what an administrator sees of the namespace: everything that a wiring could change. It leaves out what the
// kernel changes by itself: timers, numbers of tc's actions, carriers, which the kernel notices late, the elements of
// sets that packets fill or that expire, and what a bridge has learned.
//
// Dump runs ip(8), bridge(8), tc(8) and nft(8), and reads sysctls. The error is ErrNoProgram if a program is missing.
func (n Namespace) Dump() (string, error) {
	if err := need("ip", "bridge", "tc", "nft"); err != nil {
		return "", fmt.Errorf("a dump is made by ip, bridge and tc (Debian's package iproute2) and nft (nftables): %w", err)
	}
	var text string
	err := n.Do(func() (err error) {
		text, err = dump()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("dump of the namespace: %w", err)
	}
	return carriers.ReplaceAllString(timers.ReplaceAllString(text, ""), ""), nil
}

// dump returns the dump of the calling thread's namespace, and gives the thread mounts of its own.
func dump() (string, error) {
	if err := hideNames(); err != nil {
		return "", err
	}
	qdiscs, err := start("", "tc", "qdisc").output()
	if err != nil {
		return "", err
	}
	shown := []*command{
		start("link\naddr\nroute show table all\nrule\n", "ip", "-d", "-batch", "-"),
		start("", "ip", "-6", "rule"),
		start("", "bridge", "-d", "link"),
		start("", "nft", "-s", "list", "ruleset"),
		start("", "ip", "neigh", "show", "nud", "permanent"),
		start("", "bridge", "fdb", "show"),
	}
	for _, m := range ingress.FindAllStringSubmatch(qdiscs, -1) {
		shown = append(shown, start("", "tc", "filter", "show", "dev", m[2], "ingress"))
		if m[1] == "clsact" {
			shown = append(shown, start("", "tc", "filter", "show", "dev", m[2], "egress"))
		}
	}
	text := "# tc qdisc\n" + qdiscs
	var errs []error
	for _, c := range shown { // after an error too, so that none is left
		out, err := c.output()
		errs = append(errs, err)
		if slices.Contains(c.Args, "ruleset") {
			out = elements.ReplaceAllStringFunc(passing.ReplaceAllString(out, "$1"), sortElements)
		}
		if slices.Contains(c.Args, "neigh") || slices.Contains(c.Args, "fdb") { // in the order of a table of hashes
			lines := slices.Sorted(strings.Lines(out))
			out = strings.Join(slices.DeleteFunc(lines, isLearned), "")
		}
		text += c.title + "\n" + out
	}
	settings, err := sysctls()
	return text + settings, errors.Join(append(errs, err)...)
}

// isLearned reports whether the line of neighbours or of forwarding entries is one that a bridge has learned.
func isLearned(line string) bool {
	return strings.Contains(line, " master ") && !strings.Contains(line, " permanent") && !strings.Contains(line, " static")
}

// passing are the elements of a set that packets fill, or that expire.
var passing = regexp.MustCompile(`(\t\tflags .*(?:dynamic|timeout).*\n(?:\t\t[a-df-z].*\n)*)\t\telements = \{[^}]*\}\n`)

// elements are those of a set. The kernel lists ranges in the order in which they were added.
var elements = regexp.MustCompile(`elements = \{[^}]*\}`)

func sortElements(list string) string {
	words := strings.Split(strings.TrimSuffix(strings.TrimPrefix(list, "elements = {"), "}"), ",")
	for i, w := range words {
		words[i] = strings.TrimSpace(w)
	}
	slices.Sort(words)
	return "elements = {\n\t\t\t" + strings.Join(words, ",\n\t\t\t") + " }"
}

// ingress are the links with filters for what they receive, and by clsact also for what they send.
var ingress = regexp.MustCompile(`(?m)^qdisc (ingress|clsact) \S+ dev (\S+) `)

// hideNames has the programs of the calling thread print peers' namespaces by number: ip(8) would look for their names
// among those that others make and delete meanwhile.
func hideNames() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	err := unix.Mount("none", "/run/netns", "tmpfs", 0, "")
	if err == unix.ENOENT {
		return nil
	}
	return os.NewSyscallError("mount", err)
}

// command is a program that runs.
type command struct {
	*exec.Cmd
	title           string
	out, complaints bytes.Buffer
	err             error
}

func start(input, program string, args ...string) *command {
	c := &command{Cmd: exec.Command(program, args...)}
	c.title = "# " + strings.Join(c.Args, " ")
	if input != "" {
		c.title += ": " + strings.ReplaceAll(strings.TrimSpace(input), "\n", ", ")
		c.Stdin = strings.NewReader(input)
	}
	c.Stdout, c.Stderr = &c.out, &c.complaints
	c.err = c.Start()
	return c
}

// output waits for the end of the program.
func (c *command) output() (string, error) {
	if c.err == nil {
		c.err = c.Wait()
	}
	if c.err != nil {
		c.err = fmt.Errorf("%s: %w\n%s%s", strings.Join(c.Args, " "), c.err, &c.out, &c.complaints)
	}
	return c.out.String(), c.err
}

// sysctls prints the settings of the calling thread's namespace that a wiring could change. A kernel may lack IPv6.
// Links show addr_gen_mode, and to read its file waits for the kernel's lock of links, with all of a CPU.
func sysctls() (string, error) {
	text := "# sysctl\n"
	for _, pattern := range []string{
		"ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv6/conf/default/disable_ipv6",
		"ipv4/ip_unprivileged_port_start", "ipv4/ping_group_range",
		"ipv4/conf/*/forwarding", "ipv4/conf/*/arp_ignore", "ipv4/conf/*/rp_filter", "ipv4/conf/*/route_localnet",
		"ipv6/conf/*/forwarding", "ipv6/conf/*/accept_ra", "ipv6/conf/*/disable_ipv6",
	} {
		paths, err := filepath.Glob("/proc/sys/net/" + pattern)
		if err != nil {
			return "", err
		}
		for _, path := range paths {
			value, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			text += strings.TrimPrefix(path, "/proc/sys/net/") + ":" + string(value)
		}
	}
	return text, nil
}

// Settled is the dump of a namespace that does not change by itself any more: the kernel has acted upon all carriers,
// uses all addresses, and announces no change while the dump is made. Settled waits for a minute at most, and five
// seconds for a local route, which a program may have removed.
func (n Namespace) Settled() (string, error) {
	var unsettled error
	begin := time.Now()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var text string
		changed, err := n.changed(func() (err error) {
			unsettled = n.inHandle((*handle).allSettled)
			if errors.Is(unsettled, errNoLocalRoute) && time.Since(begin) > 5*time.Second {
				unsettled = nil
			}
			if unsettled == nil {
				text, err = n.Dump()
			}
			return err
		})
		switch {
		case changed:
			unsettled = errors.Join(errors.New("the kernel announces changes of links, addresses, routes or rules"), err)
		case err != nil:
			return "", err
		case unsettled == nil:
			return text, nil
		}
	}
	return "", fmt.Errorf("the namespace changes by itself: %w", unsettled)
}

// changed calls f, and reports whether links, addresses, routes or rules of the namespace changed meanwhile
// (rtnetlink(7)). The error is that of f.
func (n Namespace) changed(f func() error) (bool, error) {
	const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV4_RULE |
		unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV6_ROUTE | 1<<(unix.RTNLGRP_IPV6_RULE-1)
	fd := -1
	err := n.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE); err != nil {
			return os.NewSyscallError("socket", err)
		}
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}))
	})
	if fd >= 0 {
		defer unix.Close(fd)
	}
	if err != nil {
		return false, err
	}
	err = f()
	_, _, none := unix.Recvfrom(fd, make([]byte, 1), unix.MSG_DONTWAIT)
	return none != unix.EAGAIN, err
}

// timers of bridges run all the time, a bridge counts what it has learned, and the kernel numbers tc's actions.
var timers = regexp.MustCompile(`_timer +[0-9.]+|fdb_n_learned [0-9]+|index [0-9]+ ref [0-9]+ bind [0-9]+`)

// carriers are noticed up to a second late, and so is what follows from them.
var carriers = regexp.MustCompile(`NO-CARRIER,|,LOWER_UP| state [A-Z]+| state (disabled|forwarding|learning|listening)| linkdown`)

// Stable takes out what time changes: the seconds that are left of a lifetime.
func Stable(dump string) string {
	var lines []string
	for line := range strings.Lines(dump) {
		for _, word := range strings.Fields(line) {
			if strings.HasSuffix(word, "sec") && word != "0sec" {
				line = strings.Replace(line, word, "SECONDS", 1)
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

// Diff says in which lines two dumps differ; empty: they are equal. Lines that are gone begin with -, new ones with +,
// below the command whose output they are.
func Diff(before, after string) string {
	if before == after {
		return ""
	}
	b, a := strings.Split(before, "\n"), strings.Split(after, "\n")
	var text strings.Builder
	command, said := "", ""
	for len(b) > 0 && len(a) > 0 && b[0] == a[0] {
		if strings.HasPrefix(b[0], "# ") {
			command = b[0]
		}
		b, a = b[1:], a[1:]
	}
	for len(b) > 0 && len(a) > 0 && b[len(b)-1] == a[len(a)-1] {
		b, a = b[:len(b)-1], a[:len(a)-1]
	}
	// common[i][j] is how many lines b[i:] and a[j:] have in common, in order. A dump can have 10,000 lines, so these
	// are few.
	common := make([][]int, len(b)+1)
	for i := range common {
		common[i] = make([]int, len(a)+1)
	}
	for i := len(b) - 1; i >= 0; i-- {
		for j := len(a) - 1; j >= 0; j-- {
			if b[i] == a[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	say := func(sign, line string) {
		if command != said {
			fmt.Fprintln(&text, command)
			said = command
		}
		fmt.Fprintln(&text, sign+line)
	}
	for i, j := 0, 0; i < len(b) || j < len(a); {
		switch {
		case i < len(b) && j < len(a) && b[i] == a[j]:
			if strings.HasPrefix(b[i], "# ") {
				command = b[i]
			}
			i, j = i+1, j+1
		case j == len(a) || i < len(b) && common[i+1][j] >= common[i][j+1]:
			say("-", b[i])
			i++
		default:
			say("+", a[j])
			j++
		}
	}
	return text.String()
}
