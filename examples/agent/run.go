package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// runWired wires the NIC for as long as the command runs.
func runWired(ctx context.Context, o *options) (err error) {
	if o.Owner.Inside {
		return usageError{errors.New("owner.inside: run starts the command in the agent's own user namespace: leave owner.inside out, or use setup")}
	}
	signals, stop := passedOn() // one that comes between setup and the command is not lost
	defer stop()
	// Status makes the directory in which the lock lies.
	_, unknown := phase1.Status(ctx, o.named())
	lock, err := lockRun(o)
	if unknown != nil && errors.Is(err, fs.ErrNotExist) {
		return unknown // why there is no directory: a capability, the machine's own namespace
	}
	if err != nil {
		return err
	}
	defer lock.unlock()
	earlier, _ := phase1.Status(ctx, o.named()) // an error is that nothing is wired, or what setup says again
	if earlier != nil && !lock.killed {
		return fmt.Errorf("NIC %s: %w, and not by agent run: a VM may be using it; agent exec runs a command beside that wiring, agent teardown takes it down", o.NIC, infra.ErrWired)
	}
	if err := lock.mark(); err != nil {
		return err
	}
	if o.Own && o.State != "" { // not before the lock: what another run uses is not left over
		if err := forgetEarlier(ctx, o); err != nil {
			return err
		}
	}
	err = setup(ctx, o)
	if earlier != nil && errors.Is(err, infra.ErrWired) {
		o.Progress("an earlier run was killed and had another configuration: its wiring is taken down first")
		if err = phase1.Teardown(ctx, o.named()); err == nil {
			err = setup(ctx, o)
		}
	}
	if err != nil {
		return err
	}
	defer func() {
		// What ctx says was the command's end, or is too late: a teardown is carried out.
		down := phase1.Teardown(context.Background(), o.named())
		if errors.Is(down, infra.ErrNoNIC) {
			down = nil // the container's network has ended before the command
		}
		if err != nil && down != nil {
			fmt.Fprintln(stderr, "agent:", down) // err may be the command's status alone
		} else if down != nil {
			err = down
		}
	}()
	cmd := exec.Command(o.command[0], o.command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return runCommand(cmd, o, signals)
}

// named is the configuration that names the NIC and no more, so that Teardown finds the wiring of another State, too. It cuts
// the guest off: when the command has ended, a VMM that the command has started may still be ending.
func (o *options) named() phase1.Config {
	c := o.Config
	c.Spec, c.CutOff = infra.Spec{NIC: o.NIC}, true
	return c
}

// forgetEarlier removes the record and the journal that a container which was killed left in these directories, if they
// outlast its network: the record of another namespace would keep this one from the State.
func forgetEarlier(ctx context.Context, o *options) error {
	err := phase1.Forget(ctx, phase1.Gone{NIC: o.NIC, State: o.State, Own: true, Dir: o.Dir})
	if errors.Is(err, phase1.ErrAlive) {
		return nil // an earlier run in this namespace, which setup resumes
	}
	return err
}

// runLock is a file that says who wires the NIC: a run that lives holds its lock, a run that was killed leaves it with a mark.
type runLock struct {
	*os.File
	killed bool // the file had a mark
}

// mark says that this run wires the NIC.
func (l *runLock) mark() error {
	_, err := l.WriteAt([]byte("agent run\n"), 0)
	return err
}

func (l *runLock) unlock() {
	os.Remove(l.Name())
	l.Close()
}

// lockRun keeps another run of the same NIC away, which would take the wiring down under the first one's command.
func lockRun(o *options) (*runLock, error) {
	name := "run-" + o.NIC // with -own the directory is the container's
	if o.NetNS != nil {
		var ns unix.Stat_t
		if err := unix.Fstat(int(o.NetNS.Fd()), &ns); err != nil {
			return nil, fmt.Errorf("network namespace %s: %w", o.netns, err)
		}
		name += fmt.Sprintf("-%d", ns.Ino)
	}
	path := filepath.Join(o.Dir, name)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == unix.EWOULDBLOCK {
			f.Close()
			return nil, fmt.Errorf("NIC %s: another agent run has it (fuser %s): end that one first", o.NIC, path)
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		mine, err := f.Stat()
		named, gone := os.Lstat(path)
		if err == nil && gone == nil && os.SameFile(mine, named) {
			return &runLock{f, mine.Size() > 0}, nil
		}
		f.Close() // its holder has removed it meanwhile
	}
}
