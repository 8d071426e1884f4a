// Package node makes a Kubernetes node for tests: a copy of this machine in namespaces of its own, and a container
// engine in it. Nothing is installed, and nothing is left when the test ends, however it ends. install.sh unpacks
// Debian's engine.
package node

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/internal/test/sandbox"
)

// Config says what a node is made of.
type Config struct {
	// Dir is the directory of the node's files, which has to be an absolute path on a file system that can hold the
	// upper directory of an overlay. It is made if it is missing. A node with the directory of an earlier node finds
	// that node's files, /run included. Empty: a new directory, which is removed by Close.
	Dir string
	// Name is the host's name; empty: node.
	Name string
}

// Node is a running node: a copy of this machine with mount, PID, network, UTS, IPC and cgroup namespaces of its own.
// Its network has only the loopback. All changes of files are in Dir, except those below /tmp, which is the machine's.
// /dev/net/tun has the mode 0666. The sysctls of the machine that a kubelet writes are files.
type Node struct {
	// Dir is the directory of Config. The node's /var/lib, /var/log and /run are the directories of that name in it.
	Dir string
	// Pid is the node's first process, as seen from outside.
	Pid int

	init    *exec.Cmd
	life    io.Closer // the end of the first process's standard input
	sweeper *exec.Cmd
	keeper  io.Closer
	cgroups []string
	own     bool // Dir is removed by Close

	mu    sync.Mutex
	parts []*Process
	ended bool
}

//go:embed init.sh
var initScript string

// sweep removes cgroups when its standard input ends, which it does also if this process gets SIGKILL. The processes in
// the cgroups end then.
const sweep = `cat >/dev/null
for try in $(seq 600); do
	left=
	for cgroup; do
		[ ! -d "$cgroup" ] || find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || left=1
	done
	[ -n "$left" ] || exit 0
	sleep 0.05
done
echo "cgroups are left: $*" >&2
exit 1`

var count atomic.Int32

// Open starts a node. The caller must call Close, and must be root in a sandbox (see package sandbox). If the caller's
// process ends without that, the node ends with it.
func Open(c Config) (*Node, error) {
	n := &Node{Dir: c.Dir}
	if c.Name == "" {
		c.Name = "node"
	}
	if n.Dir == "" {
		dir, err := os.MkdirTemp(sandbox.Dir(), "node-")
		if err != nil {
			return nil, err
		}
		n.Dir, n.own = dir, true
	}
	err := os.MkdirAll(n.Dir, 0o755)
	if err == nil {
		err = os.Chmod(n.Dir, 0o755)
	}
	if err == nil {
		n.cgroups, err = cgroups(fmt.Sprintf("guestwire-node-%d-%d", os.Getpid(), count.Add(1)))
	}
	if err == nil {
		err = n.start(c.Name)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node: %w", err), n.Close())
	}
	return n, nil
}

func (n *Node) start(name string) error {
	n.sweeper = exec.Command("/bin/sh", append([]string{"-c", sweep, "sweep"}, n.cgroups...)...)
	n.sweeper.Stderr = os.Stderr
	n.sweeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is not for the sweeper
	var err error
	if n.keeper, err = n.sweeper.StdinPipe(); err != nil {
		return err
	}
	if err := n.sweeper.Start(); err != nil {
		n.sweeper = nil
		return err
	}
	for _, dir := range n.cgroups {
		if err := makeCgroup(dir, len(n.cgroups) == 1); err != nil {
			return fmt.Errorf("%w: %w", errNoCgroup, err)
		}
	}

	n.init = exec.Command("bash", append([]string{"-c", initScript, "node", n.Dir, name}, n.cgroups...)...)
	n.init.SysProcAttr = &syscall.SysProcAttr{Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET}
	complaints, err := os.Create(filepath.Join(n.Dir, "init.log"))
	if err != nil {
		return err
	}
	defer complaints.Close()
	n.init.Stderr = complaints
	if n.life, err = n.init.StdinPipe(); err != nil {
		return err
	}
	said, err := n.init.StdoutPipe()
	if err != nil {
		return err
	}
	if err := n.init.Start(); err != nil {
		n.init = nil
		return err
	}
	n.Pid = n.init.Process.Pid
	if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || line != "ready\n" {
		text, _ := os.ReadFile(complaints.Name())
		return fmt.Errorf("the first process says %q: %w\n%s", line, err, text)
	}
	return nil
}

