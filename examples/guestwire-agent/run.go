package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/examples/nameproxy"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// runWired wires the NIC for as long as the command runs.
func runWired(ctx context.Context, o *options) error {
	if o.Owner.Inside {
		return commandline.Errorf("owner.inside: run starts the command in the agent's own user namespace: leave owner.inside out, or use setup")
	}
	if o.For != "" {
		return commandline.Errorf("for: run wires the NIC for itself: leave for out, or use setup")
	}
	o.For = nameproxy.Run
	if err := o.checkNames(); err != nil {
		return err
	}
	queueLog()
	signals, stop := passedOn() // one that comes between setup and the command is not lost
	defer stop()
	if o.Own && o.State != "" {
		unlock, err := forgetEarlier(ctx, o)
		if err != nil {
			return err
		}
		defer unlock()
	}
	var ended error
	err := o.While(ctx, o.Spec, func(record cache.Record) error {
		if err := printWired(o, record); err != nil {
			return err
		}
		endNames, err := o.runNames(ctx, record)
		if err != nil {
			return err
		}
		defer endNames()
		cmd := exec.Command(o.command[0], o.command[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		stop, err := relayReady(cmd, o.Owner.UID)
		if err != nil {
			return err
		}
		defer stop()
		ended = runCommand(cmd, o, signals)
		return nil
	})
	if err != nil && ended != nil {
		fmt.Fprintln(stderr, "guestwire-agent:", err) // the command's status alone may be in ended
		return ended
	}
	return errors.Join(ended, err)
}

// forgetEarlier removes the record and the journal that a container which was killed left in these directories, if they
// outlast its network: the record of another namespace would keep this one from the State. The lock keeps another run
// away from the directories, whose network may not be visible here.
func forgetEarlier(ctx context.Context, o *options) (unlock func(), err error) {
	moment, cancel := context.WithTimeoutCause(ctx, 100*time.Millisecond, fmt.Errorf("another guestwire-agent run uses -state %s: end it first", infra.ShellWord(o.State)))
	defer cancel()
	if unlock, err = directory.LockName(moment, cmp.Or(o.Dir, phase1.DefaultDir), filepath.Clean(o.State)); err != nil {
		return nil, err
	}
	err = phase1.Forget(ctx, phase1.Gone{NIC: o.Name, State: o.State, Own: true, Dir: o.Dir})
	if err != nil && !errors.Is(err, phase1.ErrAlive) { // an earlier run in this namespace, which setup resumes
		unlock()
		return nil, err
	}
	return unlock, nil
}
