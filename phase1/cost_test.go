package phase1_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/test/golden"
	"github.com/guestwire/guestwire/internal/test/nstest"
	"github.com/guestwire/guestwire/internal/test/statements"
)

// counts has what a call costs.
const counts = "testdata/cost.txt"

// cost is what a call of the agent takes, in numbers that are the same in every run.
type cost struct {
	calls  map[string]int // those of exact
	opened map[string]int // files, how often
	sends  int            // to netlink sockets
	dumps  int
	plans  int
	waits  bool // for the kernel, which it asks again and again
}

// exact are the system calls that do a call's work, and whose number is the same in every run. What reads an open file
// or a socket is none, as the kernel divides answers by chance.
var exact = append(slices.DeleteFunc(slices.Clone(traced), func(call string) bool { return strings.HasPrefix(call, "recv") }),
	"newfstatat", "setns", "setsockopt", "socket")

// ending is what strace prints after a call, which depends on whether another thread runs.
var ending = regexp.MustCompile(`( <unfinished \.\.\.>|\) += [^"]*)$`)

// restarted is the second line of a write that the kernel begins again: who writes a sysctl of forwarding while another
// process configures a link does so many times.
var restarted = regexp.MustCompile(`<\.\.\. write resumed>.* = \? ERESTART`)

// ofProcess is a file of a process: how many processes a machine has is chance.
var ofProcess = regexp.MustCompile(`"/proc/\d+/|</proc/\d+`)

// newCost reads the trace of a call that names the namespace, from where it opens that on. counts is where the program
// writes its coverage.
func newCost(trace, namespace, counts string) cost {
	c := cost{calls: map[string]int{}, opened: map[string]int{}}
	begun := false
	for line := range strings.Lines(trace) {
		m := traceLine.FindStringSubmatch(line)
		if begun && restarted.MatchString(line) {
			c.calls["write"]--
		}
		if m == nil || strings.Contains(m[3], "ERESTART") {
			continue
		}
		call, args := m[2], ending.ReplaceAllString(m[3], "")
		begun = begun || call == "openat" && strings.Contains(args, `"`+namespace+`"`)
		if !begun || !slices.Contains(exact, call) || ofProcess.MatchString(args) || strings.Contains(args, counts) ||
			call == "write" && !strings.Contains(args, "</") { // the runtime wakes a thread
			continue
		}
		c.calls[call]++
		switch call {
		case "openat":
			path := strings.SplitN(args, `"`, 3)
			c.opened[path[1]]++
		case "sendto", "sendmsg":
			c.sends++
			if !mutates(call, args) {
				c.dumps++
			}
		}
	}
	return c
}

func (c cost) String() string {
	all, files, sysctls, again := 0, 0, 0, 0
	for _, n := range c.calls {
		all += n
	}
	for path, n := range c.opened {
		files += n
		if strings.HasPrefix(path, "/proc/sys/") {
			sysctls += n
			again += min(1, n-1)
		}
	}
	calls, sends := fmt.Sprint(all), fmt.Sprint(c.sends)
	if c.waits {
		calls, sends = "-", "-"
	}
	return fmt.Sprintf("| %s | %d | %d | %d | %s | %d | %d |", calls, files, sysctls, again, sends, c.dumps, c.plans)
}

