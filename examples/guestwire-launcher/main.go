// Launcher is the unprivileged half of a VM launcher: it describes the interfaces that the agent has
// wired, answers the guest, and runs QEMU with the guest.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/guestwire/guestwire/examples/commandline"
)

func main() {
	err := run(os.Args[1:])
	if err == nil {
		err = stdout.failed
	}
	status := exitStatus(err)
	var closing sync.WaitGroup
	for _, q := range queues {
		closing.Go(func() { _ = q.Close() }) // what the reader has not taken is lost
	}
	closing.Wait()
	os.Exit(status)
}

// exitStatus prints the error, unless QEMU has said why.
func exitStatus(err error) int {
	var status statusError
	var usage *commandline.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return status.status
	}
	text := commandline.Line("guestwire-launcher:", err)
	fmt.Fprint(stderr, text)
	if logged != stderr {
		fmt.Fprint(logged, text)
	}
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

func run(args []string) error {
	v, o, flags, err := program.Parse(stdout, args)
	switch {
	case v == nil:
		return err
	case o.shutdown < 0:
		return commandline.Errorf("-shutdown %v is negative: name the time that the guest has to shut down, such as 50s", o.shutdown)
	case v.Has("format") && !slices.Contains(formats, o.format):
		return commandline.Errorf("-format %q is none of %s", o.format, strings.Join(formats, ", "))
	case o.device != "" && o.format != "kernel":
		return commandline.Errorf("-device %s: of -format kernel alone", o.device)
	case o.state == "":
		return commandline.Errorf("-state is missing: name the agent's state directory; in a Kubernetes pod it is /run/guestwire")
	}
	o.command = flags.Args()
	return v.Do(context.Background(), o)
}
