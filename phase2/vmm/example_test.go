package vmm_test

import (
	"context"
	"log"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/phase2"
	"github.com/guestwire/guestwire/phase2/vmm"
)

// The unprivileged half of a launcher for QEMU.
func ExampleRun() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	vm, err := phase2.Open("/run/guestwire/vm1")
	if err != nil {
		log.Fatal(err)
	}
	args, taps, err := qemu.Args(vm.Records(), 3, phase2.OpenTap)
	if err != nil {
		log.Fatal(err)
	}
	done, err := vm.Start(context.WithoutCancel(ctx)) // the guest is answered until QEMU has ended
	if err != nil {
		log.Fatal(err)
	}
	defer done()
	cmd := exec.Command("qemu-system-x86_64", args...)
	cmd.ExtraFiles = taps
	if err := vmm.Run(ctx, cmd); err != nil {
		log.Print(err)
	}
}
