// Guestwire-node makes a Kubernetes node wire the NICs of VM pods: it puts the CNI plugin guestwire into the node's CNI
// list, and gives the launchers' containers their records and devices.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"

	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/examples/logqueue"
)

// The exit codes.
const (
	exitDone = iota
	exitFailed
	exitUsage
)

func main() {
	ctx, stop := commandline.Signals(context.Background())
	defer stop()
	text := logqueue.New(os.Stderr, func(lines int) string {
		return fmt.Sprintf("guestwire-node: %d lines were lost: the reader of standard error was too slow, or gone\n", lines)
	})
	stdlog.SetOutput(text) // what net/http says
	err := run(ctx, os.Args[1:], os.Stdout, slog.New(slog.NewTextHandler(text, nil)))
	if err != nil {
		fmt.Fprint(text, commandline.Line("guestwire-node:", err))
	}
	_ = text.Close() // what the reader has not taken is lost
	os.Exit(exitCode(err))
}

func exitCode(err error) int {
	var usage *commandline.Error
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage):
		return exitUsage
	}
	return exitFailed
}

func run(ctx context.Context, args []string, stdout io.Writer, log *slog.Logger) error {
	v, o, err := parse(stdout, args)
	if v == nil || err != nil {
		return err
	}
	o.stdout, o.log = stdout, log
	return v.Do(ctx, o)
}

// parse returns the verb and the values of its flags, checked as far as they can be without the node. The verb is nil
// if help was asked for.
func parse(stdout io.Writer, args []string) (*verb, *options, error) {
	v, o, _, err := program.Parse(stdout, args)
	if v == nil {
		return nil, nil, err
	}
	if err := o.check(); err != nil {
		return nil, nil, commandline.Errorf("%w; see guestwire-node help %s", err, v.Name)
	}
	return v, o, nil
}