// sysctls are those that are opened, by their paths below /proc/sys/net.
func (c cost) sysctls() (names []string) {
	for path := range c.opened {
		if name, is := strings.CutPrefix(path, "/proc/sys/net/"); is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// costed builds an agent that counts how often a plan is made.
func costed(t *testing.T) (agent string) {
	agent = filepath.Join(nstest.Dir(t), "agent")
	nstest.Run(t, "env", "CGO_ENABLED=0", "go", "build", "-C", filepath.Join(nstest.Root(t), "examples/guestwire-agent"), "-cover", "-covermode=count",
		"-coverpkg=.,github.com/guestwire/guestwire/internal/wiring", "-o", agent, ".")
	return agent
}

// cost measures a call of the agent. After each message the kernel has time for what it does later, such as the routes
// of a new IPv6 address: without these Setup would look again.
func (b *bed) cost(agent string, args []string) (c cost) {
	b.Helper()
	counts, log := b.TempDir(), filepath.Join(b.TempDir(), "strace")
	cmd := exec.Command("strace", append([]string{"-f", "-y", "-s", "80", "-e", "inject=sendto:delay_exit=40000", "-o", log, agent}, args...)...)
	cmd.Env = append(os.Environ(), "GOCOVERDIR="+counts)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%s: %v: %s", args[0], err, out)
	}
	c = newCost(readFile(b.T, log), b.n.Pod.Path(), counts)
	profile := filepath.Join(b.TempDir(), "profile")
	nstest.Run(b.T, "go", "tool", "covdata", "textfmt", "-i", counts, "-o", profile)
	c.waits = args[0] == "teardown"
	c.plans = statements.Read(b.T, profile).Calls(b.T, nstest.Root(b.T), "internal/wiring/make.go", "newPlan")
	b.Logf("%s: %v", args[0], c.calls)
	return c
}

// TestCost: what the calls of an agent take is as in the document. The numbers depend on the kernel.
func TestCost(t *testing.T) {
	nstest.Long(t)
	t.Parallel()
	nstest.Need(t, "strace")
	nstest.NeedTaps(t)
	nstest.NeedRoot(t, "it has other sysctls")
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		t.Fatal(err)
	}
	release := strings.Join(strings.SplitN(unix.ByteSliceToString(kernel.Release[:]), ".", 3)[:2], ".")
	if update := flag.Lookup("update"); update.Value.String() != "true" && !strings.Contains(readFile(t, counts), "| Linux "+release+" |") {
		nstest.LeaveOut(t, "the costs in the document are those under another kernel")
	}
	agent := costed(t)
	first := "| binding | sysctls that a first Setup opens, and Check does not |\n| --- | --- |\n"
	table := "| Linux " + release + " | system calls | files | of /proc/sys | twice or more | netlink sends | dumps | plans |\n" + strings.Repeat("| --- ", 8) + "|\n"
	for _, c := range []struct {
		name    string
		binding infra.Binding
		route   string   // that the guest loses
		calls   []string // nil: all
	}{
		{"bridge", infra.Bridge{}, "", nil}, {"redirect", infra.Redirect{}, "", nil}, {"routed", infra.Routed{}, "", nil}, {"masquerade", infra.Masquerade{}, "", nil},
		{"auto", infra.Auto{}, "", []string{"Setup"}},
		{"redirect with a loss", infra.Redirect{}, "route add 10.99.0.0/16 via 10.244.1.1 tos 4", []string{"Setup", "Setup with changes", "Check"}},
	} {
		binding, n := c.binding, nstest.NewNetwork(t)
		if c.route != "" {
			n.Pod.IP(c.route)
		}
		n.Pod.IP("neigh add 10.244.1.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent")
		n.Pod.IP("neigh add fd00:244:1::1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent")
		b := &bed{T: t, n: n, c: config(n, binding)}
		b.c.Dir, b.c.DNS = filepath.Join(nstest.Dir(t), "node"), nil
		setup, changed := b.setupArgs(), b.setupArgs()
		spec := infra.Spec{Binding: binding, Limits: cache.Limits{FromGuest: cache.Limit{PacketsPerSecond: 1000}}}
		if k := binding.Kind(); k == cache.BindingMasquerade || k == cache.BindingRouted {
			spec.Egress = policy(t, "allow 198.51.100.0/24 443", "refuse all")
		}
		text, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, changed[slices.Index(changed, "-config")+1], string(text))
		settled(t, n)
		costs := map[string]cost{}
		for _, call := range []struct {
			name string
			args []string
		}{
			{"Setup", setup}, {"Setup again", setup}, {"Setup with changes", changed}, {"Check", b.args("check")}, {"Status", b.args("status")}, {"Teardown", b.args("teardown")},
		} {
			if c.calls != nil && !slices.Contains(c.calls, call.name) {
				continue
			}
			costs[call.name] = b.cost(agent, call.args)
			table += fmt.Sprintf("| %s, %s %v\n", c.name, call.name, costs[call.name])
			settled(t, n)
		}
		if c.calls == nil {
			checked := costs["Check"].sysctls()
			alone := slices.DeleteFunc(costs["Setup"].sysctls(), func(name string) bool { return slices.Contains(checked, name) })
			first += fmt.Sprintf("| %s | %s |\n", c.name, cmp.Or(strings.Join(alone, ", "), "-"))
		}
	}
	golden.Parts(t, counts, "phase1", map[string]string{"cost": table, "first": first})
}
