package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/internal/rig/mutate/mutant"
)

// program is a test binary with the mutations in it.
type program struct {
	stage
	path    string
	cwd     string // the package's, as go test has it
	tree    string // the module's directory
	temp    string
	root    bool
	reached map[int]bool // mutations that change a value somewhere in the run
	limit   time.Duration
}

// newProgram builds a stage's tests and runs them once with no mutation on.
func newProgram(m mutants, s stage, root bool, dir string) (*program, error) {
	packages, err := list(module + "/" + s.pkg)
	if err != nil {
		return nil, err
	}
	tree, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	p := &program{stage: s, cwd: packages[0].Dir, tree: tree, root: root, reached: map[int]bool{}, limit: 10 * time.Minute}
	if p.path, err = m.binary(s.pkg, dir); err != nil {
		return nil, err
	}
	// Tests run as other users, too. Setup trusts a directory that all may write to only if it is sticky.
	if p.temp, err = os.MkdirTemp(dir, "temp"); err != nil {
		return nil, err
	}
	for _, d := range []string{dir, p.temp} {
		if err := os.Chmod(d, 0o777|os.ModeSticky); err != nil {
			return nil, err
		}
	}
	trace := filepath.Join(dir, "trace")
	if err := os.WriteFile(trace, nil, 0o666); err != nil {
		return nil, err
	}
	if err := os.Chmod(trace, 0o666); err != nil {
		return nil, err
	}
	began := time.Now()
	if out, err := p.run(mutant.Trace + "=" + trace); err != nil {
		return nil, fmt.Errorf("tests of %s without a mutation: %w: %s", s.pkg, err, out)
	}
	p.limit = 10*time.Second + 5*time.Since(began)
	text, err := os.ReadFile(trace)
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Fields(string(text)) {
		id, err := strconv.Atoi(line)
		if err != nil {
			return nil, fmt.Errorf("trace of %s: %w", s.pkg, err)
		}
		p.reached[id] = true
	}
	return p, nil
}

// passes says whether the tests pass with the mutation on, and end in time.
func (p *program) passes(id int) (ok, inTime bool) {
	_, err := p.run(fmt.Sprintf("%s=%d", mutant.Active, id))
	return err == nil, err != context.DeadlineExceeded
}

// readOnlyTree keeps a mutation that has lost its state directory from writing where it is started.
const readOnlyTree = `set -e
mount --bind "$0" "$0"
mount -o remount,bind,ro "$0"
cd "$PWD"
exec "$@"`

// run starts the tests with a variable of the environment, and waits for them and all that they started.
func (p *program) run(variable string) (output []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.limit)
	defer cancel()
	// Others may be at work on the machine. The priority of a process is that of a thread, so nice(1) sets it.
	args := append([]string{"nice", "-n", "15", p.path, "-test.failfast", "-test.timeout=0"}, p.args...)
	if p.root {
		args = append([]string{"sh", "-c", readOnlyTree, p.tree}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = p.cwd
	cmd.Env = append(os.Environ(), variable, "TMPDIR="+p.temp)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.root {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	if ctx.Err() != nil {
		err = context.DeadlineExceeded
	}
	return out.Bytes(), err
}
