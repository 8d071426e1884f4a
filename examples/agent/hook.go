package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// container is the state that an OCI runtime writes to the standard input of a hook (runtime-spec, runtime.md, State).
type container struct {
	ID     string `json:"id"`
	Status string `json:"status"` // creating, created, running, stopped
	PID    int    `json:"pid"`    // of its first process, as the runtime sees it
	Bundle string `json:"bundle"` // the directory of config.json
}

// hook wires the NIC of a container that is created, and gives the namespace of one that has stopped back.
func hook(ctx context.Context, o *options) error {
	var c container
	if err := json.NewDecoder(os.Stdin).Decode(&c); err != nil {
		return usageError{fmt.Errorf("the container's state on standard input: %w (an OCI runtime calls agent hook)", err)}
	}
	if c.ID == "" || c.ID[0] == '.' || strings.ContainsRune(c.ID, '/') {
		return usageError{fmt.Errorf("the container's id is %q", c.ID)}
	}
	if o.State == "" {
		o.State = filepath.Join("/run/guestwire", c.ID)
		if err := os.MkdirAll(filepath.Dir(o.State), 0o755); err != nil {
			return err
		}
	}
	if c.Status == "stopped" {
		return c.unwire(ctx, o)
	}
	if c.PID <= 0 {
		return usageError{fmt.Errorf("container %s is %s, and has no process: call agent hook as createRuntime and poststop", c.ID, c.Status)}
	}
	ns, err := phase1.OpenNetNS(fmt.Sprintf("/proc/%d/ns/net", c.PID))
	if err != nil {
		return fmt.Errorf("container %s: %w", c.ID, err)
	}
	defer ns.Close()
	if own, err := os.Stat("/proc/self/ns/net"); err != nil {
		return err
	} else if other, err := ns.Stat(); err != nil || os.SameFile(own, other) {
		return fmt.Errorf("container %s has the machine's network, which a guest does not get: give it a network of its own", c.ID)
	}
	o.NetNS = ns
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if err := forgetGone(ctx, o); err != nil { // of another container, which does not keep this one from starting
			fmt.Fprintln(stderr, "agent:", err)
		}
		// The State may be that of an earlier container, whose namespace is about to end.
		if err := setup(ctx, o); !errors.Is(err, infra.ErrWired) || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
	}
}

// unwire does what teardown does, if the container's namespace is still there, as that of a pod is; else what forget
// does.
func (c container) unwire(ctx context.Context, o *options) error {
	ns, err := c.netNS()
	if err != nil {
		return fmt.Errorf("container %s: %w", c.ID, err)
	}
	if ns == nil {
		return forgetGone(ctx, o)
	}
	defer ns.Close()
	o.NetNS = ns
	return o.Teardown(ctx, phase1.TeardownOptions{State: o.State, CutOff: true})
}

// forgetGone removes what is left of containers that have gone. Those whose namespaces are alive are left: podman's
// poststop comes while podman itself still has a socket in the namespace, so the next hook removes what that one could
// not.
func forgetGone(ctx context.Context, o *options) error {
	err := phase1.Forget(ctx, phase1.Gone{Own: o.engineOwn, Dir: o.Dir, Progress: func(string) {}})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// netNS opens the network namespace that the container was given; nil: it is gone, or was the container's own.
func (c container) netNS() (*os.File, error) {
	text, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	var config struct {
		Linux struct {
			Namespaces []struct {
				Type string `json:"type"`
				Path string `json:"path"`
			} `json:"namespaces"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("config.json of the bundle: %w", err)
	}
	for _, n := range config.Linux.Namespaces {
		if n.Type != "network" || n.Path == "" {
			continue
		}
		if ns, err := phase1.OpenNetNS(n.Path); err == nil { // else forget looks whether it is gone
			return ns, nil
		}
	}
	return nil, nil
}
