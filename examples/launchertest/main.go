// Launcher is the network part of a VM's launcher: it answers the guest until SIGTERM, as an ordinary user. See its
// test.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/guestwire/guestwire/phase2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: launchertest STATE, the directory of the records (infra.Spec.State)")
		os.Exit(2)
	}
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "guestwire-launcher:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, state string) error {
	vm, err := phase2.Open(state)
	if err != nil {
		return err
	}
	stop, err := vm.Start(ctx)
	if err != nil {
		return err
	}
	fmt.Println("ready") // a launcher starts the VM now
	<-ctx.Done()
	stop()
	return nil
}
