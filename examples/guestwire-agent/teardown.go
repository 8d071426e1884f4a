package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

func teardown(ctx context.Context, o *options) error {
	if o.down.Force && o.down.Discard {
		return commandline.Errorf("-discard and -force exclude each other: -discard needs the journal, -force does without")
	}
	if o.NetNS == nil && !o.Own {
		if o.State == "" || o.Name == "" || o.down.Force || o.down.Discard {
			return commandline.Errorf("-netns is missing: name the network namespace, such as /run/netns/pod, or -own for the agent's own; or name -state and -nic, without -force and -discard, and the journal leads to the namespace")
		}
		found, err := teardownOf(ctx, o)
		if found == 0 && err == nil {
			whose := ""
			if o.For != "" {
				whose = " for " + infra.ShellWord(o.For)
			}
			fmt.Fprintf(stderr, "guestwire-agent: NIC %s is not wired with -state %s%s: nothing is taken down (guestwire-agent list -json -dir %s shows the directory of each NIC, and for whom it is)\n", o.Name, infra.ShellWord(o.State), whose, infra.ShellWord(o.Dir))
			o.explainRecord()
		}
		return err
	}
	o.down.State, o.down.For = o.State, o.For
	err := o.Teardown(ctx, o.down)
	var left *phase1.LeftError
	switch {
	case errors.As(err, &left):
		for _, what := range left.What {
			fmt.Fprintln(stderr, "guestwire-agent: not known, so not restored:", what)
		}
		if !o.Own {
			fmt.Fprintf(stderr, "guestwire-agent: a shell in this namespace, for such commands: nsenter --net=%s\n", infra.ShellWord(o.netns))
		}
		err = left.Err
	case err == nil && !o.down.Force:
		o.explainRecord()
	}
	if errors.Is(err, infra.ErrNoNIC) {
		fmt.Fprintf(stderr, "guestwire-agent: %s has gone; everything else is removed\n", o.Name)
		return nil
	}
	return err
}

// explainRecord says what a record is of that is still there after a teardown without an error.
func (o *options) explainRecord() {
	if o.State == "" || !recorded(o.record()) {
		return
	}
	of := fmt.Sprintf("-state %s -nic %s -dir %s", infra.ShellWord(o.State), infra.ShellWord(o.Name), infra.ShellWord(o.Dir))
	fmt.Fprintf(stderr, "guestwire-agent: %s stays: it is the record of another wiring. If the namespace of that wiring is gone, as after a boot: guestwire-agent forget %s. "+
		"If the namespace is there, and the journal is lost: guestwire-agent teardown -force -netns PATH %[2]s\n", o.record(), of)
}

// teardownOf takes down what is wired with the State, and returns how many NICs that were. It finds the namespace by
// the journal.
func teardownOf(ctx context.Context, o *options) (found int, err error) {
	wirings, err := o.wirings(ctx)
	for _, w := range wirings {
		err = errors.Join(err, takeDown(ctx, o, w))
	}
	return len(wirings), err
}

func takeDown(ctx context.Context, o *options, w phase1.Wiring) error {
	ns, err := w.Open(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return phase1.Forget(ctx, phase1.Gone{Namespace: w.Namespace, NIC: w.NIC, State: w.State, For: w.For, Own: o.Own, Dir: o.Dir})
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	o.down.For = w.For
	err = phase1.NIC{NetNS: ns, Name: w.NIC, Dir: o.Dir, Progress: o.Progress}.Teardown(ctx, o.down)
	if errors.Is(err, infra.ErrNoNIC) { // the engine has removed the NIC; the rest is removed
		return nil
	}
	return err
}

func forget(ctx context.Context, o *options) error {
	return phase1.Forget(ctx, phase1.Gone{Namespace: o.namespace, NIC: o.Name, State: o.State, For: o.For, Own: o.Own, Dir: o.Dir, Progress: o.Progress})
}

// forgetCall is the command line that removes what is left of a wiring whose namespace is gone.
func (o *options) forgetCall(w phase1.Wiring) string {
	return o.call("forget -namespace "+w.Namespace, w.NIC)
}
