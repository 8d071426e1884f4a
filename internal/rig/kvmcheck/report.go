package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/internal/rig/vm"
)

// bindings are those that make a tap.
var bindings = []infra.Binding{infra.Bridge{}, infra.Masquerade{}, infra.Redirect{}, infra.Routed{}}

// report tries each VMM with each binding, and prints the report. The error says that something failed.
func (c check) report(ctx context.Context, to io.Writer) error {
	if err := vm.Missing(); err != nil {
		return err
	}
	rows := "| VMM | binding | result |\n| --- | --- | --- |\n"
	var details strings.Builder
	passed, failed := 0, 0
	for _, v := range vmms {
		if why := v.missing(); why != "" {
			rows += fmt.Sprintf("| %s | all | %s |\n", v.name, why)
			continue
		}
		for _, b := range bindings {
			fmt.Fprintf(os.Stderr, "%s, %s: ", v.name, b.Kind())
			what, err := c.try(ctx, v, b)
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			switch {
			case err != nil:
				failed++
				what = "**failed**"
				fmt.Fprintf(&details, "\n%s, %s:\n\n```\n%v\n```\n", v.name, b.Kind(), err)
			case strings.HasPrefix(what, "passed"):
				passed++
			}
			fmt.Fprintln(os.Stderr, what)
			rows += fmt.Sprintf("| %s | %s | %s |\n", v.name, b.Kind(), what)
		}
	}
	how := "on KVM"
	if c.emulated {
		how = "emulated, without KVM"
	}
	_, err := fmt.Fprintf(to, "# kvm-check: %s, %d passed, %d failed\n\n%s%s\n%s\n```\n%s```\n", how, passed, failed, rows, details.String(), c.machine(ctx), c.doctor(ctx))
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d guests failed", failed, passed+failed)
	}
	return err
}
