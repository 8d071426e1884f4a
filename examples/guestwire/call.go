package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/guestwire/guestwire/examples/guestwire/calls"
)

// How long a call may take. Most of it is waiting for other calls on the same namespace. Engines end a call after
// minutes, and by SIGKILL. A DEL that gives up says so and succeeds: what it leaves is for the next one, or a GC.
const (
	addTime   = time.Minute
	checkTime = 30 * time.Second
	delTime   = 20 * time.Second
	gcTime    = 2 * time.Minute
)

// within calls f with a context that ends after the time, or by SIGTERM.
func within(limit time.Duration, f func(context.Context, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
		defer stop()
		ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no end after %v", limit))
		defer cancel()
		return coded(f(ctx, args))
	}
}

// countTime is how long a call waits at most until it is counted.
const countTime = time.Second

// counted counts a call that had something to do. A call that cannot be counted is reported and is no error.
func counted(operation string, call func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		begin := time.Now()
		err := call(args)
		if errors.Is(err, errNothing) {
			return nil
		}
		took, code := time.Since(begin), uint(0)
		var failed *types.Error
		if errors.As(err, &failed) {
			code = failed.Code
		}
		ctx, cancel := context.WithTimeout(context.Background(), countTime)
		defer cancel()
		p, _ := readAnyPaths(args) // its error is that of the call, too
		if uncounted := calls.Count(ctx, p.Dir, operation, code, took); uncounted != nil {
			say("this %s is not counted: %v", operation, uncounted)
		}
		return err
	}
}