// errNoCgroup means that this machine lets nobody make the cgroups of a node.
var errNoCgroup = errors.New("no cgroup for a node")

// cgroups are the directories of a cgroup in all hierarchies, at their roots.
func cgroups(name string) ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && (f[2] == "cgroup" || f[2] == "cgroup2") {
			dirs = append(dirs, filepath.Join(f[1], name))
		}
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("%w: no hierarchy is mounted", errNoCgroup)
	}
	return dirs, nil
}

// makeCgroup makes one that can have processes: a cpuset of version 1 is empty at first. In a machine's only hierarchy,
// of version 2, it has to have controllers.
func makeCgroup(dir string, only bool) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers")); only && err == nil {
		for _, controller := range []string{"cpu", "memory", "pids"} {
			if !slices.Contains(strings.Fields(string(have)), controller) {
				return fmt.Errorf("cgroups below %s have no controller %s: write +%s to its cgroup.subtree_control", filepath.Dir(dir), controller, controller)
			}
		}
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		set, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), set, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Kill ends all processes of the node at once, as a crash of the machine does. Dir stays for the next node. The node
// can only be closed after that.
func (n *Node) Kill() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return nil
	}
	n.ended = true
	var errs []error
	if n.init != nil {
		if err := n.init.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
		n.life.Close()
		n.init.Wait() // it was killed; all others have ended when this returns
	}
	for _, p := range n.parts {
		<-p.Ended
	}
	if n.sweeper != nil {
		n.keeper.Close()
		if err := n.sweeper.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("remove cgroups: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Close is Kill, and removes a directory that Config did not name.
func (n *Node) Close() error {
	err := n.Kill()
	if n.own {
		err = errors.Join(err, os.RemoveAll(n.Dir))
	}
	return err
}

// Path is where a file of the node is seen from outside.
func (n *Node) Path(path string) string {
	// /var/run is a link to /run, and from outside to the machine's.
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
		path = "/run/" + rest
	}
	return fmt.Sprintf("/proc/%d/root%s", n.Pid, path)
}

// WriteFile writes a file of the node in one step, with its directories.
func (n *Node) WriteFile(path, content string, mode fs.FileMode) error {
	path = n.Path(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// Command returns a command that runs in the node: in its namespaces and cgroups, with its root as the directory. The
// started process is nsenter(1); the program is its only child, and gets SIGKILL when nsenter ends.
func (n *Node) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	words := append([]string{"-c", enter, strconv.Itoa(n.Pid), strings.Join(n.cgroups, " "), program}, args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", words...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}
	cmd.WaitDelay = 10 * time.Second // more than a busy machine needs to read the rest of the output
	return cmd
}

// enter joins the node's cgroups and namespaces. In a hierarchy of version 2 the processes are one down: see init.sh.
const enter = `for cgroup in $1; do
	[ ! -d "$cgroup/init" ] || cgroup=$cgroup/init
	echo 0 >"$cgroup/cgroup.procs" || exit
done
shift
exec nsenter --target "$0" --mount --uts --ipc --net --pid --cgroup --root --wd setpriv --pdeathsig KILL -- "$@"`

// runTime is how long Run waits for a program.
const runTime = 3 * time.Minute

// Run runs a program in the node and returns what it printed, to either output.
func (n *Node) Run(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), runTime)
	defer cancel()
	out, err := n.Command(ctx, program, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// Start starts a program in the node, which runs until Stop, Kill or the node's end. The name is that of its log,
// /var/log/NAME.log in the node; a program of the same name appends to it. More are environment variables, NAME=VALUE,
// in the words before the program.
func (n *Node) Start(name string, words ...string) (*Process, error) {
	var env []string
	for len(words) > 0 && strings.Contains(words[0], "=") {
		env, words = append(env, words[0]), words[1:]
	}
	if len(words) == 0 {
		return nil, fmt.Errorf("start %s: no program", name)
	}
	p := &Process{Name: name, Log: filepath.Join(n.Dir, "var/log", name+".log"), Ended: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := n.Command(context.Background(), words[0], words[1:]...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return nil, fmt.Errorf("start %s: the node has ended", name)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.Err = cmd.Wait()
		close(p.Ended)
	}()
	if p.Pid, err = p.child(cmd); err != nil {
		cmd.Process.Kill()
		<-p.Ended
		return nil, fmt.Errorf("start %s: %w\n%s", name, err, p.Tail(20))
	}
	p.enter = cmd.Process.Pid
	n.parts = append(n.parts, p)
	return p, nil
}
