// Qemu is a whole launcher in one file: it gives eth0 of a network namespace to QEMU, and takes it back when QEMU ends.
//
//	qemu /run/netns/pod qemu-system-x86_64 -accel kvm -m 512 -kernel vmlinuz -initrd initrd.img -nographic ...
//
// It runs as root. QEMU and the responder run as user 107 in the namespace, without privileges. Unlike the programs
// agent and launcher, one program is both sides, so the unprivileged process contains the privileged side's code.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/guestwire/guestwire/cache"
	"github.com/guestwire/guestwire/domain/qemu"
	"github.com/guestwire/guestwire/infra"
	"github.com/guestwire/guestwire/phase1"
	"github.com/guestwire/guestwire/phase1/launch"
	"github.com/guestwire/guestwire/phase2"
	"github.com/guestwire/guestwire/phase2/vmm"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: qemu NETNS QEMU ARGUMENTS...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	side, name := wire, "launch"
	if os.Args[1] == "serve" {
		side, name, os.Args = serve, "serve", os.Args[1:]
	}
	if err := side(ctx, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// wire is the privileged side: it wires the NIC for as long as this program runs again, without privileges.
func wire(ctx context.Context, netns string, command []string) error {
	ns, err := phase1.OpenNetNS(netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	nic := phase1.NIC{NetNS: ns, Name: "eth0"}
	spec := infra.Spec{Binding: infra.Auto{}, Owner: infra.Owner{UID: 107, GID: 107}, State: "/run/guestwire/vm1"}
	cmd := exec.Command("/proc/self/exe", append([]string{"serve", spec.State}, command...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return nic.While(ctx, spec, func(cache.Record) error { return launch.Run(ctx, cmd, ns, spec.Owner) })
}

// serve is the unprivileged side: it answers the guest, and runs QEMU on the guest's taps.
func serve(ctx context.Context, state string, command []string) error {
	vm, err := phase2.Open(state)
	if err != nil {
		return err
	}
	args, taps, err := qemu.Args(vm.Records(), 3, phase2.OpenTap) // ExtraFiles begins with descriptor 3
	if err != nil {
		return err
	}
	stop, err := vm.Start(context.WithoutCancel(ctx)) // each request of the guest is answered, until QEMU has ended
	if err != nil {
		return err
	}
	defer stop()
	cmd := exec.Command(command[0], append(command[1:], args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, taps
	return vmm.Run(ctx, cmd)
}
