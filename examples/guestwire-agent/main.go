// Agent is the privileged half of a VM launcher: it wires a NIC that lies in a namespace to a tap.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/examples/commandline"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
)

// The exit codes.
const (
	exitDone = iota
	exitFailed
	exitUsage    // a flag, a field of the configuration, or a path that does not open
	exitNotWired // there was no Setup of this NIC in this namespace
	exitDrift    // kernel or record are not as recorded
	exitRefused  // the binding cannot work on this NIC
	exitActive   // the guest may be active in another namespace
	exitInUse    // a process has the guest's tap open, or another process holds the NIC
	exitHalf     // of VMM and responder one is attached, and the other one is not
)

func main() {
	// A verb lives some milliseconds and allocates a few MiB. At 4 MiB, Go's first collection would come in the middle
	// of it.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	ctx, stop := commandline.Signals(context.Background())
	defer stop()
	err := run(ctx, os.Args[1:])
	if stdout.failed != nil && (err == nil || errors.Is(err, errSaid)) {
		err = stdout.failed
	}
	if err != nil && !errors.Is(err, errSaid) {
		fmt.Fprint(stderr, commandline.Line("guestwire-agent:", err))
		if len(os.Args) > 1 && os.Args[1] == "hook" {
			if kept := keepReason(os.Args[2:], err); kept != nil {
				fmt.Fprint(stderr, commandline.Line("guestwire-agent:", kept))
			}
		}
	}
	if log != nil {
		_ = log.Close() // what the reader has not taken is lost
	}
	os.Exit(exitCode(err))
}

func exitCode(err error) int {
	var (
		usage   *commandline.Error
		field   *cache.FieldError
		drift   *phase1.DriftError
		refused *infra.RefusedError
		command commandError
		half    halfError
	)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &command):
		return command.status
	case errors.Is(err, phase1.ErrNotWired):
		return exitNotWired
	case errors.Is(err, phase1.ErrActive):
		return exitActive
	case errors.As(err, &drift):
		return exitDrift
	case errors.As(err, &refused):
		return exitRefused
	case errors.Is(err, phase1.ErrInUse), errors.Is(err, phase1.ErrHeld):
		return exitInUse
	case errors.As(err, &half):
		return exitHalf
	case errors.As(err, &usage), errors.As(err, &field):
		return exitUsage
	}
	return exitFailed
}

func run(ctx context.Context, args []string) error {
	v, o, flags, err := program.Parse(stdout, args)
	if v == nil {
		return err
	}
	if err := o.fill(ctx, flags); err != nil {
		return commandline.Errorf("%w", err)
	}
	// Without -netns, status says where to find one, and exec runs the command in the agent's own namespace.
	optional := slices.Contains([]string{"status", "doctor", "exec", "teardown"}, v.Name)
	named := o.Own
	flags.Visit(func(f *flag.Flag) { // an empty one, of an empty variable, is a mistake
		named = named || f.Name == "netns"
		o.byState = o.byState || f.Name == "state" && slices.Contains(byState, v.Name)
	})
	if o.byState && (named || o.all) {
		return commandline.Errorf("-state stands instead of -netns, -own and -all: name one of them")
	}
	if o.all && (named || o.Name != "") {
		return commandline.Errorf("-all is all NICs of the node: leave -netns, -own and -nic out")
	}
	if o.byState && v.Has("netns") {
		if err := o.openWired(ctx); err != nil {
			return err
		}
		defer o.NetNS.Close()
	} else if v.Has("netns") && !o.all && (named || !optional) {
		if v.Has("nic") && o.Name == "" && named {
			return commandline.Errorf("-nic is missing: name the NIC in the namespace, such as eth0")
		}
		others := ""
		if slices.Contains(byState, v.Name) {
			others = ", or -state with the directory of the record"
		}
		if v.Has("all") {
			others += ", or -all for all NICs"
		}
		if err := o.openNetNS(others); err != nil {
			return err
		}
		defer o.NetNS.Close()
	}
	return v.Do(ctx, o)
}

// remedy is what to do about a syntax error, whose text ends at the wrong character.
func remedy(text, err string) string {
	if text == "" {
		return " (the file is empty)"
	}
	last, before := text[len(text)-1], strings.TrimSpace(text[:len(text)-1])
	switch {
	case (last == '}' || last == ']') && strings.HasSuffix(before, ","):
		return " (leave out the comma before it)"
	case (last == '/' || last == '#') && strings.HasPrefix(err, "invalid character"):
		return " (JSON has no comments)"
	case last == '\'':
		return ` (want ")`
	case last == '"' && strings.Contains(err, " after "):
		return " (a comma is missing before it)"
	}
	return ""
}
