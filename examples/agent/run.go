package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

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
	if _, err := o.managed(ctx); err != nil { // before the lock makes the directory
		return err
	}
	name, err := o.runLock()
	if err != nil {
		return err
	}
	unlock, err := o.lockRun(ctx, name)
	if errors.Is(err, errRuns) {
		return fmt.Errorf("NIC %s: another agent run has it: end that one first: %w", o.NIC, err)
	}
	if err != nil {
		return err
	}
	defer unlock()
	earlier, err := o.managed(ctx) // the wiring of a run that was killed bears run's name
	if err != nil {
		return err
	}
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

// managed returns the report of the NIC's wiring; nil: it is not wired.
func (o *options) managed(ctx context.Context) (*phase1.Report, error) {
	report, err := phase1.Status(ctx, o.named())
	if report != nil || errors.Is(err, phase1.ErrNotWired) {
		return report, nil
	}
	return nil, err
}

// ownRunLock is the lock of a run with -own, whose directory is the container's.
func (o *options) ownRunLock() string { return managedByRun + " " + o.NIC }

// runLock is the lock of this call.
func (o *options) runLock() (string, error) {
	if o.NetNS == nil {
		return o.ownRunLock(), nil
	}
	return o.runLockIn(o.NetNS)
}

// runLockIn is the lock of a run with -netns.
func (o *options) runLockIn(ns *os.File) (string, error) {
	info, err := ns.Stat()
	if err != nil {
		return "", fmt.Errorf("network namespace %s: %w", ns.Name(), err)
	}
	return fmt.Sprintf("%s %d", o.ownRunLock(), info.Sys().(*syscall.Stat_t).Ino), nil
}

// errRuns says that a run that lives holds the lock.
var errRuns = errors.New("it runs")

// lockRun keeps another run of the same NIC away, which would take the wiring down under the first one's command. It gives a run
// that is ending a moment.
func (o *options) lockRun(ctx context.Context, name string) (unlock func(), err error) {
	moment, cancel := context.WithTimeoutCause(ctx, 100*time.Millisecond, errRuns)
	defer cancel()
	return phase1.Lock(moment, o.Dir, name, nil)
}

// managedByLiving reports whether a run that lives has the NIC wired. A run that was killed holds no lock.
func managedByLiving(ctx context.Context, o *options) (bool, error) {
	report, err := o.managed(ctx)
	if err != nil || report == nil || report.ManagedBy != managedByRun {
		return false, nil // what Status cannot say, Setup says
	}
	ns := o.NetNS
	if ns == nil {
		if ns, err = os.Open("/proc/self/ns/net"); err != nil {
			return false, err
		}
		defer ns.Close()
	}
	elsewhere, err := o.runLockIn(ns)
	if err != nil {
		return false, err
	}
	for _, name := range []string{o.ownRunLock(), elsewhere} {
		unlock, err := o.lockRun(ctx, name)
		if errors.Is(err, errRuns) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		unlock()
	}
	return false, nil
}
