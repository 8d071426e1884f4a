package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// repair repairs a NIC, or with -all each one of the node. With -all the error is that of the first NIC which has one.
func repair(ctx context.Context, o *options) error {
	if !o.all {
		return repairNIC(ctx, o.NIC, "")
	}
	wirings, err := phase1.List(ctx, o.Dir)
	if err != nil {
		return err
	}
	var first error
	for _, w := range wirings {
		n, err := o.openNIC(ctx, w)
		if err == nil {
			n.Progress = func(text string) { o.Progress(place(w) + ": " + text) }
			err = repairNIC(ctx, n, " of "+place(w))
			n.NetNS.Close()
		}
		if err != nil {
			fmt.Fprintf(stdout, "%s of %s: %v\n", w.NIC, place(w), err)
		}
		if first == nil {
			first = err
		}
	}
	return said(first)
}

// repairNIC repairs the NIC, and prints what Check has found before. Of is empty if the NIC was named.
func repairNIC(ctx context.Context, n phase1.NIC, of string) error {
	var drift *phase1.DriftError
	_ = errors.As(n.Check(ctx), &drift) // Repair has the other errors
	if _, err := n.Repair(ctx); err != nil {
		return err
	}
	if drift == nil {
		if of == "" {
			fmt.Fprintf(stdout, "%s: as recorded\n", n.Name)
		}
		return nil
	}
	for _, d := range drift.Differs {
		if d.Way == "" {
			fmt.Fprintf(stdout, "%s%s: repaired: %v\n", n.Name, of, d)
		}
	}
	return nil
}

// repairCall is the command line that repairs the NIC.
func (o *options) repairCall() string {
	namespace := "-netns " + infra.ShellWord(o.netns)
	if o.Own {
		namespace = "-own"
	}
	return o.call("repair "+namespace, o.Name)
}

// call is a command line of the agent for a NIC, with the journals of this one.
func (o *options) call(words, nic string) string {
	call := "guestwire-agent " + words + " -nic " + infra.ShellWord(nic)
	if o.Dir != phase1.DefaultDir {
		call += " -dir " + infra.ShellWord(o.Dir)
	}
	return call
}
