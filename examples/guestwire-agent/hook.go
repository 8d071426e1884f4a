package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/phase1"
)

// container is the state that an OCI runtime writes to a hook's standard input (runtime-spec, runtime.md, State).
type container struct {
	ID          string
	Status      string // creating, created, running, stopped
	PID         int    // of its first process, as the runtime sees it
	Annotations map[string]string
}

// mostState is the size of a container's state that hook reads: Kubernetes has 256 KiB for all annotations of a pod,
// and each octet of one can take six in JSON. An id is a part of each error, and the Spec's For.
const mostState, mostID = 2 << 20, 253

// mostLog is the size at which hook.log becomes hook.log.old: an engine may start a container again and again.
const mostLog = 1 << 20

// keepReason appends why a hook failed to hook.log in the directory of -state. crun drops what a hook prints, and no
// engine has it in the container's log. The flags may be those that could not be parsed.
func keepReason(flags []string, reason error) (err error) {
	dir := hookState
	for i, f := range flags {
		name, value, has := strings.Cut(strings.TrimPrefix(f, "-"), "=")
		switch {
		case strings.TrimPrefix(name, "-") != "state" || !strings.HasPrefix(f, "-"):
		case has:
			dir = value
		case i+1 < len(flags):
			dir = flags[i+1]
		}
	}
	if !filepath.IsAbs(dir) { // that is the mistake
		dir = hookState
	}
	in, err := directory.Make(dir, 0o755)
	if err != nil {
		return err
	}
	defer in.Close()
	const name = "hook.log"
	if s, err := in.Lstat(name); err == nil && s.Size() >= mostLog {
		if err := in.Rename(name, name+".old"); err != nil {
			return err
		}
	}
	file, err := in.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	_, err = io.WriteString(file, time.Now().Format(time.RFC3339)+" "+commandline.Line("guestwire-agent:", reason))
	return err
}

// hook wires the NIC of a container that is created, and unwires the one of a container that has stopped.
func hook(ctx context.Context, o *options) error {
	text, err := readAll(os.Stdin, mostState)
	var c container
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(text)).Decode(&c)
	}
	if err == nil && (c.ID == "" || len(c.ID) > mostID) {
		err = fmt.Errorf("the id has %d octets, want 1 to %d", len(c.ID), mostID)
	}
	if err != nil {
		return commandline.Errorf("standard input has no container's state (%w): an OCI runtime calls guestwire-agent hook", err)
	}
	if err := c.called(ctx, o); err != nil {
		return fmt.Errorf("container %s: %w", c.ID, err)
	}
	return nil
}

func (c container) called(ctx context.Context, o *options) error {
	const key = "guestwire/state"
	name := c.Annotations[key]
	if name == "" || name != filepath.Base(name) || name[0] == '.' || len(name) > 255 { // NAME_MAX
		return commandline.Errorf("annotation %s: %.300q, want the name of a directory in %s", key, name, o.State)
	}
	var err error
	if o.State, err = filepath.EvalSymlinks(filepath.Join(o.State, name)); err != nil { // journals have the real path
		return fmt.Errorf("annotation %s: %w: make the directory, and mount it", key, err)
	}
	unlock, err := directory.LockName(ctx, cmp.Or(o.Dir, phase1.DefaultDir), "hook "+o.State)
	if err != nil {
		return err
	}
	defer unlock()
	switch {
	case c.Status == "creating" || c.Status == "created":
		return c.wire(ctx, o)
	case c.Status != "stopped":
		return commandline.Errorf("is %.100q: call guestwire-agent hook as createRuntime and poststop", c.Status)
	}
	o.For = c.ID // another container may use the State by now
	return unwire(ctx, o)
}

func (c container) wire(ctx context.Context, o *options) error {
	wirings, err := phase1.List(ctx, o.Dir)
	if err != nil {
		return err
	}
	for _, w := range wirings {
		if w.State == o.State && len(w.FoundAt) > 0 && w.For != c.ID {
			return fmt.Errorf("%s is in use by NIC %s, which is not wired for this container: stop the other container, or name another directory; where no container is left, guestwire-agent list shows the namespace for guestwire-agent teardown", o.State, w.NIC)
		}
	}
	o.For = ""
	if err := unwire(ctx, o); err != nil { // what a hook that was killed has left, or a container without poststop
		return err
	}
	o.For = c.ID
	ns, err := phase1.OpenNetNS(fmt.Sprintf("/proc/%d/ns/net", c.PID))
	if err != nil {
		return err
	}
	defer ns.Close()
	record, err := phase1.NIC{NetNS: ns, Name: o.Name, Dir: o.Dir, Progress: o.Progress}.Setup(ctx, o.Spec)
	if errors.Is(err, phase1.ErrOwnNamespace) {
		err = fmt.Errorf("it has the machine's network, which no guest gets: give it one of its own: %w", err)
	}
	if err != nil {
		return errors.Join(err, unwire(context.WithoutCancel(ctx), o))
	}
	return printWired(o, record)
}

// unwire gives back what is wired with the State, and forgets it if the namespace is gone. It finds the namespace by
// the journal: the number and the path that the container had may be another namespace's by now.
func unwire(ctx context.Context, o *options) error {
	o.down.CutOff = true
	_, err := teardownOf(ctx, o)
	return err
}
