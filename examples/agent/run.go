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

const managedByRun = "agent run"

// runWired wires the NIC for as long as the command runs.
func runWired(ctx context.Context, o *options) (err error) {
	if o.Owner.Inside {
		return usageError{errors.New("owner.inside: run starts the command in the agent's own user namespace: leave owner.inside out, or use setup")}
	}
	signals, stop := passedOn() // one that comes between setup and the command is not lost
	defer stop()
	_, unknown := phase1.Status(ctx, o.named())
	if errors.Is(unknown, phase1.ErrNotWired) {
		made, err := phase1.Lock(ctx, o.Dir, managedByRun, o.Progress) // it makes the directory of the run's lock
		if err != nil {
			return err
		}
		made()
	}
	unlock, err := lockRun(o)
	if unknown != nil && errors.Is(err, fs.ErrNotExist) {
		return unknown // why there is no directory: a capability, the machine's own namespace
	}
	if err != nil {
		return err
	}
	defer unlock()
	// An error is that nothing is wired, or what setup says again. The wiring of a run that was killed bears run's name.
	earlier, _ := phase1.Status(ctx, o.named())
	if earlier != nil && earlier.ManagedBy != managedByRun {
		return fmt.Errorf("NIC %s: %w, and not by agent run: a VM may be using it; agent exec runs a command beside that wiring, agent teardown takes it down", o.NIC, infra.ErrWired)
	}
	if o.Own && o.State != "" { // not before the lock: what another run uses is not left over
		if err := forgetEarlier(ctx, o); err != nil {
			return err
		}
	}
	o.ManagedBy = managedByRun
	err = wire(ctx, o)
	if earlier != nil && errors.Is(err, infra.ErrWired) {
		o.Progress("an earlier run was killed and had another configuration: its wiring is taken down first")
		if err = phase1.Teardown(ctx, o.named()); err == nil {
			err = wire(ctx, o)
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

// runLocks begin the names of the files that lockRun locks. A run that was killed leaves its file, which says nothing.
const runLocks = "run-"

// lockRun keeps another run of the same NIC away, which would take the wiring down under the first one's command.
func lockRun(o *options) (unlock func(), err error) {
	path := o.ownRunLock()
	if o.NetNS != nil {
		if path, err = o.runLock(); err != nil {
			return nil, err
		}
	}
	unlock, err = lockFile(path, os.O_CREATE)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("NIC %s: another agent run has it (fuser %s): end that one first", o.NIC, path)
	}
	return unlock, err
}

// ownRunLock is the lock of a run with -own, whose directory is the container's.
func (o *options) ownRunLock() string { return filepath.Join(o.Dir, runLocks+o.NIC) }

// runLock is the lock of a run with -netns.
func (o *options) runLock() (string, error) {
	var ns unix.Stat_t
	var err error
	if o.NetNS != nil {
		err = unix.Fstat(int(o.NetNS.Fd()), &ns)
	} else {
		err = unix.Stat("/proc/self/ns/net", &ns)
	}
	if err != nil {
		return "", fmt.Errorf("network namespace %s: %w", o.netns, err)
	}
	return fmt.Sprintf("%s-%d", o.ownRunLock(), ns.Ino), nil
}

// managedByLiving reports whether a run that lives has the NIC wired. A run that was killed holds no lock.
func managedByLiving(ctx context.Context, o *options) (bool, error) {
	elsewhere, err := o.runLock()
	if err != nil {
		return false, err
	}
	for _, path := range []string{o.ownRunLock(), elsewhere} {
		unlock, err := lockFile(path, 0)
		if err == nil {
			unlock()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			continue // what keeps this call from a lock, Setup says
		}
		// The lock can be that of a run which begins, or of another container with a directory in common.
		report, _ := phase1.Status(ctx, o.named())
		return report != nil && report.ManagedBy == managedByRun, nil
	}
	return false, nil
}

// lockFile returns unix.EWOULDBLOCK if another process has the lock. Unlock removes the file.
func lockFile(path string, flag int) (unlock func(), err error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|flag, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
		}
		mine, err := f.Stat()
		named, gone := os.Lstat(path)
		if err == nil && gone == nil && os.SameFile(mine, named) {
			return func() {
				os.Remove(path)
				f.Close()
			}, nil
		}
		f.Close() // its holder has removed it meanwhile
	}
}

// sweepRuns removes the locks of runs that were killed.
func sweepRuns(o *options) error {
	paths, err := filepath.Glob(filepath.Join(o.Dir, runLocks+"*"))
	if err != nil {
		return fmt.Errorf("-dir %s: %w", o.Dir, err)
	}
	for _, path := range paths {
		unlock, err := lockFile(path, 0)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			continue // a run that lives, or has just ended
		}
		if err != nil {
			return err
		}
		o.Progress("removes the lock " + path + " of a run that was killed")
		unlock()
	}
	return nil
}
